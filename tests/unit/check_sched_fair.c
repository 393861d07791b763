/*
 * The scheduler: who goes first, who gives way, how time is shared, and that nobody waits
 * for ever.
 */
#include "sched_requests.h"

START_TEST(an_abort_frees_within_one_step)
{
	struct sched_opts opts = {
		.n_blocks = 8, .max_seqs = 4, .step_tokens = 16, .max_waiting = 4};
	struct sim_pace pace = {.prefill_us = 1e6};
	struct request a, b;
	struct rig rig;

	rig_open_paced(&rig, &opts, &pace);
	make_request(&a, 1, 100, 5, 0);
	make_request(&b, 2, 100, 5, 0);
	submit(&rig, &a, NULL);
	submit(&rig, &b, NULL);
	sched_step(rig.sched, 0); /* a's chunk takes 16 s */
	ck_assert_uint_eq(sched_used_blocks(rig.sched), 7);
	ck_assert_uint_eq(sched_wake_us(rig.sched), 16000000);
	drop(&a);
	ck_assert_uint_eq(sched_used_blocks(rig.sched), 0);
	ck_assert_uint_eq(sched_wake_us(rig.sched), 0); /* and its time is not taken */
	sched_step(rig.sched, 5);
	ck_assert_uint_eq(sched_used_blocks(rig.sched), 7);
	ck_assert_uint_eq(sched_wake_us(rig.sched), 16000005);
	finish(&rig, &b, 1);
	rig_close(&rig);
}
END_TEST

/* A prompt of seven chunks, then tokens: each when it is due, without drift. */
START_TEST(time_is_taken_as_said)
{
	struct sched_opts opts = {
		.n_blocks = 10, .max_seqs = 4, .step_tokens = 16, .max_waiting = 4};
	struct sim_pace pace = {.prefill_us = 10, .decode_us = 500, .step_us = 3};
	struct request a;
	struct rig rig;
	uint64_t due = 1000 + 6 * (16 * 10 + 3) + (4 * 10 + 3);

	rig_open_paced(&rig, &opts, &pace);
	rig.now_us = 1000;
	make_request(&a, 1, 100, 5, 0);
	submit(&rig, &a, NULL);
	while (a.n_got == 0) {
		REQUIRE(rig_step(&rig));
		rig.now_us += 2; /* every wake is late */
	}
	ck_assert_uint_eq(rig.now_us, due + 2);
	for (unsigned k = 1; k < 5; k++) {
		ck_assert_uint_eq(sched_wake_us(rig.sched), due + k * 503);
		REQUIRE(rig_step(&rig));
		ck_assert_uint_eq(a.n_got, k + 1);
	}
	finish(&rig, &a, 1);
	rig_close(&rig);
}
END_TEST

/* Decodes go on while a long prompt is computed, one token a step each. */
START_TEST(prompts_do_not_hold_up_decodes)
{
	struct sched_opts opts = {
		.n_blocks = 40, .max_seqs = 4, .step_tokens = 20, .max_waiting = 4};
	struct request a, b;
	struct rig rig;

	rig_open(&rig, &opts);
	make_request(&a, 1, 5, 30, 0);
	make_request(&b, 2, 127, 5, 0);
	submit(&rig, &a, NULL);
	(void)rig_step(&rig);
	ck_assert_uint_eq(a.n_got, 1);
	submit(&rig, &b, NULL);
	for (size_t k = 2; b.n_got == 0; k++) {
		(void)rig_step(&rig);
		ck_assert_uint_eq(a.n_got, k);
	}
	ck_assert_uint_eq(a.n_got, 1 + 7); /* 127 tokens, 19 a step */
	drop(&a);
	finish(&rig, &b, 1);
	rig_close(&rig);
}
END_TEST

/* More decodes than the budget: all get their turns, and prompts their quarter. */
START_TEST(a_full_budget_is_shared)
{
	enum { N = 60 };
	static struct request crowd[N], late;
	struct sched_opts opts = {
		.n_blocks = 400, .max_seqs = N + 1, .step_tokens = 16, .max_waiting = N};
	struct rig rig;
	size_t least = NEW_MAX, most = 0, before[N];

	rig_open(&rig, &opts);
	for (unsigned i = 0; i < N; i++) {
		make_request(&crowd[i], i, 2, NEW_MAX, 0);
		submit(&rig, &crowd[i], NULL);
	}
	for (unsigned k = 0; k < 60 && sched_running(rig.sched) < N; k++)
		(void)rig_step(&rig);
	ck_assert_uint_eq(sched_running(rig.sched), N);
	for (unsigned i = 0; i < N; i++)
		before[i] = crowd[i].n_got;
	for (unsigned k = 0; k < 100; k++)
		(void)rig_step(&rig);
	for (unsigned i = 0; i < N; i++) {
		least = MIN(least, crowd[i].n_got - before[i]);
		most = MAX(most, crowd[i].n_got - before[i]);
	}
	ck_assert_uint_eq(least, 26); /* 100 * 16 / 60 */
	ck_assert_uint_eq(most, 27);
	make_request(&late, 99, 100, 2, 0);
	submit(&rig, &late, NULL);
	for (unsigned k = 0; k < 26 && late.n_got == 0; k++)
		(void)rig_step(&rig);
	ck_assert_uint_gt(late.n_got, 0); /* 4 of its 100 tokens a step */
	for (unsigned i = 0; i < N; i++)
		drop(&crowd[i]);
	finish(&rig, &late, 1);
	rig_close(&rig);
}
END_TEST

START_TEST(priority_goes_first_but_starves_nobody)
{
	struct sched_opts opts = {
		.n_blocks = 4, .max_seqs = 1, .step_tokens = 64, .max_waiting = 1000};
	static struct request low[3], high[400];
	struct rig rig;
	unsigned next = 0;

	rig_open(&rig, &opts);
	ends = 0;
	make_request(&high[next], 1, 3, 2, 0);
	submit(&rig, &high[next++], NULL);
	(void)rig_step(&rig);
	for (unsigned i = 0; i < 3; i++) {
		make_request(&low[i], 50 + i, 3, 2, 0);
		low[i].priority = 5;
		submit(&rig, &low[i], NULL);
	}
	/* Two of high priority are always there. */
	while (low[2].ended_at == 0 && next < 398) {
		while (next < 2 || high[next - 2].ended_at != 0) {
			make_request(&high[next], next, 3, 2, 0);
			submit(&rig, &high[next++], NULL);
		}
		(void)rig_step(&rig);
	}
	ck_assert_uint_gt(low[0].ended_at, SCHED_PASS_MAX);
	ck_assert_uint_le(low[0].ended_at, SCHED_PASS_MAX + 4);
	ck_assert_uint_eq(low[1].ended_at, low[0].ended_at + 1);
	ck_assert_uint_le(low[2].ended_at, SCHED_PASS_MAX + 6);
	finish(&rig, high, next);
	rig_close(&rig);
}
END_TEST

/* Some that are more urgent are always there, and more than fit: all others end all the
 * same, in a pool in which they preempt each other. */
START_TEST(nobody_starves_whatever_comes)
{
	enum { LOW = 6, BETTER = 5, STEPS_MAX = 20000 };
	uint64_t preemptions = 0;

	for (uint64_t seed = 1; seed <= 1000; seed++) {
		static struct request low[LOW], better[BETTER];
		unsigned steps = 0, left = LOW;
		struct sched_opts opts;
		struct rng rng;
		struct rig rig;

		rng_seed(&rng, seed);
		opts = (struct sched_opts){.n_blocks = 6 + (uint32_t)rng_below(&rng, 6),
			.max_seqs = 2 + (unsigned)rng_below(&rng, 3),
			.max_waiting = 100,
			.step_tokens = SCHED_STEP_MIN + (uint32_t)rng_below(&rng, 32)};
		if (rng_below(&rng, 2) == 0)
			opts.long_prefill_tokens = 1 + (uint32_t)rng_below(&rng, 16);
		rig_open(&rig, &opts);
		for (unsigned i = 0; i < LOW; i++) {
			make_request(&low[i], i, 1 + rng_below(&rng, 50),
				1 + (uint32_t)rng_below(&rng, 30), 0);
			low[i].priority = 1 + (int64_t)rng_below(&rng, 5);
			submit(&rig, &low[i], NULL);
		}
		memset(better, 0, sizeof(better));
		for (; left > 0; steps++) {
			for (unsigned i = 0; i < BETTER; i++) {
				if (better[i].seq != NULL)
					continue;
				make_request(&better[i], 10 + i, 1 + rng_below(&rng, 50),
					1 + (uint32_t)rng_below(&rng, 30),
					(unsigned)steps + 1);
				better[i].priority = -(int64_t)rng_below(&rng, 2);
				submit(&rig, &better[i], NULL);
			}
			(void)rig_step(&rig);
			left = 0;
			for (unsigned i = 0; i < LOW; i++)
				left += low[i].seq != NULL;
			REQUIRE(steps < STEPS_MAX);
		}
		preemptions += sched_counts(rig.sched)->preemptions;
		finish(&rig, better, BETTER);
		rig_close(&rig);
	}
	ck_assert_uint_gt(preemptions, 1000);
}
END_TEST

/* Two that cannot run together to their ends: the older one is never preempted, and the
 * younger one is not lost. */
START_TEST(the_older_one_wins)
{
	struct sched_opts opts = {.n_blocks = 6,
		.max_seqs = 4,
		.step_tokens = 64,
		.max_waiting = 4,
		.audit_every = 1};
	struct request a, b;
	struct rig rig;

	rig_open(&rig, &opts);
	ends = 0;
	make_request(&a, 1, 20, 60, 0);
	make_request(&b, 2, 20, 60, 0);
	submit(&rig, &a, NULL);
	submit(&rig, &b, NULL);
	for (size_t k = 1; a.ended_at == 0; k++) {
		(void)rig_step(&rig);
		ck_assert_uint_eq(
			a.n_got, k); /* a token each step, from the first one on */
	}
	ck_assert_uint_gt(sched_counts(rig.sched)->preemptions, 0);
	ck_assert_uint_eq(b.ended_at, 0);
	finish(&rig, &b, 1);
	ck_assert_uint_eq(a.ended_at, 1);
	ck_assert_uint_eq(b.ended_at, 2);
	rig_close(&rig);
}
END_TEST

/* The same with the older one less urgent: it gives way, whoever asks for blocks and
 * wherever it stands in the turn. */
START_TEST(the_urgent_one_wins)
{
	struct sched_opts opts = {.n_blocks = 9,
		.max_seqs = 4,
		.step_tokens = 64,
		.max_waiting = 4,
		.audit_every = 1};
	static struct request r[3];
	struct rig rig;

	rig_open(&rig, &opts);
	ends = 0;
	for (unsigned i = 0; i < 3; i++)
		make_request(&r[i], i, 20, 60, 0);
	r[1].priority = -1;
	submit(&rig, &r[0], NULL);
	submit(&rig, &r[2], NULL);
	for (unsigned k = 0; k < 5; k++)
		(void)rig_step(&rig);
	submit(&rig, &r[1], NULL);
	for (size_t k = 1; r[1].ended_at == 0; k++) {
		(void)rig_step(&rig);
		ck_assert_uint_eq(r[1].n_got, k);
	}
	for (size_t k = r[0].n_got + 1; r[0].ended_at == 0; k++) {
		(void)rig_step(&rig); /* then the older one of the others */
		ck_assert_uint_eq(r[0].n_got, k);
	}
	ck_assert_uint_gt(sched_counts(rig.sched)->preemptions, 0);
	finish(&rig, r, 3);
	ck_assert_uint_eq(r[2].ended_at, 3);
	rig_close(&rig);
}
END_TEST

/* A prompt in chunks is done before the next one begins, even if a step has room for
 * more. */
START_TEST(one_prompt_at_a_time)
{
	struct sched_opts opts = {
		.n_blocks = 40, .max_seqs = 4, .step_tokens = 16, .max_waiting = 4};
	struct sim_pace pace = {.prefill_us = 10};
	static struct request d, a, b;
	struct rig rig;

	rig_open_paced(&rig, &opts, &pace);
	make_request(&d, 1, 2, 60, 0);
	submit(&rig, &d, NULL);
	while (d.n_got < 2)
		(void)rig_step(&rig);
	make_request(&a, 2, 100, 2, 0);
	submit(&rig, &a, NULL);
	make_request(&b, 3, 2, 2, 0);
	submit(&rig, &b, NULL);
	(void)rig_step(&rig); /* a chunk of 15 beside the decode */
	drop(&d);
	ck_assert_uint_eq(sched_wake_us(rig.sched), rig.now_us + 150);
	while (a.n_got == 0) {
		ck_assert_uint_eq(sched_waiting(rig.sched), 1);
		REQUIRE(rig_step(&rig));
	}
	finish(&rig, &a, 1);
	ck_assert_uint_eq(b.n_got, 2);
	rig_close(&rig);
}
END_TEST

/* Prompts that take turns: short ones that come all the time go beside a long one, which
 * gets its share of each round and so ends in time. */
START_TEST(long_prompts_take_turns)
{
	struct sched_opts opts = {.n_blocks = 40,
		.max_seqs = 8,
		.step_tokens = 32,
		.long_prefill_tokens = 8,
		.max_waiting = 9,
		.audit_every = 1};
	static struct request a, b, shorts[16];
	struct rig rig;
	unsigned k = 0;

	rig_open(&rig, &opts);
	make_request(&a, 1, 120, 1, 0);
	make_request(&b, 2, 120, 1, 0);
	submit(&rig, &a, NULL);
	submit(&rig, &b, NULL);
	for (; a.ended_at == 0; k++) {
		make_request(&shorts[k], 10 + k, 4, 1, 0);
		submit(&rig, &shorts[k], NULL);
		(void)rig_step(&rig);
		ck_assert_uint_eq(shorts[k].n_got, 1); /* 8, 8 and 4 of 32 */
		ck_assert_uint_eq(sched_counts(rig.sched)->computed_tokens, 20 * (k + 1));
		REQUIRE(k < 14 || a.ended_at > 0);
	}
	ck_assert_uint_eq(k, 15); /* chunks of 8 */
	finish(&rig, &b, 1);
	rig_close(&rig);
}
END_TEST

/* The same by the clock: one chunk after another, and a short prompt waits for one of
 * them, not for the prompt. */
START_TEST(turns_take_their_time)
{
	struct sched_opts opts = {.n_blocks = 40,
		.max_seqs = 8,
		.step_tokens = 32,
		.long_prefill_tokens = 8,
		.max_waiting = 9,
		.audit_every = 1};
	struct sim_pace pace = {.prefill_us = 10};
	static struct request a, b, c;
	struct rig rig;
	uint64_t came_us;

	rig_open_paced(&rig, &opts, &pace);
	make_request(&a, 1, 120, 1, 0);
	submit(&rig, &a, NULL);
	(void)rig_step(&rig);
	ck_assert_uint_eq(sched_wake_us(rig.sched), 80);
	while (sched_counts(rig.sched)->computed_tokens < 24)
		REQUIRE(rig_step(&rig));
	(void)rig_step(&rig); /* begins the next chunk */
	ck_assert_uint_eq(rig.now_us, 240);
	came_us = rig.now_us;
	make_request(&b, 2, 4, 1, 0);
	make_request(&c, 3, 12, 1, 0);
	submit(&rig, &b, NULL);
	submit(&rig, &c, NULL);
	while (b.n_got == 0)
		REQUIRE(rig_step(&rig));
	ck_assert_uint_eq(rig.now_us - came_us,
		80 + 40); /* the chunk that was begun, and its own */
	while (c.n_got == 0)
		REQUIRE(rig_step(&rig));
	ck_assert_uint_eq(rig.now_us - came_us,
		80 + 40 + 80 + 80 + 40); /* its 8, one of a, its 4 */
	finish(&rig, &a, 1);
	ck_assert_uint_eq(rig.now_us, 1200 + 160); /* no time is lost between them */
	rig_close(&rig);
}
END_TEST

/* The first one waiting does not fit: one of lower rank does not overtake it, one of
 * higher rank that fits goes at once. */
START_TEST(who_may_overtake)
{
	struct sched_opts opts = {.n_blocks = 10,
		.max_seqs = 4,
		.step_tokens = 128,
		.max_waiting = 4,
		.audit_every = 1};
	static struct request running, big, small, urgent;
	struct rig rig;

	rig_open(&rig, &opts);
	make_request(&running, 1, 60, 60, 0);
	make_request(&big, 2, 127, 2, 0);
	make_request(&small, 3, 5, 2, 0);
	make_request(&urgent, 4, 5, 2, 0);
	urgent.priority = -1;
	submit(&rig, &running, NULL);
	(void)rig_step(&rig);
	submit(&rig, &big, NULL);
	submit(&rig, &small, NULL);
	for (int k = 0; k < 5; k++)
		(void)rig_step(&rig);
	ck_assert_uint_eq(sched_running(rig.sched), 1);
	submit(&rig, &urgent, NULL);
	(void)rig_step(&rig);
	ck_assert_uint_eq(urgent.n_got, 1);
	(void)rig_step(&rig);
	ck_assert_uint_eq(urgent.n_got, 2);
	ck_assert_uint_eq(sched_waiting(rig.sched), 2);
	drop(&running);
	(void)rig_step(&rig);
	ck_assert_uint_eq(big.n_got, 1);
	finish(&rig, &big, 1);
	ck_assert_uint_eq(small.n_got, 2);
	rig_close(&rig);
}
END_TEST

/* What a preempted one leaves is for the first one waiting, at once. */
START_TEST(preemption_makes_room)
{
	struct sched_opts opts = {.n_blocks = 10,
		.max_seqs = 4,
		.step_tokens = 128,
		.max_waiting = 4,
		.audit_every = 1};
	static struct request first, last, between;
	struct rig rig;

	rig_open(&rig, &opts);
	make_request(&first, 1, 20, 60, 0);
	first.priority = -1;
	make_request(&last, 2, 75, 64, 0);
	last.priority = 5;
	make_request(&between, 3, 60, 2, 0);
	submit(&rig, &first, NULL);
	submit(&rig, &last, NULL);
	(void)rig_step(&rig);
	ck_assert_uint_eq(sched_running(rig.sched), 2);
	submit(&rig, &between, NULL);
	while (sched_counts(rig.sched)->preemptions == 0) {
		ck_assert_uint_eq(between.n_got, 0);
		REQUIRE(rig_step(&rig));
	}
	ck_assert_uint_eq(between.n_got, 1); /* in the very step */
	ck_assert_uint_lt(first.n_got, 60);
	finish(&rig, &first, 1);
	ck_assert_uint_eq(last.n_got, 64);
	rig_close(&rig);
}
END_TEST

/* While others run, a hundredth of the pool stays free for their next tokens; a single
 * one may have all. */
START_TEST(some_blocks_are_spared)
{
	struct sched_opts opts = {
		.n_blocks = 200, .max_seqs = 40, .step_tokens = 4096, .max_waiting = 40};
	enum { N = 29 }; /* of 7 blocks each: 28 leave 4, 2 of them spare */
	static struct request crowd[N];
	struct rig rig;

	rig_open(&rig, &opts);
	for (unsigned i = 0; i < N; i++) {
		make_request(&crowd[i], i, 100, 10, 0);
		if (i == 28)
			make_request(&crowd[i], i, 40, 2, 0); /* 3 blocks */
		submit(&rig, &crowd[i], NULL);
	}
	(void)rig_step(&rig);
	ck_assert_uint_eq(sched_running(rig.sched), 28);
	ck_assert_uint_eq(sched_used_blocks(rig.sched), 196);
	drop(&crowd[0]);
	(void)rig_step(&rig);
	ck_assert_uint_eq(sched_running(rig.sched), 28);
	ck_assert_uint_eq(crowd[28].n_got, 1);
	finish(&rig, crowd, N);
	rig_close(&rig);
}
END_TEST

/* Who was parked does not catch up: its next token comes at once, the others at their
 * pace. */
START_TEST(parked_time_is_gone)
{
	struct sched_opts opts = {
		.n_blocks = 9, .max_seqs = 4, .step_tokens = 64, .max_waiting = 4};
	struct sim_pace pace = {.decode_us = 1000};
	static struct request a;
	struct rig rig;

	rig_open_paced(&rig, &opts, &pace);
	make_request(&a, 1, 20, 20, 0);
	submit(&rig, &a, NULL);
	(void)rig_step(&rig);
	ck_assert_uint_eq(a.n_got, 1);
	park(&a, true);
	ck_assert_uint_eq(sched_wake_us(rig.sched), UINT64_MAX);
	ck_assert_uint_eq(sched_used_blocks(rig.sched), 2);
	sched_step(rig.sched, 50000);
	ck_assert_uint_eq(a.n_got, 1);
	park(&a, false);
	ck_assert_uint_eq(sched_wake_us(rig.sched), 0);
	sched_step(rig.sched, 50500);
	sched_step(rig.sched, 50500);
	ck_assert_uint_eq(a.n_got, 2);
	ck_assert_uint_eq(sched_wake_us(rig.sched), 51500);
	finish(&rig, &a, 1);
	rig_close(&rig);
}
END_TEST

START_TEST(the_queue_is_bounded)
{
	struct sched_opts opts = {
		.n_blocks = 8, .max_seqs = 2, .step_tokens = 16, .max_waiting = 3};
	static struct request r[5];
	struct rig rig;

	rig_open(&rig, &opts);
	ck_assert(!sched_refuse(rig.sched, 128)); /* idle */
	for (unsigned i = 0; i < 5; i++) {
		ck_assert(!sched_refuse(rig.sched, 1));
		make_request(&r[i], i, 3, 5, 0);
		submit(&rig, &r[i], NULL);
	}
	ck_assert(sched_refuse(rig.sched, 1));
	ck_assert_uint_eq(sched_counts(rig.sched)->refused, 1);
	(void)rig_step(&rig); /* two of the five run */
	ck_assert(sched_refuse(rig.sched, 1));
	drop(&r[4]);
	ck_assert(!sched_refuse(rig.sched, 1));
	ck_assert(sched_refuse(rig.sched, 2));
	finish(&rig, r, 5);
	ck_assert_uint_eq(sched_counts(rig.sched)->refused, 3);
	rig_close(&rig);
}
END_TEST

/* n choices cost one prompt; whoever writes into the shared last block copies it first.
 */
START_TEST(choices_share_their_prompt)
{
	struct sched_opts opts = {.n_blocks = 20,
		.max_seqs = 4,
		.step_tokens = 64,
		.max_waiting = 9,
		.audit_every = 1};
	static struct request r[4];

	for (size_t n_prompt = 1; n_prompt <= 50; n_prompt++) {
		struct rig rig;
		const struct sched_counts *c;
		size_t past = n_prompt - 1;

		rig_open(&rig, &opts);
		c = sched_counts(rig.sched);
		for (unsigned i = 0; i < 4; i++) {
			make_request(&r[i], 1, n_prompt, 5, 0);
			r[i].choice = i;
			submit(&rig, &r[i], i > 0 ? &r[0] : NULL);
		}
		ck_assert_uint_eq(sched_waiting(rig.sched), 4);
		(void)rig_step(&rig);
		ck_assert_uint_eq(sched_running(rig.sched), 4);
		ck_assert_uint_eq(sched_used_blocks(rig.sched), (n_prompt + 15) / 16);
		finish(&rig, r, 4);
		ck_assert_uint_eq(c->prompt_tokens, n_prompt);
		ck_assert_uint_eq(c->copies, past % KV_BLOCK == 0 ? 0 : 3);
		ck_assert_uint_eq(c->computed_tokens, n_prompt + 3 + 4 * 4);
		rig_close(&rig);
	}
}
END_TEST

/* The leader goes before the prompt is computed: the next choice computes it. */
START_TEST(a_leader_that_leaves_is_replaced)
{
	struct sched_opts opts = {.n_blocks = 20,
		.max_seqs = 4,
		.step_tokens = 16,
		.max_waiting = 9,
		.audit_every = 1};
	static struct request r[4];

	for (unsigned steps = 0; steps < 4; steps++) {
		struct rig rig;

		rig_open(&rig, &opts);
		for (unsigned i = 0; i < 4; i++) {
			make_request(&r[i], 1, 60, 5, 0);
			r[i].choice = i;
			submit(&rig, &r[i], i > 0 ? &r[0] : NULL);
		}
		for (unsigned k = 0; k < steps; k++)
			(void)rig_step(&rig);
		drop(&r[0]);
		drop(&r[2]);
		sched_audit(rig.sched);
		finish(&rig, r, 4);
		ck_assert_uint_eq(r[1].n_got + r[3].n_got, 10);
		rig_close(&rig);
	}
}
END_TEST

static Suite *sched_fair_suite(void)
{
	Suite *suite = suite_create("sched_fair");
	TCase *tc = tcase_create("sched_fair");

	tcase_set_timeout(tc, 300);
	tcase_add_test(tc, an_abort_frees_within_one_step);
	tcase_add_test(tc, time_is_taken_as_said);
	tcase_add_test(tc, prompts_do_not_hold_up_decodes);
	tcase_add_test(tc, a_full_budget_is_shared);
	tcase_add_test(tc, priority_goes_first_but_starves_nobody);
	tcase_add_test(tc, nobody_starves_whatever_comes);
	tcase_add_test(tc, the_older_one_wins);
	tcase_add_test(tc, the_urgent_one_wins);
	tcase_add_test(tc, one_prompt_at_a_time);
	tcase_add_test(tc, long_prompts_take_turns);
	tcase_add_test(tc, turns_take_their_time);
	tcase_add_test(tc, who_may_overtake);
	tcase_add_test(tc, preemption_makes_room);
	tcase_add_test(tc, some_blocks_are_spared);
	tcase_add_test(tc, parked_time_is_gone);
	tcase_add_test(tc, the_queue_is_bounded);
	tcase_add_test(tc, choices_share_their_prompt);
	tcase_add_test(tc, a_leader_that_leaves_is_replaced);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(sched_fair_suite())
