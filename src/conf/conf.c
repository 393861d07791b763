/*
 * A struct conf's life: built from what files and flags say, resolved, checked as a
 * whole, counted by references. A value comes from the most particular place that gives
 * it: default, [pool], [pool NAME role], [worker]; a flag stands in for the section it
 * acts on. Nothing leaves conf_load unless the whole is good. Called by the control
 * thread (daemon.c, reload.c, admin.c); conf_ref and conf_unref by any thread.
 */
#include "conf/conf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_check.h"
#include "conf/conf_client_keys.h"
#include "conf/conf_flags.h"
#include "conf/conf_source.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *role_name(enum role role)
{
	static const char *const names[] = {"unified", "prefill", "decode"};

	_Static_assert(ARRAY_LEN(names) == ROLE_MAX, "a name for each role");
	assert(role < ROLE_MAX);
	return names[role];
}

/* Values into structs */

static void apply(
	const struct conf_key *key, void *base, const char *value, bool is_first)
{
	struct conf_fault fault;
	int rc;

	if (conf_key_is_list(key) && is_first)
		conf_value_clear(key, base);
	rc = conf_value_set(key, base, span_str(value), &fault);
	assert(rc == 0); /* it was checked when it was read */
	(void)rc;
}

static void apply_to_pool(struct pool_conf *pool, const struct conf_key *key,
	const char *value, bool is_first, enum role from, enum role to)
{
	if (key->base == CONF_BASE_POOL) {
		apply(key, pool, value, is_first);
		return;
	}
	for (int r = (int)from; r <= (int)to; r++) {
		struct role_opts *opts = &pool->roles[r];

		apply(key,
			key->base == CONF_BASE_ROLE ? (void *)opts
						    : (void *)&opts->worker,
			value, is_first);
	}
}

static void apply_router(
	struct conf *c, const struct conf_source *source, const struct conf_flags *flags)
{
	conf_base_defaults(CONF_BASE_ROUTER, &c->router);
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];

		for (size_t j = 0; s->kind == SECTION_ROUTER && j < s->n_lines; j++) {
			if (!s->lines[j].is_good)
				continue;
			apply(s->lines[j].key, &c->router, s->lines[j].value,
				s->lines[j].is_first);
			conf_place_add(c, &s->lines[j]);
		}
	}
	for (size_t i = 0; flags != NULL && i < flags->n_settings; i++) {
		if (flags->settings[i].scope != CONF_SCOPE_ROUTER)
			continue;
		apply(flags->settings[i].key, &c->router, flags->settings[i].value,
			flags->settings[i].is_first);
		conf_place_forget(c, flags->settings[i].key);
	}
	for (size_t i = 0; i < c->router.pass_paths.n; i++)
		if (strcmp(c->router.pass_paths.items[i], "*") == 0)
			c->router.pass_all = true;
}

/* Pools */

const struct pool_conf *conf_pool_find(const struct conf *c, const char *name)
{
	for (size_t i = 0; i < c->n_pools; i++)
		if (strcmp(c->pools[i].name, name) == 0)
			return &c->pools[i];
	return NULL;
}

static void add_pool(struct conf *c, const char *name, bool is_explicit)
{
	struct pool_conf *pool;

	if (conf_pool_find(c, name) != NULL)
		return;
	c->pools = xrealloc(c->pools, (c->n_pools + 1) * sizeof(*c->pools));
	pool = &c->pools[c->n_pools++];
	*pool = (struct pool_conf){.name = xstrdup(name), .is_explicit = is_explicit};
	conf_base_defaults(CONF_BASE_POOL, pool);
	for (int r = 0; r < ROLE_MAX; r++) {
		conf_base_defaults(CONF_BASE_ROLE, &pool->roles[r]);
		conf_base_defaults(CONF_BASE_OPTS, &pool->roles[r].worker);
	}
}

static const char *pool_of(const struct conf_section *worker)
{
	const struct conf_line *line = conf_section_find(worker, "pool");

	return line != NULL && line->is_good ? line->value : "default";
}

/* The pools that have sections, or else those that workers name. */
static void add_pools(
	struct conf *c, const struct conf_source *source, const struct conf_flags *flags)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];

		if (s->kind == SECTION_POOL || s->kind == SECTION_POOL_ROLE)
			add_pool(c, s->name, true);
	}
	if (c->n_pools > 0)
		return;
	for (size_t i = 0; i < source->n_sections; i++)
		if (source->sections[i].kind == SECTION_WORKER)
			add_pool(c, pool_of(&source->sections[i]), false);
	if (c->n_pools == 0 || (flags != NULL && flags->n_workers > 0))
		add_pool(c, "default", false);
}

static void apply_pool_sections(struct pool_conf *pool, const struct conf_source *source,
	enum conf_section_kind kind)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];
		enum role from = kind == SECTION_POOL ? ROLE_UNIFIED : s->role;
		enum role to = kind == SECTION_POOL ? ROLE_DECODE : s->role;

		if (s->kind != kind || strcmp(s->name, pool->name) != 0)
			continue;
		for (size_t j = 0; j < s->n_lines; j++)
			if (s->lines[j].is_good)
				apply_to_pool(pool, s->lines[j].key, s->lines[j].value,
					s->lines[j].is_first, from, to);
	}
}

static void apply_pool_flags(struct pool_conf *pool, const struct conf_flags *flags,
	enum conf_scope scope, enum role from, enum role to)
{
	for (size_t i = 0; flags != NULL && i < flags->n_settings; i++) {
		const struct conf_setting *s = &flags->settings[i];

		if (s->scope == scope)
			apply_to_pool(pool, s->key, s->value, s->is_first, from, to);
	}
}

static void resolve_pool(struct pool_conf *pool, const struct conf_source *source,
	const struct conf_flags *flags)
{
	apply_pool_sections(pool, source, SECTION_POOL);
	apply_pool_flags(pool, flags, CONF_SCOPE_POOL, ROLE_UNIFIED, ROLE_DECODE);
	apply_pool_sections(pool, source, SECTION_POOL_ROLE);
	apply_pool_flags(pool, flags, CONF_SCOPE_PREFILL, ROLE_PREFILL, ROLE_PREFILL);
	apply_pool_flags(pool, flags, CONF_SCOPE_DECODE, ROLE_DECODE, ROLE_DECODE);
}

/* Workers */

static void apply_worker_lines(
	struct worker_conf *w, const struct conf_section *s, enum conf_base which)
{
	void *base = which == CONF_BASE_OPTS ? (void *)&w->opts : (void *)w;

	for (size_t i = 0; i < s->n_lines; i++)
		if (s->lines[i].is_good && s->lines[i].key->base == which)
			apply(s->lines[i].key, base, s->lines[i].value,
				s->lines[i].is_first);
}

static void report_unknown_pool(const struct conf *c, const struct conf_section *s,
	const struct worker_conf *w, struct conf_errors *errors)
{
	const struct conf_line *line = conf_section_find(s, "pool");
	scoped_free char *hint = xstrdup("the pools are:");

	for (size_t i = 0; i < c->n_pools && i < 10; i++) {
		char *longer = xasprintf("%s %s", hint, c->pools[i].name);

		free(hint);
		hint = longer;
	}
	conf_errors_add(errors, line != NULL ? line->file : s->file,
		line != NULL ? line->line : s->line, conf_worker_key_name(w, "pool"),
		w->origin == ORIGIN_FLAG ? w->url.text : w->pool, hint,
		"no such pool%s%s", w->origin == ORIGIN_FLAG ? ": " : "",
		w->origin == ORIGIN_FLAG ? w->pool : "");
}

/* The worker that a section says, every value resolved against c's pools. False where one
 * is wrong. */
static bool make_worker(const struct conf *c, const struct conf_section *s,
	enum worker_origin origin, struct conf_errors *errors, struct worker_conf *w)
{
	const struct pool_conf *pool;
	bool is_good = true;

	*w = (struct worker_conf){.name = xstrdup(s->name), .origin = origin};
	conf_base_defaults(CONF_BASE_WORKER, w);
	apply_worker_lines(w, s, CONF_BASE_WORKER);
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
	conf_base_copy(CONF_BASE_OPTS, &pool->roles[w->role].worker, &w->opts);
	apply_worker_lines(w, s, CONF_BASE_OPTS);
	return is_good && conf_check_worker(w, s, errors);
}

static void add_worker(struct conf *c, struct worker_conf *w)
{
	c->workers = xrealloc(c->workers, (c->n_workers + 1) * sizeof(*c->workers));
	c->workers[c->n_workers++] = *w;
}

static void add_line(struct conf_section *s, const char *name, const char *value)
{
	const struct conf_key *key = conf_key_find(SECTION_WORKER, span_str(name));

	s->lines = xrealloc(s->lines, (s->n_lines + 1) * sizeof(*s->lines));
	s->lines[s->n_lines] = (struct conf_line){
		.key = key,
		.value = xstrdup(value),
		.is_good = true,
		.is_first = conf_section_find(s, name) == NULL,
	};
	s->n_lines++;
}

static void free_section(struct conf_section *s)
{
	for (size_t i = 0; i < s->n_lines; i++)
		free(s->lines[i].value);
	free(s->lines);
	free(s->name);
}

/* "host:port", or with a number behind it when another worker has that name. */
static char *flag_worker_name(const struct conf *c, const char *url_text)
{
	struct conf_url url;
	const char *why;
	char *name = NULL;
	int rc = conf_url_parse(span_str(url_text), &url, &why);

	assert(rc == 0); /* conf_flags_parse checked it */
	(void)rc;
	for (unsigned n = 1; name == NULL; n++) {
		name = n == 1 ? xasprintf("%s:%u", url.host, url.port)
			      : xasprintf("%s:%u-%u", url.host, url.port, n);
		for (size_t i = 0; i < c->n_workers && name != NULL; i++) {
			if (strcmp(c->workers[i].name, name) == 0) {
				free(name);
				name = NULL;
			}
		}
	}
	conf_url_free(&url);
	return name;
}

static void add_flag_worker(struct conf *c, const struct conf_flags *flags,
	const struct conf_flag_worker *given, struct conf_errors *errors)
{
	struct conf_section s = {.kind = SECTION_WORKER};
	struct worker_conf w;

	s.name = flag_worker_name(c, given->url);
	add_line(&s, "url", given->url);
	add_line(&s, "role", role_name(given->role));
	if (given->bootstrap_port != NULL)
		add_line(&s, "bootstrap_port", given->bootstrap_port);
	for (size_t i = 0; i < flags->n_settings; i++)
		if (flags->settings[i].scope == CONF_SCOPE_WORKERS)
			add_line(&s, flags->settings[i].key->name,
				flags->settings[i].value);
	if (make_worker(c, &s, ORIGIN_FLAG, errors, &w) &&
		conf_check_twins(c, &w, NULL, 0, given->flag, errors))
		add_worker(c, &w);
	else
		worker_conf_free(&w);
	free_section(&s);
}

static void add_workers(struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];
		const struct conf_line *url = conf_section_find(s, "url");
		struct worker_conf w;

		if (s->kind != SECTION_WORKER)
			continue;
		/* A url that could not be read has been reported: no need to go on. */
		if (make_worker(c, s, ORIGIN_FILE, errors, &w) && w.url.text != NULL &&
			conf_check_twins(c, &w, url->file, url->line, "url", errors))
			add_worker(c, &w);
		else
			worker_conf_free(&w);
	}
	for (size_t i = 0; flags != NULL && i < flags->n_workers; i++)
		add_flag_worker(c, flags, &flags->workers[i], errors);
}

int conf_worker_make(const struct conf *c, const char *name,
	const struct conf_pair *pairs, size_t n, struct conf_errors *errors,
	struct worker_conf *out)
{
	struct conf_section s = {.kind = SECTION_WORKER, .name = xstrdup(name)};
	size_t before = errors->n_errors;
	struct conf_fault fault;
	struct worker_conf w = {0};

	if (conf_name_check(span_str(name), &fault) != 0)
		conf_errors_add(
			errors, NULL, 0, "name", name, fault.hint, "%s", fault.message);
	for (size_t i = 0; i < n; i++)
		if (conf_check_pair(&s, &pairs[i], errors))
			add_line(&s, pairs[i].key, pairs[i].value);
	if (errors->n_errors == before && make_worker(c, &s, ORIGIN_API, errors, &w))
		*out = w;
	else
		worker_conf_free(&w);
	free_section(&s);
	return errors->n_errors == before ? 0 : ERR_PARSE;
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
	*to = *from;
	to->name = xstrdup(from->name);
	conf_base_copy(CONF_BASE_WORKER, from, to);
	conf_base_copy(CONF_BASE_OPTS, &from->opts, &to->opts);
	return 0;
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

int conf_load(const char *path, const struct conf_flags *flags,
	struct conf_errors *errors, struct conf **out)
{
	struct conf_source source = {0};
	struct conf *c = xcalloc(1, sizeof(*c));
	size_t before = errors->n_errors;

	atomic_init(&c->refs, 1);
	c->by_flags_alone = !is_file_wanted(path, flags, errors);
	if (!c->by_flags_alone)
		conf_source_read(&source, path, errors);
	apply_router(c, &source, flags);
	if (c->router.api_keys != NULL)
		c->client_keys = conf_client_keys_read(c->router.api_keys, errors);
	add_pools(c, &source, flags);
	for (size_t i = 0; i < c->n_pools; i++)
		resolve_pool(&c->pools[i], &source, flags);
	add_workers(c, &source, flags, errors);
	conf_check_whole(c, &source, flags, errors);
	conf_source_free(&source);
	if (errors->n_errors > before) {
		conf_unref(c);
		return ERR_PARSE;
	}
	*out = c;
	return 0;
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
