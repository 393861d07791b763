/*
 * Checks of prefill and decode: pools in which one role is missing, workers without a
 * partner, keys that contradict the other role. They are warnings if the admin API may
 * add the missing worker. Called by conf_check.c.
 */
#include "conf/conf_check.h"

#include <stdio.h>
#include <string.h>

static const struct conf_section *pool_section(
	const struct conf_source *source, const char *name)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];

		if ((s->kind == SECTION_POOL || s->kind == SECTION_POOL_ROLE) &&
			strcmp(s->name, name) == 0)
			return s;
	}
	return NULL;
}

void conf_warn_of_pool(const struct conf_source *source, const struct pool_conf *pool,
	const char *key, const char *hint, const char *message,
	struct conf_errors *errors)
{
	const struct conf_section *s = pool_section(source, pool->name);

	conf_warnings_add(errors, s != NULL ? s->file : NULL, s != NULL ? s->line : 0,
		key, NULL, hint, "pool %s %s", pool->name, message);
}

/* ---- places ---- */

/* Where a worker's key stands; where it has none, the worker; NULL: in no file. */
static const char *worker_place(const struct conf_source *source,
	const struct worker_conf *w, const char *key, unsigned *line)
{
	*line = 0;
	for (size_t i = 0; w->origin == ORIGIN_FILE && i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];
		const struct conf_line *l;

		if (s->kind != SECTION_WORKER || strcmp(s->name, w->name) != 0)
			continue;
		l = conf_section_find(s, key);
		*line = l != NULL ? l->line : s->line;
		return l != NULL ? l->file : s->file;
	}
	return NULL;
}

static void warn_of_worker(const struct conf_source *source, const struct worker_conf *w,
	const char *key, const char *value, const char *hint, const char *message,
	struct conf_errors *errors)
{
	unsigned line;
	const char *file = worker_place(source, w, key, &line);

	conf_warnings_add(errors, file, line, conf_worker_key_name(w, key),
		w->origin == ORIGIN_FLAG ? w->url.text : value, hint, "worker %s %s",
		w->name, message);
}

/* The line of a key in [pool NAME role], or NULL. */
static const struct conf_line *role_line(const struct conf_source *source,
	const struct pool_conf *pool, enum role role, const char *key)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];

		if (s->kind == SECTION_POOL_ROLE && s->role == role &&
			strcmp(s->name, pool->name) == 0)
			return conf_section_find(s, key);
	}
	return NULL;
}

/* ---- roles ---- */

static void count_roles(
	const struct conf *c, const struct pool_conf *pool, unsigned count[ROLE_MAX])
{
	for (size_t i = 0; i < c->n_workers; i++)
		if (strcmp(c->workers[i].pool, pool->name) == 0)
			count[c->workers[i].role]++;
}

/* Prefill without decode, or the reverse: not an error, since who starts the decode
 * workers first adds the rest by the admin API. */
static void check_pairs(const struct conf_source *source, const struct pool_conf *pool,
	const unsigned count[ROLE_MAX], struct conf_errors *errors)
{
	bool has_prefill = count[ROLE_PREFILL] > 0, has_decode = count[ROLE_DECODE] > 0;

	if (has_prefill && !has_decode)
		conf_warn_of_pool(source, pool, NULL, "add a worker with role = decode",
			"has prefill workers but none for decode", errors);
	if (has_decode && !has_prefill)
		conf_warn_of_pool(source, pool, NULL, "add a worker with role = prefill",
			"has decode workers but none for prefill", errors);
	if (has_prefill && has_decode &&
		pool->roles[ROLE_PREFILL].kv_connector == CONNECTOR_NONE)
		conf_warn_of_pool(source, pool, "kv_connector",
			"set kv_connector to what the engines use",
			"has prefill and decode workers but no kv_connector: nixl is "
			"used",
			errors);
}

/* One line for all of them. */
static void check_unified(const struct conf *c, const struct conf_source *source,
	const struct pool_conf *pool, const unsigned count[ROLE_MAX],
	struct conf_errors *errors)
{
	if (count[ROLE_UNIFIED] == 0 || count[ROLE_DECODE] == 0)
		return;
	for (size_t i = 0; i < c->n_workers; i++) {
		const struct worker_conf *w = &c->workers[i];

		if (w->role != ROLE_UNIFIED || strcmp(w->pool, pool->name) != 0)
			continue;
		warn_of_worker(source, w, "role", "unified",
			"give it a role, or a pool of its own",
			"is unified in a pool with decode workers: it gets no requests",
			errors);
		return;
	}
}

/* ---- groups ---- */

static bool is_one_group(const struct worker_conf *a, const struct worker_conf *b)
{
	if (a->kv_group == NULL || b->kv_group == NULL)
		return a->kv_group == b->kv_group;
	return strcmp(a->kv_group, b->kv_group) == 0;
}

/* Looks in the pool and group of worker `at` for one of the other role; and whether one
 * of its own role stands before it. */
static bool has_partner(const struct conf *c, size_t at, bool *is_told)
{
	const struct worker_conf *w = &c->workers[at];

	*is_told = false;
	for (size_t i = 0; i < c->n_workers; i++) {
		const struct worker_conf *other = &c->workers[i];

		if (strcmp(other->pool, w->pool) != 0 || !is_one_group(other, w) ||
			other->role == ROLE_UNIFIED)
			continue;
		if (other->role != w->role)
			return true;
		if (i < at)
			*is_told = true;
	}
	return false;
}

/* Never paired, in a pool that has both roles: told once for each group. */
static void check_groups(const struct conf *c, const struct conf_source *source,
	const struct pool_conf *pool, struct conf_errors *errors)
{
	for (size_t i = 0; i < c->n_workers; i++) {
		const struct worker_conf *w = &c->workers[i];
		bool is_told;

		if (strcmp(w->pool, pool->name) != 0 || w->role == ROLE_UNIFIED ||
			has_partner(c, i, &is_told) || is_told)
			continue;
		warn_of_worker(source, w, "kv_group",
			w->kv_group != NULL ? w->kv_group : "none",
			"give prefill and decode workers of one engine and model the "
			"same kv_group",
			w->role == ROLE_PREFILL
				? "is in a group without decode workers: it is never "
				  "paired"
				: "is in a group without prefill workers: it is never "
				  "paired",
			errors);
	}
}

/* ---- keys that say nothing where they stand ---- */

static void check_worker_keys(const struct conf_source *source,
	const struct pool_conf *pool, const struct worker_conf *w,
	struct conf_errors *errors)
{
	enum kv_connector connector = pool->roles[ROLE_PREFILL].kv_connector;
	char port[16];

	snprintf(port, sizeof(port), "%u", w->bootstrap_port);
	if (w->kv_group != NULL && w->role == ROLE_UNIFIED)
		warn_of_worker(source, w, "kv_group", w->kv_group, "leave it out",
			"is unified: only prefill and decode workers have a group",
			errors);
	/* P2P NCCL has transfer sockets on both sides. */
	if (w->bootstrap_port > 0 && w->role != ROLE_PREFILL &&
		(w->role == ROLE_UNIFIED || connector != CONNECTOR_P2P_NCCL))
		warn_of_worker(source, w, "bootstrap_port", port, "leave it out",
			"is not a prefill worker: its bootstrap port is not used",
			errors);
}

/* Both legs of a pair speak the same. */
static void check_connectors(const struct conf_source *source,
	const struct pool_conf *pool, struct conf_errors *errors)
{
	static const enum role roles[] = {ROLE_PREFILL, ROLE_DECODE};

	if (pool->roles[ROLE_PREFILL].kv_connector ==
		pool->roles[ROLE_DECODE].kv_connector)
		return;
	for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
		const struct conf_line *l =
			role_line(source, pool, roles[i], "kv_connector");

		if (l == NULL)
			continue;
		conf_errors_add(errors, l->file, l->line, "kv_connector", l->value,
			"give it once, in [pool NAME]",
			"prefill and decode of pool %s have different connectors",
			pool->name);
		return;
	}
	conf_errors_add(errors, NULL, 0, "--prefill-kv-connector", NULL,
		"use --kv-connector, which sets both",
		"prefill and decode of pool %s have different connectors", pool->name);
}

/* What clients may say is said of the pool. */
static void check_kv_params(const struct conf_source *source,
	const struct pool_conf *pool, struct conf_errors *errors)
{
	static const enum role roles[] = {ROLE_PREFILL, ROLE_DECODE};

	for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
		const struct conf_line *l =
			role_line(source, pool, roles[i], "kv_params");

		if (l == NULL || pool->roles[roles[i]].kv_params ==
					 pool->roles[ROLE_UNIFIED].kv_params)
			continue;
		conf_errors_add(errors, l->file, l->line, "kv_params", l->value,
			"give it once, in [pool NAME]",
			"a role of pool %s has its own kv_params", pool->name);
	}
}

static void check_threshold(const struct conf_source *source,
	const struct pool_conf *pool, struct conf_errors *errors)
{
	const struct conf_line *l =
		role_line(source, pool, ROLE_PREFILL, "pd_min_prefill");

	if (l != NULL && pool->roles[ROLE_PREFILL].pd_min_prefill !=
				 pool->roles[ROLE_DECODE].pd_min_prefill)
		conf_warnings_add(errors, l->file, l->line, "pd_min_prefill", l->value,
			"give it in [pool NAME] or [pool NAME decode]",
			"has no effect here: the value of decode counts");
}

void conf_check_roles(const struct conf *c, const struct conf_source *source,
	const struct pool_conf *pool, struct conf_errors *errors)
{
	unsigned count[ROLE_MAX] = {0};

	count_roles(c, pool, count);
	check_connectors(source, pool, errors);
	check_kv_params(source, pool, errors);
	check_threshold(source, pool, errors);
	check_pairs(source, pool, count, errors);
	check_unified(c, source, pool, count, errors);
	if (count[ROLE_PREFILL] > 0 && count[ROLE_DECODE] > 0)
		check_groups(c, source, pool, errors);
	for (size_t i = 0; i < c->n_workers; i++)
		if (strcmp(c->workers[i].pool, pool->name) == 0)
			check_worker_keys(source, pool, &c->workers[i], errors);
}
