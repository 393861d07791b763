/*
 * Logs the errors and warnings of a configuration.
 */
#ifndef CONTROL_CONF_LOG_H
#define CONTROL_CONF_LOG_H

#include "base/log.h"

struct conf_errors;

/* One line for each, all at this level. */
void conf_log(const struct conf_errors *errors, enum log_level level);

#endif
