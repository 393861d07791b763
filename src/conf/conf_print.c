/*
 * Prints a configuration in the form and order of a file, and compares two of them. The
 * output of conf_print() can be read back and gives an equal configuration, except for
 * secrets, which are never shown. Called for -T, GET config and by reload.c.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "conf/conf_client_keys.h"
#include "conf/conf_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value as it must stand in a file: quoted where the lexer would not give it back as it
 * is. */
static void print_value(FILE *to, const char *value)
{
	size_t n = strlen(value);
	bool is_plain = n > 0 && value[0] != '"' && strchr(" \t", value[0]) == NULL &&
			strchr(" \t", value[n - 1]) == NULL;

	if (is_plain) {
		fputs(value, to);
		return;
	}
	fputc('"', to);
	for (const char *c = value; *c != '\0'; c++) {
		if (*c == '"' || *c == '\\')
			fputc('\\', to);
		fputc(*c, to);
	}
	fputc('"', to);
}

struct printer {
	FILE *to;
	bool is_short; /* memory ran out: something is missing */
};

/* A line for each. False: there is none. */
static bool print_rules(struct printer *p, const struct conf_key *key, const void *base)
{
	const struct conf_list *list = (const void *)((const char *)base + key->offset);

	if ((key->type != CONF_TYPE_REQUEST_RULES &&
		    key->type != CONF_TYPE_RESPONSE_RULES) ||
		list->n == 0)
		return false;
	for (size_t i = 0; i < list->n; i++)
		fprintf(p->to, "%s = %s\n", key->name, list->items[i]);
	return true;
}

/* A line for each. False: there is none. */
static bool print_aliases(struct printer *p, const struct conf_key *key, const void *base)
{
	const struct pool_conf *pool = base;

	if (key->type != CONF_TYPE_ALIASES || pool->aliases.n == 0)
		return false;
	for (size_t i = 0; i < pool->aliases.n; i++) {
		struct conf_alias a = conf_alias(pool->aliases.items[i]);

		fprintf(p->to, "alias " SPAN_FMT " = %s\n", SPAN_ARG(a.name), a.target.p);
	}
	return true;
}

/* The keys of one base; with `like`, only those whose values differ from it. */
static void print_keys(
	struct printer *p, enum conf_base which, const void *base, const void *like)
{
	for (size_t i = 0; i < conf_keys_n; i++) {
		const struct conf_key *key = &conf_keys[i];
		scoped_free char *value = NULL;

		if (key->base != which)
			continue;
		if (like != NULL && conf_value_equal(key, base, like))
			continue;
		if (print_aliases(p, key, base) || print_rules(p, key, base))
			continue;
		value = conf_value_shown(key, base);
		if (value == NULL) {
			p->is_short = true;
			return;
		}
		fprintf(p->to, "%s = ", key->name);
		print_value(p->to, value);
		fputc('\n', p->to);
	}
}

static bool has_same_keys(enum conf_base which, const void *a, const void *b)
{
	for (size_t i = 0; i < conf_keys_n; i++)
		if (conf_keys[i].base == which && !conf_value_equal(&conf_keys[i], a, b))
			return false;
	return true;
}

static void print_pool(struct printer *p, const struct pool_conf *pool)
{
	const struct role_opts *all = &pool->roles[ROLE_UNIFIED];

	fprintf(p->to, "\n[pool %s]\n", pool->name);
	print_keys(p, CONF_BASE_POOL, pool, NULL);
	print_keys(p, CONF_BASE_ROLE, all, NULL);
	print_keys(p, CONF_BASE_OPTS, &all->worker, NULL);
	for (int r = ROLE_PREFILL; r < ROLE_MAX; r++) {
		const struct role_opts *own = &pool->roles[r];

		if (has_same_keys(CONF_BASE_ROLE, own, all) &&
			has_same_keys(CONF_BASE_OPTS, &own->worker, &all->worker))
			continue;
		fprintf(p->to, "\n[pool %s %s]\n", pool->name, role_name((enum role)r));
		print_keys(p, CONF_BASE_ROLE, own, all);
		print_keys(p, CONF_BASE_OPTS, &own->worker, &all->worker);
	}
}

static void print_worker(
	struct printer *p, const struct conf *c, const struct worker_conf *w)
{
	const struct pool_conf *pool = conf_pool_find(c, w->pool);

	assert(pool != NULL);
	fprintf(p->to, "\n[worker %s]\n", w->name);
	print_keys(p, CONF_BASE_WORKER, w, NULL);
	print_keys(p, CONF_BASE_OPTS, &w->opts, &pool->roles[w->role].worker);
}

char *conf_print(const struct conf *c)
{
	char *text = NULL;
	size_t n = 0;
	struct printer p = {.to = open_memstream(&text, &n)};
	bool is_whole;

	if (p.to == NULL)
		return NULL;
	fputs("[router]\n", p.to);
	print_keys(&p, CONF_BASE_ROUTER, &c->router, NULL);
	for (size_t i = 0; i < c->n_pools; i++)
		print_pool(&p, &c->pools[i]);
	for (size_t i = 0; i < c->n_workers; i++)
		print_worker(&p, c, &c->workers[i]);
	is_whole = !p.is_short && !ferror(p.to);
	if (fclose(p.to) == 0 && is_whole)
		return text;
	free(text);
	return NULL;
}

/* Differences */

enum { SECTION_BYTES = 192 }; /* room for "pool NAME prefill", with any name */

struct differ {
	conf_change_fn *fn;
	void *arg;
	bool is_short; /* memory ran out: something was not told */
};

/* The values that a section inherits, before and after; NULL if it inherits nothing. */
struct heritage {
	const void *was, *now;
};

static bool is_inherited(const struct conf_key *key, const void *was, const void *now,
	struct heritage from)
{
	return from.was != NULL && from.now != NULL &&
	       conf_value_equal(key, was, from.was) &&
	       conf_value_equal(key, now, from.now);
}

static void diff_keys(struct differ *d, const char *section, enum conf_base which,
	const void *was, const void *now, struct heritage from)
{
	for (size_t i = 0; i < conf_keys_n; i++) {
		const struct conf_key *key = &conf_keys[i];
		scoped_free char *before = NULL, *after = NULL;

		if (key->base != which || conf_value_equal(key, was, now) ||
			is_inherited(key, was, now, from))
			continue;
		before = conf_value_shown(key, was);
		after = conf_value_shown(key, now);
		if (before == NULL || after == NULL) {
			d->is_short = true;
			return;
		}
		d->fn(d->arg, section, key->name, before,
			strcmp(before, after) == 0 ? "(changed)" : after,
			key->needs_restart);
	}
}

static void diff_role(struct differ *d, const char *section, const struct role_opts *was,
	const struct role_opts *now, const struct role_opts *all_was,
	const struct role_opts *all_now)
{
	struct heritage none = {NULL, NULL};
	bool is_own = was == all_was;

	diff_keys(d, section, CONF_BASE_ROLE, was, now,
		is_own ? none : (struct heritage){all_was, all_now});
	diff_keys(d, section, CONF_BASE_OPTS, &was->worker, &now->worker,
		is_own ? none : (struct heritage){&all_was->worker, &all_now->worker});
}

/* The pool's own values; then, under the role's section, what changed there otherwise. */
static void diff_pool(
	struct differ *d, const struct pool_conf *was, const struct pool_conf *now)
{
	char section[SECTION_BYTES], own[SECTION_BYTES];

	snprintf(section, sizeof(section), "pool %s", now->name);
	diff_keys(d, section, CONF_BASE_POOL, was, now, (struct heritage){NULL, NULL});
	diff_role(d, section, &was->roles[0], &now->roles[0], &was->roles[0],
		&now->roles[0]);
	for (int r = ROLE_PREFILL; r < ROLE_MAX; r++) {
		snprintf(own, sizeof(own), "pool %s %s", now->name,
			role_name((enum role)r));
		diff_role(d, own, &was->roles[r], &now->roles[r], &was->roles[0],
			&now->roles[0]);
	}
}

static void diff_presence(
	const struct differ *d, const char *kind, const char *name, bool is_new)
{
	char section[SECTION_BYTES];

	snprintf(section, sizeof(section), "%s %s", kind, name);
	d->fn(d->arg, section, "(section)", is_new ? "absent" : "present",
		is_new ? "present" : "absent", false);
}

/* Which pool a model falls to depends on their order. */
static void diff_pool_order(
	const struct differ *d, const struct conf *was, const struct conf *now)
{
	const struct pool_conf *last = NULL;

	for (size_t i = 0; i < now->n_pools; i++) {
		const struct pool_conf *old = conf_pool_find(was, now->pools[i].name);

		if (old == NULL)
			continue;
		if (last != NULL && old < last) {
			char section[SECTION_BYTES];

			snprintf(section, sizeof(section), "pool %s", old->name);
			d->fn(d->arg, section, "(order)", "before", "after", false);
		} else {
			last = old;
		}
	}
}

static void diff_pools(struct differ *d, const struct conf *was, const struct conf *now)
{
	for (size_t i = 0; i < was->n_pools; i++)
		if (conf_pool_find(now, was->pools[i].name) == NULL)
			diff_presence(d, "pool", was->pools[i].name, false);
	for (size_t i = 0; i < now->n_pools; i++) {
		const struct pool_conf *pool = &now->pools[i];
		const struct pool_conf *old = conf_pool_find(was, pool->name);

		if (old != NULL)
			diff_pool(d, old, pool);
		else
			diff_presence(d, "pool", pool->name, true);
	}
	diff_pool_order(d, was, now);
}

static const struct worker_conf *find_worker(const struct conf *c, const char *name)
{
	for (size_t i = 0; i < c->n_workers; i++)
		if (strcmp(c->workers[i].name, name) == 0)
			return &c->workers[i];
	return NULL;
}

/* The values that the worker would have if its section set no pool key. */
static const void *inherited_opts(const struct conf *c, const struct worker_conf *w)
{
	return &conf_pool_find(c, w->pool)->roles[w->role].worker;
}

static void diff_workers(struct differ *d, const struct conf *was, const struct conf *now)
{
	for (size_t i = 0; i < was->n_workers; i++)
		if (find_worker(now, was->workers[i].name) == NULL)
			diff_presence(d, "worker", was->workers[i].name, false);
	for (size_t i = 0; i < now->n_workers; i++) {
		const struct worker_conf *w = &now->workers[i];
		const struct worker_conf *old = find_worker(was, w->name);
		struct heritage none = {NULL, NULL};
		char section[SECTION_BYTES];

		if (old == NULL) {
			diff_presence(d, "worker", w->name, true);
			continue;
		}
		snprintf(section, sizeof(section), "worker %s", w->name);
		diff_keys(d, section, CONF_BASE_WORKER, old, w, none);
		diff_keys(d, section, CONF_BASE_OPTS, &old->opts, &w->opts,
			(struct heritage){
				inherited_opts(was, old), inherited_opts(now, w)});
	}
}

static void client_keys_text(const struct conf_client_keys *k, char *out, size_t n)
{
	if (k == NULL)
		snprintf(out, n, "none");
	else
		snprintf(out, n, "%zu keys of %zu tenants", k->n_keys, k->n_tenants);
}

/* The same file, with something else in it. */
static void diff_client_keys(
	const struct differ *d, const struct conf *was, const struct conf *now)
{
	char before[64], after[64];

	client_keys_text(was->client_keys, before, sizeof(before));
	client_keys_text(now->client_keys, after, sizeof(after));
	if (!conf_client_keys_equal(was->client_keys, now->client_keys))
		d->fn(d->arg, "router", "api_keys", before,
			strcmp(before, after) == 0 ? "(changed)" : after, false);
}

int conf_diff(
	const struct conf *was, const struct conf *now, conf_change_fn *fn, void *arg)
{
	struct differ d = {fn, arg, false};

	diff_keys(&d, "router", CONF_BASE_ROUTER, &was->router, &now->router,
		(struct heritage){NULL, NULL});
	diff_client_keys(&d, was, now);
	diff_pools(&d, was, now);
	diff_workers(&d, was, now);
	return d.is_short ? ERR_NOMEM : 0;
}
