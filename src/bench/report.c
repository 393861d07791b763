/*
 * The report. See report.h. Called by bench.c, once a run has ended. Times are counted in
 * microseconds and said in milliseconds.
 */
#include "bench/report.h"

#include "io/js.h"

#include <inttypes.h>
#include <stdio.h>

#define BUSY_SHARE 0.8
#define BUSY_US 500000

/* clang-format off */
static const struct row {
	const char *name, *key;
	size_t offset;
} rows[] = {
	{ "latency", "latency_ms", offsetof(struct tally, latency) },
	{ "first token", "ttft_ms", offsetof(struct tally, ttft) },
	{ "inter-token", "inter_token_ms", offsetof(struct tally, gap) },
	{ "per token", "per_token_ms", offsetof(struct tally, per_token) },
	{ "start delay", "start_delay_ms", offsetof(struct tally, delay) },
};

static const struct { const char *key, *label; double part; } parts[] = {
	{ "p50", "p50", .5 }, { "p75", NULL, .75 }, { "p90", "p90", .9 }, { "p95", NULL, .95 },
	{ "p99", "p99", .99 }, { "p999", "p99.9", .999 },
};
/* clang-format on */

static const struct histogram *of_row(const struct report *r, const struct row *row)
{
	return (const struct histogram *)(const void *)((const char *)r->tally +
							row->offset);
}

static double seconds(const struct report *r)
{
	return (double)r->result.took_us / 1e6;
}

static double share(uint64_t part, uint64_t whole)
{
	return whole > 0 ? (double)part / (double)whole : 0;
}

double report_cpu_share(const struct report *r)
{
	return share(r->result.cpu_us, r->result.took_us);
}

double report_wait_share(const struct report *r)
{
	return share(r->result.waited_us, r->result.took_us);
}

bool report_is_busy(const struct report *r)
{
	return report_cpu_share(r) + report_wait_share(r) > BUSY_SHARE &&
	       r->result.took_us >= BUSY_US;
}

double report_spread(const struct tally *t)
{
	uint64_t most = 0;

	if (t->n_workers < 2)
		return 0;
	for (size_t i = 0; i < t->n_workers; i++)
		most = MAX(most, t->workers[i].requests);
	return share(most * t->n_workers, t->ok);
}

/* ---- the table ---- */

static void print_range(const char *what, struct size_range range)
{
	if (range.min == range.max)
		printf(", %" PRIu64 " %s tokens", range.min, what);
	else
		printf(", %" PRIu64 "-%" PRIu64 " %s tokens", range.min, range.max, what);
}

static void print_load(const struct bench_flags *f)
{
	if (f->trace != NULL) {
		printf("load         open loop, %s at speed %g", f->trace, f->speed);
	} else if (f->is_open) {
		printf("load         open loop, %g/s (%s)", f->rate,
			f->arrival == ARRIVAL_POISSON ? "poisson" : "constant");
	} else {
		printf("load         closed loop");
	}
	if (f->connections > 0)
		printf(", %s%" PRIu64 " connections", f->is_open ? "at most " : "",
			f->connections);
	if (f->trace == NULL) {
		printf(", %s", bench_corpus_name(f->corpus.kind));
		print_range("prompt", f->corpus.prompt);
		print_range("output", f->corpus.output);
	}
	printf("%s\n", f->new_connections ? ", a new connection for each" : "");
}

static void print_counts(const struct report *r)
{
	const struct tally *t = r->tally;

	printf("time         %.2f s%s\n", seconds(r),
		r->result.was_interrupted ? " (interrupted)" : "");
	printf("requests     %" PRIu64 " answered, %" PRIu64 " failed, %" PRIu64
	       " unfinished; %.2f/s\n",
		t->ok, t->failed, t->unfinished, (double)t->ok / seconds(r));
	printf("connections  %" PRIu64 " made; %" PRIu64 " requests sent again\n",
		t->connects, t->resent);
	printf("bytes        %.2f MB/s sent, %.2f MB/s received\n",
		(double)t->bytes_out / seconds(r) / 1e6,
		(double)t->bytes_in / seconds(r) / 1e6);
}

static void print_tokens(const struct report *r)
{
	const struct tally *t = r->tally;

	if (t->with_usage == 0) {
		printf("tokens       unknown: the server sent no usage\n");
		return;
	}
	printf("tokens       %" PRIu64 " in prompts (%.1f/s), %" PRIu64 " new (%.1f/s)\n",
		t->prompt_tokens, (double)t->prompt_tokens / seconds(r), t->new_tokens,
		(double)t->new_tokens / seconds(r));
	if (t->with_usage < t->ok)
		printf("             %" PRIu64 " responses had no usage\n",
			t->ok - t->with_usage);
	if (t->with_cached > 0)
		printf("cached       %.4f of prompt tokens\n",
			share(t->cached_tokens, t->prompt_tokens));
	else
		printf("cached       unknown: the server does not report it\n");
	if (t->counted_tokens != t->asked_tokens)
		printf("sizes        the server counted %.3f times the prompt tokens "
		       "asked for; see --tokens-per-word, --chat-overhead\n",
			share(t->counted_tokens, t->asked_tokens));
}

static void print_times(const struct report *r)
{
	if (r->tally->ok == 0 && r->tally->gap.n == 0)
		return;
	printf("\n%-12s %10s", "ms", "mean");
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		if (parts[i].label != NULL)
			printf(" %10s", parts[i].label);
	}
	printf(" %10s %10s\n", "max", "n");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct histogram *h = of_row(r, &rows[i]);

		if (h->n == 0)
			continue;
		printf("%-12s %10.2f", rows[i].name, histogram_mean(h) / 1e3);
		for (size_t k = 0; k < ARRAY_LEN(parts); k++) {
			if (parts[k].label != NULL)
				printf(" %10.2f",
					(double)histogram_at(h, parts[k].part) / 1e3);
		}
		printf(" %10.2f %10" PRIu64 "\n", (double)h->max / 1e3, h->n);
	}
}

static void print_errors(const struct tally *t)
{
	if (t->n_errors > 0)
		printf("\n%-16s %10s  first message\n", "errors", "n");
	for (size_t i = 0; i < t->n_errors; i++)
		printf("%-16s %10" PRIu64 "  %s\n", t->errors[i].kind, t->errors[i].n,
			t->errors[i].sample);
}

static void print_workers(const struct tally *t)
{
	if (t->n_workers < 2 &&
		(t->n_workers == 0 || strcmp(t->workers[0].name, "(unnamed)") == 0))
		return;
	printf("\n%-24s %10s %7s %14s %8s %12s\n", "workers", "requests", "share",
		"prompt tokens", "cached", "new tokens");
	for (size_t i = 0; i < t->n_workers; i++) {
		const struct tally_worker *w = &t->workers[i];

		printf("%-24s %10" PRIu64 " %7.4f %14" PRIu64 " %8.4f %12" PRIu64 "\n",
			w->name, w->requests, share(w->requests, t->ok), w->prompt_tokens,
			share(w->cached_tokens, w->prompt_tokens), w->new_tokens);
	}
	if (t->n_workers > 1)
		printf("spread       the busiest worker has %.3f times the mean\n",
			report_spread(t));
}

void report_print(const struct report *r)
{
	const struct bench_flags *f = r->flags;

	printf("server       %s, model %s, %s, %s; seed %" PRIu64 "\n", f->url, r->model,
		f->is_completions ? "completions" : "chat",
		f->no_stream ? "whole responses" : "streams", r->seed);
	print_load(f);
	print_counts(r);
	print_tokens(r);
	print_times(r);
	print_errors(r->tally);
	print_workers(r->tally);
	printf("\nbench        used %.0f %% of one core, and waited for a core %.0f %% "
	       "of "
	       "the time\n",
		100 * report_cpu_share(r), 100 * report_wait_share(r));
}

/* ---- JSON ---- */

static struct js *range_json(struct size_range range)
{
	struct js *out = js_object();

	js_set_u64(out, "min", range.min);
	js_set_u64(out, "max", range.max);
	return out;
}

static struct js *load_json(const struct bench_flags *f)
{
	struct js *out = js_object();

	js_set_str(out, "loop", f->is_open ? "open" : "closed");
	js_set_str(out, "corpus", bench_corpus_name(f->corpus.kind));
	js_set_u64(out, "connections", f->connections);
	js_set_bool(out, "new_connections", f->new_connections);
	if (f->trace != NULL) {
		js_set_str(out, "trace", f->trace);
		js_set_real(out, "speed", f->speed);
		return out;
	}
	if (f->is_open) {
		js_set_real(out, "rate", f->rate);
		js_set_str(out, "arrival",
			f->arrival == ARRIVAL_POISSON ? "poisson" : "constant");
	}
	js_set(out, "prompt_tokens", range_json(f->corpus.prompt));
	js_set(out, "output_tokens", range_json(f->corpus.output));
	return out;
}

static struct js *requests_json(const struct report *r)
{
	const struct tally *t = r->tally;
	struct js *out = js_object();

	js_set_u64(out, "sent", t->sent);
	js_set_u64(out, "ok", t->ok);
	js_set_u64(out, "failed", t->failed);
	js_set_u64(out, "unfinished", t->unfinished);
	js_set_real(out, "per_second", (double)t->ok / seconds(r));
	js_set_u64(out, "connections_made", t->connects);
	js_set_u64(out, "sent_again", t->resent);
	js_set_u64(out, "bytes_sent", t->bytes_out);
	js_set_u64(out, "bytes_received", t->bytes_in);
	return out;
}

static struct js *tokens_json(const struct report *r)
{
	const struct tally *t = r->tally;
	struct js *out = js_object();

	js_set_u64(out, "answers_with_usage", t->with_usage);
	js_set_u64(out, "prompt", t->prompt_tokens);
	js_set_u64(out, "new", t->new_tokens);
	js_set(out, "cached",
		t->with_cached > 0 ? js_int((int64_t)t->cached_tokens) : js_null());
	js_set(out, "cached_share",
		t->with_cached > 0 ? js_real(share(t->cached_tokens, t->prompt_tokens))
				   : js_null());
	js_set_real(out, "prompt_per_second", (double)t->prompt_tokens / seconds(r));
	js_set_real(out, "new_per_second", (double)t->new_tokens / seconds(r));
	js_set_u64(out, "prompt_asked", t->asked_tokens);
	js_set_u64(out, "prompt_counted", t->counted_tokens);
	return out;
}

static struct js *times_json(const struct histogram *h)
{
	struct js *out;

	if (h->n == 0)
		return js_null();
	out = js_object();
	js_set_u64(out, "n", h->n);
	js_set_real(out, "mean", histogram_mean(h) / 1e3);
	js_set_real(out, "min", (double)h->min / 1e3);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		js_set_real(
			out, parts[i].key, (double)histogram_at(h, parts[i].part) / 1e3);
	js_set_real(out, "max", (double)h->max / 1e3);
	return out;
}

static struct js *errors_json(const struct tally *t)
{
	struct js *out = js_array();

	for (size_t i = 0; i < t->n_errors; i++) {
		struct js *e = js_object();

		js_set_str(e, "kind", t->errors[i].kind);
		js_set_u64(e, "n", t->errors[i].n);
		js_set_str(e, "first_said", t->errors[i].sample);
		js_push(out, e);
	}
	return out;
}

static struct js *workers_json(const struct tally *t)
{
	struct js *out = js_array();

	for (size_t i = 0; i < t->n_workers; i++) {
		const struct tally_worker *w = &t->workers[i];
		struct js *one = js_object();

		js_set_str(one, "name", w->name);
		js_set_u64(one, "requests", w->requests);
		js_set_u64(one, "prompt_tokens", w->prompt_tokens);
		js_set_u64(one, "cached_tokens", w->cached_tokens);
		js_set_u64(one, "new_tokens", w->new_tokens);
		js_push(out, one);
	}
	return out;
}

struct js *report_json(const struct report *r)
{
	const struct bench_flags *f = r->flags;
	struct js *out = js_object();

	js_set_str(out, "version", KVSTEER_VERSION);
	js_set_u64(out, "started_at_ms", r->started_wall_ms);
	js_set_str(out, "url", f->url);
	js_set_str(out, "model", r->model);
	js_set_str(out, "endpoint", f->is_completions ? "completions" : "chat");
	js_set_bool(out, "stream", !f->no_stream);
	js_set_u64(out, "seed", r->seed);
	js_set(out, "load", load_json(f));
	js_set_real(out, "seconds", seconds(r));
	js_set_bool(out, "interrupted", r->result.was_interrupted);
	js_set(out, "requests", requests_json(r));
	js_set(out, "tokens", tokens_json(r));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		js_set(out, rows[i].key, times_json(of_row(r, &rows[i])));
	js_set(out, "errors", errors_json(r->tally));
	js_set(out, "workers", workers_json(r->tally));
	js_set(out, "spread",
		r->tally->n_workers > 1 ? js_real(report_spread(r->tally)) : js_null());
	js_set_real(out, "bench_cpu_share", report_cpu_share(r));
	js_set_real(out, "bench_wait_share", report_wait_share(r));
	return out;
}
