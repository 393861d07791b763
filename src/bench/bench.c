/*
 * kvsteer-bench from its command line to its report. See bench.h. Called by main only.
 */
#include "bench/bench.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dump.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "bench/flags.h"
#include "bench/hashes.h"
#include "bench/outcome.h"
#include "bench/report.h"
#include "bench/run.h"
#include "bench/url.h"
#include "http/http_scan.h"
#include "io/fetch.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/resolve.h"
#include "io/sock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define FILE_BYTES_MAX (1u << 30)
#define MODELS_TIMEOUT_MS 10000
#define SPARE_FDS 32 /* beside connections */

/* Everything that lives as long as the program's one run. */
struct bench {
	struct bench_flags flags;
	struct url url;
	char *model, *api_key, *target; /* owned; api_key may be NULL */
	struct trace trace;
	FILE *json; /* NULL: none, or stdout */
	struct loop *loop;
	struct addr_list *addrs;
	uint64_t seed;
};

/* The whole file; false: errno says why. */
static bool read_file(const char *name, struct text *out)
{
	scoped_file FILE *f = fopen(name, "re");
	size_t got;
	char *to;

	if (f == NULL)
		return false;
	do {
		to = text_room(out, 65536);
		got = to != NULL ? fread(to, 1, 65536, f) : 0;
		out->n += got;
	} while (got > 0 && out->n < FILE_BYTES_MAX);
	if (out->failed || out->n >= FILE_BYTES_MAX)
		errno = EFBIG;
	return !ferror(f) && !out->failed && out->n < FILE_BYTES_MAX;
}

/* ---- what the flags name ---- */

static int take_key(struct bench *b, struct span key)
{
	key = span_trim_all(key);
	for (size_t i = 0; i < key.n; i++) {
		if (!http_is(key.p[i], HTTP_VISIBLE))
			return bench_complain(USAGE,
				"--api-key: the key has blanks or bytes "
				"that a header may not contain");
	}
	if (key.n == 0)
		return bench_complain(USAGE, "--api-key: the key is empty");
	b->api_key = xstrndup(key.p, key.n);
	return DONE;
}

static int read_key(struct bench *b)
{
	const char *from = b->flags.api_key, *value;
	struct text text = {0};
	int status;

	if (from == NULL)
		return DONE;
	if (strncmp(from, "env:", 4) == 0) {
		value = getenv(from + 4);
		if (value == NULL)
			return bench_complain(
				USAGE, "--api-key %s: the variable is not set", from);
		return take_key(b, span_str(value));
	}
	status = !read_file(from + 5, &text) ? bench_complain(USAGE, "--api-key %s: %s",
						       from, strerror(errno))
					     : take_key(b, text_span(&text));
	if (text.p != NULL)
		mem_wipe(text.p, text.n);
	text_free(&text);
	return status;
}

static int read_trace(struct bench *b)
{
	const char *name = b->flags.trace;
	struct trace_fault fault = {0, NULL};
	struct text text = {0};
	int status = DONE, err;

	if (name == NULL)
		return DONE;
	if (!read_file(name, &text)) {
		status = bench_complain(USAGE, "--trace %s: %s", name, strerror(errno));
	} else {
		err = trace_read(text_span(&text), &b->trace, &fault);
		if (err == ERR_PARSE)
			status = bench_complain(
				USAGE, "%s:%zu: %s", name, fault.line, fault.message);
		else if (err != 0)
			status = bench_complain(FAILED, "%s: %s", name, err_text(err));
	}
	text_free(&text);
	return status;
}

/* Before the run: nobody waits an hour to hear that a folder is missing. */
static int open_json(struct bench *b)
{
	const char *name = b->flags.json;

	if (name == NULL || strcmp(name, "-") == 0)
		return DONE;
	b->json = fopen(name, "we");
	if (b->json == NULL)
		return bench_complain(USAGE, "--json %s: %s", name, strerror(errno));
	return DONE;
}

static int read_url(struct bench *b)
{
	const char *why;

	if (url_parse(b->flags.url, &b->url, &why) != 0)
		return bench_complain(USAGE, "--url %s: %s", b->flags.url, why);
	b->target = xasprintf("%s/v1/%s", b->url.prefix,
		b->flags.is_completions ? "completions" : "chat/completions");
	return DONE;
}

static int check_files(struct bench *b)
{
	unsigned long limit = sock_raise_fd_limit();

	if (b->flags.connections + SPARE_FDS > limit)
		return bench_complain(USAGE,
			"--connections %" PRIu64 ": at most %lu are possible here; raise "
			"the limit of open files (ulimit -n)",
			b->flags.connections, limit > SPARE_FDS ? limit - SPARE_FDS : 0);
	return DONE;
}

/* ---- what the server says ---- */

static char *first_model(struct span body)
{
	const char *why;
	struct js *root = js_parse(body, &why);
	struct span id;
	char *name = NULL;

	if (js_as_str(js_get(js_at(js_get(root, "data"), 0), "id"), &id))
		name = xstrndup(id.p, id.n);
	js_free(root);
	return name;
}

static void ask_models(struct bench *b, struct fetch_answer *a)
{
	scoped_free char *url =
		xasprintf("http://%s%s/v1/models", b->url.authority, b->url.prefix);
	scoped_free char *auth = NULL;
	const char *headers[2] = {NULL, NULL};
	struct fetch_request req = {.url = url,
		.headers = headers,
		.timeout_ms = MODELS_TIMEOUT_MS,
		.max_body = 4u << 20};

	if (b->api_key != NULL)
		headers[0] = auth = xasprintf("Authorization: Bearer %s", b->api_key);
	fetch_blocking(&req, a);
	if (auth != NULL)
		mem_wipe(auth, strlen(auth));
}

static int find_model(struct bench *b)
{
	struct fetch_answer a;
	char *body;

	if (b->flags.model != NULL) {
		b->model = xstrdup(b->flags.model);
		return DONE;
	}
	ask_models(b, &a);
	body = (char *)(uintptr_t)a.body.p;
	if (a.result == FETCH_OK && a.status == 200)
		b->model = first_model(a.body);
	free(body);
	if (b->model != NULL)
		return DONE;
	if (a.result != FETCH_OK)
		return bench_complain(
			FAILED, "%s: %s", b->flags.url, fetch_result_text(a.result));
	if (a.status == 401 || a.status == 403)
		return bench_complain(FAILED,
			"%s/v1/models: status %d; set a key with --api-key", b->flags.url,
			a.status);
	return bench_complain(FAILED,
		"%s/v1/models: status %d and no model; set one with --model",
		b->flags.url, a.status);
}

struct look_up {
	bool is_done;
	struct addr_list *list;
};

static void on_resolved(void *arg, int err, struct addr_list *list)
{
	struct look_up *up = arg;

	(void)err;
	up->is_done = true;
	up->list = list;
}

static int resolve(struct bench *b)
{
	struct look_up up = {false, NULL};
	struct resolver *r;

	b->addrs = addr_list_literal(b->url.host, b->url.port);
	if (b->addrs != NULL)
		return DONE;
	r = resolver_new(b->loop);
	if (r != NULL &&
		resolver_ask(r, b->url.host, b->url.port, on_resolved, &up) == 0) {
		while (!up.is_done)
			loop_turn(b->loop, 1000);
	}
	resolver_free(r);
	b->addrs = up.list;
	if (b->addrs == NULL)
		return bench_complain(
			FAILED, "%s: %s", b->url.host, err_text(ERR_RESOLVE));
	return DONE;
}

/* ---- the run and its report ---- */

static void choose_seed(struct bench *b)
{
	uint32_t random;

	rng_secret(&random, sizeof(random));
	b->seed = b->flags.has_seed ? b->flags.seed : b->flags.trace != NULL ? 1 : random;
}

static void start_run(struct bench *b, struct tally *t, struct run_result *result)
{
	struct bench_flags *f = &b->flags;
	struct run_opts o = {
		.loop = b->loop,
		.addrs = b->addrs,
		.authority = b->url.authority,
		.target = b->target,
		.api_key = b->api_key,
		.is_stream = !f->no_stream,
		.keeps_text = f->corpus.kind == CORPUS_CONVERSATIONS,
		.new_connections = f->new_connections,
		.timeout_ms = f->timeout_ms,
		.in_flight_max = f->connections > 0 ? f->connections
						    : sock_raise_fd_limit() - SPARE_FDS,
		.requests = f->requests,
		.duration_us = f->duration_ms * 1000,
		.is_open = f->is_open,
		.trace = f->trace != NULL ? &b->trace : NULL,
		.speed = f->speed,
		.shows_progress = isatty(STDERR_FILENO) == 1,
	};

	f->corpus.seed = b->seed;
	f->corpus.model = b->model;
	f->corpus.trace = o.trace;
	o.corpus = corpus_new(&f->corpus);
	if (f->is_open && f->trace == NULL)
		arrival_start(&o.arrival, f->arrival, f->rate, b->seed);
	if (f->send_hashes)
		o.hashes = hashes_new(f->is_completions, f->hash_block);
	o.model = b->model;
	run_go(&o, t, result);
	hashes_free(o.hashes);
	corpus_free(o.corpus);
}

static int write_json(struct bench *b, const struct report *r)
{
	FILE *to = b->json != NULL ? b->json : stdout;
	struct js *root = report_json(r);
	scoped_free char *text = js_print(root, true);
	bool ok = text != NULL && fprintf(to, "%s\n", text) > 0;

	js_free(root);
	if (b->json != NULL) {
		ok = fclose(b->json) == 0 && ok;
		b->json = NULL;
	}
	return ok ? DONE
		  : bench_complain(
			    FAILED, "--json %s: %s", b->flags.json, strerror(errno));
}

static int tell(struct bench *b, const struct report *r)
{
	const char *json = b->flags.json;
	int status = DONE;

	if (r->result.gave_up == NULL && (json == NULL || strcmp(json, "-") != 0))
		report_print(r);
	if (json != NULL)
		status = write_json(b, r);
	if (fflush(stdout) != 0)
		status = bench_complain(FAILED, "stdout: %s", strerror(errno));
	if (report_is_busy(r))
		(void)bench_complain(0,
			"warning: the bench itself used %.0f %% of a core and waited "
			"for a core %.0f %% of the time, so the figures may show its "
			"own limit; give it a core of its own, or run several with a "
			"part of the load each",
			100 * report_cpu_share(r), 100 * report_wait_share(r));
	return status;
}

static int measure(struct bench *b)
{
	struct report r = {.flags = &b->flags,
		.model = b->model,
		.started_wall_ms = clock_wall_ms(),
		.tally = tally_new()};
	int status;

	choose_seed(b);
	r.seed = b->seed;
	start_run(b, r.tally, &r.result);
	tally_sort(r.tally);
	status = tell(b, &r);
	if (r.result.gave_up != NULL)
		status = bench_complain(
			FAILED, "%s: cannot connect: %s", b->flags.url, r.result.gave_up);
	else if (status == DONE && r.tally->ok == 0)
		status = bench_complain(FAILED, "no request succeeded");
	tally_free(r.tally);
	return status;
}

/* ---- start and end ---- */

static int set_up(struct bench *b)
{
	static int (*const steps[])(struct bench *) = {
		read_url, read_key, read_trace, check_files, open_json, find_model};

	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		int status = steps[i](b);

		if (status != DONE)
			return status;
	}
	b->loop = loop_new();
	if (b->loop == NULL)
		return bench_complain(FAILED, "%s", err_text(ERR_NOMEM));
	return resolve(b);
}

static void tear_down(struct bench *b)
{
	addr_list_unref(b->addrs);
	if (b->loop != NULL)
		loop_free(b->loop);
	if (b->json != NULL)
		(void)fclose(b->json);
	trace_free(&b->trace);
	if (b->api_key != NULL)
		mem_wipe(b->api_key, strlen(b->api_key));
	free(b->api_key);
	free(b->model);
	free(b->target);
}

static int dump_tables(void)
{
	bench_flags_dump();
	run_dump_signals();
	dump_exits(USAGE);
	return fflush(stdout) == 0 ? DONE : FAILED;
}

int bench_main(int argc, char **argv)
{
	struct bench b = {.flags = {0}};
	int status;

	if (dump_is_asked(argc, argv))
		return dump_tables();
	switch (bench_flags_parse(argc, argv, &b.flags)) {
	case FLAG_DONE:
		return fflush(stdout) == 0 ? DONE : FAILED;
	case FLAG_USAGE:
		return USAGE;
	case FLAG_RUN:
		break;
	}
	status = set_up(&b);
	if (status == DONE)
		status = measure(&b);
	tear_down(&b);
	return status;
}
