/*
 * Answers of the daemon for people. See ctl_print.h.
 */
#include "ctl/ctl_print.h"

#include "base/base.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "io/js.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS_MAX 16

/* ---- tables ---- */

/* A table of texts; each column is as wide as its widest cell. */
struct table {
	unsigned columns, rows;
	char **cells; /* owned; row by row */
};

static void table_add(struct table *t, char *cell)
{
	t->cells = xrealloc(
		t->cells, ((size_t)t->rows + 1) * t->columns * sizeof(*t->cells));
	t->cells[t->rows * t->columns] = cell;
}

/* Begins a row; the cells follow in order by row_set(). */
static void row_begin(struct table *t)
{
	unsigned i;

	table_add(t, NULL);
	for (i = 0; i < t->columns; i++)
		t->cells[t->rows * t->columns + i] = NULL;
	t->rows++;
}

/* Takes the text into the first free cell of the last row. */
static void row_set(struct table *t, char *cell)
{
	char **row = &t->cells[(t->rows - 1) * t->columns];
	unsigned i;

	for (i = 0; i < t->columns; i++) {
		if (row[i] == NULL) {
			row[i] = cell;
			return;
		}
	}
	free(cell);
}

static struct table table_new(const char *const *titles, unsigned n)
{
	struct table t = {.columns = n};
	unsigned i;

	assert(n <= COLUMNS_MAX);
	row_begin(&t);
	for (i = 0; i < n; i++)
		row_set(&t, xstrdup(titles[i]));
	return t;
}

static const char *cell_text(const struct table *t, unsigned row, unsigned column)
{
	const char *text = t->cells[row * t->columns + column];

	return text != NULL ? text : "";
}

/* Prints and frees; the last column is not padded. */
static void table_end(struct table *t)
{
	unsigned row, column;
	int width[COLUMNS_MAX] = {0};

	for (row = 0; row < t->rows; row++) {
		for (column = 0; column < t->columns; column++)
			width[column] = MAX(
				width[column], (int)strlen(cell_text(t, row, column)));
	}
	for (row = 0; row < t->rows; row++) {
		for (column = 0; column + 1 < t->columns; column++)
			printf("%-*s  ", width[column], cell_text(t, row, column));
		printf("%s\n", cell_text(t, row, column));
	}
	for (row = 0; row < t->rows * t->columns; row++)
		free(t->cells[row]);
	free(t->cells);
}

/* ---- values ---- */

/* Any scalar as text; "-" for what is absent or null. */
static char *value_text(const struct js *object, const char *key)
{
	const struct js *v = js_get(object, key);
	struct span s;
	int64_t n;
	double d;
	bool b;

	if (v == NULL || js_is_null(v))
		return xstrdup("-");
	if (js_as_str(v, &s))
		return xstrndup(s.p, s.n);
	if (js_as_bool(v, &b))
		return xstrdup(b ? "yes" : "no");
	if (js_as_int(v, &n))
		return xasprintf("%" PRId64, n);
	if (js_as_real(v, &d))
		return xasprintf("%.3g", d);
	return xstrdup("-");
}

static int64_t value_int(const struct js *object, const char *key)
{
	int64_t n = 0;

	return object != NULL && js_as_int(js_get(object, key), &n) ? n : 0;
}

static void print_line(const struct js *object, const char *key, const char *title)
{
	char *text = value_text(object, key);

	printf("%-16s %s\n", title, text);
	free(text);
}

char *ctl_age_text(int64_t ms)
{
	int64_t s = ms / 1000;

	if (ms < 1000)
		return xasprintf("%" PRId64 "ms", ms);
	if (s < 60)
		return xasprintf("%" PRId64 "s", s);
	if (s < 3600)
		return xasprintf("%" PRId64 "m %" PRId64 "s", s / 60, s % 60);
	if (s < 86400)
		return xasprintf("%" PRId64 "h %" PRId64 "m", s / 3600, s / 60 % 60);
	return xasprintf("%" PRId64 "d %" PRId64 "h", s / 86400, s / 3600 % 24);
}

static char *age_of(const struct js *object, const char *key)
{
	int64_t ms;

	return js_as_int(js_get(object, key), &ms) ? ctl_age_text(ms) : xstrdup("-");
}

/* ---- workers ---- */

/* "3+1": what the worker says that it runs, and what waits there; in brackets when that
 * is long ago. */
static char *reported_text(const struct js *worker, const char *key)
{
	const struct js *r = js_get(worker, key);
	bool is_fresh = false;

	if (r == NULL || !js_is_object(r))
		return xstrdup("-");
	js_as_bool(js_get(r, "is_fresh"), &is_fresh);
	return xasprintf(is_fresh ? "%" PRId64 "+%" PRId64 : "(%" PRId64 "+%" PRId64 ")",
		value_int(r, "running"), value_int(r, "waiting"));
}

char *ctl_breaker_text(const struct js *worker, const char *key)
{
	const struct js *b = js_get(worker, key);
	int64_t wait_ms;
	char *state, *wait, *text;
	bool is_paused;

	if (b == NULL || !js_is_object(b))
		return xstrdup("-");
	state = value_text(b, "state");
	wait_ms = value_int(b, "wait_ms");
	if (wait_ms == 0)
		return state;
	/* A closed breaker waits only because of Retry-After. */
	is_paused = strcmp(state, "closed") == 0;
	wait = ctl_age_text(wait_ms);
	text = xasprintf("%s %s", is_paused ? "paused" : state, wait);
	free(wait);
	free(state);
	return text;
}

/* "71%"; "-" where there was nothing to share. */
static char *share_of(const struct js *object, const char *key)
{
	double share;

	return js_as_real(js_get(object, key), &share) ? xasprintf("%.0f%%", share * 100)
						       : xstrdup("-");
}

char *ctl_latency_text(const struct js *worker, const char *key, const char *which)
{
	double ms;

	if (!js_as_real(js_get(js_get(worker, key), which), &ms))
		return xstrdup("-");
	if (ms < 10)
		return xasprintf("%.1fms", ms);
	if (ms < 1000)
		return xasprintf("%.0fms", ms);
	if (ms < 99950)
		return xasprintf("%.1fs", ms / 1000);
	return xasprintf("%.0fs", ms / 1000);
}

/* "310ms/1.2s": half of them took no longer than that, and 99 of 100. */
static char *latency_of(const struct js *worker, const char *key)
{
	char *p50 = ctl_latency_text(worker, key, "p50_ms");
	char *p99 = ctl_latency_text(worker, key, "p99_ms");
	char *text = strcmp(p50, "-") == 0 ? xstrdup("-") : xasprintf("%s/%s", p50, p99);

	free(p50);
	free(p99);
	return text;
}

struct column {
	const char *title, *key;
	char *(*text)(const struct js *object, const char *key);
};

static void print_columns(
	const struct js *workers, const struct column *columns, unsigned n_columns)
{
	const char *titles[COLUMNS_MAX];
	struct table t;
	size_t i;
	unsigned k;

	for (k = 0; k < n_columns; k++)
		titles[k] = columns[k].title;
	t = table_new(titles, n_columns);
	for (i = 0; workers != NULL && i < js_len(workers); i++) {
		row_begin(&t);
		for (k = 0; k < n_columns; k++)
			row_set(&t, columns[k].text(js_at(workers, i), columns[k].key));
	}
	table_end(&t);
}

/* The columns that fit a screen: the health of the workers. */
static void print_worker_health(const struct js *workers)
{
	static const struct column columns[] = {
		{"NAME", "name", value_text},
		{"STATE", "state", value_text},
		{"LOAD", "load", value_text},
		{"REQUESTS", "requests", value_text},
		{"HIT", "hit_share", share_of},
		{"ERRORS", "failures", value_text},
		{"TTFT P50/P99", "ttft", latency_of},
		{"TIME P50/P99", "response_time", latency_of},
		{"BREAKER", "breaker", ctl_breaker_text},
		{"LAST BYTE", "progress_age_ms", age_of},
		{"REASON", "reason", value_text},
	};

	print_columns(workers, columns, ARRAY_LEN(columns));
}

/* All columns, one line for each worker. */
static void print_worker_table(const struct js *workers)
{
	static const struct column columns[] = {
		{"NAME", "name", value_text},
		{"STATE", "state", value_text},
		{"LOAD", "load", value_text},
		{"REPORTED", "reported", reported_text},
		{"REQUESTS", "requests", value_text},
		{"FAILURES", "failures", value_text},
		{"TTFT P50/P99", "ttft", latency_of},
		{"TIME P50/P99", "response_time", latency_of},
		{"BREAKER", "breaker", ctl_breaker_text},
		{"BLOCKS", "blocks", value_text},
		{"LAST BYTE", "progress_age_ms", age_of},
		{"POOL", "pool", value_text},
		{"ROLE", "role", value_text},
		{"URL", "url", value_text},
		{"REASON", "reason", value_text},
	};

	print_columns(workers, columns, ARRAY_LEN(columns));
}

void ctl_print_workers(const struct js *document)
{
	print_worker_table(js_get(document, "workers"));
}

void ctl_print_tenants(const struct js *document)
{
	static const struct column columns[] = {
		{"NAME", "name", value_text},
		{"KEYS", "keys", value_text},
		{"INFLIGHT", "in_flight", value_text},
		{"MAX", "max_requests", value_text},
		{"RATE", "rate", value_text},
		{"REQUESTS", "requests", value_text},
		{"OVER-MAX", "refused_max_requests", value_text},
		{"OVER-RATE", "refused_rate", value_text},
		{"GROUP", "cache_group", value_text},
	};

	if (js_is_null(js_get(document, "api_keys")))
		printf("clients need no key (api_keys is not set)\n");
	else
		print_columns(js_get(document, "tenants"), columns, ARRAY_LEN(columns));
}

void ctl_print_outcome(const struct js *document)
{
	char *name = value_text(document, "name"), *state = value_text(document, "state");

	printf("%s: %s, %" PRId64 " requests in flight\n", name, state,
		value_int(document, "load"));
	free(name);
	free(state);
}

static void print_latency(const struct js *document, const char *key, const char *title)
{
	char *text = latency_of(document, key);

	printf("%-16s %s\n", title, text);
	free(text);
}

void ctl_print_worker(const struct js *document)
{
	static const char *const keys[] = {"name", "url", "pool", "role", "state",
		"reason", "load", "streams", "queued_blocks", "max_requests",
		"capacity_tokens", "blocks", "requests", "completions", "failures",
		"origin"};
	const struct js *ranks = js_get(document, "ranks");
	char *age, *progress, *said, *breaker;
	size_t i;

	if (ranks != NULL) {
		print_worker_table(ranks);
		return;
	}
	age = age_of(document, "state_age_ms");
	for (i = 0; i < ARRAY_LEN(keys); i++)
		print_line(document, keys[i], keys[i]);
	progress = age_of(document, "progress_age_ms");
	said = reported_text(document, "reported");
	printf("%-16s %s\n%-16s %s\n", "state since", age, "last byte", progress);
	breaker = ctl_breaker_text(document, "breaker");
	printf("%-16s %s\n%-16s %s\n", "reported", said, "breaker", breaker);
	print_latency(document, "ttft", "ttft p50/p99");
	print_latency(document, "response_time", "time p50/p99");
	free(breaker);
	free(age);
	free(progress);
	free(said);
}

/* ---- status ---- */

static void print_pools(const struct js *pools)
{
	static const char *const titles[] = {
		"POOL", "POLICY", "GENERATION", "BLOCKS", "INDEX BYTES"};
	struct table t = table_new(titles, ARRAY_LEN(titles));
	size_t i;

	for (i = 0; pools != NULL && i < js_len(pools); i++) {
		const struct js *p = js_at(pools, i), *index = js_get(p, "index");

		row_begin(&t);
		row_set(&t, value_text(p, "name"));
		row_set(&t, value_text(p, "policy"));
		row_set(&t, value_text(p, "generation"));
		row_set(&t, value_text(index, "blocks"));
		row_set(&t, value_text(index, "bytes"));
	}
	table_end(&t);
}

static void print_listen(const struct js *list)
{
	size_t i;

	printf("%-16s", "listening on");
	for (i = 0; list != NULL && i < js_len(list); i++) {
		struct span s;

		if (js_as_str(js_at(list, i), &s))
			printf(" " SPAN_FMT, SPAN_ARG(s));
	}
	printf("\n");
}

void ctl_print_status(const struct js *document)
{
	const struct js *counters = js_get(document, "counters");
	const struct js *guards = js_get(document, "guards");
	char *uptime = age_of(document, "uptime_ms"),
	     *version = value_text(document, "version");
	char *state = value_text(document, "state"), *hit;

	printf("%-16s %s, %s, up %s, %" PRId64 " threads\n", "kvsteerd", version, state,
		uptime, value_int(document, "threads"));
	print_listen(js_get(document, "listen"));
	printf("%-16s %" PRId64 " in flight, %" PRId64 " waiting, %" PRId64
	       " ended, %" PRId64 " errors\n",
		"requests", value_int(counters, "requests_in_flight"),
		value_int(js_get(document, "queue"), "depth"),
		value_int(counters, "requests_ended"),
		value_int(counters, "requests_errors"));
	hit = share_of(document, "hit_share");
	printf("%-16s %s of recent prompts expected in the workers' caches\n",
		"hit share", hit);
	printf("%-16s %" PRId64 " to clients (at most %" PRId64 "), %" PRId64
	       " to workers\n",
		"connections", value_int(counters, "connections"),
		value_int(document, "max_connections"),
		value_int(counters, "worker_connections"));
	printf("%-16s %" PRId64 " taken, %" PRId64 " given back\n", "load slots",
		value_int(guards, "taken"), value_int(guards, "dropped"));
	printf("%-16s %" PRId64 " done, %" PRId64 " failed\n\n", "reloads",
		value_int(counters, "reloads"), value_int(counters, "reloads_failed"));
	print_pools(js_get(document, "pools"));
	printf("\n");
	print_worker_health(js_get(document, "workers"));
	free(uptime);
	free(hit);
	free(version);
	free(state);
}

/* ---- explain ---- */

#define BEFORE_TERMS 5
#define AFTER_TERMS 3
#define TERMS_MAX (COLUMNS_MAX - BEFORE_TERMS - AFTER_TERMS)

static bool has_name(const char *const *names, unsigned n, const char *name)
{
	unsigned i;

	for (i = 0; i < n; i++) {
		if (strcmp(names[i], name) == 0)
			return true;
	}
	return false;
}

/* The terms that any candidate has, in the order in which the router gives them. */
static unsigned list_terms(const struct js *list, const char *names[TERMS_MAX])
{
	unsigned n = 0;
	size_t i;

	for (i = 0; i < js_len(list); i++) {
		const struct js *terms = js_get(js_at(list, i), "terms");
		struct js *value;
		const char *name;
		void *at = NULL;

		while (n < TERMS_MAX && js_each(terms, &at, &name, &value)) {
			if (!has_name(names, n, name))
				names[n++] = name;
		}
	}
	return n;
}

/* "QUEUED" */
static void title_term(char title[24], const char *name)
{
	size_t i;

	snprintf(title, 24, "%s", name);
	for (i = 0; title[i] != '\0'; i++) {
		if (title[i] >= 'a' && title[i] <= 'z')
			title[i] = (char)(title[i] - 'a' + 'A');
	}
}

static struct table candidates_table(const char *const names[TERMS_MAX], unsigned n)
{
	const char *titles[COLUMNS_MAX] = {"WORKER", "STATE", "DEPTH", "CACHED", "LOAD"};
	char spelled[TERMS_MAX][24];
	unsigned i, columns = BEFORE_TERMS;

	for (i = 0; i < n; i++) {
		title_term(spelled[i], names[i]);
		titles[columns++] = spelled[i];
	}
	titles[columns++] = "SCORE";
	titles[columns++] = "OVERLOADED";
	titles[columns++] = "EXCLUDED";
	return table_new(titles, columns);
}

static void print_candidates(const struct js *list)
{
	const char *names[TERMS_MAX];
	unsigned j, n = list_terms(list, names);
	struct table t = candidates_table(names, n);
	size_t i;

	for (i = 0; i < js_len(list); i++) {
		const struct js *c = js_at(list, i), *terms = js_get(c, "terms");

		row_begin(&t);
		row_set(&t, value_text(c, "worker"));
		row_set(&t, value_text(c, "state"));
		row_set(&t, value_text(c, "depth"));
		row_set(&t, value_text(c, "fraction"));
		row_set(&t, value_text(c, "load"));
		for (j = 0; j < n; j++)
			row_set(&t, value_text(terms, names[j]));
		row_set(&t, value_text(c, "score"));
		row_set(&t, value_text(c, "is_overloaded"));
		row_set(&t, value_text(c, "out_of_play"));
	}
	table_end(&t);
}

/* The choice among the workers of one role. */
static void print_choice(const struct js *document)
{
	if (js_is_array(js_get(document, "candidates")))
		print_candidates(js_get(document, "candidates"));
	printf("\n");
	print_line(document, "chosen", "chosen");
	print_line(document, "reason", "reason");
}

static void print_prefill(const struct js *prefill)
{
	char *skipped = value_text(prefill, "skipped");

	printf("\n");
	print_line(prefill, "policy", "prefill");
	if (strcmp(skipped, "short") == 0)
		printf("%-16s (skipped: decode has only %" PRId64 " tokens to compute)\n",
			"", value_int(prefill, "uncached_tokens"));
	else if (strcmp(skipped, "whole") == 0)
		printf("%-16s (skipped: such a request cannot be split)\n", "");
	printf("\n");
	print_choice(prefill);
	free(skipped);
}

void ctl_print_explain(const struct js *document)
{
	const struct js *key = js_get(document, "key");
	const struct js *prefill = js_get(document, "prefill");
	char *unit = value_text(key, "unit");
	bool readable = false;

	print_line(document, "pool", "pool");
	print_line(document, "policy", prefill != NULL ? "decode" : "policy");
	print_line(key, "model", "model");
	printf("%-16s %" PRId64 " blocks of %" PRId64 " %s\n", "prompt",
		value_int(key, "blocks"), value_int(key, "block"),
		strcmp(unit, "t") == 0 ? "tokens" : "bytes");
	print_line(js_get(key, "routing_key"), "name", "routing key");
	if (js_as_bool(js_get(key, "readable"), &readable) && !readable)
		printf("%-16s %s\n", "",
			"(the body is not a readable request: routed by load)");
	printf("\n");
	print_choice(document);
	if (prefill != NULL)
		print_prefill(prefill);
	free(unit);
}

/* ---- reload ---- */

void ctl_print_reload(const struct js *document)
{
	const struct js *changes = js_get(document, "changes");
	const struct js *warnings = js_get(document, "warnings");
	size_t i;

	for (i = 0; warnings != NULL && i < js_len(warnings); i++) {
		char *text = value_text(js_at(warnings, i), "message");

		printf("warning: %s\n", text);
		free(text);
	}
	if (changes == NULL || js_len(changes) == 0)
		printf("reloaded, nothing changed\n");
	for (i = 0; changes != NULL && i < js_len(changes); i++) {
		const struct js *c = js_at(changes, i);
		char *section = value_text(c, "section"), *key = value_text(c, "key");
		char *was = value_text(c, "was"), *now = value_text(c, "now");

		if (strcmp(key, "(section)") == 0)
			printf("[%s] %s\n", section,
				strcmp(now, "present") == 0 ? "added" : "removed");
		else
			printf("[%s] %s: %s -> %s\n", section, key, was, now);
		free(section);
		free(key);
		free(was);
		free(now);
	}
}

/* ---- calls to all workers ---- */

#define ANSWER_SHOWN 200

/* The beginning, in one line and harmless to a terminal. */
static void print_answer(const struct js *answer)
{
	scoped_free char *text = NULL;
	struct span s = {NULL, 0};

	if (answer != NULL && !js_as_str(answer, &s)) {
		text = js_print(answer, false);
		s = text != NULL ? span_str(text) : s;
	}
	for (size_t i = 0; i < s.n && i < ANSWER_SHOWN; i++)
		putchar((unsigned char)s.p[i] < ' ' || s.p[i] == 0x7f ? ' ' : s.p[i]);
	putchar('\n');
}

void ctl_print_called(const struct js *document)
{
	const struct js *list = js_get(document, "workers");
	struct span name;
	int64_t status;
	size_t i;

	for (i = 0; i < js_len(list); i++) {
		const struct js *item = js_at(list, i);

		if (!js_as_str(js_get(item, "worker"), &name) ||
			!js_as_int(js_get(item, "status"), &status))
			continue;
		printf(SPAN_FMT "  %lld  ", SPAN_ARG(name), (long long)status);
		print_answer(js_get(item, "answer"));
	}
}
