/*
 * Errors and warnings of a configuration, line by line. See conf_log.h.
 */
#include "control/conf_log.h"

#include "base/cleanup.h"
#include "conf/conf.h"

void conf_log(const struct conf_errors *errors, enum log_level level)
{
	size_t i;

	for (i = 0; i < errors->n; i++) {
		scoped_free char *text = conf_error_text(&errors->items[i]);

		log_at(level, NULL, "%s", text);
	}
}
