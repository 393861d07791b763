/*
 * The engine's metrics in Prometheus text. One table of families that hold one number
 * each; those with more labels follow by hand. Called by serve.c.
 */
#include "api/engine_metrics.h"
#include "core/histograms.h"
#include "core/sched.h"
#include "kvx/kv_handoff.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

struct family {
	const char *name, *type, *help;
	double (*value)(const struct sched *s, const struct handoff_counts *h);
};

static double running(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return sched_running(s);
}

static double waiting(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return sched_waiting(s);
}

static double prompt_tokens(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->prompt_tokens;
}

static double cached_tokens(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->cached_tokens;
}

static double generated_tokens(
	const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->generated_tokens;
}

static double computed_tokens(
	const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->computed_tokens;
}

static double refused(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->refused;
}

static double steps(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->steps;
}

static double copies(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->copies;
}

static double preemptions(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->preemptions;
}

static double corrupted(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->broken;
}

static double usage(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return sched_usage(s);
}

static double cached_or_loaded(
	const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)(sched_counts(s)->cached_tokens + sched_counts(s)->loaded_tokens);
}

static double load_tokens(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->load_tokens;
}

static double loaded_tokens(const struct sched *s, const struct handoff_counts *h UNUSED)
{
	return (double)sched_counts(s)->loaded_tokens;
}

static double failed_transfers(
	const struct sched *s UNUSED, const struct handoff_counts *h)
{
	return (double)h->failed;
}

static double lost_releases(const struct sched *s UNUSED, const struct handoff_counts *h)
{
	return (double)h->lost_releases;
}

static double expired_leases(const struct sched *s UNUSED, const struct handoff_counts *h)
{
	return (double)h->expired;
}

static double recomputed(const struct sched *s UNUSED, const struct handoff_counts *h)
{
	return (double)h->recomputed;
}

static double leases(const struct sched *s UNUSED, const struct handoff_counts *h)
{
	return h->leases;
}

static double leased_blocks(const struct sched *s UNUSED, const struct handoff_counts *h)
{
	return h->leased_blocks;
}

static double sent_blocks(const struct sched *s UNUSED, const struct handoff_counts *h)
{
	return (double)h->sent_blocks;
}

/* clang-format off */
static const struct family families[] = {
	{ "vllm:num_requests_running", "gauge", "Sequences in prefill or decode", running },
	{ "vllm:num_requests_waiting", "gauge", "Sequences that wait to be scheduled", waiting },
	{ "vllm:kv_cache_usage_perc", "gauge", "Used part of the KV cache, 1 is all", usage },
	{ "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache", prompt_tokens },
	{ "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache", cached_tokens },
	{ "vllm:prompt_tokens_total", "counter", "Prompt tokens processed", prompt_tokens },
	{ "vllm:prompt_tokens_cached_total", "counter", "Prompt tokens that were cached here or loaded", cached_or_loaded },
	{ "vllm:generation_tokens_total", "counter", "Tokens generated", generated_tokens },
	{ "vllm:num_preemptions_total", "counter", "Sequences that gave up their blocks", preemptions },
	{ "vllm:corrupted_requests_total", "counter", "Sequences whose KV blocks did not hold what they should", corrupted },
	{ "kvsteer_engine_steps_total", "counter", "Steps of the backend", steps },
	{ "kvsteer_engine_computed_tokens_total", "counter", "Tokens computed by the backend, again after preemption too", computed_tokens },
	{ "kvsteer_engine_block_copies_total", "counter", "KV blocks copied before they were written", copies },
	{ "kvsteer_engine_refused_total", "counter", "Requests refused because too many waited", refused },
	{ "vllm:external_prefix_cache_queries_total", "counter", "Prompt tokens that were asked of a prefill worker", load_tokens },
	{ "vllm:external_prefix_cache_hits_total", "counter", "Prompt tokens that came from a prefill worker", loaded_tokens },
	{ "vllm:nixl_num_failed_transfers_total", "counter", "Prompts that could not be taken from a prefill worker", failed_transfers },
	{ "vllm:nixl_num_failed_notifications_total", "counter", "Releases that could not be sent to a prefill worker", lost_releases },
	{ "vllm:nixl_num_kv_expired_reqs_total", "counter", "Prompts kept for a decode worker that did not take them in time", expired_leases },
	{ "kvsteer_engine_kv_recomputed_total", "counter", "Prompts computed because they could not be taken", recomputed },
	{ "kvsteer_engine_kv_leases", "gauge", "Prompts kept for a decode worker", leases },
	{ "kvsteer_engine_kv_leased_blocks", "gauge", "Blocks of prompts kept for a decode worker", leased_blocks },
	{ "kvsteer_engine_kv_sent_blocks_total", "counter", "Blocks sent to decode workers", sent_blocks },
};
/* clang-format on */

static const char *const end_names[SCHED_END_MAX] = {
	[SCHED_END_LENGTH] = "length",
	[SCHED_END_STOP] = "stop",
	[SCHED_END_ABORT] = "abort",
	[SCHED_END_ERROR] = "error",
};

static void print_labels(struct text *out, const char *name, const char *model)
{
	text_printf(out, "%s{model_name=\"", name);
	metric_label(out, span_str(model));
	text_printf(out, "\",engine=\"0\"");
}

/* One line of a histogram, up to le. */
static void print_bucket(
	struct text *out, const char *name, const char *model, double le, uint64_t n)
{
	char label[80];

	(void)snprintf(label, sizeof(label), "%s_bucket", name);
	print_labels(out, label, model);
	if (isinf(le))
		text_printf(out, ",le=\"+Inf\"} %" PRIu64 "\n", n);
	else
		text_printf(out, ",le=\"%.10g\"} %" PRIu64 "\n", le, n);
}

static void print_sum(
	struct text *out, const char *name, const char *model, double sum, uint64_t n)
{
	char label[80];

	(void)snprintf(label, sizeof(label), "%s_sum", name);
	print_labels(out, label, model);
	text_printf(out, "} %.17g\n", sum);
	(void)snprintf(label, sizeof(label), "%s_count", name);
	print_labels(out, label, model);
	text_printf(out, "} %" PRIu64 "\n", n);
}

static void print_histogram(struct text *out, const struct engine_histograms *h,
	enum engine_histogram which, const struct engine_metrics_opts *opts)
{
	const struct engine_bounds *row = engine_bounds(which);
	double unit = row->unit == BOUNDS_TIME ? 1e3 : 1;
	uint64_t n = 0;

	metric_family(out, row->name, "histogram", row->help);
	for (unsigned i = 0; i < row->n_bounds; i++) {
		n += h->of[which].buckets[i];
		if (row->unit != BOUNDS_TOKENS || row->bounds[i] <= opts->max_model_len)
			print_bucket(
				out, row->name, opts->model, row->bounds[i] / unit, n);
	}
	n += h->of[which].buckets[row->n_bounds];
	print_bucket(out, row->name, opts->model, INFINITY, n);
	print_sum(out, row->name, opts->model,
		(double)h->of[which].sum / (row->unit == BOUNDS_TIME ? 1e6 : 1), n);
}

static void print_steps(struct text *out, const struct sched_counts *c, const char *model)
{
	static const char name[] = "vllm:iteration_tokens_total";
	uint64_t n = 0;

	metric_family(out, name, "histogram", "Tokens of a step");
	for (unsigned i = 0; i < SCHED_STEP_BUCKETS; i++) {
		n += c->step_buckets[i];
		print_bucket(out, name, model,
			i == SCHED_STEP_BUCKETS - 1 ? INFINITY
			: i == 0                    ? 1
						    : (double)(4u << i),
			n);
	}
	print_sum(out, name, model, (double)c->step_tokens, n);
}

/* For room, or for blocks that another worker sends. */
static void print_waiting(struct text *out, const struct sched *s, const char *model)
{
	static const char name[] = "vllm:num_requests_waiting_by_reason";

	metric_family(out, name, "gauge", "Sequences that wait to be scheduled, by why");
	print_labels(out, name, model);
	text_printf(
		out, ",reason=\"capacity\"} %u\n", sched_waiting(s) - sched_loading(s));
	print_labels(out, name, model);
	text_printf(out, ",reason=\"deferred\"} %u\n", sched_loading(s));
}

/* Prompt tokens by where their KV came from. */
static void print_sources(
	struct text *out, const struct sched_counts *c, const char *model)
{
	static const char name[] = "vllm:prompt_tokens_by_source_total";
	const struct {
		const char *source;
		uint64_t n;
	} rows[] = {
		{"local_compute", c->prompt_tokens - c->cached_tokens - c->loaded_tokens},
		{"local_cache_hit", c->cached_tokens},
		{"external_kv_transfer", c->loaded_tokens},
	};

	metric_family(out, name, "counter", "Prompt tokens by where their KV came from");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		print_labels(out, name, model);
		text_printf(
			out, ",source=\"%s\"} %" PRIu64 "\n", rows[i].source, rows[i].n);
	}
}

void engine_metrics_print(struct text *out, const struct sched *s,
	const struct engine_histograms *h, const struct engine_metrics_opts *opts)
{
	const char *model = opts->model;

	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		const struct family *f = &families[i];

		metric_family(out, f->name, f->type, f->help);
		print_labels(out, f->name, model);
		text_printf(out, "} %.17g\n", f->value(s, opts->handoff));
	}
	metric_family(out, "vllm:request_success_total", "counter",
		"Sequences by how they ended");
	for (size_t i = 0; i < SCHED_END_MAX; i++) {
		print_labels(out, "vllm:request_success_total", model);
		text_printf(out, ",finished_reason=\"%s\"} %" PRIu64 "\n", end_names[i],
			sched_counts(s)->ended[i]);
	}
	print_waiting(out, s, model);
	print_sources(out, sched_counts(s), model);
	for (enum engine_histogram which = 0; which < ENGINE_HISTOGRAM_MAX; which++)
		print_histogram(out, h, which, opts);
	print_steps(out, sched_counts(s), model);
	metric_family(out, "vllm:cache_config_info", "gauge", "The size of the KV cache");
	print_labels(out, "vllm:cache_config_info", model);
	text_printf(out, ",block_size=\"%u\",num_gpu_blocks=\"%u\"} 1\n",
		sched_shape(s)->block_tokens, sched_shape(s)->n_blocks);
	metric_family(
		out, "process_start_time_seconds", "gauge", "When this process began");
	text_printf(out, "process_start_time_seconds %.3f\n",
		(double)opts->started_ms / 1000);
}
