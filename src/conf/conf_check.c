/*
 * The checks that look at more than one value, each with its place and a hint.
 * A key whose feature does not exist yet is refused, never ignored. An operator must not
 * believe that a listener is encrypted or closed when it is not. Called by conf.c.
 */
#include "conf/conf_check.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "conf/conf_secret.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Keys of [router] that parse but have nothing behind them yet. */
static const struct {
	const char *key;
	const char *message;
} unbuilt[] = {
	{"tls_cert", "TLS is not built in yet"},
	{"tls_key", "TLS is not built in yet"},
	{"client_ca", "TLS is not built in yet"},
};

/*
 * Keys of features to come: they parse, so that a file may be shared with later versions,
 * and whoever sets one to something is told that nothing happens.
 */
static const char *const without_effect[] = {
	"tls_handshake_timeout",
	"tls_ca",
	"tls_verify",
};

static bool has_effect(const struct conf_key *key, const char *value)
{
	if (strcmp(value, key->def != NULL ? key->def : "none") == 0)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(without_effect); i++)
		if (strcmp(without_effect[i], key->name) == 0)
			return false;
	return true;
}

static void warn_of_no_effect(const struct conf_key *key, const char *value,
	const char *file, unsigned line, struct conf_errors *errors)
{
	if (has_effect(key, value))
		return;
	conf_warnings_add(errors, file, line, key->name, key->is_secret ? NULL : value,
		"remove it", "has no effect in this version");
}

static void check_effects(const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	for (size_t i = 0; i < source->n_sections; i++)
		for (size_t j = 0; j < source->sections[i].n_lines; j++) {
			const struct conf_line *l = &source->sections[i].lines[j];

			warn_of_no_effect(l->key, l->value, l->file, l->line, errors);
		}
	for (size_t i = 0; flags != NULL && i < flags->n_settings; i++)
		warn_of_no_effect(flags->settings[i].key, flags->settings[i].value, NULL,
			0, errors);
}

static bool has_word(const char *text, const char *word)
{
	struct span rest = span_str(text), w;

	if (strcmp(text, word) == 0)
		return true; /* where an item is a whole line */
	while (span_next_word(&rest, &w))
		if (span_is(w, word))
			return true;
	return false;
}

/* The last line of the key that holds the value; else the first of them. */
static const struct conf_line *router_line(
	const struct conf_source *source, const char *key, const char *value)
{
	const struct conf_line *found = NULL;

	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];

		if (s->kind != SECTION_ROUTER)
			continue;
		found = conf_section_find(s, key);
		for (size_t j = 0; j < s->n_lines; j++)
			if (strcmp(s->lines[j].key->name, key) == 0 &&
				has_word(s->lines[j].value, value))
				found = &s->lines[j];
	}
	return found;
}

static bool is_flag_given(const struct conf_flags *flags, const struct conf_key *key)
{
	for (size_t i = 0; flags != NULL && i < flags->n_settings; i++)
		if (flags->settings[i].key == key)
			return true;
	return false;
}

/* At the line that says it; at the flag when there is no such line. */
static void report_router(const struct conf_source *source,
	const struct conf_flags *flags, const struct conf_key *key, const char *value,
	const char *hint, const char *message, struct conf_errors *errors)
{
	const struct conf_line *line = router_line(source, key->name, value);
	char flag[64];

	if (!is_flag_given(flags, key) && line != NULL) {
		conf_errors_add(errors, line->file, line->line, key->name, value, hint,
			"%s", message);
		return;
	}
	snprintf(flag, sizeof(flag), "--%s", key->name);
	for (char *c = flag; *c != '\0'; c++)
		if (*c == '_')
			*c = '-';
	conf_errors_add(errors, NULL, 0, flag, value, hint, "%s", message);
}

/* Whether two addresses cannot both be listened on: one port, of one host or of all. */
static bool is_one_socket(const char *a, const char *b, struct conf_errors *errors)
{
	scoped_free char *host_a = NULL, *host_b = NULL;
	uint16_t port_a, port_b;
	const char *why;
	int rc = conf_hostport_parse(span_str(a), &host_a, &port_a, &why);

	if (rc == 0)
		rc = conf_hostport_parse(span_str(b), &host_b, &port_b, &why);
	if (rc == ERR_NOMEM)
		conf_errors_no_memory(errors);
	if (rc != 0)
		return false;
	return port_a == port_b && port_a != 0 &&
	       (host_a[0] == '\0' || host_b[0] == '\0' || strcmp(host_a, host_b) == 0);
}

static void check_built(const struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	for (size_t i = 0; i < ARRAY_LEN(unbuilt); i++) {
		const struct conf_key *key =
			conf_key_find(SECTION_ROUTER, span_str(unbuilt[i].key));
		scoped_free char *value = conf_value_text(key, &c->router);

		if (value == NULL)
			conf_errors_no_memory(errors);
		else if (strcmp(value, "none") != 0)
			report_router(source, flags, key, value, "leave it out",
				unbuilt[i].message, errors);
	}
}

static bool is_option(const char *word)
{
	return strcmp(word, CONF_LISTEN_PROXY) == 0;
}

/* The words of listen that say more of the address before them. */
static void check_listen_options(const struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	const struct conf_key *listen = conf_key_find(SECTION_ROUTER, SPAN_LIT("listen"));
	const struct conf_list *list = &c->router.listen;

	for (size_t i = 0; i < list->n; i++) {
		if (!is_option(list->items[i]))
			continue;
		if (i == 0 || is_option(list->items[i - 1]))
			report_router(source, flags, listen, list->items[i],
				"such as 10.0.0.1:30000 proxy_protocol",
				"stands behind no address", errors);
		else if (c->router.trusted_proxies.n == 0)
			report_router(source, flags, listen, list->items[i],
				"name the balancers in trusted_proxies",
				"nobody may use the PROXY protocol", errors);
	}
}

/* They are a part of each header that is written. */
static void check_rules(const struct conf_list *rules, const char *name,
	const struct conf_source *source, const struct conf_flags *flags,
	struct conf_errors *errors)
{
	const struct conf_key *key = conf_key_find(SECTION_ROUTER, span_str(name));
	size_t size = 0;

	for (size_t i = 0; i < rules->n; i++) {
		size += strlen(rules->items[i]);
		if (i < CONF_HEADER_RULES_MAX && size <= CONF_HEADER_RULES_BYTES)
			continue;
		report_router(source, flags, key, rules->items[i],
			"up to 64 of them, and 3072 characters in all",
			"is one rule too many", errors);
		return;
	}
}

static void check_router(const struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	const struct conf_key *listen = conf_key_find(SECTION_ROUTER, SPAN_LIT("listen"));
	const struct conf_list *list = &c->router.listen;

	if (list->n == 0)
		report_router(source, flags, listen, "none",
			"such as listen = 127.0.0.1:30000",
			"there is nothing to listen on", errors);
	for (size_t i = 0; i < list->n; i++)
		for (size_t j = i + 1; j < list->n; j++)
			if (strcmp(list->items[i], list->items[j]) == 0 &&
				!is_option(list->items[i]) &&
				!span_ends(span_str(list->items[i]), SPAN_LIT(":0")))
				report_router(source, flags, listen, list->items[j],
					"leave one of them", "the address is given twice",
					errors);
	for (size_t i = 0; c->router.metrics_listen != NULL && i < list->n; i++)
		if (is_one_socket(list->items[i], c->router.metrics_listen, errors))
			report_router(source, flags, listen, list->items[i],
				"give it another port",
				"metrics_listen uses this address", errors);
	check_listen_options(c, source, flags, errors);
	check_rules(&c->router.request_headers, "request_header", source, flags, errors);
	check_rules(
		&c->router.response_headers, "response_header", source, flags, errors);
	check_built(c, source, flags, errors);
}

static const char *worker_file(
	const struct conf_section *s, const char *key, unsigned *line)
{
	const struct conf_line *found = conf_section_find(s, key);

	*line = found != NULL ? found->line : s->line;
	return found != NULL ? found->file : s->file;
}

const char *conf_worker_key_name(const struct worker_conf *w, const char *key)
{
	static const char *const flags[ROLE_MAX] = {
		"--worker-urls", "--prefill", "--decode"};

	return w->origin == ORIGIN_FLAG ? flags[w->role] : key;
}

bool conf_check_worker(const struct worker_conf *w, const struct conf_section *s,
	struct conf_errors *errors)
{
	unsigned line;
	const char *file = worker_file(s, "url", &line);

	if (conf_url_is_unix(&w->url) && w->role != ROLE_UNIFIED) {
		conf_errors_add(errors, file, line, conf_worker_key_name(w, "url"),
			w->url.text, "give the address that the other workers reach",
			"a prefill or decode worker cannot be a unix socket");
		return false;
	}
	if (!w->url.tls)
		return true;
	conf_errors_add(errors, file, line, conf_worker_key_name(w, "url"), w->url.text,
		"use http:// on a network that you trust", "TLS is not built in yet");
	return false;
}

/* "NAME@RANK" of a worker with ranks, as w is called. */
static bool is_rank_name(const struct worker_conf *group, const struct worker_conf *w)
{
	size_t n = strlen(group->name);
	uint64_t rank;

	return strncmp(w->name, group->name, n) == 0 && w->name[n] == '@' &&
	       span_to_u64(span_str(w->name + n + 1), &rank) == 0 &&
	       worker_conf_has_rank(group, rank);
}

bool conf_check_twins(const struct conf *c, const struct worker_conf *w, const char *file,
	unsigned line, const char *key, struct conf_errors *errors)
{
	for (size_t i = 0; i < c->n_workers; i++) {
		const struct worker_conf *other = &c->workers[i];

		if (other->role == w->role && strcmp(other->url.text, w->url.text) == 0) {
			conf_errors_add(errors, file, line, key, w->url.text,
				"leave one of them",
				"worker %s has this URL and role already", other->name);
			return false;
		}
		if (is_rank_name(other, w) || is_rank_name(w, other)) {
			conf_errors_add(errors, file, line, key, w->url.text,
				"give one of them another name",
				"the name of worker %s or %s is that of a rank of the "
				"other",
				other->name, w->name);
			return false;
		}
	}
	return true;
}

bool conf_check_pair(const struct conf_section *s, const struct conf_pair *pair,
	struct conf_errors *errors)
{
	struct span name = span_str(pair->key);
	const struct conf_key *key = conf_key_find(SECTION_WORKER, name);
	struct conf_fault fault;
	char hint[128];
	bool is_shown;
	int rc;

	if (key == NULL) {
		conf_errors_add(errors, NULL, 0, pair->key, NULL,
			conf_key_hint(SECTION_WORKER, name, hint, sizeof(hint)),
			"unknown key of a worker");
		return false;
	}
	is_shown = !key->is_secret &&
		   !(key->type == CONF_TYPE_URL && strchr(pair->value, '@') != NULL);
	if (conf_section_find(s, pair->key) != NULL && !conf_key_is_list(key)) {
		conf_errors_add(errors, NULL, 0, pair->key, is_shown ? pair->value : NULL,
			"leave one of them", "duplicate key");
		return false;
	}
	/* Who may add a worker may not have this machine's files sent to it. */
	if (key->is_secret && conf_secret_is_elsewhere(span_str(pair->value))) {
		conf_errors_add(errors, NULL, 0, pair->key, NULL,
			"give the key itself, or add the worker to a file",
			"names a file of the daemon's machine");
		return false;
	}
	rc = conf_value_check(key, span_str(pair->value), &fault);
	if (rc == 0)
		return true;
	if (rc == ERR_NOMEM) {
		conf_errors_no_memory(errors);
		return false;
	}
	conf_errors_add(errors, NULL, 0, pair->key, is_shown ? pair->value : NULL,
		fault.hint[0] != '\0' ? fault.hint : NULL, "%s", fault.message);
	return false;
}

/* Whether [pool NAME] stands there, a worker names it, or it is the one that is always
 * there. */
static bool is_pool_meant(
	const struct conf *c, const struct conf_source *source, const char *name)
{
	for (size_t i = 0; i < source->n_sections; i++)
		if (source->sections[i].kind == SECTION_POOL &&
			strcmp(source->sections[i].name, name) == 0)
			return true;
	for (size_t i = 0; i < c->n_workers; i++)
		if (strcmp(c->workers[i].pool, name) == 0)
			return true;
	return strcmp(name, "default") == 0;
}

/* ---- secrets ---- */

static bool is_secret_line(const struct conf_line *l)
{
	return l->key->is_secret && strcmp(l->value, "none") != 0;
}

static void judge_secret(const struct conf_line *l, struct conf_errors *errors)
{
	struct span value = span_str(l->value);
	struct stat st;

	if (conf_secret_is_elsewhere(value)) {
		if (conf_secret_is_open(value))
			conf_warnings_add(errors, l->file, l->line, l->key->name, NULL,
				"chmod o-r", "every user may read the secret's file");
		return;
	}
	if (stat(l->file, &st) != 0)
		return;
	if ((st.st_mode & S_IWOTH) != 0)
		conf_errors_add(errors, l->file, l->line, l->key->name, NULL,
			"chmod o-rw",
			"every user may write to this file, which holds a secret");
	else if ((st.st_mode & S_IROTH) != 0)
		conf_warnings_add(errors, l->file, l->line, l->key->name, NULL,
			"chmod o-r, or file:PATH, or credential:NAME",
			"every user may read this file, and the secret in it");
}

/* Hashes tell nothing, but these are the keys themselves. */
static void check_secrets(const struct conf_source *source, struct conf_errors *errors)
{
	for (size_t i = 0; i < source->n_sections; i++)
		for (size_t j = 0; j < source->sections[i].n_lines; j++)
			if (is_secret_line(&source->sections[i].lines[j]))
				judge_secret(&source->sections[i].lines[j], errors);
}

/* A mistyped name would quietly make one more pool, with nothing in it. */
static void check_role_sections(const struct conf *c, const struct conf_source *source,
	struct conf_errors *errors)
{
	for (size_t i = 0; i < source->n_sections; i++) {
		const struct conf_section *s = &source->sections[i];

		if (s->kind == SECTION_POOL_ROLE && !is_pool_meant(c, source, s->name))
			conf_errors_add(errors, s->file, s->line, NULL, NULL,
				"add a section [pool NAME] with that name",
				"[pool %s %s]: no such pool", s->name,
				role_name(s->role));
	}
}

void conf_check_whole(const struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	const struct pool_conf *takes_all = NULL;

	check_router(c, source, flags, errors);
	check_effects(source, flags, errors);
	check_secrets(source, errors);
	check_role_sections(c, source, errors);
	for (size_t i = 0; i < c->n_pools; i++) {
		const struct pool_conf *pool = &c->pools[i];

		if (takes_all != NULL)
			conf_warn_of_pool(source, pool, "models",
				"set models of the pools before it, "
				"or put it before them",
				"is never reached: a pool before it "
				"serves every model",
				errors);
		else if (pool->models.n == 0)
			takes_all = pool;
		conf_check_roles(c, source, pool, errors);
	}
	conf_check_aliases(c, source, flags, errors);
	if (c->n_workers == 0 && errors->n_errors == 0)
		conf_warnings_add(errors, NULL, 0, NULL, NULL,
			"add a [worker NAME] section or --worker-urls, or use kvsteerctl "
			"add",
			"no worker is configured");
}
