/*
 * The life of a struct conf: built from files and flags, resolved, checked as a whole,
 * counted by references. A value comes from the most specific place that sets it:
 * default, [pool], [pool NAME role], [worker]. A flag replaces the value of the section
 * it acts on. conf_load() returns only a configuration without errors. Called by the
 * control thread (daemon.c, reload.c, admin.c); conf_ref and conf_unref by any thread.
 */
#include "conf/conf.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_check.h"
#include "conf/conf_client_keys.h"
#include "conf/conf_flags.h"
#include "conf/conf_source.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POOLS_HINT_BYTES = 400 };

const char *role_name(enum role role)
{
	static const char *const names[] = {"unified", "prefill", "decode"};

	_Static_assert(ARRAY_LEN(names) == ROLE_MAX, "a name for each role");
	assert(role < ROLE_MAX);
	return names[role];
}

/* Values into structs */

/* The value was checked when it was read: only memory can be short. */
static int apply(const struct conf_key *key, void *base, const char *value, bool is_first)
{
	struct conf_fault fault;
	int rc;

	if (conf_key_is_list(key) && is_first)
		conf_value_clear(key, base);
	rc = conf_value_set(key, base, span_str(value), &fault);
	assert(rc == 0 || rc == ERR_NOMEM);
	return rc;
}

static int apply_to_pool(struct pool_conf *pool, const struct conf_key *key,
	const char *value, bool is_first, enum role from, enum role to)
{
	int rc = 0;

	if (key->base == CONF_BASE_POOL)
		return apply(key, pool, value, is_first);
	for (int r = (int)from; rc == 0 && r <= (int)to; r++) {
		struct role_opts *opts = &pool->roles[r];

		rc = apply(key,
			key->base == CONF_BASE_ROLE ? (void *)opts
						    : (void *)&opts->worker,
			value, is_first);
	}
	return rc;
}

static int apply_router_section(struct conf *c, const struct conf_section *s)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < s->n_lines; i++) {
		const struct conf_line *l = &s->lines[i];

		if (!l->is_good)
			continue;
		rc = apply(l->key, &c->router, l->value, l->is_first);
		if (rc == 0)
			rc = conf_place_add(c, l);
	}
	return rc;
}

static int apply_router_flags(struct conf *c, const struct conf_flags *flags)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && flags != NULL && i < flags->n_settings; i++) {
		const struct conf_setting *s = &flags->settings[i];

		if (s->scope != CONF_SCOPE_ROUTER)
			continue;
		rc = apply(s->key, &c->router, s->value, s->is_first);
		conf_place_forget(c, s->key);
	}
	return rc;
}

static int apply_router(
	struct conf *c, const struct conf_source *source, const struct conf_flags *flags)
{
	int rc = conf_base_defaults(CONF_BASE_ROUTER, &c->router);

	for (size_t i = 0; rc == 0 && i < source->n_sections; i++)
		if (source->sections[i].kind == SECTION_ROUTER)
			rc = apply_router_section(c, &source->sections[i]);
	if (rc == 0)
		rc = apply_router_flags(c, flags);
	for (size_t i = 0; i < c->router.pass_paths.n; i++)
		if (strcmp(c->router.pass_paths.items[i], "*") == 0)
			c->router.pass_all = true;
	return rc;
}

/* Pools */

const struct pool_conf *conf_pool_find(const struct conf *c, const char *name)
{
	for (size_t i = 0; i < c->n_pools; i++)
		if (strcmp(c->pools[i].name, name) == 0)
			return &c->pools[i];
	return NULL;
}

static int add_pool(struct conf *c, const char *name, bool is_explicit)
{
	struct pool_conf *pool;
	int rc;

	if (conf_pool_find(c, name) != NULL)
		return 0;
	if (mem_grow(&c->pools, &c->cap_pools, c->n_pools + 1, sizeof(*pool)) != 0)
		return ERR_NOMEM;
	pool = &c->pools[c->n_pools];
	*pool = (struct pool_conf){.name = strdup(name), .is_explicit = is_explicit};
	if (pool->name == NULL)
		return ERR_NOMEM;
	c->n_pools++;
	rc = conf_base_defaults(CONF_BASE_POOL, pool);
	for (int r = 0; rc == 0 && r < ROLE_MAX; r++) {
		rc = conf_base_defaults(CONF_BASE_ROLE, &pool->roles[r]);
		if (rc == 0)
			rc = conf_base_defaults(CONF_BASE_OPTS, &pool->roles[r].worker);
	}
	return rc;
}

static const char *pool_of(const struct conf_section *worker)
{
	const struct conf_line *line = conf_section_find(worker, "pool");

	return line != NULL && line->is_good ? line->value : "default";
}

/* The pools that have sections, or else those that workers name. */
static int add_pools(
	struct conf *c, const struct conf_source *source, const struct conf_flags *flags)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];

		if (s->kind == SECTION_POOL || s->kind == SECTION_POOL_ROLE)
			rc = add_pool(c, s->name, true);
	}
	if (rc != 0 || c->n_pools > 0)
		return rc;
	for (size_t i = 0; rc == 0 && i < source->n_sections; i++)
		if (source->sections[i].kind == SECTION_WORKER)
			rc = add_pool(c, pool_of(&source->sections[i]), false);
	if (rc == 0 && (c->n_pools == 0 || (flags != NULL && flags->n_workers > 0)))
		rc = add_pool(c, "default", false);
	return rc;
}

static int apply_pool_section(struct pool_conf *pool, const struct conf_section *s,
	enum role from, enum role to)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < s->n_lines; i++)
		if (s->lines[i].is_good)
			rc = apply_to_pool(pool, s->lines[i].key, s->lines[i].value,
				s->lines[i].is_first, from, to);
	return rc;
}

static int apply_pool_sections(struct pool_conf *pool, const struct conf_source *source,
	enum conf_section_kind kind)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];
		enum role from = kind == SECTION_POOL ? ROLE_UNIFIED : s->role;
		enum role to = kind == SECTION_POOL ? ROLE_DECODE : s->role;

		if (s->kind == kind && strcmp(s->name, pool->name) == 0)
			rc = apply_pool_section(pool, s, from, to);
	}
	return rc;
}

/* A flag cannot say which pool it means: the first one that serves the alias's model.
 * Pools are resolved in their order. */
static bool is_alias_meant(
	const struct conf *c, const struct pool_conf *pool, struct span item)
{
	struct span name;

	(void)span_next(&item, '=', &name);
	for (const struct pool_conf *p = c->pools; p < pool; p++)
		if (conf_pool_serves(p, item))
			return false;
	return conf_pool_serves(pool, item);
}

static int apply_alias_flag(
	const struct conf *c, struct pool_conf *pool, const struct conf_setting *s)
{
	struct span rest = span_str(s->value), item;
	struct conf_fault fault;
	int rc = 0;

	if (s->is_first || span_is(rest, "none"))
		conf_value_clear(s->key, pool);
	if (span_is(rest, "none"))
		return 0;
	while (rc == 0 && span_next_word(&rest, &item))
		if (is_alias_meant(c, pool, item))
			rc = conf_value_set(s->key, pool, item, &fault);
	return rc;
}

static int apply_pool_flags(const struct conf *c, struct pool_conf *pool,
	const struct conf_flags *flags, enum conf_scope scope, enum role from,
	enum role to)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && flags != NULL && i < flags->n_settings; i++) {
		const struct conf_setting *s = &flags->settings[i];

		if (s->scope == scope && s->key->type == CONF_TYPE_ALIASES)
			rc = apply_alias_flag(c, pool, s);
		else if (s->scope == scope)
			rc = apply_to_pool(pool, s->key, s->value, s->is_first, from, to);
	}
	return rc;
}

static int resolve_pool(const struct conf *c, struct pool_conf *pool,
	const struct conf_source *source, const struct conf_flags *flags)
{
	int rc = apply_pool_sections(pool, source, SECTION_POOL);

	if (rc == 0)
		rc = apply_pool_flags(
			c, pool, flags, CONF_SCOPE_POOL, ROLE_UNIFIED, ROLE_DECODE);
	if (rc == 0)
		rc = apply_pool_sections(pool, source, SECTION_POOL_ROLE);
	if (rc == 0)
		rc = apply_pool_flags(
			c, pool, flags, CONF_SCOPE_PREFILL, ROLE_PREFILL, ROLE_PREFILL);
	if (rc == 0)
		rc = apply_pool_flags(
			c, pool, flags, CONF_SCOPE_DECODE, ROLE_DECODE, ROLE_DECODE);
	return rc;
}

/* Workers */

static int apply_worker_lines(
	struct worker_conf *w, const struct conf_section *s, enum conf_base which)
{
	void *base = which == CONF_BASE_OPTS ? (void *)&w->opts : (void *)w;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < s->n_lines; i++)
		if (s->lines[i].is_good && s->lines[i].key->base == which)
			rc = apply(s->lines[i].key, base, s->lines[i].value,
				s->lines[i].is_first);
	return rc;
}

static void report_unknown_pool(const struct conf *c, const struct conf_section *s,
	const struct worker_conf *w, struct conf_errors *errors)
{
	const struct conf_line *line = conf_section_find(s, "pool");
	char hint[POOLS_HINT_BYTES] = "the pools are:";
	size_t used = strlen(hint);

	for (size_t i = 0; i < c->n_pools && i < 10 && used < sizeof(hint); i++)
		used += (size_t)snprintf(
			hint + used, sizeof(hint) - used, " %s", c->pools[i].name);
	conf_errors_add(errors, line != NULL ? line->file : s->file,
		line != NULL ? line->line : s->line, conf_worker_key_name(w, "pool"),
		w->origin == ORIGIN_FLAG ? w->url.text : w->pool, hint,
		"no such pool%s%s", w->origin == ORIGIN_FLAG ? ": " : "",
		w->origin == ORIGIN_FLAG ? w->pool : "");
}

/* The worker's own keys: defaults, and what the section says. */
static int fill_worker(
	struct worker_conf *w, const struct conf_section *s, enum worker_origin origin)
{
	int rc;

	*w = (struct worker_conf){.name = strdup(s->name), .origin = origin};
	rc = w->name != NULL ? conf_base_defaults(CONF_BASE_WORKER, w) : ERR_NOMEM;
	return rc == 0 ? apply_worker_lines(w, s, CONF_BASE_WORKER) : rc;
}

/* The keys that it inherits from its pool, unless the section gives them. */
static int fill_opts(struct worker_conf *w, const struct conf_section *s,
	const struct worker_opts *inherited)
{
	int rc = conf_base_copy(CONF_BASE_OPTS, inherited, &w->opts);

	return rc == 0 ? apply_worker_lines(w, s, CONF_BASE_OPTS) : rc;
}

/* The worker that a section says, every value resolved against c's pools. False where one
 * is wrong. */
static bool make_worker(const struct conf *c, const struct conf_section *s,
	enum worker_origin origin, struct conf_errors *errors, struct worker_conf *w)
{
	const struct pool_conf *pool;
	bool is_good = true;

	if (fill_worker(w, s, origin) != 0) {
		conf_errors_no_memory(errors);
		return false;
	}
	if (conf_section_find(s, "url") == NULL) {
		conf_errors_add(errors, s->file, s->line, "url", NULL,
			"such as url = http://127.0.0.1:8000", "worker %s has no url",
			s->name);
		is_good = false;
	}
	pool = conf_pool_find(c, w->pool);
	if (pool == NULL) {
		report_unknown_pool(c, s, w, errors);
		return false;
	}
	if (fill_opts(w, s, &pool->roles[w->role].worker) != 0) {
		conf_errors_no_memory(errors);
		return false;
	}
	return is_good && conf_check_worker(w, s, errors);
}

/* Takes w where it is good and unlike the others, and frees it where it is not. */
static void add_worker(struct conf *c, struct worker_conf *w, bool is_good,
	const struct conf_line *url, const char *key, struct conf_errors *errors)
{
	const char *file = url != NULL ? url->file : NULL;

	if (is_good)
		is_good = conf_check_twins(
			c, w, file, url != NULL ? url->line : 0, key, errors);
	if (is_good && mem_grow(&c->workers, &c->cap_workers, c->n_workers + 1,
			       sizeof(*w)) != 0) {
		conf_errors_no_memory(errors);
		is_good = false;
	}
	if (is_good)
		c->workers[c->n_workers++] = *w;
	else
		worker_conf_free(w);
}

static int add_line(struct conf_section *s, const char *name, const char *value)
{
	struct conf_line line = {
		.key = conf_key_find(SECTION_WORKER, span_str(name)),
		.is_good = true,
		.is_first = conf_section_find(s, name) == NULL,
	};

	return conf_section_add(s, &line, span_str(value));
}

static bool is_name_taken(const struct conf *c, const char *name)
{
	for (size_t i = 0; i < c->n_workers; i++)
		if (strcmp(c->workers[i].name, name) == 0)
			return true;
	return false;
}

/* "host:port", or with a number behind it when another worker has that name. NULL: out
 * of memory. */
static char *flag_worker_name(const struct conf *c, const char *url_text)
{
	struct conf_url url;
	const char *why;
	char *first, *name;
	int rc = conf_url_parse(span_str(url_text), &url, &why);

	assert(rc == 0 || rc == ERR_NOMEM); /* conf_flags_parse checked it */
	if (rc != 0)
		return NULL;
	first = conf_url_name(&url);
	conf_url_free(&url);
	name = first != NULL ? strdup(first) : NULL;
	for (unsigned n = 2; name != NULL && is_name_taken(c, name); n++) {
		free(name);
		name = mem_format("%s-%u", first, n);
	}
	free(first);
	return name;
}

/* The section that the flags stand for. */
static int fill_flag_section(struct conf_section *s, const struct conf *c,
	const struct conf_flags *flags, const struct conf_flag_worker *given)
{
	int rc;

	s->name = flag_worker_name(c, given->url);
	rc = s->name != NULL ? add_line(s, "url", given->url) : ERR_NOMEM;
	if (rc == 0)
		rc = add_line(s, "role", role_name(given->role));
	if (rc == 0 && given->bootstrap_port != NULL)
		rc = add_line(s, "bootstrap_port", given->bootstrap_port);
	for (size_t i = 0; rc == 0 && i < flags->n_settings; i++)
		if (flags->settings[i].scope == CONF_SCOPE_WORKERS)
			rc = add_line(s, flags->settings[i].key->name,
				flags->settings[i].value);
	return rc;
}

static void add_flag_worker(struct conf *c, const struct conf_flags *flags,
	const struct conf_flag_worker *given, struct conf_errors *errors)
{
	struct conf_section s = {.kind = SECTION_WORKER};
	struct worker_conf w;

	if (fill_flag_section(&s, c, flags, given) == 0) {
		bool is_good = make_worker(c, &s, ORIGIN_FLAG, errors, &w);

		add_worker(c, &w, is_good, NULL, given->flag, errors);
	} else {
		conf_errors_no_memory(errors);
	}
	conf_section_free(&s);
}

static void add_workers(struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];
		const struct conf_line *url = conf_section_find(s, "url");
		struct worker_conf w;
		bool is_good;

		if (s->kind != SECTION_WORKER)
			continue;
		is_good = make_worker(c, s, ORIGIN_FILE, errors, &w);
		/* A URL that cannot be read was reported with its line. */
		add_worker(c, &w, is_good && w.url.text != NULL, url, "url", errors);
	}
	for (size_t i = 0; flags != NULL && i < flags->n_workers; i++)
		add_flag_worker(c, flags, &flags->workers[i], errors);
}

/* The result of work that may have added errors to the `before` ones. */
static int outcome(const struct conf_errors *errors, size_t before)
{
	if (errors->n_errors == before)
		return 0;
	return errors->no_memory ? ERR_NOMEM : ERR_PARSE;
}

int conf_worker_make(const struct conf *c, const char *name,
	const struct conf_pair *pairs, size_t n, struct conf_errors *errors,
	struct worker_conf *out)
{
	struct conf_section s = {.kind = SECTION_WORKER, .name = strdup(name)};
	size_t before = errors->n_errors;
	struct conf_fault fault;
	struct worker_conf w = {0};

	if (s.name == NULL)
		conf_errors_no_memory(errors);
	else if (conf_name_check(span_str(name), &fault) != 0)
		conf_errors_add(
			errors, NULL, 0, "name", name, fault.hint, "%s", fault.message);
	for (size_t i = 0; i < n; i++)
		if (conf_check_pair(&s, &pairs[i], errors) &&
			add_line(&s, pairs[i].key, pairs[i].value) != 0)
			conf_errors_no_memory(errors);
	if (errors->n_errors == before && make_worker(c, &s, ORIGIN_API, errors, &w))
		*out = w;
	else
		worker_conf_free(&w);
	conf_section_free(&s);
	return outcome(errors, before);
}

void worker_conf_free(struct worker_conf *w)
{
	if (w == NULL)
		return;
	free(w->name);
	w->name = NULL;
	conf_base_clear(CONF_BASE_WORKER, w);
	conf_base_clear(CONF_BASE_OPTS, &w->opts);
}

int worker_conf_copy(const struct worker_conf *from, struct worker_conf *to)
{
	*to = (struct worker_conf){.name = strdup(from->name), .origin = from->origin};
	if (to->name != NULL && conf_base_copy(CONF_BASE_WORKER, from, to) == 0 &&
		conf_base_copy(CONF_BASE_OPTS, &from->opts, &to->opts) == 0)
		return 0;
	worker_conf_free(to);
	return ERR_NOMEM;
}

/* The whole */

/* The default file may be missing where flags were given: they are the configuration
 * then. */
static bool is_file_wanted(
	const char *path, const struct conf_flags *flags, struct conf_errors *errors)
{
	if (path == NULL)
		return false;
	if (flags == NULL || !flags->is_default_file || flags->n_settings == 0 ||
		access(path, F_OK) == 0 || errno != ENOENT)
		return true;
	conf_warnings_add(errors, path, 0, NULL, NULL, "add workers with kvsteerctl add",
		"there is no such file: only the flags count");
	return false;
}

/* Fills c from the source and the flags, with every reference resolved. */
static int resolve(struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	int rc = apply_router(c, source, flags);

	if (rc == 0 && c->router.api_keys != NULL)
		c->client_keys = conf_client_keys_read(c->router.api_keys, errors);
	if (rc == 0)
		rc = add_pools(c, source, flags);
	for (size_t i = 0; rc == 0 && i < c->n_pools; i++)
		rc = resolve_pool(c, &c->pools[i], source, flags);
	if (rc == 0)
		add_workers(c, source, flags, errors);
	return rc;
}

int conf_load(const char *path, const struct conf_flags *flags,
	struct conf_errors *errors, struct conf **out)
{
	struct conf_source source = {0};
	struct conf *c = calloc(1, sizeof(*c));
	size_t before = errors->n_errors;

	if (c == NULL) {
		conf_errors_no_memory(errors);
		return ERR_NOMEM;
	}
	atomic_init(&c->refs, 1);
	c->by_flags_alone = !is_file_wanted(path, flags, errors);
	if (!c->by_flags_alone)
		conf_source_read(&source, path, errors);
	if (resolve(c, &source, flags, errors) == 0)
		conf_check_whole(c, &source, flags, errors);
	else
		conf_errors_no_memory(errors);
	conf_source_free(&source);
	if (errors->n_errors > before)
		conf_unref(c);
	else
		*out = c;
	return outcome(errors, before);
}

static void free_pool(struct pool_conf *pool)
{
	free(pool->name);
	conf_base_clear(CONF_BASE_POOL, pool);
	for (int r = 0; r < ROLE_MAX; r++) {
		conf_base_clear(CONF_BASE_ROLE, &pool->roles[r]);
		conf_base_clear(CONF_BASE_OPTS, &pool->roles[r].worker);
	}
}

struct conf *conf_ref(struct conf *c)
{
	unsigned before = atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);

	assert(before > 0);
	(void)before;
	return c;
}

void conf_unref(struct conf *c)
{
	unsigned before;

	if (c == NULL)
		return;
	before = atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel);
	assert(before > 0);
	if (before > 1)
		return;
	conf_base_clear(CONF_BASE_ROUTER, &c->router);
	for (size_t i = 0; i < c->n_pools; i++)
		free_pool(&c->pools[i]);
	for (size_t i = 0; i < c->n_workers; i++)
		worker_conf_free(&c->workers[i]);
	free(c->pools);
	free(c->workers);
	conf_place_free(c);
	conf_client_keys_free(c->client_keys);
	free(c);
}
