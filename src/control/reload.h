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
void reload_report_free(struct reload_report *report);

#endif
