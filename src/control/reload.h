/*
 * A new configuration in: parsed, validated whole (sockets included), compared, swapped.
 * Any error and nothing changes. Called by daemon.c (SIGHUP) and admin.c.
 */
#ifndef CONTROL_RELOAD_H
#define CONTROL_RELOAD_H

#include "control/control.h"

struct reload_change {
	char *section, *key, *was, *now;
};

struct reload_report {
	struct reload_change *changes;
	size_t n;
	struct conf_errors errors; /* warnings too, also when it went well */
};

/* 0, or ERR_PARSE and errors in the report. Logs one line either way. */
int reload_run(struct control *c, struct reload_report *report) MUST_CHECK;
/* The same for SIGHUP, which nobody waits for: after an upgrade, where one is under way.
 */
void reload_by_signal(struct control *c);
/* What is wrong in one line, a new string; there is an error. */
char *reload_failure_text(const struct conf_errors *errors);
void reload_report_free(struct reload_report *report);

#endif
