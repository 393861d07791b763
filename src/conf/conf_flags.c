/*
 * The command line: each flag is a row of conf_flag_table.h, or a key of [router] or
 * [pool NAME] by its own name. All faults are reported, not only the first. Called by
 * daemon.c at start; the result is applied by conf.c, also at each reload.
 */
#include "conf/conf_flags.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/word.h"
#include "conf/conf_flag_row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Finding the row */

static const struct conf_flag *find_row(struct span name)
{
	for (size_t i = 0; i < conf_flag_rows_n; i++)
		if (conf_flag_rows[i].effect != EFFECT_GROUP &&
			span_is(name, conf_flag_rows[i].name))
			return &conf_flag_rows[i];
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
static bool make_row(struct span name, const char *full_name, struct conf_flag *out)
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
		key = conf_key_find(
			conf_flag_section(places[i].scope), span_str(text + skip));
		if (key == NULL)
			continue;
		*out = (struct conf_flag){
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
	struct word_search search;
	char name[64];
};

static void try_near(struct nearest *best, const char *candidate)
{
	if (word_is_nearest(&best->search, span_str(candidate)))
		snprintf(best->name, sizeof(best->name), "%s", candidate);
}

static void report_unknown(struct conf_flag_parser *p, const char *name)
{
	struct nearest best = {.search.wanted = span_str(name)};
	scoped_free char *hint = NULL;

	for (size_t i = 0; i < conf_flag_rows_n; i++)
		if (conf_flag_rows[i].effect != EFFECT_GROUP)
			try_near(&best, conf_flag_rows[i].name);
	for (size_t i = 0; i < conf_keys_n; i++) {
		scoped_free char *flag = xasprintf("--%s", conf_keys[i].name);

		if (!conf_key_in(&conf_keys[i], SECTION_ROUTER) &&
			!conf_key_in(&conf_keys[i], SECTION_POOL))
			continue;
		for (char *c = flag; *c != '\0'; c++)
			if (*c == '_')
				*c = '-';
		try_near(&best, flag);
	}
	if (best.name[0] != '\0')
		hint = xasprintf("did you mean %s?", best.name);
	conf_flag_refuse(p, name, NULL, hint != NULL ? hint : "-h lists the flags",
		"unknown flag");
}

/* Walking the arguments */

/* "-1" is a value; "-c" and "--x" are not. */
static bool is_value(const char *arg)
{
	return arg[0] != '-' || (arg[1] >= '0' && arg[1] <= '9');
}

static bool is_bootstrap_port(const char *arg)
{
	return strcasecmp(arg, "none") == 0 || conf_flag_is_number(arg);
}

/* NULL: there is none. */
static const char *next(const struct conf_flag_parser *p)
{
	return p->args.at < p->args.argc ? p->args.argv[p->args.at] : NULL;
}

/* The words behind '=' and, for a URL with its port, the argument that follows. */
static struct words take_inline(
	struct conf_flag_parser *p, const struct conf_flag *flag, char *value)
{
	p->pair[0] = value;
	if (flag->arity == ARITY_PAIR && next(p) != NULL && is_bootstrap_port(next(p))) {
		p->pair[1] = p->args.argv[p->args.at++];
		return (struct words){p->pair, 2};
	}
	return (struct words){p->pair, 1};
}

/* As many arguments as the flag takes. */
static struct words take_words(struct conf_flag_parser *p, const struct conf_flag *flag)
{
	struct words words = {p->args.argv + p->args.at, 0};

	while (next(p) != NULL && is_value(next(p))) {
		bool is_port = flag->arity == ARITY_PAIR && words.n == 1 &&
			       is_bootstrap_port(next(p));

		if (flag->arity != ARITY_MANY && words.n > 0 && !is_port)
			break;
		words.n++;
		p->args.at++;
	}
	return words;
}

/* A flag without an argument may be told so: --log-json=true. */
static bool is_switched_off(
	struct conf_flag_parser *p, const struct conf_flag *flag, const char *value)
{
	if (strcmp(value, "false") == 0)
		return true;
	if (strcmp(value, "true") != 0)
		conf_flag_refuse(p, flag->name, value, NULL, "takes no value");
	return strcmp(value, "true") != 0;
}

static bool wants_switch_word(const struct conf_flag *flag, struct words words)
{
	return words.n == 0 && flag->effect == EFFECT_SET &&
	       conf_flag_key(flag)->type == CONF_TYPE_SWITCH;
}

static void take_flag(
	struct conf_flag_parser *p, const struct conf_flag *flag, char *inline_value)
{
	char *on = (char[]){"on"};
	struct words words;

	if (flag->arity == ARITY_NONE) {
		if (inline_value == NULL || !is_switched_off(p, flag, inline_value))
			conf_flag_run(p, flag, (struct words){NULL, 0});
		return;
	}
	words = inline_value != NULL ? take_inline(p, flag, inline_value)
				     : take_words(p, flag);
	if (wants_switch_word(flag, words))
		words = (struct words){&on, 1};
	if (words.n == 0 && flag->arity != ARITY_MANY) {
		conf_flag_refuse(p, flag->name, NULL, flag->argument, "has no value");
		return;
	}
	conf_flag_run(p, flag, words);
}

/* An unknown flag, and what may be its values. */
static void take_unknown(struct conf_flag_parser *p, const char *name)
{
	report_unknown(p, name);
	args_drop_letters(&p->args);
	while (next(p) != NULL && is_value(next(p)))
		p->args.at++;
}

static void take_long(struct conf_flag_parser *p, const struct arg *arg)
{
	const struct conf_flag *row = find_row(arg->name);
	scoped_free char *full_name = xstrndup(arg->name.p, arg->name.n);
	struct conf_flag made;

	if (row == NULL && make_row(arg->name, full_name, &made))
		row = &made;
	if (row != NULL)
		take_flag(p, row, arg->attached);
	else
		take_unknown(p, full_name);
}

static void take_letter(struct conf_flag_parser *p, const struct arg *arg)
{
	const struct conf_flag *row;

	for (size_t i = 0; i < CONF_FLAG_LETTERS; i++) {
		if (arg->letter != conf_flag_letters[i].letter)
			continue;
		row = find_row(span_str(conf_flag_letters[i].name));
		take_flag(p, row,
			row->arity != ARITY_NONE ? args_attached(&p->args, arg) : NULL);
		return;
	}
	take_unknown(p, arg->name.p);
}

static void take_stray(struct conf_flag_parser *p, const char *arg)
{
	const char *hint = "flags begin with --";

	if (strstr(arg, "://") != NULL)
		hint = "worker URLs follow --worker-urls";
	else if (span_ends(span_str(arg), SPAN_LIT(".conf")))
		hint = "a configuration file follows -c";
	conf_errors_add(p->errors, NULL, 0, NULL, NULL, hint, "unexpected argument%s%s",
		strchr(arg, '@') == NULL ? " " : "", strchr(arg, '@') == NULL ? arg : "");
}

/* Flags that count together */

static char *join_address(const char *host, const char *port)
{
	bool is_bare_v6 = strchr(host, ':') != NULL && host[0] != '[';

	return xasprintf(is_bare_v6 ? "[%s]:%s" : "%s:%s", host, port);
}

static void join_addresses(struct conf_flag_parser *p)
{
	if (p->host != NULL || p->port != NULL) {
		scoped_free char *listen =
			join_address(p->host != NULL ? p->host : "127.0.0.1",
				p->port != NULL ? p->port : "30000");

		conf_flag_add_own(p, CONF_SCOPE_ROUTER, "listen", listen);
	}
	if (p->metrics_host != NULL || p->metrics_port != NULL) {
		scoped_free char *metrics = join_address(
			p->metrics_host != NULL ? p->metrics_host : "127.0.0.1",
			p->metrics_port != NULL ? p->metrics_port : "29000");

		conf_flag_add_own(p, CONF_SCOPE_ROUTER, "metrics_listen", metrics);
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

/* As the vLLM router, whose flags these are, where its users and its tests look. */
static const struct {
	const char *key, *value;
} as_vllm_router[] = {
	{"no_worker_wait", "0"},
	{"last_resort", "off"},
	{"retry_same", "on"},
	{"cb_full_5xx", "on"},
	{"short_prompts", "on"},
};

static void behave_as_vllm_router(struct conf_flag_parser *p)
{
	for (size_t i = 0; i < ARRAY_LEN(as_vllm_router); i++)
		if (!has_setting(p->out, as_vllm_router[i].key))
			conf_flag_add_own(p, CONF_SCOPE_POOL, as_vllm_router[i].key,
				as_vllm_router[i].value);
}

static void finish(struct conf_flag_parser *p)
{
	struct conf_flags *out = p->out;

	join_addresses(p);
	if (p->no_retries)
		conf_flag_add_own(p, CONF_SCOPE_POOL, "retry_max_retries", "0");
	if (p->no_breaker)
		conf_flag_add_own(
			p, CONF_SCOPE_POOL, "cb_failure_threshold", "1000000000");
	if (p->pd_connector == NULL && has_prefill(out) && out->conf_file == NULL)
		p->pd_connector = "nixl";
	if (p->pd_connector != NULL && !has_setting(out, "kv_connector"))
		conf_flag_add_own(p, CONF_SCOPE_POOL, "kv_connector", p->pd_connector);
	if (out->conf_file == NULL && out->has_worker_flag)
		behave_as_vllm_router(p);
	if (out->conf_file == NULL && !out->has_worker_flag) {
		out->conf_file = CONF_DEFAULT_FILE;
		out->is_default_file = true;
	}
}

int conf_flags_parse(
	int argc, char **argv, struct conf_errors *errors, struct conf_flags *out)
{
	struct conf_flags flags = {0};
	struct conf_flag_parser p = {.out = &flags, .errors = errors};
	size_t before = errors->n_errors;
	struct arg arg;

	args_begin(&p.args, argc, argv);
	while (args_next(&p.args, &arg)) {
		if (arg.kind == ARG_LONG)
			take_long(&p, &arg);
		else if (arg.kind == ARG_LETTER)
			take_letter(&p, &arg);
		else
			take_stray(&p, arg.name.p);
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
