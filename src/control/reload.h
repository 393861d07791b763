/*
 * A reload parses the new configuration, validates it as a whole (sockets included),
 * compares it with the old one and swaps the two. After any error, a lack of memory too,
 * the old configuration stays in force as it was. Called by daemon.c (SIGHUP) and the
 * admin API.
 */
#ifndef CONTROL_RELOAD_H
#define CONTROL_RELOAD_H

#include "control/control.h"

struct reload_change {
	char *section, *key, *was, *now;
};

struct reload_report {
	struct reload_change *changes;
	size_t n, cap;
	struct conf_errors errors; /* warnings too, also when it went well */
};

/* 0, or ERR_PARSE or ERR_NOMEM and errors in the report. Logs one line either way. */
int reload_run(struct control *c, struct reload_report *report) MUST_CHECK;
/* The same for SIGHUP, for which no caller waits: after an upgrade, if one is under
 * way. */
void reload_by_signal(struct control *c);
/*
 * The first error in full, and the keys of the others as far as they are few, as one line
 * into out. There is an error. RELOAD_FAILURE_MAX is room for any.
 */
#define RELOAD_FAILURE_MAX (CONF_ERROR_TEXT_MAX + 2048)
void reload_failure_text(const struct conf_errors *errors, char *out, size_t n);
void reload_report_free(struct reload_report *report);

#endif
