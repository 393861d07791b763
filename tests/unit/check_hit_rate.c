/*
 * The prefix cache against an independent calculation: requests with known block ids, one
 * after another through the scheduler, and the same ids through a plain set and a plain
 * LRU that know nothing of it. Both must agree on every single request, with an unbounded
 * and a bounded pool. Once over a small made-up trace, and over the first part of the
 * shared conversation trace where that is there.
 */
#include "sched_rig.h"

enum {
	PER_ID = 512 / KV_BLOCK, /* blocks of one id of a trace */
	IDS_MAX = 40000,
	TOKENS_MAX = 130000,
	TRACE_REQUESTS = 600,
};

struct trace_request {
	unsigned ids[TOKENS_MAX / 512 + 1];
	size_t n_ids, n_tokens;
};

/*
 * The calculation. Block b of id h is number h * PER_ID + b; equal ids mean equal
 * prefixes, so no chain is needed. What is free goes in the order in which it became
 * free, a request's last block first; entries of the queue that were touched since are
 * void.
 */
struct lru {
	size_t capacity, held; /* blocks that are kept or in use */
	uint32_t *stamps;      /* 0: not kept */
	struct {
		uint32_t block, stamp;
	} * queue;
	size_t head, tail, cap, evicted;
	uint32_t now;
};

static void lru_open(struct lru *l, size_t capacity)
{
	memset(l, 0, sizeof(*l));
	l->capacity = capacity;
	l->stamps = calloc((size_t)IDS_MAX * PER_ID, sizeof(*l->stamps));
	REQUIRE(l->stamps != NULL);
}

static void lru_close(struct lru *l)
{
	free(l->stamps);
	free(l->queue);
}

static uint32_t block_number(const struct trace_request *r, size_t i)
{
	return r->ids[i / PER_ID] * PER_ID + (uint32_t)(i % PER_ID);
}

static void lru_touch(struct lru *l, uint32_t block)
{
	if (l->tail == l->cap) {
		l->cap = l->cap * 2 + 1024;
		l->queue = realloc(l->queue, l->cap * sizeof(*l->queue));
		REQUIRE(l->queue != NULL);
	}
	l->stamps[block] = ++l->now;
	l->queue[l->tail].block = block;
	l->queue[l->tail++].stamp = l->now;
}

static void lru_evict(struct lru *l)
{
	for (;; l->head++) {
		uint32_t block = l->queue[l->head].block;

		REQUIRE(l->head < l->tail);
		if (l->stamps[block] != l->queue[l->head].stamp)
			continue;
		l->stamps[block] = 0;
		l->held--;
		l->evicted++;
		l->head++;
		return;
	}
}

/* How many leading tokens of the prompt are held; then it is used. */
static size_t lru_request(struct lru *l, const struct trace_request *r)
{
	size_t full = r->n_tokens / KV_BLOCK,
	       all = (r->n_tokens + KV_BLOCK - 1) / KV_BLOCK;
	size_t found = 0;

	while (found < (r->n_tokens - 1) / KV_BLOCK &&
		l->stamps[block_number(r, found)] != 0)
		found++;
	for (size_t i = 0; i < found; i++) /* in use: nobody evicts them */
		l->stamps[block_number(r, i)] = UINT32_MAX;
	/* A whole prompt's last block is computed again even if it is there: it cannot be
	 * named twice. */
	while (l->held + all - found > l->capacity)
		lru_evict(l);
	for (size_t i = found; i < full; i++)
		l->held += l->stamps[block_number(r, i)] == 0;
	for (size_t i = full; i-- > 0;) {
		uint32_t block = block_number(r, i);

		/* one that was there, and was not found because it ends the prompt, stays
		 * as old as it was */
		if (i < found || l->stamps[block] == 0)
			lru_touch(l, block);
	}
	return found * KV_BLOCK;
}

/* The scheduler */

static uint64_t sum_cached;

static void on_token(void *arg UNUSED, struct sched_seq *seq UNUSED,
	const struct sample_out *out UNUSED)
{
}

static void on_end(void *arg, struct sched_seq *seq, enum sched_end end)
{
	REQUIRE(end == SCHED_END_LENGTH);
	*(size_t *)arg = sched_cached(seq);
}

static const struct sched_ops ops = {.on_token = on_token, .on_end = on_end};

static size_t run_request(struct rig *rig, const struct trace_request *r)
{
	static uint32_t prompt[TOKENS_MAX + 512];
	size_t cached = SIZE_MAX;
	struct sched_request q = {.prompt = prompt,
		.n_prompt = r->n_tokens,
		.max_new = 1,
		.ops = &ops,
		.arg = &cached};

	for (size_t i = 0; i < r->n_tokens; i++)
		prompt[i] = block_number(r, i / KV_BLOCK) * KV_BLOCK +
			    (uint32_t)(i % KV_BLOCK);
	REQUIRE(sched_submit(rig->sched, &q) != NULL);
	while (rig_step(rig))
		;
	REQUIRE(cached != SIZE_MAX);
	return cached;
}

static void rig_of(struct rig *rig, size_t n_blocks)
{
	struct sched_opts opts = {.n_blocks = (uint32_t)n_blocks,
		.max_seqs = 4,
		.max_waiting = 4,
		.step_tokens = 8192};

	rig_open(rig, &opts);
	sum_cached = 0;
}

static void compare(
	struct rig *rig, struct lru *l, const struct trace_request *r, size_t nth)
{
	size_t got = run_request(rig, r), want = lru_request(l, r);

	if (got != want)
		ck_abort_msg(
			"request %zu: %zu tokens cached, %zu calculated", nth, got, want);
	sum_cached += want;
}

static void check_totals(const struct rig *rig, uint64_t tokens)
{
	const struct sched_counts *c = sched_counts(rig->sched);

	ck_assert_uint_eq(c->prompt_tokens, tokens);
	ck_assert_uint_eq(c->cached_tokens, sum_cached);
	ck_assert_uint_eq(c->computed_tokens, tokens - sum_cached);
	ck_assert_uint_eq(sched_used_blocks(rig->sched), 0);
}

/* A made-up trace: trees of prefixes, lengths at and beside the borders of blocks. */
static void make_up(struct rng *rng, struct trace_request *r)
{
	r->n_ids = 1 + rng_below(rng, 4);
	r->ids[0] = (unsigned)rng_below(rng, 2);
	for (size_t i = 1; i < r->n_ids; i++) /* an id stands for one prefix */
		r->ids[i] = 2 + r->ids[i - 1] * 3 + (unsigned)rng_below(rng, 3);
	r->n_tokens = (r->n_ids - 1) * 512 + 1 + rng_below(rng, 512);
	if (rng_below(rng, 2) == 0)
		r->n_tokens = (r->n_tokens + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
}

START_TEST(a_made_up_trace)
{
	static struct trace_request r;

	for (size_t capacity = 132; capacity <= 8448; capacity *= 2) {
		uint64_t tokens = 0;
		struct rng rng;
		struct rig rig;
		struct lru l;

		rng_seed(&rng, 7);
		rig_of(&rig, capacity);
		lru_open(&l, capacity);
		for (size_t i = 0; i < 400; i++) {
			make_up(&rng, &r);
			compare(&rig, &l, &r, i);
			tokens += r.n_tokens;
		}
		check_totals(&rig, tokens);
		ck_assert_uint_gt(sum_cached, 0);
		lru_close(&l);
		rig_close(&rig);
	}
}
END_TEST

/* {"timestamp": N, "input_length": N, "output_length": N, "hash_ids": [N, ...]} */
static void parse_line(const char *line, struct trace_request *r)
{
	const char *at = strstr(line, "\"input_length\":");
	char *end;

	REQUIRE(at != NULL);
	r->n_tokens = strtoul(at + 15, &end, 10);
	at = strchr(end, '[');
	REQUIRE(at != NULL);
	for (r->n_ids = 0; *at != ']'; at = end) {
		r->ids[r->n_ids++] = (unsigned)strtoul(at + 1, &end, 10);
		REQUIRE(r->ids[r->n_ids - 1] < IDS_MAX && end > at + 1);
	}
	r->n_tokens = MIN(r->n_tokens, r->n_ids * 512);
}

/* Returns the share that was cached; *evicted: how many blocks had to go. */
static double replay(const char *path, size_t capacity, size_t *evicted)
{
	static struct trace_request r;
	static char line[1 << 16];
	FILE *f = fopen(path, "r");
	uint64_t tokens = 0;
	struct rig rig;
	struct lru l;

	REQUIRE(f != NULL);
	rig_of(&rig, capacity);
	lru_open(&l, capacity);
	for (size_t i = 0; i < TRACE_REQUESTS && fgets(line, sizeof(line), f) != NULL;
		i++) {
		parse_line(line, &r);
		compare(&rig, &l, &r, i);
		tokens += r.n_tokens;
	}
	(void)fclose(f);
	*evicted = l.evicted;
	check_totals(&rig, tokens);
	lru_close(&l);
	rig_close(&rig);
	return (double)sum_cached / (double)tokens;
}

START_TEST(the_conversation_trace)
{
	enum { UNBOUNDED = RIG_BLOCKS_MAX, BOUNDED = 16384 };
	char path[4096];
	size_t evicted;
	double all, some;

	if (!unit_shared("traces/conversation_trace.jsonl", path, sizeof(path)))
		return;
	all = replay(path, UNBOUNDED, &evicted);
	ck_assert_uint_eq(evicted, 0);
	some = replay(path, BOUNDED, &evicted);
	ck_assert_uint_gt(evicted, 0);
	printf("the first %d requests: %.4f cached with %d blocks, %.4f with %d\n",
		TRACE_REQUESTS, all, UNBOUNDED, some, BOUNDED);
	ck_assert(some > 0 && some < all);
}
END_TEST

static Suite *hit_rate_suite(void)
{
	Suite *suite = suite_create("hit_rate");
	TCase *tc = tcase_create("hit_rate");

	tcase_set_timeout(tc, 300);
	tcase_add_test(tc, a_made_up_trace);
	tcase_add_test(tc, the_conversation_trace);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(hit_rate_suite())
