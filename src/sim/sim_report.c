/*
 * The report of a simulation. See sim_report.h. Called by simulate.c, once.
 */
#include "sim/sim_report.h"

#include "io/js.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static double share(uint64_t part, uint64_t whole)
{
	return whole > 0 ? (double)part / (double)whole : 0;
}

double sim_hit_rate(const struct sim_result *r)
{
	return share(r->hit_blocks, r->blocks);
}

/* Prompt tokens computed that one cache without bounds would have held. */
static int64_t recomputed(const struct sim_report *report, const struct sim_result *r)
{
	return (int64_t)r->computed_tokens - (int64_t)report->ceiling.computed_tokens;
}

/* ---- the table ---- */

/* In millions; never "-0.000", where a prompt's cut last block makes a token or so. */
static double millions(int64_t tokens)
{
	return tokens > -500 && tokens < 0 ? 0 : (double)tokens / 1e6;
}

static int name_width(const struct sim_report *r)
{
	size_t width = strlen("ceiling");

	for (size_t i = 0; i < r->n; i++)
		width = MAX(width, strlen(r->results[i].spec));
	return (int)width;
}

static void print_head(const struct sim_report *r, int width)
{
	const struct sim_flags *f = r->flags;
	const struct sim_input *in = r->input;
	double span_s = (double)in->requests[in->n - 1].at_us / 1e6;

	printf("trace        %s, %zu requests in %.0f s, %" PRIu64 " prompt tokens\n",
		f->trace, in->n, span_s, in->tokens);
	printf("workers      %" PRIu64 ", ", f->workers);
	if (f->kv_tokens > 0)
		printf("%" PRIu64 " tokens of KV cache each, ", f->kv_tokens);
	else
		printf("unlimited KV cache, ");
	if (f->speed_free)
		printf("nothing takes time");
	else
		printf("prefill %g/s, decode %g/s", f->prefill_rate, f->decode_rate);
	printf("; seed %" PRIu64 "\n\n", f->seed);
	printf("%-*s %6s %6s %9s %8s %8s %8s %7s %7s %7s %7s %6s\n", width, "policy",
		"blocks", "tokens", "again, M", "TTFT s", "p50", "p99", "CV busy",
		"CV tail", "request", "work", "shed");
}

static void print_row(const struct sim_report *report, const struct sim_result *r,
	int width, bool is_ceiling)
{
	printf("%-*s %6.4f %6.4f %9.3f %8.3f %8.3f %8.3f", width, r->spec,
		sim_hit_rate(r), share(r->cached_tokens, r->tokens),
		millions(recomputed(report, r)), r->ttft.mean_s, r->ttft.p50_s,
		r->ttft.p99_s);
	if (is_ceiling)
		printf("\n");
	else
		printf(" %7.3f %7.3f %7.3f %7.3f %6.4f\n", r->cv_busy, r->cv_tail,
			r->requests_spread, r->work_spread, r->shed_share);
}

static void print_notes(const struct sim_report *report)
{
	double real_s = 0;
	uint64_t requests = 0;

	for (size_t i = 0; i < report->n; i++) {
		const struct sim_result *r = &report->results[i];

		real_s += r->real_s;
		requests += r->requests;
		if (r->refused > 0)
			printf("%s: %" PRIu64
			       " requests were larger than a worker's KV cache\n",
				r->spec, r->refused);
		if (r->preemptions > 0)
			printf("%s: %" PRIu64 " preemptions because KV blocks ran out\n",
				r->spec, r->preemptions);
		if (r->waited > 0)
			printf("%s: %" PRIu64
			       " requests found all workers full and waited\n",
				r->spec, r->waited);
	}
	printf("\n%.0f requests a second simulated\n",
		real_s > 0 ? (double)requests / real_s : 0);
}

void sim_report_print(const struct sim_report *r)
{
	int width = name_width(r);

	print_head(r, width);
	print_row(r, &r->ceiling, width, true);
	for (size_t i = 0; i < r->n; i++)
		print_row(r, &r->results[i], width, false);
	print_notes(r);
}

/* ---- JSON ---- */

static struct js *times_json(const struct sim_times *t)
{
	struct js *out = js_object();

	js_set_real(out, "mean", t->mean_s);
	js_set_real(out, "p50", t->p50_s);
	js_set_real(out, "p99", t->p99_s);
	js_set_real(out, "max", t->max_s);
	return out;
}

static struct js *reasons_json(const struct sim_result *r)
{
	struct js *out = js_object();

	for (int i = 0; i < PICK_REASON_MAX; i++) {
		if (r->reasons[i] > 0)
			js_set_u64(out, pick_reason_name((enum pick_reason)i),
				r->reasons[i]);
	}
	return out;
}

static struct js *cache_json(const struct sim_report *report, const struct sim_result *r)
{
	struct js *out = js_object();

	js_set_str(out, "policy", r->spec);
	js_set_u64(out, "requests", r->requests);
	js_set_real(out, "hit_rate", sim_hit_rate(r));
	js_set_real(out, "cached_share", share(r->cached_tokens, r->tokens));
	js_set_u64(out, "blocks", r->blocks);
	js_set_u64(out, "hit_blocks", r->hit_blocks);
	js_set_u64(out, "prompt_tokens", r->tokens);
	js_set_u64(out, "cached_tokens", r->cached_tokens);
	js_set_u64(out, "computed_tokens", r->computed_tokens);
	js_set_int(out, "recomputed_tokens", recomputed(report, r));
	js_set(out, "ttft_s", times_json(&r->ttft));
	return out;
}

static struct js *result_json(const struct sim_report *report, const struct sim_result *r)
{
	struct js *out = cache_json(report, r);

	js_set_real(out, "load_cv_busy", r->cv_busy);
	js_set_real(out, "load_cv_tail", r->cv_tail);
	js_set_real(out, "requests_spread", r->requests_spread);
	js_set_real(out, "work_spread", r->work_spread);
	js_set_real(out, "shed_share", r->shed_share);
	js_set(out, "reasons", reasons_json(r));
	js_set_u64(out, "believed_tokens", r->believed_tokens);
	js_set_u64(out, "refused", r->refused);
	js_set_u64(out, "waited", r->waited);
	js_set_u64(out, "preemptions", r->preemptions);
	js_set_real(out, "virtual_s", r->virtual_s);
	js_set_real(out, "real_s", r->real_s);
	return out;
}

static struct js *options_json(const struct sim_flags *f)
{
	struct js *out = js_object();

	js_set_str(out, "trace", f->trace);
	js_set_u64(out, "workers", f->workers);
	js_set_u64(out, "kv_tokens", f->kv_tokens);
	js_set_real(out, "prefill_rate", f->prefill_rate);
	js_set_real(out, "decode_rate", f->decode_rate);
	js_set_u64(out, "max_seqs", f->max_seqs);
	js_set_u64(out, "max_requests", f->max_requests);
	js_set_real(out, "speed", f->speed);
	js_set_bool(out, "speed_free", f->speed_free);
	js_set_u64(out, "seed", f->seed);
	return out;
}

struct js *sim_report_json(const struct sim_report *r)
{
	struct js *out = js_object(), *policies = js_array();

	js_set_str(out, "version", KVSTEER_VERSION);
	js_set(out, "options", options_json(r->flags));
	js_set(out, "ceiling", cache_json(r, &r->ceiling));
	for (size_t i = 0; i < r->n; i++)
		js_push(policies, result_json(r, &r->results[i]));
	js_set(out, "policies", policies);
	return out;
}
