/*
 * The engine's metrics in Prometheus text. One table of families that hold one number each; those with more labels follow by hand.
 * Called by serve.c.
 */
#include "engine_metrics.h"
#include "kv_cache.h"
#include "sched.h"

#include <inttypes.h>
#include <stdio.h>

struct family {
	const char *name, *type, *help;
	double (*value)(const struct sched *s);
};

static double running(const struct sched *s)
{
	return sched_running(s);
}

static double waiting(const struct sched *s)
{
	return sched_waiting(s);
}

static double prompt_tokens(const struct sched *s)
{
	return (double)sched_counts(s)->prompt_tokens;
}

static double cached_tokens(const struct sched *s)
{
	return (double)sched_counts(s)->cached_tokens;
}

static double generated_tokens(const struct sched *s)
{
	return (double)sched_counts(s)->generated_tokens;
}

static double computed_tokens(const struct sched *s)
{
	return (double)sched_counts(s)->computed_tokens;
}

static double refused(const struct sched *s)
{
	return (double)sched_counts(s)->refused;
}

static double steps(const struct sched *s)
{
	return (double)sched_counts(s)->steps;
}

static double copies(const struct sched *s)
{
	return (double)sched_counts(s)->copies;
}

static double preemptions(const struct sched *s)
{
	return (double)sched_counts(s)->preemptions;
}

static double corrupted(const struct sched *s)
{
	return (double)sched_counts(s)->broken;
}

/* clang-format off */
static const struct family families[] = {
	{ "vllm:num_requests_running", "gauge", "Sequences in prefill or decode", running },
	{ "vllm:num_requests_waiting", "gauge", "Sequences that wait to be scheduled", waiting },
	{ "vllm:kv_cache_usage_perc", "gauge", "Used part of the KV cache, 1 is all", sched_usage },
	{ "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache", prompt_tokens },
	{ "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache", cached_tokens },
	{ "vllm:prompt_tokens_total", "counter", "Prompt tokens processed", prompt_tokens },
	{ "vllm:prompt_tokens_cached_total", "counter", "Prompt tokens that were cached", cached_tokens },
	{ "vllm:generation_tokens_total", "counter", "Tokens generated", generated_tokens },
	{ "vllm:num_preemptions_total", "counter", "Sequences that gave up their blocks", preemptions },
	{ "vllm:corrupted_requests_total", "counter", "Sequences whose KV blocks did not hold what they should", corrupted },
	{ "kvsteer_engine_steps_total", "counter", "Steps of the backend", steps },
	{ "kvsteer_engine_computed_tokens_total", "counter", "Tokens computed by the backend, again after preemption too", computed_tokens },
	{ "kvsteer_engine_block_copies_total", "counter", "KV blocks copied before they were written", copies },
	{ "kvsteer_engine_refused_total", "counter", "Requests refused because too many waited", refused },
};
/* clang-format on */

/* Bounds in milliseconds, those of vLLM. */
static const struct {
	const char *name, *help;
	unsigned n_bounds;
	uint32_t bounds_ms[ENGINE_BUCKETS_MAX];
} histograms[ENGINE_TIME_MAX] = {
	[ENGINE_TTFT] = { "vllm:time_to_first_token_seconds", "From the request to its first token",
		22, { 1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000,
			    20000, 40000, 80000, 160000, 640000, 2560000 } },
	[ENGINE_ITL] = { "vllm:inter_token_latency_seconds", "From one token of a sequence to its next",
		19, { 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500, 5000, 7500,
			    10000, 20000, 40000, 80000 } },
	[ENGINE_E2E] = { "vllm:e2e_request_latency_seconds", "From the request to the end of its answer",
		21, { 300, 500, 800, 1000, 1500, 2000, 2500, 5000, 10000, 15000, 20000, 30000,
			    40000, 50000, 60000, 120000, 240000, 480000, 960000, 1920000, 7680000 } },
};

void engine_times_observe(struct engine_times *t, enum engine_time which, uint64_t us)
{
	unsigned i = 0;

	while (i < histograms[which].n_bounds && us > histograms[which].bounds_ms[i] * 1000ull)
		i++;
	t->times[which].buckets[i]++;
	t->times[which].sum_us += us;
}

static const char *const end_names[SCHED_END_MAX] = {
	[SCHED_END_LENGTH] = "length",
	[SCHED_END_STOP] = "stop",
	[SCHED_END_ABORT] = "abort",
	[SCHED_END_ERROR] = "error",
};

static void print_labels(struct metric_text *out, const char *name, const char *model)
{
	metric_printf(out, "%s{model_name=\"", name);
	metric_label(out, span_str(model));
	metric_printf(out, "\",engine=\"0\"");
}

static void print_histogram(struct metric_text *out, const struct engine_times *times,
	enum engine_time which, const char *model)
{
	const char *name = histograms[which].name;
	char label[64];
	uint64_t n = 0;

	metric_family(out, name, "histogram", histograms[which].help);
	(void)snprintf(label, sizeof(label), "%s_bucket", name);
	for (unsigned i = 0; i <= histograms[which].n_bounds; i++) {
		n += times->times[which].buckets[i];
		print_labels(out, label, model);
		if (i < histograms[which].n_bounds)
			metric_printf(out, ",le=\"%g\"} %" PRIu64 "\n",
				histograms[which].bounds_ms[i] / 1e3, n);
		else
			metric_printf(out, ",le=\"+Inf\"} %" PRIu64 "\n", n);
	}
	(void)snprintf(label, sizeof(label), "%s_sum", name);
	print_labels(out, label, model);
	metric_printf(out, "} %.6f\n", (double)times->times[which].sum_us / 1e6);
	(void)snprintf(label, sizeof(label), "%s_count", name);
	print_labels(out, label, model);
	metric_printf(out, "} %" PRIu64 "\n", n);
}

void engine_metrics_print(struct metric_text *out, const struct sched *s,
	const struct engine_times *times, const char *model, uint64_t started_ms)
{
	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		const struct family *f = &families[i];

		metric_family(out, f->name, f->type, f->help);
		print_labels(out, f->name, model);
		metric_printf(out, "} %.17g\n", f->value(s));
	}
	metric_family(out, "vllm:request_success_total", "counter", "Sequences by how they ended");
	for (size_t i = 0; i < SCHED_END_MAX; i++) {
		print_labels(out, "vllm:request_success_total", model);
		metric_printf(out, ",finished_reason=\"%s\"} %" PRIu64 "\n", end_names[i],
			sched_counts(s)->ended[i]);
	}
	for (enum engine_time which = 0; which < ENGINE_TIME_MAX; which++)
		print_histogram(out, times, which, model);
	metric_family(out, "vllm:cache_config_info", "gauge", "The size of the KV cache");
	print_labels(out, "vllm:cache_config_info", model);
	metric_printf(out, ",block_size=\"%d\",num_gpu_blocks=\"%zu\"} 1\n", KV_BLOCK,
		sched_max_tokens(s) / KV_BLOCK);
	metric_family(out, "process_start_time_seconds", "gauge", "When this process began");
	metric_printf(out, "process_start_time_seconds %.3f\n", (double)started_ms / 1000);
}
