/*
 * The scheduler: whatever the order of arrivals, aborts, parking, chunks, cache hits,
 * forks and preemptions, each sequence gets the text that it gets alone; nothing leaks,
 * and nothing is used twice (the audits and the spy of sched_rig.h). Who goes first is in
 * check_sched_fair.c.
 */
#include "sched_requests.h"
#include "slow_backend.h"

/* Random schedules */

static struct sched_opts random_opts(struct rng *rng, struct sim_pace *pace)
{
	struct sched_opts o = {
		.n_blocks = 6 + (uint32_t)rng_below(rng, 30),
		.max_seqs = 1 + (unsigned)rng_below(rng, 8),
		.max_waiting = 100,
		.step_tokens = SCHED_STEP_MIN + (uint32_t)rng_below(rng, 64),
		.audit_every = 1,
	};

	*pace = (struct sim_pace){0, 0, 0};
	if (rng_below(rng, 2) == 0) {
		pace->prefill_us = (double)rng_below(rng, 3) * 7;
		pace->decode_us = (double)rng_below(rng, 3) * 50;
		pace->step_us = (double)rng_below(rng, 3) * 11;
	}
	if (rng_below(rng, 3) == 0)
		o.long_prefill_tokens = 1 + (uint32_t)rng_below(rng, 40);
	return o;
}

/* A request, and up to three forks of it; all fit into the pool, one by one. */
static size_t random_requests(
	struct rng *rng, struct rig *rig, struct request *out, size_t room)
{
	size_t size = rig->opts.block_tokens, most = rig->opts.n_blocks * size, n = 1;
	size_t n_prompt = 1 + rng_below(rng, MIN((size_t)PROMPT_MAX - 1, most - 1));
	uint32_t max_new =
		1 + (uint32_t)rng_below(rng, MIN((size_t)NEW_MAX, most - n_prompt));

	if (rng_below(rng, 4) == 0) /* borders of blocks */
		n_prompt = MIN(n_prompt / size * size + 1, (size_t)PROMPT_MAX) -
			   rng_below(rng, 2);
	if (n_prompt == 0 || n_prompt + max_new > most)
		n_prompt = 1;
	make_request(&out[0], (unsigned)rng_below(rng, 3), n_prompt, max_new,
		(unsigned)rng_below(rng, 3));
	out[0].priority = (int64_t)rng_below(rng, 3) - 1;
	if (rng_below(rng, 3) == 0)
		n = MIN(1 + rng_below(rng, 3), room);
	for (size_t i = 0; i < n; i++) {
		if (i > 0)
			out[i] = out[0];
		out[i].seq = NULL;
		out[i].choice = i;
		out[i].n_want = rng_below(rng, 5) == 0 ? 1 + rng_below(rng, max_new) : 0;
		submit(rig, &out[i], i > 0 ? &out[0] : NULL);
	}
	return n;
}

static void random_event(
	struct rng *rng, struct rig *rig, struct request *requests, size_t n)
{
	struct request *r = &requests[rng_below(rng, n)];

	switch (rng_below(rng, 40)) {
	case 0:
	case 1:
		drop(r);
		break;
	case 2:
	case 3:
		park(r, true);
		break;
	case 4:
	case 5:
	case 6:
		park(r, false);
		break;
	case 7:
		sched_flush(rig->sched);
		break;
	default:
		(void)rig_step(rig);
	}
}

static void check_counts(const struct rig *rig, const struct request *requests, size_t n)
{
	const struct sched_counts *c = sched_counts(rig->sched);
	uint64_t got = 0, ended = 0, dropped = 0;

	for (size_t i = 0; i < n; i++) {
		got += requests[i].n_got;
		dropped += requests[i].was_dropped;
	}
	for (int i = 0; i < SCHED_END_MAX; i++)
		ended += c->ended[i];
	REQUIRE(c->generated_tokens == got);
	REQUIRE(ended == n && c->ended[SCHED_END_ABORT] == dropped);
	REQUIRE(c->ended[SCHED_END_ERROR] == 0 && c->broken == 0);
	REQUIRE(c->cached_tokens <= c->prompt_tokens);
	REQUIRE(c->computed_tokens == rig->tokens ||
		(rig->is_late && c->computed_tokens < rig->tokens)); /* dropped */
	REQUIRE(c->steps == rig->steps);
}

struct happened {
	uint64_t preemptions, copies, cached, lost;
};

static void run_schedule(uint64_t seed, const struct backend_ops *under, bool is_late,
	uint32_t block_tokens, struct happened *h)
{
	struct sim_pace pace;
	static struct request requests[REQUESTS_MAX];
	struct rng rng;
	struct sched_opts opts;
	struct rig rig;
	size_t n = 0;

	rng_seed(&rng, seed);
	opts = random_opts(&rng, &pace);
	opts.block_tokens = block_tokens;
	rig_open_on(&rig, &opts, under, &pace);
	rig.is_late = is_late;
	while (n < REQUESTS_MAX) {
		n += random_requests(&rng, &rig, requests + n, REQUESTS_MAX - n);
		for (uint64_t k = rng_below(&rng, is_late ? 24 : 12); k > 0; k--)
			random_event(&rng, &rig, requests, n);
		if (is_late)
			sched_audit(rig.sched);
	}
	finish(&rig, requests, n);
	check_counts(&rig, requests, n);
	h->preemptions += sched_counts(rig.sched)->preemptions;
	h->copies += sched_counts(rig.sched)->copies;
	h->cached += sched_counts(rig.sched)->cached_tokens;
	h->lost += rig.tokens - sched_counts(rig.sched)->computed_tokens;
	rig_close(&rig);
}

START_TEST(every_schedule_gives_the_same_text)
{
	struct happened h = {0};

	for (uint64_t seed = 1; seed <= 4000; seed++)
		run_schedule(seed, &backend_sim, false, KV_BLOCK, &h);
	/* The schedules did what they are for. */
	ck_assert_uint_gt(h.preemptions, 4000);
	ck_assert_uint_gt(h.copies, 1000);
	ck_assert_uint_gt(h.cached, 10000);
}
END_TEST

/* The same while a step runs: between its begin and its end sequences come, leave and
 * wait for their clients. */
START_TEST(every_schedule_with_steps_that_end_late)
{
	struct happened h = {0};

	for (uint64_t seed = 1; seed <= 400; seed++)
		run_schedule(seed, &backend_slow, true, KV_BLOCK, &h);
	ck_assert_uint_gt(h.preemptions, 400);
	ck_assert_uint_gt(h.copies, 100);
	ck_assert_uint_gt(h.cached, 1000);
	ck_assert_uint_gt(
		h.lost, 100); /* of sequences that left while they were computed */
}
END_TEST

/* The same with blocks of any size. */
START_TEST(every_size_of_blocks_gives_the_same_text)
{
	struct happened h = {0};

	for (uint32_t tokens = 1; tokens <= 40; tokens++)
		for (uint64_t seed = 1; seed <= 20; seed++)
			run_schedule(seed, &backend_sim, false, tokens, &h);
	ck_assert_uint_gt(h.preemptions, 400);
	ck_assert_uint_gt(h.copies, 100);
	ck_assert_uint_gt(h.cached, 1000);
}
END_TEST

/* The scheduler goes while a step runs, and waits for it. */
START_TEST(an_end_waits_for_the_step)
{
	struct sched_opts opts = {
		.n_blocks = 9, .max_seqs = 2, .step_tokens = 64, .max_waiting = 9};
	static struct request r;
	struct rig rig;

	for (int k = 0; k < 200; k++) {
		rig_open_on(&rig, &opts, &backend_slow, NULL);
		rig.is_late = true;
		make_request(&r, 1, 60, 9, 0);
		submit(&rig, &r, NULL);
		(void)rig_step(&rig);
		ck_assert(rig.is_stepping);
		ck_assert_uint_eq(sched_wake_us(rig.sched), UINT64_MAX);
		if (k % 2 == 0)
			drop(&r);
		rig_close(&rig);
	}
}
END_TEST

/* Small state spaces */

enum { OPS = 9, HISTORY = 5, SMALL_MAX = 2 * HISTORY };

/* Three blocks, two running sequences; each operation that is impossible does nothing. */
static size_t apply(struct rig *rig, struct request *requests, size_t n, unsigned op)
{
	static const struct {
		size_t n_prompt;
		uint32_t max_new;
		unsigned tail, n;
	} kinds[] = {{5, 14, 0, 1}, {17, 3, 0, 1}, {33, 15, 1, 1}, {16, 17, 2, 2}};
	size_t first = n;

	switch (op) {
	case 0:
	case 1:
	case 2:
	case 3:
		for (unsigned k = 0; k < kinds[op].n; k++, n++) {
			make_request(&requests[n], 1, kinds[op].n_prompt,
				kinds[op].max_new, kinds[op].tail);
			requests[n].choice = k;
			submit(rig, &requests[n], k > 0 ? &requests[first] : NULL);
		}
		break;
	case 4:
		for (int k = 0; k < 3; k++)
			(void)rig_step(rig);
		break;
	case 5:
		for (int k = 0; k < 14; k++)
			(void)rig_step(rig);
		break;
	case 6:
		if (n > 0)
			drop(&requests[0]);
		break;
	case 7:
		if (n > 0)
			park(&requests[n - 1], !requests[n - 1].is_parked);
		break;
	default:
		sched_flush(rig->sched);
	}
	sched_audit(rig->sched);
	return n;
}

START_TEST(every_short_history)
{
	struct sched_opts opts = {.n_blocks = 3,
		.max_seqs = 2,
		.max_waiting = 10,
		.step_tokens = SCHED_STEP_MIN,
		.audit_every = 1};
	size_t total = 1;

	for (int i = 0; i < HISTORY; i++)
		total *= OPS;
	for (size_t code = 0; code < total; code++) {
		static struct request requests[SMALL_MAX];
		struct rig rig;
		size_t rest = code, n = 0;

		rig_open(&rig, &opts);
		for (int i = 0; i < HISTORY; i++, rest /= OPS)
			n = apply(&rig, requests, n, (unsigned)(rest % OPS));
		finish(&rig, requests, n);
		check_counts(&rig, requests, n);
		rig_close(&rig);
	}
}
END_TEST

/* Ten thousand requests, hundreds at once, a pool of a few blocks, a third of them
 * aborted. */
START_TEST(a_crowd_in_a_tiny_pool)
{
	enum { TOTAL = 10000, CROWD = 200 };
	static struct request crowd[CROWD];
	struct sched_opts opts = {.n_blocks = 24,
		.max_seqs = 16,
		.max_waiting = CROWD,
		.step_tokens = 48,
		.audit_every = 1};
	struct rng rng;
	struct rig rig;
	unsigned started = 0, done = 0;

	rng_seed(&rng, 11);
	rig_open(&rig, &opts);
	memset(crowd, 0, sizeof(crowd));
	tokens_seen = 0;
	while (done < TOTAL) {
		struct request *r = &crowd[rng_below(&rng, CROWD)];

		if (r->seq == NULL && started < TOTAL) {
			make_request(r, (unsigned)rng_below(&rng, 4),
				1 + rng_below(&rng, 100),
				1 + (uint32_t)rng_below(&rng, 30),
				(unsigned)rng_below(&rng, 50));
			submit(&rig, r, NULL);
			started++;
		} else if (r->seq != NULL && rng_below(&rng, 3) == 0) {
			drop(r);
		}
		if (rng_below(&rng, 3) == 0)
			(void)rig_step(&rig);
		if (started == TOTAL) {
			finish(&rig, crowd, CROWD);
			done = TOTAL;
		}
	}
	{
		const struct sched_counts *c = sched_counts(rig.sched);

		ck_assert_uint_eq(
			c->ended[SCHED_END_LENGTH] + c->ended[SCHED_END_ABORT], TOTAL);
		ck_assert_uint_gt(c->ended[SCHED_END_ABORT], TOTAL / 10);
		ck_assert_uint_gt(c->ended[SCHED_END_LENGTH], TOTAL / 10);
		ck_assert_uint_gt(c->preemptions, 100);
		ck_assert_uint_eq(c->generated_tokens, tokens_seen);
		ck_assert_uint_eq(sched_used_blocks(rig.sched), 0);
	}
	rig_close(&rig);
}
END_TEST

/* Faults */

/* A backend that fails ends what was in the step, and what it left is found by nobody. */
START_TEST(a_failed_step_ends_its_sequences)
{
	struct sched_opts opts = {.n_blocks = 20,
		.max_seqs = 4,
		.step_tokens = 64,
		.max_waiting = 9,
		.audit_every = 1};
	static struct request r[3], again;
	struct rig rig;

	rig_open(&rig, &opts);
	for (unsigned i = 0; i < 3; i++) {
		make_request(&r[i], i, 40, 20, 0);
		submit(&rig, &r[i], NULL);
	}
	for (int k = 0; k < 6; k++)
		(void)rig_step(&rig);
	spy_fails = 1;
	(void)rig_step(&rig);
	for (unsigned i = 0; i < 3; i++)
		ck_assert(r[i].seq == NULL && r[i].end == SCHED_END_ERROR);
	ck_assert_uint_eq(sched_counts(rig.sched)->broken, 3);
	ck_assert_uint_eq(sched_used_blocks(rig.sched), 0);
	make_request(&again, 1, 40, 20, 0);
	submit(&rig, &again, NULL);
	finish(&rig, &again, 1);
	ck_assert_uint_eq(sched_counts(rig.sched)->cached_tokens, 0);
	rig_close(&rig);
}
END_TEST

/* Blocks that hold something else are noticed when a cached prefix is used. */
START_TEST(wrong_blocks_are_noticed)
{
	struct sched_opts opts = {.n_blocks = 8,
		.max_seqs = 4,
		.step_tokens = 128,
		.max_waiting = 9,
		.audit_every = 1};

	for (uint32_t victim = 0; victim < 3; victim++) {
		static struct request a, b;
		struct rig rig;
		uint32_t pair[1][2] = {{(victim + 1) % 3, victim}};

		rig_open(&rig, &opts);
		make_request(&a, 1, 50, 3, 0);
		submit(&rig, &a, NULL);
		finish(&rig, &a, 1); /* its three full blocks are 0, 1 and 2 */
		make_request(&b, 1, 50, 3, 0);
		submit(&rig, &b, NULL);
		backend_sim.copy(rig.backend, (const uint32_t(*)[2])pair, 1);
		while (rig_step(&rig))
			;
		ck_assert(b.end == SCHED_END_ERROR && b.n_got == 0);
		ck_assert_uint_eq(sched_counts(rig.sched)->broken, 1);
		make_request(&b, 1, 50, 3, 0);
		submit(&rig, &b, NULL);
		finish(&rig, &b, 1); /* computed anew, and right */
		rig_close(&rig);
	}
}
END_TEST

static Suite *sched_suite(void)
{
	Suite *suite = suite_create("sched");
	TCase *tc = tcase_create("sched");

	tcase_set_timeout(tc, 300);
	tcase_add_test(tc, every_schedule_gives_the_same_text);
	tcase_add_test(tc, every_schedule_with_steps_that_end_late);
	tcase_add_test(tc, every_size_of_blocks_gives_the_same_text);
	tcase_add_test(tc, an_end_waits_for_the_step);
	tcase_add_test(tc, every_short_history);
	tcase_add_test(tc, a_crowd_in_a_tiny_pool);
	tcase_add_test(tc, a_failed_step_ends_its_sequences);
	tcase_add_test(tc, wrong_blocks_are_noticed);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(sched_suite())
