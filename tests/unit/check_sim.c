/*
 * The simulator: times and hits of a trace computed by hand; the same seed, the same
 * result; nothing lost; hit rates of an unbounded and a bounded cache as a plain set and
 * a plain LRU have them; and its worker beside kvsteer-engine's scheduler, request by
 * request.
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/metric.h"
#include "sched_rig.h"
#include "sim/sim.h"
#include "sim/sim_worker.h"

#include <math.h>

#define LINE(at, in, out, ids)                                                      \
	"{\"timestamp\": " at ", \"input_length\": " in ", \"output_length\": " out \
	", \"hash_ids\": [" ids "]}\n"

static struct sim_input input;

static void tear_down(void)
{
	sim_input_free(&input);
}

static void read_text(const char *text)
{
	struct trace_fault fault;
	struct trace trace;

	ck_assert_int_eq(trace_read(span_str(text), &trace, &fault), 0);
	ck_assert_int_eq(sim_input_make(&trace, 0, 1, &input), 0);
	trace_free(&trace);
}

static struct sim_opts opts_of(unsigned workers)
{
	return (struct sim_opts){.input = &input,
		.workers = workers,
		.prefill_rate = 1000,
		.decode_rate = 100,
		.max_seqs = 256,
		.seed = 1};
}

struct seen {
	unsigned worker[4096];
	uint64_t ttft_us[4096];
	uint32_t ids[4096];
	uint64_t tokens[4096];
};

static void on_first(void *arg, size_t request, unsigned worker, uint64_t ttft_us,
	const struct sim_found *found)
{
	struct seen *seen = arg;

	seen->worker[request] = worker;
	seen->ttft_us[request] = ttft_us;
	seen->ids[request] = found->ids;
	seen->tokens[request] = found->tokens;
}

static struct sim_result run(
	const struct sim_opts *o, const char *spec, struct seen *seen)
{
	struct sim_watch watch = {on_first, seen};
	struct sim_result r;
	char *why = NULL;
	int err = sim_run_watched(o, spec, seen != NULL ? &watch : NULL, &r, &why);

	if (err != 0)
		ck_abort_msg("%s: %s", spec, why);
	return r;
}

static bool is_near(double a, double b)
{
	return fabs(a - b) < 1e-9;
}

/* ---- by hand ---- */

/* At 1000 tokens a second of prefill and 100 of decode. */
static const char small[] = LINE("0", "1024", "3", "1,2")
	LINE("500", "1536", "2", "1,2,3") LINE("600", "600", "1", "9,10");

/*
 * The first goes to worker 0 and is computed from 0 to 1.024 s. Of the second, two blocks
 * of three are there: it follows, waits, and computes 512 tokens until 1.536 s. The third
 * knows nobody and takes the idle worker: 0.6 s to 1.2 s.
 */
START_TEST(three_requests_follow_their_prefix)
{
	struct sim_opts o = opts_of(2);
	static struct seen seen;
	struct sim_result r;

	read_text(small);
	r = run(&o, "cache_aware", &seen);
	ck_assert_uint_eq(seen.worker[0], 0);
	ck_assert_uint_eq(seen.worker[1], 0);
	ck_assert_uint_eq(seen.worker[2], 1);
	ck_assert_uint_eq(seen.ttft_us[0], 1024000);
	ck_assert_uint_eq(seen.ttft_us[1], 1036000);
	ck_assert_uint_eq(seen.ttft_us[2], 600000);
	ck_assert_uint_eq(seen.ids[1], 2);
	ck_assert_uint_eq(seen.tokens[1], 1024);
	ck_assert_uint_eq(r.blocks, 7);
	ck_assert_uint_eq(r.hit_blocks, 2);
	ck_assert_uint_eq(r.tokens, 3160);
	ck_assert_uint_eq(r.cached_tokens, 1024);
	ck_assert_uint_eq(r.computed_tokens, 2136);
	ck_assert_uint_eq(r.believed_tokens, 1024);
	ck_assert_uint_eq(r.reasons[PICK_PREFIX_HIT], 1);
	ck_assert_uint_eq(r.reasons[PICK_NO_MATCH], 2);
	ck_assert(is_near(r.ttft.mean_s, (1.024 + 1.036 + .6) / 3));
	ck_assert(is_near(r.ttft.p50_s, 1.024));
	ck_assert(is_near(r.ttft.p99_s, 1.036));
	ck_assert(is_near(r.requests_spread, 2 / 1.5));
	ck_assert(is_near(r.work_spread, 1536 / 1068.0));
	ck_assert(is_near(r.virtual_s, 1.546));
	/* Loads: 1,0 until .6 (2,0 from .5); 2,1 until 1.044; 1,1 until 1.2; 1,0. */
	ck_assert(is_near(r.cv_busy, 1));
	ck_assert(is_near(r.cv_tail, (.444 / 3 + .346) / .946));
	sim_result_free(&r);
}
END_TEST

START_TEST(three_requests_by_turns)
{
	struct sim_opts o = opts_of(2);
	static struct seen seen;
	struct sim_result r;

	read_text(small);
	r = run(&o, "round_robin", &seen);
	ck_assert_uint_eq(seen.worker[1], 1);
	ck_assert_uint_eq(seen.worker[2], 0);
	ck_assert_uint_eq(seen.ttft_us[0], 1024000);
	ck_assert_uint_eq(seen.ttft_us[1], 1536000);
	ck_assert_uint_eq(seen.ttft_us[2], 1024000); /* from 1.024 s on */
	ck_assert_uint_eq(r.hit_blocks, 0);
	ck_assert_uint_eq(r.computed_tokens, 3160);
	sim_result_free(&r);
}
END_TEST

START_TEST(the_ceiling_waits_for_nobody)
{
	struct sim_opts o = opts_of(2);
	struct sim_result r;

	read_text(small);
	sim_ceiling(&o, &r);
	ck_assert_uint_eq(r.hit_blocks, 2);
	ck_assert_uint_eq(r.cached_tokens, 1024);
	ck_assert_uint_eq(r.computed_tokens, 2136);
	ck_assert(is_near(r.ttft.mean_s, (1.024 + .512 + .6) / 3));
	sim_result_free(&r);
}
END_TEST

/* A prompt that is there to its last token computes one block, for the next token. */
START_TEST(a_prompt_comes_again)
{
	struct sim_opts o = opts_of(1);
	static struct seen seen;
	struct sim_result r;

	read_text(LINE("0", "1024", "1", "1,2") LINE("9000", "1024", "1", "1,2"));
	r = run(&o, "cache_aware", &seen);
	ck_assert_uint_eq(seen.ids[1], 2);
	ck_assert_uint_eq(seen.tokens[1], 1008);
	ck_assert_uint_eq(seen.ttft_us[1], 16000);
	sim_result_free(&r);
}
END_TEST

START_TEST(nothing_takes_time)
{
	struct sim_opts o = opts_of(2);
	struct sim_result r;

	o.prefill_rate = o.decode_rate = 0;
	read_text(small);
	r = run(&o, "least_requests", NULL);
	ck_assert(is_near(r.ttft.max_s, 0));
	ck_assert(is_near(r.cv_busy, 0));
	ck_assert_uint_eq(r.requests, 3);
	sim_result_free(&r);
}
END_TEST

START_TEST(too_large_and_full)
{
	struct sim_opts o = opts_of(1);
	static struct seen seen;
	struct sim_result r;

	read_text(LINE("0", "2048", "1", "1,2,3,4") LINE("0", "500", "4", "7")
			LINE("0", "500", "1", "8"));
	o.kv_tokens = 1024;
	o.max_requests = 1;
	r = run(&o, "round_robin", &seen);
	ck_assert_uint_eq(r.refused, 1);
	ck_assert_uint_eq(r.requests, 2);
	ck_assert_uint_eq(r.waited, 1);
	ck_assert_uint_eq(seen.ttft_us[1], 500000);
	ck_assert_uint_eq(seen.ttft_us[2], 1030000); /* after the other's last token */
	sim_result_free(&r);
}
END_TEST

START_TEST(specs_that_are_none)
{
	static const char *const bad[] = {"", "no_such_policy",
		"cache_aware:no_such_signal", "cache_aware:longest_prefix:no_such_cost",
		"cache_aware:longest_prefix:overload_check:more", "cache_aware,beta",
		"cache_aware,no_such_key=1", "cache_aware,cache_threshold=2",
		"cache_aware,prefix_block=100", "cache_aware,prefix_block=3072"};
	struct sim_opts o = opts_of(2);

	read_text(small);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct sim_result r;
		char *why = NULL;

		ck_assert_msg(sim_run(&o, bad[i], &r, &why) == ERR_PARSE, "%s", bad[i]);
		ck_assert_ptr_nonnull(why);
		free(why);
	}
}
END_TEST

/* ---- made-up traces ---- */

struct made {
	struct trace trace;
	struct rng rng;
};

/* Trees of prompts: an id stands for one prefix, and has one length. */
static void add_made(struct made *m, uint64_t at_us, unsigned ids_most, unsigned fan)
{
	struct trace *t = &m->trace;
	size_t n = 1 + rng_below(&m->rng, ids_most);
	struct trace_request r = {.at_us = at_us,
		.output_tokens = 1 + (uint32_t)rng_below(&m->rng, 90),
		.first_id = t->n_ids,
		.n_ids = n};
	uint64_t id = 0;

	ck_assert_int_eq(mem_grow(&t->requests, &t->cap, t->n + 1, sizeof(r)), 0);
	ck_assert_int_eq(
		mem_grow(&t->ids, &t->cap_ids, t->n_ids + n, sizeof(*t->ids)), 0);
	for (size_t i = 0; i < n; i++) {
		id = id * (fan + 1) + 1 + rng_below(&m->rng, fan);
		t->ids[t->n_ids++] = i + 1 < n ? id : id + 1000000000;
	}
	/* No whole number of the cache's blocks: sim_kv.h says why. */
	r.input_tokens = (uint32_t)((n - 1) * 512 + 17 * (1 + id % 29));
	r.input_tokens += r.input_tokens % KV_BLOCK == 0;
	t->requests[t->n++] = r;
}

static void make_up(size_t n, uint64_t gap_us, unsigned ids_most, unsigned fan)
{
	struct made m = {.trace = {.block_tokens = 512}};
	uint64_t at_us = 0;

	rng_seed(&m.rng, 11);
	for (size_t i = 0; i < n; i++) {
		add_made(&m, at_us, ids_most, fan);
		at_us += rng_below(&m.rng, 2 * gap_us + 1) / 100 * 100;
	}
	ck_assert_int_eq(sim_input_make(&m.trace, 0, 1, &input), 0);
	trace_free(&m.trace);
}

static char **specs;
static size_t n_specs;

/* The same trace with ids of 16 tokens. */
static void read_small(const struct trace *large)
{
	struct trace t = {.block_tokens = 16};

	for (size_t i = 0; i < large->n; i++) {
		struct trace_request r = large->requests[i];
		size_t n = (r.input_tokens + 15) / 16;

		ck_assert_int_eq(mem_grow(&t.requests, &t.cap, t.n + 1, sizeof(r)), 0);
		ck_assert_int_eq(
			mem_grow(&t.ids, &t.cap_ids, t.n_ids + n, sizeof(*t.ids)), 0);
		r.first_id = t.n_ids;
		for (size_t k = 0; k < n; k++)
			t.ids[t.n_ids++] =
				large->ids[large->requests[i].first_id + k / 32] * 32 +
				k % 32;
		r.n_ids = n;
		t.requests[t.n++] = r;
	}
	ck_assert_int_eq(sim_input_make(&t, 0, 1, &input), 0);
	trace_free(&t);
}

START_TEST(blocks_of_16_tokens_tell_the_same)
{
	static const char *const tried[] = {"round_robin", "cache_aware",
		"cache_aware,prefix_block=64", "cache_aware,prefix_block=2048"};
	struct made m = {.trace = {.block_tokens = 512}};
	struct sim_opts o = opts_of(3);

	rng_seed(&m.rng, 12);
	for (size_t i = 0; i < 400; i++)
		add_made(&m, i * 300000, 5, 3);
	o.kv_tokens = 40960;
	o.prefill_rate = 1900;
	for (size_t i = 0; i < ARRAY_LEN(tried); i++) {
		struct sim_result a, b;

		ck_assert_int_eq(sim_input_make(&m.trace, 0, 1, &input), 0);
		a = run(&o, tried[i], NULL);
		sim_input_free(&input);
		read_small(&m.trace);
		b = run(&o, tried[i], NULL);
		sim_input_free(&input);
		ck_assert_uint_eq(a.tokens, b.tokens);
		ck_assert_uint_eq(a.cached_tokens, b.cached_tokens);
		ck_assert_uint_gt(a.cached_tokens, 0);
		ck_assert_mem_eq(&a.ttft, &b.ttft, sizeof(a.ttft));
		sim_result_free(&a);
		sim_result_free(&b);
	}
	trace_free(&m.trace);
}
END_TEST

/* Every policy: all requests end, every guard comes back, tokens add up. */
START_TEST(nothing_is_lost)
{
	struct sim_opts o = opts_of(4);

	make_up(600, 400000, 5, 3);
	o.kv_tokens = 16384;
	o.prefill_rate = 1900;
	specs = sim_router_all_specs(&n_specs);
	ck_assert_uint_ge(n_specs, POLICY_KIND_MAX);
	for (size_t i = 0; i < n_specs; i++) {
		struct sim_result r = run(&o, specs[i], NULL);
		uint64_t picked = 0;

		for (int k = 0; k < PICK_REASON_MAX; k++)
			picked += r.reasons[k];
		ck_assert_uint_eq(r.requests, 600);
		ck_assert_uint_eq(picked, 600);
		ck_assert_uint_eq(r.tokens, input.tokens);
		ck_assert_uint_ge(r.computed_tokens + r.cached_tokens, r.tokens);
		ck_assert(r.preemptions > 0 ||
			  r.computed_tokens + r.cached_tokens == r.tokens);
		ck_assert(r.hit_blocks > 0 && r.hit_blocks <= r.blocks);
		ck_assert_int_eq(metric_total(METRIC_GUARDS_TAKEN),
			metric_total(METRIC_GUARDS_DROPPED));
		sim_result_free(&r);
		free(specs[i]);
	}
	free(specs);
}
END_TEST

START_TEST(the_same_seed_the_same_result)
{
	struct sim_opts o = opts_of(4);
	struct sim_result a, b, c;

	make_up(500, 300000, 5, 3);
	a = run(&o, "random", NULL);
	b = run(&o, "random", NULL);
	o.seed = 2;
	c = run(&o, "random", NULL);
	ck_assert_mem_eq(&a.ttft, &b.ttft, sizeof(a.ttft));
	ck_assert_mem_eq(&a.cv_busy, &b.cv_busy, sizeof(a.cv_busy));
	ck_assert_uint_eq(a.hit_blocks, b.hit_blocks);
	ck_assert(memcmp(&a.ttft, &c.ttft, sizeof(a.ttft)) != 0);
	sim_result_free(&a);
	sim_result_free(&b);
	sim_result_free(&c);
}
END_TEST

/* ---- hit rates by another calculation ---- */

/*
 * Blocks of 16 tokens, numbered, in a plain array of stamps: leading ones found; room is
 * made by what was used longest ago. One request after the other; a request's last block
 * is the oldest of its blocks.
 */
struct lru {
	uint64_t *stamps; /* 0: not held */
	size_t n, held, capacity;
	uint64_t now;
};

static void lru_evict(struct lru *l)
{
	size_t oldest = SIZE_MAX;

	for (size_t i = 0; i < l->n; i++) {
		if (l->stamps[i] != 0 &&
			(oldest == SIZE_MAX || l->stamps[i] < l->stamps[oldest]))
			oldest = i;
	}
	ck_assert_uint_ne(oldest, SIZE_MAX);
	l->stamps[oldest] = 0;
	l->held--;
}

static size_t lru_request(struct lru *l, const struct sim_request *r)
{
	const struct sim_prompt *p = &r->prompt;
	size_t full = p->tokens / 16, all = (p->tokens + 15) / 16, found = 0;
	size_t block[4096];

	for (size_t i = 0; i < full; i++)
		block[i] = p->ids[i / 32] * 32 + i % 32;
	while (found < (p->tokens - 1) / 16 && l->stamps[block[found]] != 0)
		found++;
	for (size_t i = 0; i < found; i++)
		l->stamps[block[i]] = UINT64_MAX; /* in use */
	while (l->held + all - found > l->capacity)
		lru_evict(l);
	l->held += full - found;
	for (size_t i = full; i-- > 0;)
		l->stamps[block[i]] = ++l->now;
	return found * 16;
}

static void check_hits(uint64_t kv_tokens, uint64_t *cached)
{
	struct sim_opts o = opts_of(1);
	struct lru l = {.n = (size_t)input.n_ids * 32,
		.capacity = kv_tokens > 0 ? kv_tokens / 16 : SIZE_MAX};
	static struct seen seen;
	struct sim_result r;

	l.stamps = calloc(l.n, sizeof(*l.stamps));
	o.kv_tokens = kv_tokens;
	o.prefill_rate = o.decode_rate = 0;
	for (size_t i = 0; i < input.n; i++)
		input.requests[i].output = 1; /* generated blocks are no prompt's */
	r = run(&o, "cache_aware", &seen);
	for (size_t i = 0; i < input.n; i++) {
		size_t want = lru_request(&l, &input.requests[i]);

		if (seen.tokens[i] != want)
			ck_abort_msg("request %zu: %zu tokens found, %zu calculated", i,
				(size_t)seen.tokens[i], want);
	}
	*cached = r.cached_tokens;
	sim_result_free(&r);
	free(l.stamps);
}

START_TEST(one_worker_hits_as_calculated)
{
	uint64_t all, some, few;

	make_up(700, 1000, 6, 3);
	check_hits(0, &all);
	check_hits(32768, &some);
	check_hits(6144, &few);
	ck_assert(few > 0 && few < some && some < all);
}
END_TEST

/* ---- beside the engine ---- */

enum { ENGINE_STEP = 512, RATE_US = 100, TOKEN_US = 10000 };

struct engine_job {
	uint64_t first_us;
	size_t cached;
	struct rig *rig;
	struct sched_seq *seq;
};

static void on_token(
	void *arg, struct sched_seq *seq, const struct sample_out *out UNUSED)
{
	struct engine_job *job = arg;

	if (job->first_us == 0)
		job->first_us = job->rig->now_us;
	job->cached = sched_cached(seq);
}

static void on_end(void *arg UNUSED, struct sched_seq *seq UNUSED, enum sched_end end)
{
	REQUIRE(end == SCHED_END_LENGTH);
}

static const struct sched_ops engine_ops = {.on_token = on_token, .on_end = on_end};

static void engine_submit(
	struct rig *rig, const struct sim_request *r, struct engine_job *job)
{
	static uint32_t prompt[65536];
	struct sched_request q = {.prompt = prompt,
		.n_prompt = r->prompt.tokens,
		.max_new = r->output,
		.ops = &engine_ops,
		.arg = job};

	for (size_t i = 0; i < r->prompt.tokens; i++)
		prompt[i] = (uint32_t)(r->prompt.ids[i / 512] * 512 + i % 512);
	job->rig = rig;
	REQUIRE(sched_submit(rig->sched, &q) != NULL);
}

static void engine_until(struct rig *rig, uint64_t at_us)
{
	while (sched_wake_us(rig->sched) <= at_us && rig_step(rig))
		;
	rig->now_us = MAX(rig->now_us, at_us);
}

/* The preemptions there were. */
static uint64_t engine_play(
	uint64_t kv_blocks, unsigned max_seqs, struct engine_job *jobs)
{
	struct sched_opts opts = {
		.n_blocks = (uint32_t)kv_blocks,
		.max_seqs = max_seqs,
		.max_waiting = 100000,
		.step_tokens = ENGINE_STEP,
	};
	struct sim_pace pace = {.prefill_us = RATE_US, .decode_us = TOKEN_US};
	uint64_t preemptions;
	struct rig rig;

	rig_open_paced(&rig, &opts, &pace);
	rig.now_us = 1;
	for (size_t i = 0; i < input.n; i++) {
		engine_until(&rig, 1 + input.requests[i].at_us);
		engine_submit(&rig, &input.requests[i], &jobs[i]);
	}
	while (rig_step(&rig))
		;
	preemptions = sched_counts(rig.sched)->preemptions;
	rig_close(&rig);
	return preemptions;
}

/* How far apart the two are: mean times to the first token, cached tokens. */
static void beside_engine(uint64_t kv_blocks, unsigned max_seqs, double times_within,
	double cached_within, uint64_t *preemptions)
{
	scoped_free struct engine_job *jobs = calloc(input.n, sizeof(*jobs));
	double ours_us = 0, theirs_us = 0, apart_us = 0, ours = 0, theirs = 0;
	struct sim_opts o = opts_of(1);
	static struct seen seen;
	struct sim_result r;

	o.kv_tokens = kv_blocks * 16;
	o.prefill_rate = 1e6 / RATE_US;
	o.decode_rate = 1e6 / TOKEN_US;
	o.max_seqs = max_seqs;
	r = run(&o, "round_robin", &seen);
	*preemptions = engine_play(kv_blocks, max_seqs, jobs);
	for (size_t i = 0; i < input.n; i++) {
		double us = (double)(jobs[i].first_us - 1 - input.requests[i].at_us);

		ours_us += (double)seen.ttft_us[i];
		theirs_us += us;
		apart_us += fabs((double)seen.ttft_us[i] - us);
		ours += (double)seen.tokens[i];
		theirs += (double)jobs[i].cached;
	}
	printf("%zu blocks, %u sequences: first token %.4f s here, %.4f s there, apart "
	       "%.4f s; cached %.0f and %.0f; preemptions %zu and %zu\n",
		(size_t)kv_blocks, max_seqs, ours_us / 1e6 / (double)input.n,
		theirs_us / 1e6 / (double)input.n, apart_us / 1e6 / (double)input.n, ours,
		theirs, (size_t)r.preemptions, (size_t)*preemptions);
	ck_assert(fabs(ours_us - theirs_us) <= times_within * theirs_us);
	ck_assert(fabs(ours - theirs) <= cached_within * theirs);
	ck_assert_uint_eq(r.preemptions > 0, *preemptions > 0);
	sim_result_free(&r);
}

/* One at a time: every request to the microsecond. */
START_TEST(idle_worker_is_as_the_engine)
{
	scoped_free struct engine_job *jobs = NULL;
	struct sim_opts o = opts_of(1);
	static struct seen seen;
	struct sim_result r;

	make_up(300, 40000000, 6, 3);
	for (size_t i = 0; i < input.n; i++) {
		input.requests[i].at_us = i * 10000000; /* far enough apart */
		/* The engine says the same to the same prompt, and keeps that once. */
		input.requests[i].output = 1;
	}
	jobs = calloc(input.n, sizeof(*jobs));
	o.kv_tokens = 600 * 16;
	o.prefill_rate = 1e6 / RATE_US;
	o.decode_rate = 1e6 / TOKEN_US;
	r = run(&o, "round_robin", &seen);
	ck_assert_uint_eq(engine_play(600, 256, jobs), 0);
	for (size_t i = 0; i < input.n; i++) {
		ck_assert_uint_eq(seen.tokens[i], jobs[i].cached);
		ck_assert_uint_eq(
			seen.ttft_us[i], jobs[i].first_us - 1 - input.requests[i].at_us);
	}
	ck_assert_uint_gt(r.cached_tokens, 0);
	sim_result_free(&r);
}
END_TEST

START_TEST(busy_worker_is_as_the_engine)
{
	uint64_t preemptions;

	make_up(1500, 160000, 6, 3);
	beside_engine(200000, 256, .001, .001, &preemptions);
	ck_assert_uint_eq(preemptions, 0);
	beside_engine(200000, 3, .001, .001, &preemptions);
	ck_assert_uint_eq(preemptions, 0);
	beside_engine(1200, 256, .005, .005, &preemptions);
}
END_TEST

START_TEST(crowded_worker_is_as_the_engine)
{
	uint64_t preemptions;

	make_up(1500, 130000, 4, 30);
	beside_engine(330, 64, .03, .03, &preemptions);
	ck_assert_uint_gt(preemptions, 0);
}
END_TEST

/* ---- the cache by itself ---- */

START_TEST(cache_keeps_its_rules)
{
	enum { JOBS = 12 };
	struct sim_hold holds[JOBS] = {{0, 0}};
	const struct sim_request *held[JOBS] = {NULL};
	struct sim_found found;
	struct sim_kv *kv;
	struct rng rng;

	make_up(400, 1000, 5, 3);
	kv = sim_kv_new(input.n_ids, 700);
	rng_seed(&rng, 5);
	for (unsigned i = 0; i < 20000; i++) {
		unsigned k = (unsigned)rng_below(&rng, JOBS);

		if (held[k] == NULL) {
			const struct sim_request *r =
				&input.requests[rng_below(&rng, input.n)];

			if (sim_kv_take(kv, &r->prompt, r->prompt.tokens, 7, &holds[k],
				    &found))
				held[k] = r;
			else
				continue;
			ck_assert_uint_lt(found.tokens, r->prompt.tokens);
		} else if (rng_below(&rng, 3) > 0) {
			(void)!sim_kv_grow(kv, &holds[k]);
		} else {
			sim_kv_release(kv, &held[k]->prompt,
				held[k]->prompt.tokens + rng_below(&rng, 40), false,
				&holds[k]);
			held[k] = NULL;
		}
		if (i % 16 == 0)
			sim_kv_check(kv);
	}
	for (unsigned k = 0; k < JOBS; k++) {
		if (held[k] != NULL)
			sim_kv_release(kv, &held[k]->prompt, held[k]->prompt.tokens,
				false, &holds[k]);
	}
	sim_kv_check(kv);
	ck_assert_uint_eq(sim_kv_used(kv), 0);
	ck_assert_uint_gt(sim_kv_cached(kv), 0);
	sim_kv_free(kv);
}
END_TEST

START_TEST(events_come_in_order)
{
	struct sim_events e = {0};
	struct sim_event last = {0};
	struct rng rng;

	rng_seed(&rng, 3);
	for (unsigned i = 0; i < 3000; i++) {
		sim_events_push(
			&e, (struct sim_event){.at_us = rng_below(&rng, 500),
				    .kind = (enum sim_event_kind)rng_below(&rng, 3)});
	}
	while (sim_events_next(&e) != NULL) {
		struct sim_event now = sim_events_pop(&e);

		ck_assert(now.at_us > last.at_us ||
			  (now.at_us == last.at_us &&
				  (now.kind > last.kind ||
					  (now.kind == last.kind &&
						  now.serial >= last.serial))));
		last = now;
	}
	sim_events_free(&e);
}
END_TEST

/* ---- the traces ---- */

/* What the traces' own page says of them. */
START_TEST(the_conversation_trace)
{
	struct sim_opts o = opts_of(16);
	scoped_free char *text = NULL;
	char path[4096];
	struct sim_result r;
	size_t n = 4 << 20;
	FILE *f;

	if (!unit_shared("traces/conversation_trace.jsonl", path, sizeof(path)))
		return;
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	text = malloc(n);
	n = fread(text, 1, n - 1, f);
	text[n] = '\0';
	(void)fclose(f);
	read_text(text);
	o.prefill_rate = 5300;
	o.decode_rate = 50;
	sim_ceiling(&o, &r);
	ck_assert_uint_eq(r.requests, 12031);
	ck_assert_int_eq((int)((double)r.hit_blocks * 1000 / (double)r.blocks + .5), 366);
	sim_result_free(&r);
	r = run(&o, "round_robin", NULL);
	ck_assert_int_eq((int)((double)r.hit_blocks * 1000 / (double)r.blocks + .5), 99);
	sim_result_free(&r);
}
END_TEST

static Suite *sim_suite(void)
{
	Suite *suite = suite_create("sim");
	TCase *tc = tcase_create("sim");

	tcase_set_timeout(tc, 300);
	tcase_add_checked_fixture(tc, NULL, tear_down);
	tcase_add_test(tc, three_requests_follow_their_prefix);
	tcase_add_test(tc, three_requests_by_turns);
	tcase_add_test(tc, the_ceiling_waits_for_nobody);
	tcase_add_test(tc, a_prompt_comes_again);
	tcase_add_test(tc, nothing_takes_time);
	tcase_add_test(tc, too_large_and_full);
	tcase_add_test(tc, specs_that_are_none);
	tcase_add_test(tc, blocks_of_16_tokens_tell_the_same);
	tcase_add_test(tc, nothing_is_lost);
	tcase_add_test(tc, the_same_seed_the_same_result);
	tcase_add_test(tc, one_worker_hits_as_calculated);
	tcase_add_test(tc, idle_worker_is_as_the_engine);
	tcase_add_test(tc, busy_worker_is_as_the_engine);
	tcase_add_test(tc, crowded_worker_is_as_the_engine);
	tcase_add_test(tc, cache_keeps_its_rules);
	tcase_add_test(tc, events_come_in_order);
	tcase_add_test(tc, the_conversation_trace);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(sim_suite())
