/*
 * The effect of each flag of the command line: the rows of conf_flag_table.h, and the
 * flags with functions of their own. Values are checked here, so that kept ones can
 * always be applied.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_flag_row.h"
#include "conf/conf_flag_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static conf_flag_take_fn take_config, take_test, take_print, take_version, take_help,
	take_host, take_port, take_metrics_host, take_metrics_port, take_bytes,
	take_worker_urls, take_prefill, take_decode, take_vllm_pd, take_sglang_pd,
	take_backend, take_no_breaker, take_retries, take_no_retries, take_concurrent,
	take_log_level, take_aliases;

/* clang-format off */
#define GROUP(title) { .name = title, .effect = EFFECT_GROUP },
#define SET(flag, ar, arg, sc, k) { flag, EFFECT_SET, ARITY_##ar, arg, CONF_SCOPE_##sc, k, NULL, NULL, NULL },
#define SECS(flag, sc, k) { flag, EFFECT_SET, ARITY_ONE, "N", CONF_SCOPE_##sc, k, "s", NULL, NULL },
#define FIXED(flag, sc, k, v, text) { flag, EFFECT_FIXED, ARITY_NONE, NULL, CONF_SCOPE_##sc, k, v, text, NULL },
#define CALL(flag, ar, arg, fn, text) { flag, EFFECT_CALL, ARITY_##ar, arg, CONF_SCOPE_ROUTER, NULL, NULL, text, fn },
#define IGNORED(flag, ar, arg, text) { flag, EFFECT_IGNORED, ARITY_##ar, arg, CONF_SCOPE_ROUTER, NULL, NULL, text, NULL },
#define REFUSED(flag, ar, arg, text) { flag, EFFECT_REFUSED, ARITY_##ar, arg, CONF_SCOPE_ROUTER, NULL, NULL, text, NULL },
/* clang-format on */

const struct conf_flag conf_flag_rows[] = {CONF_FLAG_TABLE};
const size_t conf_flag_rows_n = ARRAY_LEN(conf_flag_rows);

const struct conf_flag_letter conf_flag_letters[CONF_FLAG_LETTERS] = {{'c', "--config"},
	{'t', "--test"}, {'T', "--print"}, {'V', "--version"}, {'h', "--help"}};

enum conf_section_kind conf_flag_section(enum conf_scope scope)
{
	switch (scope) {
	case CONF_SCOPE_ROUTER:
		return SECTION_ROUTER;
	case CONF_SCOPE_POOL:
		return SECTION_POOL;
	case CONF_SCOPE_PREFILL:
	case CONF_SCOPE_DECODE:
		return SECTION_POOL_ROLE;
	case CONF_SCOPE_WORKERS:
		break;
	}
	return SECTION_WORKER;
}

const struct conf_key *conf_flag_key(const struct conf_flag *flag)
{
	const struct conf_key *key =
		conf_key_find(conf_flag_section(flag->scope), span_str(flag->key));

	assert(key != NULL); /* rows name keys that exist: the tests read every row */
	return key;
}

void conf_flag_refuse(struct conf_flag_parser *p, const char *name, const char *value,
	const char *hint, const char *message)
{
	conf_errors_add(p->errors, NULL, 0, name, value,
		hint != NULL && hint[0] != '\0' ? hint : NULL, "%s", message);
}

/* Settings */

/* In order: a later one of the same key wins where it is applied, but lists grow. */
static void keep_setting(struct conf_flag_parser *p, enum conf_scope scope,
	const struct conf_key *key, const char *value)
{
	struct conf_flags *out = p->out;
	bool is_first = true;

	for (size_t i = 0; i < out->n_settings; i++)
		if (out->settings[i].scope == scope && out->settings[i].key == key)
			is_first = false;
	out->settings =
		xrealloc(out->settings, (out->n_settings + 1) * sizeof(*out->settings));
	out->settings[out->n_settings++] = (struct conf_setting){.scope = scope,
		.key = key,
		.value = xstrdup(value),
		.is_first = is_first};
}

static void add_setting(struct conf_flag_parser *p, const char *name,
	enum conf_scope scope, const struct conf_key *key, const char *value,
	const char *shown)
{
	struct conf_fault fault;

	if (conf_value_check(key, span_str(value), &fault) == 0)
		keep_setting(p, scope, key, value);
	else
		conf_flag_refuse(p, name, key->is_secret ? NULL : shown, fault.hint,
			fault.message);
}

/* A setting whose value this file made itself. */
void conf_flag_add_own(struct conf_flag_parser *p, enum conf_scope scope,
	const char *name, const char *value)
{
	const struct conf_key *key =
		conf_key_find(conf_flag_section(scope), span_str(name));

	assert(key != NULL);
	add_setting(p, name, scope, key, value, value);
}

bool conf_flag_is_number(const char *text)
{
	return text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* Names that peers have for policies that do the same, or what comes nearest. */
static const struct {
	const char *theirs, *ours;
} peer_policies[] = {
	{"consistent_hashing", "consistent_hash"},
	{"least_load", "least_requests"},
	{"total_requests", "least_requests"},
	{"shortest_queue", "least_requests"},
	{"prefix_hash", "prefix_affinity"},
	{"manual", "sticky_least_loaded"},
};

/* The name here of a word of a peer's command line. A warning says when it differs. */
static const char *own_word(
	struct conf_flag_parser *p, const struct conf_flag *flag, const char *word)
{
	if (conf_flag_key(flag)->type != CONF_TYPE_POLICY)
		return word;
	for (size_t i = 0; i < ARRAY_LEN(peer_policies); i++) {
		if (strcmp(word, peer_policies[i].theirs) != 0)
			continue;
		conf_warnings_add(p->errors, NULL, 0, flag->name, word,
			"see POLICIES in kvsteer.conf(5)", "is treated as %s",
			peer_policies[i].ours);
		return peer_policies[i].ours;
	}
	return word;
}

static void take_setting(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	for (size_t i = 0; i < words.n; i++) {
		scoped_free char *value = NULL;

		if (flag->unit != NULL && !conf_flag_is_number(words.items[i])) {
			conf_flag_refuse(p, flag->name, words.items[i],
				"digits only, such as 60", "is not a number of seconds");
			continue;
		}
		value = xasprintf("%s%s", own_word(p, flag, words.items[i]),
			flag->unit != NULL && strcmp(words.items[i], "0") != 0
				? flag->unit
				: "");
		add_setting(p, flag->name, flag->scope, conf_flag_key(flag), value,
			words.items[i]);
	}
}

/* Flags with a life of their own */

static void take_config(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	if (words.items[0][0] == '\0')
		conf_flag_refuse(p, flag->name, NULL, "-c FILE", "has no value");
	p->out->conf_file = words.items[0];
}

static void take_test(struct conf_flag_parser *p, const struct conf_flag *flag UNUSED,
	struct words words UNUSED)
{
	p->out->test = true;
}

static void take_print(struct conf_flag_parser *p, const struct conf_flag *flag UNUSED,
	struct words words UNUSED)
{
	p->out->print = true;
}

static void take_version(struct conf_flag_parser *p, const struct conf_flag *flag UNUSED,
	struct words words UNUSED)
{
	p->out->version = true;
}

static void take_help(struct conf_flag_parser *p, const struct conf_flag *flag UNUSED,
	struct words words UNUSED)
{
	p->out->help = true;
}

static void take_host_into(struct conf_flag_parser *p, const struct conf_flag *flag,
	const char *host, const char **out)
{
	bool is_v6 = strchr(host, ':') != NULL && host[0] != '[';
	scoped_free char *address = xasprintf(is_v6 ? "[%s]:1" : "%s:1", host);
	scoped_free char *parsed = NULL;
	struct conf_fault fault;
	uint16_t port;

	if (host[0] == '\0')
		conf_flag_refuse(
			p, flag->name, NULL, "such as 127.0.0.1 or ::", "has no value");
	else if (conf_hostport_read(span_str(address), &parsed, &port, &fault) != 0)
		conf_flag_refuse(p, flag->name, host,
			"an address or a name, such as 127.0.0.1 or ::", fault.message);
	else
		*out = host;
}

static void take_port_into(struct conf_flag_parser *p, const struct conf_flag *flag,
	const char *port, const char **out)
{
	uint64_t value;

	if (span_to_u64(span_str(port), &value) == 0 && value <= 65535)
		*out = port;
	else
		conf_flag_refuse(p, flag->name, port,
			"a number from 0 to 65535; 0 lets the kernel choose",
			"is not a port");
}

static void take_host(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	take_host_into(p, flag, words.items[0], &p->host);
}

static void take_port(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	take_port_into(p, flag, words.items[0], &p->port);
}

static void take_metrics_host(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	take_host_into(p, flag, words.items[0], &p->metrics_host);
}

static void take_metrics_port(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	take_port_into(p, flag, words.items[0], &p->metrics_port);
}

static void take_bytes(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	const struct conf_key *key =
		conf_key_find(SECTION_ROUTER, SPAN_LIT("max_body_size"));

	add_setting(
		p, flag->name, CONF_SCOPE_ROUTER, key, words.items[0], words.items[0]);
}

static void add_worker(struct conf_flag_parser *p, const struct conf_flag *flag,
	const char *text, enum role role, const char *bootstrap_port)
{
	struct conf_flags *out = p->out;
	struct conf_fault fault;
	struct conf_url url;

	if (conf_url_read(span_str(text), &url, &fault) != 0) {
		conf_flag_refuse(p, flag->name, strchr(text, '@') == NULL ? text : NULL,
			fault.hint, fault.message);
		return;
	}
	out->workers =
		xrealloc(out->workers, (out->n_workers + 1) * sizeof(*out->workers));
	out->workers[out->n_workers++] = (struct conf_flag_worker){
		.url = xstrdup(url.text),
		.role = role,
		.bootstrap_port = bootstrap_port != NULL ? xstrdup(bootstrap_port) : NULL,
		.flag = flag->name,
	};
	conf_url_free(&url);
}

static void take_worker_urls(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	p->out->has_worker_flag = true;
	for (size_t i = 0; i < words.n; i++)
		add_worker(p, flag, words.items[i], ROLE_UNIFIED, NULL);
}

static void take_prefill(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	const char *port = words.n > 1 ? words.items[1] : NULL;
	uint64_t value;

	p->out->has_worker_flag = true;
	if (port != NULL && strcasecmp(port, "none") == 0)
		port = NULL;
	if (port != NULL && (span_to_u64(span_str(port), &value) != 0 || value > 65535)) {
		conf_flag_refuse(p, flag->name, port, "a number up to 65535, or none",
			"is not a bootstrap port");
		port = NULL;
	}
	add_worker(p, flag, words.items[0], ROLE_PREFILL, port);
}

static void take_decode(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	p->out->has_worker_flag = true;
	if (words.n == 0)
		conf_flag_refuse(p, flag->name, NULL, "such as http://127.0.0.1:8000",
			"has no value");
	for (size_t i = 0; i < words.n; i++)
		add_worker(p, flag, words.items[i], ROLE_DECODE, NULL);
}

static void take_vllm_pd(struct conf_flag_parser *p, const struct conf_flag *flag UNUSED,
	struct words words UNUSED)
{
	p->pd_connector = "nixl";
}

static void take_sglang_pd(struct conf_flag_parser *p,
	const struct conf_flag *flag UNUSED, struct words words UNUSED)
{
	p->pd_connector = "sglang";
}

static void take_backend(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	static const char *const served[] = {"vllm", "sglang", "trtllm"};

	for (size_t i = 0; i < ARRAY_LEN(served); i++)
		if (strcmp(words.items[0], served[i]) == 0)
			return;
	conf_flag_refuse(p, flag->name, words.items[0], "vllm, sglang or trtllm",
		"is not a supported backend");
}

static void take_no_breaker(struct conf_flag_parser *p,
	const struct conf_flag *flag UNUSED, struct words words UNUSED)
{
	p->no_breaker = true;
}

static void take_no_retries(struct conf_flag_parser *p,
	const struct conf_flag *flag UNUSED, struct words words UNUSED)
{
	p->no_retries = true;
}

/* N attempts there are N-1 retries here. */
static void take_retries(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	scoped_free char *retries = NULL;
	uint64_t attempts;

	if (span_to_u64(span_str(words.items[0]), &attempts) != 0 || attempts < 1 ||
		attempts > 1001) {
		conf_flag_refuse(p, flag->name, words.items[0],
			"the attempts in all: from 1 (no retry) to 1001",
			"is not a number of attempts");
		return;
	}
	retries = xasprintf("%u", (unsigned)attempts - 1);
	conf_flag_add_own(p, CONF_SCOPE_POOL, "retry_max_retries", retries);
}

static void take_concurrent(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	const struct conf_key *key =
		conf_key_find(SECTION_ROUTER, SPAN_LIT("max_concurrent_requests"));
	const char *value = words.items[0];

	if (strcmp(value, "-1") == 0)
		value = "1000000";
	add_setting(p, flag->name, CONF_SCOPE_ROUTER, key, value, words.items[0]);
}

static void take_log_level(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	static const char *const others[][2] = {
		{"warning", "warn"}, {"critical", "error"}, {"trace", "debug"}};
	const struct conf_key *key = conf_key_find(SECTION_ROUTER, SPAN_LIT("log_level"));
	const char *value = words.items[0];
	scoped_free char *lower = xstrdup(value);

	for (char *c = lower; *c != '\0'; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c += 'a' - 'A';
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		if (strcmp(lower, others[i][0]) == 0) {
			free(lower);
			lower = xstrdup(others[i][1]);
		}
	}
	add_setting(p, flag->name, CONF_SCOPE_ROUTER, key, lower, value);
}

/* Peers write a colon, and commas between aliases. */
static void take_aliases(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	const struct conf_key *key = conf_key_find(SECTION_POOL, SPAN_LIT("alias"));
	struct span rest = span_str(words.items[0]), one, name;

	while (span_next(&rest, ',', &one)) {
		scoped_free char *shown = xstrndup(one.p, one.n), *value = NULL;
		struct span target = span_trim(one);

		name = span_make(target.p, 0);
		if (memchr(target.p, ':', target.n) == NULL ||
			!span_next(&target, ':', &name))
			target = span_make(NULL, 0);
		value = xasprintf(
			SPAN_FMT "=" SPAN_FMT, SPAN_ARG(name), SPAN_ARG(target));
		add_setting(p, flag->name, CONF_SCOPE_POOL, key, value, shown);
	}
}

/* The effects of rows */

void conf_flag_run(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words)
{
	switch (flag->effect) {
	case EFFECT_SET:
		take_setting(p, flag, words);
		break;
	case EFFECT_FIXED:
		add_setting(p, flag->name, flag->scope, conf_flag_key(flag), flag->unit,
			flag->unit);
		break;
	case EFFECT_CALL:
		flag->take(p, flag, words);
		break;
	case EFFECT_IGNORED:
		conf_warnings_add(p->errors, NULL, 0, flag->name, NULL, flag->text,
			"has no effect here");
		break;
	case EFFECT_REFUSED:
		conf_flag_refuse(p, flag->name, NULL, flag->text, "is not supported");
		break;
	case EFFECT_GROUP:
		break;
	}
}
