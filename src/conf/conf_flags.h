/*
 * The command line of kvsteerd: flags of the vLLM router and its peers by their own
 * names, and every key of [router] and [pool] as --key-with-dashes. The result is kept
 * as settings, so that a reload can apply them over the file again. Called by daemon.c at
 * start; conf.c reads the result.
 */
#ifndef CONF_CONF_FLAGS_H
#define CONF_CONF_FLAGS_H

#include "conf/conf_table.h"

#include <stdio.h>

#define CONF_DEFAULT_FILE "/etc/kvsteer/kvsteer.conf"

/* Where a setting acts: as if it stood in that section, in place of what the file says
 * there. */
enum conf_scope {
	CONF_SCOPE_ROUTER,
	CONF_SCOPE_POOL,    /* every pool */
	CONF_SCOPE_PREFILL, /* every pool's prefill role */
	CONF_SCOPE_DECODE,
	CONF_SCOPE_WORKERS /* the workers of the command line */
};

struct conf_setting {
	enum conf_scope scope;
	const struct conf_key *key;
	char *value;   /* readable: checked when it was given */
	bool is_first; /* of a list key: it replaces what the file says */
};

struct conf_flag_worker {
	char *url;
	enum role role;
	char *bootstrap_port; /* NULL: none was given */
	const char *flag;     /* "--worker-urls" */
};

struct conf_flags {
	/* -c's, else the default file when no worker flag was given, else NULL. Not
	 * owned. */
	const char *conf_file;
	bool is_default_file; /* conf_file is the default: it may be missing if flags
				 suffice */
	bool test, print, version, help;
	bool has_worker_flag; /* also for an empty --worker-urls */
	struct conf_setting *settings;
	size_t n_settings;
	struct conf_flag_worker *workers;
	size_t n_workers;
};

/*
 * Reads argv[1] onwards. 0 and *out, which conf_flags_free() releases and which points
 * into argv; or ERR_PARSE and at least one error in *errors, all of them. Warnings may be
 * there in both cases. errors must be zeroed before its first use.
 */
int conf_flags_parse(int argc, char **argv, struct conf_errors *errors,
	struct conf_flags *out) MUST_CHECK;
void conf_flags_free(struct conf_flags *flags);

/* The text of -h, from the flag table. */
void conf_usage(FILE *to);
/* The rows of --dump-tables, in the order of -h. */
void conf_dump_flags(void);

#endif
