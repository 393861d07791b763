/*
 * Errors and warnings of a configuration, line by line. See conf_log.h.
 */
#include "control/conf_log.h"

#include "conf/conf.h"

void conf_log(const struct conf_errors *errors, enum log_level level)
{
	const struct conf_error *e;
	char text[CONF_ERROR_TEXT_MAX];
	size_t i;

	for (i = 0; (e = conf_errors_at(errors, i)) != NULL; i++) {
		conf_error_print(e, text, sizeof(text));
		log_at(level, NULL, "%s", text);
	}
}
