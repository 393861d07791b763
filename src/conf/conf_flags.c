/*
 * The command line: each argument is a row of conf_flag_table.h, or a key of [router] or
 * [pool NAME] by its own name. Values are checked here, so that what is kept can always
 * be applied; all faults are reported, not only the first. Called by daemon.c at start;
 * the result is applied by conf.c, also at each reload.
 */
#include "conf/conf_flags.h"
#include "base/cleanup.h"
#include "base/dump.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/word.h"
#include "conf/conf_flag_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum arity { ARITY_NONE, ARITY_ONE, ARITY_MANY, ARITY_PAIR };
enum effect {
	EFFECT_GROUP,
	EFFECT_SET,
	EFFECT_FIXED,
	EFFECT_CALL,
	EFFECT_IGNORED,
	EFFECT_REFUSED
};

struct words {
	char **items;
	size_t n;
};

struct parser;
struct flag;
typedef void take_fn(struct parser *p, const struct flag *flag, struct words words);

struct flag {
	const char *name;
	enum effect effect;
	enum arity arity;
	const char *argument;
	enum conf_scope scope;
	const char *key;
	const char *unit; /* SET: put behind a bare number ("s"); FIXED: the value */
	const char *text; /* for -h; why or hint; NULL: the key's doc */
	take_fn *take;
};

struct parser {
	struct conf_flags *out;
	struct conf_errors *errors;
	char **argv;
	int argc, at;
	/* Pairs of flags that make one setting, joined at the end. */
	const char *host, *port, *metrics_host, *metrics_port;
	const char *pd_connector;
	char *pair[2];
	bool no_retries, no_breaker;
};

static take_fn take_config, take_test, take_print, take_version, take_help, take_host,
	take_port, take_metrics_host, take_metrics_port, take_bytes, take_worker_urls,
	take_prefill, take_decode, take_vllm_pd, take_sglang_pd, take_backend,
	take_no_breaker, take_retries, take_no_retries, take_concurrent, take_log_level;

/* clang-format off */
#define GROUP(title) { .name = title, .effect = EFFECT_GROUP },
#define SET(flag, ar, arg, sc, k) { flag, EFFECT_SET, ARITY_##ar, arg, CONF_SCOPE_##sc, k, NULL, NULL, NULL },
#define SECS(flag, sc, k) { flag, EFFECT_SET, ARITY_ONE, "N", CONF_SCOPE_##sc, k, "s", NULL, NULL },
#define FIXED(flag, sc, k, v, text) { flag, EFFECT_FIXED, ARITY_NONE, NULL, CONF_SCOPE_##sc, k, v, text, NULL },
#define CALL(flag, ar, arg, fn, text) { flag, EFFECT_CALL, ARITY_##ar, arg, CONF_SCOPE_ROUTER, NULL, NULL, text, fn },
#define IGNORED(flag, ar, arg, text) { flag, EFFECT_IGNORED, ARITY_##ar, arg, CONF_SCOPE_ROUTER, NULL, NULL, text, NULL },
#define REFUSED(flag, ar, arg, text) { flag, EFFECT_REFUSED, ARITY_##ar, arg, CONF_SCOPE_ROUTER, NULL, NULL, text, NULL },
/* clang-format on */

static const struct flag table[] = {CONF_FLAG_TABLE};

/* The one-letter options and the flag that each stands for. */
static const struct {
	char letter;
	const char *name;
} letters[] = {{'c', "--config"}, {'t', "--test"}, {'T', "--print"}, {'V', "--version"},
	{'h', "--help"}};

static enum conf_section_kind section_of(enum conf_scope scope)
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

static const struct conf_key *key_of(const struct flag *flag)
{
	const struct conf_key *key =
		conf_key_find(section_of(flag->scope), span_str(flag->key));

	assert(key != NULL); /* rows name keys that exist: the tests read every row */
	return key;
}

static void refuse(struct parser *p, const char *name, const char *value,
	const char *hint, const char *message)
{
	conf_errors_add(p->errors, NULL, 0, name, value,
		hint != NULL && hint[0] != '\0' ? hint : NULL, "%s", message);
}

/* Settings */

/* In order: a later one of the same key wins where it is applied, but lists grow. */
static void keep_setting(struct parser *p, enum conf_scope scope,
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

static void add_setting(struct parser *p, const char *name, enum conf_scope scope,
	const struct conf_key *key, const char *value, const char *shown)
{
	struct conf_fault fault;

	if (conf_value_check(key, span_str(value), &fault) == 0)
		keep_setting(p, scope, key, value);
	else
		refuse(p, name, key->is_secret ? NULL : shown, fault.hint, fault.message);
}

/* A setting whose value this file made itself. */
static void add_own_setting(
	struct parser *p, enum conf_scope scope, const char *name, const char *value)
{
	const struct conf_key *key = conf_key_find(section_of(scope), span_str(name));

	assert(key != NULL);
	add_setting(p, name, scope, key, value, value);
}

static bool is_number(const char *text)
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

/* What the word of a peer's command line is called here; it is told when that differs. */
static const char *own_word(struct parser *p, const struct flag *flag, const char *word)
{
	if (key_of(flag)->type != CONF_TYPE_POLICY)
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

static void take_setting(struct parser *p, const struct flag *flag, struct words words)
{
	for (size_t i = 0; i < words.n; i++) {
		scoped_free char *value = NULL;

		if (flag->unit != NULL && !is_number(words.items[i])) {
			refuse(p, flag->name, words.items[i], "digits only, such as 60",
				"is not a number of seconds");
			continue;
		}
		value = xasprintf("%s%s", own_word(p, flag, words.items[i]),
			flag->unit != NULL && strcmp(words.items[i], "0") != 0
				? flag->unit
				: "");
		add_setting(
			p, flag->name, flag->scope, key_of(flag), value, words.items[i]);
	}
}

/* Flags with a life of their own */

static void take_config(struct parser *p, const struct flag *flag, struct words words)
{
	if (words.items[0][0] == '\0')
		refuse(p, flag->name, NULL, "-c FILE", "has no value");
	p->out->conf_file = words.items[0];
}

static void take_test(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->out->test = true;
}

static void take_print(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->out->print = true;
}

static void take_version(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->out->version = true;
}

static void take_help(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->out->help = true;
}

static void take_host_into(
	struct parser *p, const struct flag *flag, const char *host, const char **out)
{
	bool is_v6 = strchr(host, ':') != NULL && host[0] != '[';
	scoped_free char *address = xasprintf(is_v6 ? "[%s]:1" : "%s:1", host);
	scoped_free char *parsed = NULL;
	struct conf_fault fault;
	uint16_t port;

	if (host[0] == '\0')
		refuse(p, flag->name, NULL, "such as 127.0.0.1 or ::", "has no value");
	else if (conf_hostport_read(span_str(address), &parsed, &port, &fault) != 0)
		refuse(p, flag->name, host,
			"an address or a name, such as 127.0.0.1 or ::", fault.message);
	else
		*out = host;
}

static void take_port_into(
	struct parser *p, const struct flag *flag, const char *port, const char **out)
{
	uint64_t value;

	if (span_to_u64(span_str(port), &value) == 0 && value <= 65535)
		*out = port;
	else
		refuse(p, flag->name, port,
			"a number from 0 to 65535; 0 lets the kernel choose",
			"is not a port");
}

static void take_host(struct parser *p, const struct flag *flag, struct words words)
{
	take_host_into(p, flag, words.items[0], &p->host);
}

static void take_port(struct parser *p, const struct flag *flag, struct words words)
{
	take_port_into(p, flag, words.items[0], &p->port);
}

static void take_metrics_host(
	struct parser *p, const struct flag *flag, struct words words)
{
	take_host_into(p, flag, words.items[0], &p->metrics_host);
}

static void take_metrics_port(
	struct parser *p, const struct flag *flag, struct words words)
{
	take_port_into(p, flag, words.items[0], &p->metrics_port);
}

static void take_bytes(struct parser *p, const struct flag *flag, struct words words)
{
	const struct conf_key *key =
		conf_key_find(SECTION_ROUTER, SPAN_LIT("max_body_size"));

	add_setting(
		p, flag->name, CONF_SCOPE_ROUTER, key, words.items[0], words.items[0]);
}

static void add_worker(struct parser *p, const struct flag *flag, const char *text,
	enum role role, const char *bootstrap_port)
{
	struct conf_flags *out = p->out;
	struct conf_fault fault;
	struct conf_url url;

	if (conf_url_read(span_str(text), &url, &fault) != 0) {
		refuse(p, flag->name, strchr(text, '@') == NULL ? text : NULL, fault.hint,
			fault.message);
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
	struct parser *p, const struct flag *flag, struct words words)
{
	p->out->has_worker_flag = true;
	for (size_t i = 0; i < words.n; i++)
		add_worker(p, flag, words.items[i], ROLE_UNIFIED, NULL);
}

static void take_prefill(struct parser *p, const struct flag *flag, struct words words)
{
	const char *port = words.n > 1 ? words.items[1] : NULL;
	uint64_t value;

	p->out->has_worker_flag = true;
	if (port != NULL && strcasecmp(port, "none") == 0)
		port = NULL;
	if (port != NULL && (span_to_u64(span_str(port), &value) != 0 || value > 65535)) {
		refuse(p, flag->name, port, "a number up to 65535, or none",
			"is not a bootstrap port");
		port = NULL;
	}
	add_worker(p, flag, words.items[0], ROLE_PREFILL, port);
}

static void take_decode(struct parser *p, const struct flag *flag, struct words words)
{
	p->out->has_worker_flag = true;
	if (words.n == 0)
		refuse(p, flag->name, NULL, "such as http://127.0.0.1:8000",
			"has no value");
	for (size_t i = 0; i < words.n; i++)
		add_worker(p, flag, words.items[i], ROLE_DECODE, NULL);
}

static void take_vllm_pd(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->pd_connector = "nixl";
}

static void take_sglang_pd(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->pd_connector = "sglang";
}

static void take_backend(struct parser *p, const struct flag *flag, struct words words)
{
	static const char *const served[] = {"vllm", "sglang", "trtllm"};

	for (size_t i = 0; i < ARRAY_LEN(served); i++)
		if (strcmp(words.items[0], served[i]) == 0)
			return;
	refuse(p, flag->name, words.items[0], "vllm, sglang or trtllm",
		"is not a supported backend");
}

static void take_no_breaker(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->no_breaker = true;
}

static void take_no_retries(
	struct parser *p, const struct flag *flag UNUSED, struct words words UNUSED)
{
	p->no_retries = true;
}

/* N attempts there are N-1 retries here. */
static void take_retries(struct parser *p, const struct flag *flag, struct words words)
{
	scoped_free char *retries = NULL;
	uint64_t attempts;

	if (span_to_u64(span_str(words.items[0]), &attempts) != 0 || attempts < 1 ||
		attempts > 1001) {
		refuse(p, flag->name, words.items[0],
			"the attempts in all: from 1 (no retry) to 1001",
			"is not a number of attempts");
		return;
	}
	retries = xasprintf("%u", (unsigned)attempts - 1);
	add_own_setting(p, CONF_SCOPE_POOL, "retry_max_retries", retries);
}

static void take_concurrent(struct parser *p, const struct flag *flag, struct words words)
{
	const struct conf_key *key =
		conf_key_find(SECTION_ROUTER, SPAN_LIT("max_concurrent_requests"));
	const char *value = words.items[0];

	if (strcmp(value, "-1") == 0)
		value = "1000000";
	add_setting(p, flag->name, CONF_SCOPE_ROUTER, key, value, words.items[0]);
}

static void take_log_level(struct parser *p, const struct flag *flag, struct words words)
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

/* Finding the row */

static const struct flag *find_row(struct span name)
{
	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].effect != EFFECT_GROUP && span_is(name, table[i].name))
			return &table[i];
	return NULL;
}

/* "--index-memory" is index_memory. Room for the key's name in `out`; false when it is no
 * such name. */
static bool read_key_name(struct span name, char *out, size_t n)
{
	if (name.n < 3 || name.n - 2 >= n || memchr(name.p, '_', name.n) != NULL)
		return false;
	memcpy(out, name.p + 2, name.n - 2);
	out[name.n - 2] = '\0';
	for (char *c = out; *c != '\0'; c++)
		if (*c == '-')
			*c = '_';
	return true;
}

/* A row made for a key's own name, with prefill_ or decode_ before it for one role. */
static bool make_row(struct span name, const char *full_name, struct flag *out)
{
	static const struct {
		const char *prefix;
		enum conf_scope scope;
	} places[] = {{"", CONF_SCOPE_ROUTER}, {"", CONF_SCOPE_POOL},
		{"prefill_", CONF_SCOPE_PREFILL}, {"decode_", CONF_SCOPE_DECODE}};
	const struct conf_key *key;
	char text[64];

	if (!read_key_name(name, text, sizeof(text)))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		size_t skip = strlen(places[i].prefix);

		if (strncmp(text, places[i].prefix, skip) != 0)
			continue;
		key = conf_key_find(section_of(places[i].scope), span_str(text + skip));
		if (key == NULL)
			continue;
		*out = (struct flag){
			.name = full_name,
			.effect = EFFECT_SET,
			.arity = conf_key_is_list(key) ? ARITY_MANY : ARITY_ONE,
			.argument = conf_type_name(key->type),
			.scope = places[i].scope,
			.key = key->name,
		};
		return true;
	}
	return false;
}

struct nearest {
	char name[64];
	unsigned distance;
};

static void try_near(struct nearest *best, struct span given, const char *candidate)
{
	unsigned distance = word_distance(given, span_str(candidate));

	if (distance >= best->distance ||
		!word_is_near(given, span_str(candidate), distance))
		return;
	best->distance = distance;
	snprintf(best->name, sizeof(best->name), "%s", candidate);
}

static void report_unknown(struct parser *p, const char *name)
{
	struct nearest best = {.distance = UINT32_MAX};
	struct span given = span_str(name);
	scoped_free char *hint = NULL;

	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].effect != EFFECT_GROUP)
			try_near(&best, given, table[i].name);
	for (size_t i = 0; i < conf_keys_n; i++) {
		scoped_free char *flag = xasprintf("--%s", conf_keys[i].name);

		if (!conf_key_in(&conf_keys[i], SECTION_ROUTER) &&
			!conf_key_in(&conf_keys[i], SECTION_POOL))
			continue;
		for (char *c = flag; *c != '\0'; c++)
			if (*c == '_')
				*c = '-';
		try_near(&best, given, flag);
	}
	if (best.name[0] != '\0')
		hint = xasprintf("did you mean %s?", best.name);
	refuse(p, name, NULL, hint != NULL ? hint : "-h lists the flags", "unknown flag");
}

/* Walking the arguments */

/* "-1" is a value; "-c" and "--x" are not. */
static bool is_value(const char *arg)
{
	return arg[0] != '-' || (arg[1] >= '0' && arg[1] <= '9');
}

static bool is_bootstrap_port(const char *arg)
{
	return strcasecmp(arg, "none") == 0 || is_number(arg);
}

/* The words behind '=' and, for a URL with its port, the argument that follows. */
static struct words take_inline(struct parser *p, const struct flag *flag, char *value)
{
	p->pair[0] = value;
	if (flag->arity == ARITY_PAIR && p->at < p->argc &&
		is_bootstrap_port(p->argv[p->at])) {
		p->pair[1] = p->argv[p->at++];
		return (struct words){p->pair, 2};
	}
	return (struct words){p->pair, 1};
}

/* As many arguments as the flag takes. */
static struct words take_words(struct parser *p, const struct flag *flag)
{
	struct words words = {p->argv + p->at, 0};

	while (p->at < p->argc && is_value(p->argv[p->at])) {
		bool is_port = flag->arity == ARITY_PAIR && words.n == 1 &&
			       is_bootstrap_port(p->argv[p->at]);

		if (flag->arity != ARITY_MANY && words.n > 0 && !is_port)
			break;
		words.n++;
		p->at++;
	}
	return words;
}

static void run_flag(struct parser *p, const struct flag *flag, struct words words)
{
	switch (flag->effect) {
	case EFFECT_SET:
		take_setting(p, flag, words);
		break;
	case EFFECT_FIXED:
		add_setting(
			p, flag->name, flag->scope, key_of(flag), flag->unit, flag->unit);
		break;
	case EFFECT_CALL:
		flag->take(p, flag, words);
		break;
	case EFFECT_IGNORED:
		conf_warnings_add(p->errors, NULL, 0, flag->name, NULL, flag->text,
			"has no effect here");
		break;
	case EFFECT_REFUSED:
		refuse(p, flag->name, NULL, flag->text, "is not supported");
		break;
	case EFFECT_GROUP:
		break;
	}
}

/* A flag without an argument may be told so: --log-json=true. */
static bool is_switched_off(struct parser *p, const struct flag *flag, const char *value)
{
	if (strcmp(value, "false") == 0)
		return true;
	if (strcmp(value, "true") != 0)
		refuse(p, flag->name, value, NULL, "takes no value");
	return strcmp(value, "true") != 0;
}

static bool wants_switch_word(const struct flag *flag, struct words words)
{
	return words.n == 0 && flag->effect == EFFECT_SET &&
	       key_of(flag)->type == CONF_TYPE_SWITCH;
}

static void take_flag(struct parser *p, const struct flag *flag, char *inline_value)
{
	char *on = (char[]){"on"};
	struct words words;

	if (flag->arity == ARITY_NONE) {
		if (inline_value == NULL || !is_switched_off(p, flag, inline_value))
			run_flag(p, flag, (struct words){NULL, 0});
		return;
	}
	words = inline_value != NULL ? take_inline(p, flag, inline_value)
				     : take_words(p, flag);
	if (wants_switch_word(flag, words))
		words = (struct words){&on, 1};
	if (words.n == 0 && flag->arity != ARITY_MANY) {
		refuse(p, flag->name, NULL, flag->argument, "has no value");
		return;
	}
	run_flag(p, flag, words);
}

static void skip_values(struct parser *p)
{
	while (p->at < p->argc && is_value(p->argv[p->at]))
		p->at++;
}

static void take_long(struct parser *p, char *arg)
{
	char *equals = strchr(arg, '=');
	struct span name =
		span_make(arg, equals != NULL ? (size_t)(equals - arg) : strlen(arg));
	const struct flag *row = find_row(name);
	scoped_free char *full_name = xstrndup(name.p, name.n);
	struct flag made;

	if (row == NULL && make_row(name, full_name, &made))
		row = &made;
	if (row != NULL) {
		take_flag(p, row, equals != NULL ? equals + 1 : NULL);
		return;
	}
	report_unknown(p, full_name);
	skip_values(p);
}

static void take_letter(struct parser *p, char *arg)
{
	char letter[3];

	for (size_t i = 0; i < ARRAY_LEN(letters); i++) {
		if (arg[1] != letters[i].letter)
			continue;
		if (arg[2] == '\0') {
			take_flag(p, find_row(span_str(letters[i].name)), NULL);
			return;
		}
		if (arg[1] == 'c') {
			take_flag(p, find_row(span_str(letters[i].name)), arg + 2);
			return;
		}
	}
	/* Only the letter: what follows it may be a secret. */
	snprintf(letter, sizeof(letter), "-%c", arg[1]);
	refuse(p, letter, NULL, "-h lists the flags", "unknown flag");
	skip_values(p);
}

static void take_stray(struct parser *p, const char *arg)
{
	const char *hint = "flags begin with --";

	if (strstr(arg, "://") != NULL)
		hint = "worker URLs follow --worker-urls";
	else if (span_ends(span_str(arg), SPAN_LIT(".conf")))
		hint = "a configuration file follows -c";
	conf_errors_add(p->errors, NULL, 0, NULL, NULL, hint, "unexpected argument%s%s",
		strchr(arg, '@') == NULL ? " " : "", strchr(arg, '@') == NULL ? arg : "");
}

/* What several flags say together */

static char *join_address(const char *host, const char *port)
{
	bool is_bare_v6 = strchr(host, ':') != NULL && host[0] != '[';

	return xasprintf(is_bare_v6 ? "[%s]:%s" : "%s:%s", host, port);
}

static void join_addresses(struct parser *p)
{
	if (p->host != NULL || p->port != NULL) {
		scoped_free char *listen =
			join_address(p->host != NULL ? p->host : "127.0.0.1",
				p->port != NULL ? p->port : "30000");

		add_own_setting(p, CONF_SCOPE_ROUTER, "listen", listen);
	}
	if (p->metrics_host != NULL || p->metrics_port != NULL) {
		scoped_free char *metrics = join_address(
			p->metrics_host != NULL ? p->metrics_host : "127.0.0.1",
			p->metrics_port != NULL ? p->metrics_port : "29000");

		add_own_setting(p, CONF_SCOPE_ROUTER, "metrics_listen", metrics);
	}
}

static bool has_setting(const struct conf_flags *flags, const char *key)
{
	for (size_t i = 0; i < flags->n_settings; i++)
		if (strcmp(flags->settings[i].key->name, key) == 0)
			return true;
	return false;
}

static bool has_prefill(const struct conf_flags *flags)
{
	for (size_t i = 0; i < flags->n_workers; i++)
		if (flags->workers[i].role == ROLE_PREFILL)
			return true;
	return false;
}

static void finish(struct parser *p)
{
	struct conf_flags *out = p->out;

	join_addresses(p);
	if (p->no_retries)
		add_own_setting(p, CONF_SCOPE_POOL, "retry_max_retries", "0");
	if (p->no_breaker)
		add_own_setting(p, CONF_SCOPE_POOL, "cb_failure_threshold", "1000000000");
	if (p->pd_connector == NULL && has_prefill(out) && out->conf_file == NULL)
		p->pd_connector = "nixl";
	if (p->pd_connector != NULL && !has_setting(out, "kv_connector"))
		add_own_setting(p, CONF_SCOPE_POOL, "kv_connector", p->pd_connector);
	if (out->conf_file == NULL && !out->has_worker_flag) {
		out->conf_file = CONF_DEFAULT_FILE;
		out->is_default_file = true;
	}
}

int conf_flags_parse(
	int argc, char **argv, struct conf_errors *errors, struct conf_flags *out)
{
	struct conf_flags flags = {0};
	struct parser p = {
		.out = &flags, .errors = errors, .argv = argv, .argc = argc, .at = 1};
	size_t before = errors->n_errors;

	while (p.at < argc) {
		char *arg = argv[p.at++];

		if (arg[0] == '-' && arg[1] == '-')
			take_long(&p, arg);
		else if (arg[0] == '-' && arg[1] != '\0')
			take_letter(&p, arg);
		else
			take_stray(&p, arg);
	}
	finish(&p);
	if (errors->n_errors > before) {
		conf_flags_free(&flags);
		return ERR_PARSE;
	}
	*out = flags;
	return 0;
}

void conf_flags_free(struct conf_flags *flags)
{
	if (flags == NULL)
		return;
	for (size_t i = 0; i < flags->n_settings; i++) {
		if (flags->settings[i].key->is_secret)
			mem_wipe(flags->settings[i].value,
				strlen(flags->settings[i].value));
		free(flags->settings[i].value);
	}
	for (size_t i = 0; i < flags->n_workers; i++) {
		free(flags->workers[i].url);
		free(flags->workers[i].bootstrap_port);
	}
	free(flags->settings);
	free(flags->workers);
	*flags = (struct conf_flags){0};
}

/* -h */

static void print_names(FILE *to, enum effect effect, const char *title)
{
	int column = 0;

	fprintf(to, "\n%s:\n", title);
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		const struct flag *flag = &table[i];
		int n = (int)strlen(flag->name != NULL ? flag->name : "") + 1;

		if (flag->effect != effect)
			continue;
		if (column > 0 && column + n > 78) {
			fputc('\n', to);
			column = 0;
		}
		column += fprintf(to, "%s%s", column == 0 ? "  " : " ", flag->name);
	}
	fputc('\n', to);
}

/* "-c, " before a flag that has a letter. */
static void letter_of(const struct flag *flag, char out[5])
{
	out[0] = '\0';
	for (size_t i = 0; i < ARRAY_LEN(letters); i++)
		if (strcmp(letters[i].name, flag->name) == 0)
			snprintf(out, 5, "-%c, ", letters[i].letter);
}

static const char *meaning_of(const struct flag *flag)
{
	if (flag->scope == CONF_SCOPE_PREFILL)
		return "the same, for prefill only";
	if (flag->scope == CONF_SCOPE_DECODE)
		return "the same, for decode only";
	return flag->text != NULL ? flag->text : key_of(flag)->doc;
}

static void print_row(FILE *to, const struct flag *flag)
{
	enum { HEAD_WIDTH = 31 };
	scoped_free char *head = NULL;
	char letter[5];

	letter_of(flag, letter);
	head = xasprintf("%s%s%s%s", letter, flag->name,
		flag->argument != NULL ? " " : "",
		flag->argument != NULL ? flag->argument : "");
	if (strlen(head) <= HEAD_WIDTH)
		fprintf(to, "  %-*s  %s\n", HEAD_WIDTH, head, meaning_of(flag));
	else
		fprintf(to, "  %s\n%*s%s\n", head, HEAD_WIDTH + 4, "", meaning_of(flag));
}

void conf_usage(FILE *to)
{
	fputs("usage: kvsteerd [-tTVh] [-c FILE] [flags]\n", to);
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		const struct flag *flag = &table[i];

		if (flag->effect == EFFECT_GROUP && flag->name != NULL)
			fprintf(to, "\n%s:\n", flag->name);
		else if (flag->effect == EFFECT_SET || flag->effect == EFFECT_FIXED ||
			 flag->effect == EFFECT_CALL)
			print_row(to, flag);
	}
	fputs("\nEvery key of [router] and [pool NAME] in kvsteer.conf(5) is a flag too, "
	      "with its own\n"
	      "units: --key-with-dashes VALUE. --prefill-KEY and --decode-KEY set it for "
	      "one role.\n"
	      "Flags override the file.\n",
		to);
	print_names(to, EFFECT_IGNORED, "Accepted, without effect");
	print_names(to, EFFECT_REFUSED, "Refused, with a hint");
}

/* --dump-tables */

static const char *type_of(const struct flag *flag)
{
	if (flag->effect == EFFECT_IGNORED)
		return "ignored";
	if (flag->effect == EFFECT_REFUSED)
		return "refused";
	if (flag->arity == ARITY_NONE)
		return "switch";
	if (flag->effect == EFFECT_CALL)
		return flag->argument;
	return flag->unit != NULL ? "seconds" : conf_type_name(key_of(flag)->type);
}

void conf_dump_flags(void)
{
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		const struct flag *flag = &table[i];

		if (flag->effect != EFFECT_GROUP)
			dump_row("flag", flag->name + strlen("--"), type_of(flag),
				flag->effect == EFFECT_SET ? key_of(flag)->def : NULL);
	}
}
