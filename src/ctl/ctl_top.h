/*
 * kvsteerctl top. Used by ctl.c.
 */
#ifndef CTL_CTL_TOP_H
#define CTL_CTL_TOP_H

#include "ctl/ctl_call.h"

enum ctl_exit ctl_top(const struct ctl *ctl);

#endif
