/*
 * The router's own answers on the client side that need this room: readiness and the
 * merged model list. Runs on the I/O threads. Set once by daemon.c.
 */
#ifndef CONTROL_LOCAL_H
#define CONTROL_LOCAL_H

#include "base/base.h"

struct models;

/* Before the threads start; models must outlive them. */
void local_answers_start(struct models *models);

#endif
