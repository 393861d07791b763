/*
 * The checks that look at more than one value: of a worker, of a pair of workers, and of
 * the whole configuration. Called by conf.c only.
 */
#ifndef CONF_CONF_CHECK_H
#define CONF_CONF_CHECK_H

#include "conf/conf.h"
#include "conf/conf_flags.h"
#include "conf/conf_source.h"

/* The name of a worker's key in an error: the key, or the flag that made the worker. */
const char *conf_worker_key_name(const struct worker_conf *w, const char *key);
/* One worker by itself; s says where its lines are. True when it may be used. */
bool conf_check_worker(const struct worker_conf *w, const struct conf_section *s,
	struct conf_errors *errors);
/*
 * No other worker of c has its URL in the same role (names cannot clash: sections are
 * unique, flag workers get a free name). The place is that of its URL.
 */
bool conf_check_twins(const struct conf *c, const struct worker_conf *w, const char *file,
	unsigned line, const char *key, struct conf_errors *errors);
/* A key and value from the admin API, beside those taken already. */
bool conf_check_pair(const struct conf_section *s, const struct conf_pair *pair,
	struct conf_errors *errors);
/* Prefill and decode in one pool (conf_roles.c). */
void conf_check_roles(const struct conf *c, const struct conf_source *source,
	const struct pool_conf *pool, struct conf_errors *errors);
/* Each name stands for one model, of one pool, that is no alias (conf_alias.c). */
void conf_check_aliases(const struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors);
/* "pool NAME <message>", at its section where it has one. */
void conf_warn_of_pool(const struct conf_source *source, const struct pool_conf *pool,
	const char *key, const char *hint, const char *message,
	struct conf_errors *errors);
void conf_check_whole(const struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors);

#endif
