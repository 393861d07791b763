/*
 * The scheduler: whatever the order of arrivals, aborts, parking, chunks, cache hits, forks and preemptions, each sequence gets the text that it
 * gets alone; nothing leaks, nothing is used twice (the audits and the spy of sched_rig.h), and nobody starves.
 */
#include "sched_rig.h"

enum { PROMPT_MAX = 128, NEW_MAX = 64, REQUESTS_MAX = 16 };

struct request {
	struct sched_seq *seq; /* NULL: not there, or ended */
	uint32_t prompt[PROMPT_MAX];
	size_t n_prompt, n_got, n_want; /* n_want: stops itself after so many; 0: does not */
	uint32_t max_new;
	uint64_t state, choice;
	int64_t priority;
	bool is_parked, was_dropped;
	enum sched_end end;
	uint64_t ended_at; /* which end it was; 0: none */
};

static uint64_t ends, tokens_seen;

static void on_token(void *arg, struct sched_seq *seq, uint32_t id)
{
	struct request *r = arg;

	REQUIRE(r->seq == seq && !r->is_parked && r->n_got < r->max_new);
	if (id != rig_word(r->state + r->choice))
		ck_abort_msg("token %zu of a prompt of %zu is wrong", r->n_got, r->n_prompt);
	r->state = rig_mix(id ^ r->state);
	r->n_got++;
	tokens_seen++;
	if (r->n_got == r->n_want)
		sched_stop(seq);
}

static void on_end(void *arg, struct sched_seq *seq, enum sched_end end)
{
	struct request *r = arg;

	REQUIRE(r->seq == seq);
	r->seq = NULL;
	r->end = end;
	r->ended_at = ++ends;
}

static const struct sched_ops ops = { .on_token = on_token, .on_end = on_end };

/* `family` prompts share all but their last ids. */
static void make_request(
	struct request *r, unsigned family, size_t n_prompt, uint32_t max_new, unsigned tail)
{
	memset(r, 0, sizeof(*r));
	for (size_t i = 0; i < n_prompt; i++)
		r->prompt[i] = 1000 * family + (uint32_t)i;
	if (tail > 0)
		r->prompt[n_prompt - 1] = 100000 + tail;
	r->n_prompt = n_prompt;
	r->max_new = max_new;
	r->state = rig_state(r->prompt, n_prompt);
}

static void submit(struct rig *rig, struct request *r, struct request *fork_of)
{
	struct sched_request q = {
		.prompt = r->prompt,
		.n_prompt = r->n_prompt,
		.max_new = r->max_new,
		.priority = r->priority,
		.sampling = { .choice = r->choice },
		.fork_of = fork_of != NULL ? fork_of->seq : NULL,
		.ops = &ops,
		.arg = r,
	};

	r->seq = sched_submit(rig->sched, &q);
	REQUIRE(r->seq != NULL);
}

static void drop(struct request *r)
{
	if (r->seq == NULL)
		return;
	sched_drop(r->seq);
	r->seq = NULL;
	r->was_dropped = true;
}

static void park(struct request *r, bool on)
{
	if (r->seq == NULL)
		return;
	r->is_parked = on;
	sched_park(r->seq, on);
}

/* All that is left must end, within a bound: a token or a chunk a step for each, and recomputation. */
static void finish(struct rig *rig, struct request *requests, size_t n)
{
	unsigned steps = 0;

	for (size_t i = 0; i < n; i++)
		park(&requests[i], false);
	while (rig_step(rig))
		REQUIRE(++steps < 20000);
	for (size_t i = 0; i < n; i++) {
		const struct request *r = &requests[i];

		REQUIRE(r->seq == NULL);
		REQUIRE(r->was_dropped || r->n_got == (r->end == SCHED_END_STOP ? r->n_want : r->max_new));
	}
	REQUIRE(sched_running(rig->sched) == 0 && sched_waiting(rig->sched) == 0);
	REQUIRE(sched_used_blocks(rig->sched) == 0);
	sched_audit(rig->sched);
}

/* Random schedules */

static struct sched_opts random_opts(struct rng *rng)
{
	struct sched_opts o = {
		.n_blocks = 6 + (uint32_t)rng_below(rng, 30),
		.max_seqs = 1 + (unsigned)rng_below(rng, 8),
		.max_waiting = 100,
		.step_tokens = SCHED_STEP_MIN + (uint32_t)rng_below(rng, 64),
		.audit_every = 1,
	};

	if (rng_below(rng, 2) == 0) {
		o.prefill_us = (double)rng_below(rng, 3) * 7;
		o.decode_us = (double)rng_below(rng, 3) * 50;
		o.step_us = (double)rng_below(rng, 3) * 11;
	}
	if (rng_below(rng, 3) == 0)
		o.long_prefill_tokens = 1 + (uint32_t)rng_below(rng, 40);
	return o;
}

/* A request, and up to three forks of it; all fit into the pool, one by one. */
static size_t random_requests(struct rng *rng, struct rig *rig, struct request *out, size_t room)
{
	size_t most = rig->opts.n_blocks * KV_BLOCK, n = 1;
	size_t n_prompt = 1 + rng_below(rng, MIN((size_t)PROMPT_MAX - 1, most - 1));
	uint32_t max_new = 1 + (uint32_t)rng_below(rng, MIN((size_t)NEW_MAX, most - n_prompt));

	if (rng_below(rng, 4) == 0) /* borders of blocks */
		n_prompt = MIN(n_prompt / KV_BLOCK * KV_BLOCK + 1, (size_t)PROMPT_MAX) - rng_below(rng, 2);
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

static void random_event(struct rng *rng, struct rig *rig, struct request *requests, size_t n)
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
	REQUIRE(c->computed_tokens == rig->tokens && c->steps == rig->steps);
}

START_TEST(every_schedule_gives_the_same_text)
{
	uint64_t preemptions = 0, copies = 0, cached = 0;

	for (uint64_t seed = 1; seed <= 4000; seed++) {
		static struct request requests[REQUESTS_MAX];
		struct rng rng;
		struct sched_opts opts;
		struct rig rig;
		size_t n = 0;

		rng_seed(&rng, seed);
		opts = random_opts(&rng);
		rig_open(&rig, &opts);
		while (n < REQUESTS_MAX) {
			n += random_requests(&rng, &rig, requests + n, REQUESTS_MAX - n);
			for (uint64_t k = rng_below(&rng, 12); k > 0; k--)
				random_event(&rng, &rig, requests, n);
		}
		finish(&rig, requests, n);
		check_counts(&rig, requests, n);
		preemptions += sched_counts(rig.sched)->preemptions;
		copies += sched_counts(rig.sched)->copies;
		cached += sched_counts(rig.sched)->cached_tokens;
		rig_close(&rig);
	}
	/* The schedules did what they are for. */
	ck_assert_uint_gt(preemptions, 4000);
	ck_assert_uint_gt(copies, 1000);
	ck_assert_uint_gt(cached, 10000);
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
	} kinds[] = { { 5, 14, 0, 1 }, { 17, 3, 0, 1 }, { 33, 15, 1, 1 }, { 16, 17, 2, 2 } };
	size_t first = n;

	switch (op) {
	case 0:
	case 1:
	case 2:
	case 3:
		for (unsigned k = 0; k < kinds[op].n; k++, n++) {
			make_request(&requests[n], 1, kinds[op].n_prompt, kinds[op].max_new,
				kinds[op].tail);
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
	struct sched_opts opts = { .n_blocks = 3, .max_seqs = 2, .max_waiting = 10,
		.step_tokens = SCHED_STEP_MIN, .audit_every = 1 };
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

/* Ten thousand requests, hundreds at once, a pool of a few blocks, a third of them aborted. */
START_TEST(a_crowd_in_a_tiny_pool)
{
	enum { TOTAL = 10000, CROWD = 200 };
	static struct request crowd[CROWD];
	struct sched_opts opts = { .n_blocks = 24, .max_seqs = 16, .max_waiting = CROWD,
		.step_tokens = 48, .audit_every = 1 };
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
			make_request(r, (unsigned)rng_below(&rng, 4), 1 + rng_below(&rng, 100),
				1 + (uint32_t)rng_below(&rng, 30), (unsigned)rng_below(&rng, 50));
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

		ck_assert_uint_eq(c->ended[SCHED_END_LENGTH] + c->ended[SCHED_END_ABORT], TOTAL);
		ck_assert_uint_gt(c->ended[SCHED_END_ABORT], TOTAL / 10);
		ck_assert_uint_gt(c->ended[SCHED_END_LENGTH], TOTAL / 10);
		ck_assert_uint_gt(c->preemptions, 100);
		ck_assert_uint_eq(c->generated_tokens, tokens_seen);
		ck_assert_uint_eq(sched_used_blocks(rig.sched), 0);
	}
	rig_close(&rig);
}
END_TEST

/* Order and fairness */

START_TEST(an_abort_frees_within_one_step)
{
	struct sched_opts opts = { .n_blocks = 8, .max_seqs = 4, .step_tokens = 16,
		.max_waiting = 4, .prefill_us = 1e6 };
	struct request a, b;
	struct rig rig;

	rig_open(&rig, &opts);
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
	struct sched_opts opts = { .n_blocks = 10, .max_seqs = 4, .step_tokens = 16,
		.max_waiting = 4, .prefill_us = 10, .decode_us = 500, .step_us = 3 };
	struct request a;
	struct rig rig;
	uint64_t due = 1000 + 6 * (16 * 10 + 3) + (4 * 10 + 3);

	rig_open(&rig, &opts);
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
	struct sched_opts opts = { .n_blocks = 40, .max_seqs = 4, .step_tokens = 20, .max_waiting = 4 };
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
	struct sched_opts opts = { .n_blocks = 400, .max_seqs = N + 1, .step_tokens = 16, .max_waiting = N };
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
	struct sched_opts opts = { .n_blocks = 4, .max_seqs = 1, .step_tokens = 64, .max_waiting = 1000 };
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

/* Two that cannot run together to their ends: the older one is never preempted, and the younger one is not lost. */
START_TEST(the_older_one_wins)
{
	struct sched_opts opts = { .n_blocks = 6, .max_seqs = 4, .step_tokens = 64, .max_waiting = 4, .audit_every = 1 };
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
		ck_assert_uint_eq(a.n_got, k); /* a token each step, from the first one on */
	}
	ck_assert_uint_gt(sched_counts(rig.sched)->preemptions, 0);
	ck_assert_uint_eq(b.ended_at, 0);
	finish(&rig, &b, 1);
	ck_assert_uint_eq(a.ended_at, 1);
	ck_assert_uint_eq(b.ended_at, 2);
	rig_close(&rig);
}
END_TEST

/* The same with the older one less urgent: it gives way, whoever asks for blocks and wherever it stands in the turn. */
START_TEST(the_urgent_one_wins)
{
	struct sched_opts opts = { .n_blocks = 9, .max_seqs = 4, .step_tokens = 64, .max_waiting = 4, .audit_every = 1 };
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

/* A prompt in chunks is done before the next one begins, even if a step has room for more. */
START_TEST(one_prompt_at_a_time)
{
	struct sched_opts opts = { .n_blocks = 40, .max_seqs = 4, .step_tokens = 16, .max_waiting = 4, .prefill_us = 10 };
	static struct request d, a, b;
	struct rig rig;

	rig_open(&rig, &opts);
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

/* Prompts that take turns: short ones that come all the time go beside a long one, which gets its share of each round and so ends in time. */
START_TEST(long_prompts_take_turns)
{
	struct sched_opts opts = { .n_blocks = 40, .max_seqs = 8, .step_tokens = 32,
		.long_prefill_tokens = 8, .max_waiting = 9, .audit_every = 1 };
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

/* The same by the clock: one chunk after another, and a short prompt waits for one of them, not for the prompt. */
START_TEST(turns_take_their_time)
{
	struct sched_opts opts = { .n_blocks = 40, .max_seqs = 8, .step_tokens = 32,
		.long_prefill_tokens = 8, .max_waiting = 9, .audit_every = 1, .prefill_us = 10 };
	static struct request a, b, c;
	struct rig rig;
	uint64_t came_us;

	rig_open(&rig, &opts);
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
	ck_assert_uint_eq(rig.now_us - came_us, 80 + 40); /* the chunk that was begun, and its own */
	while (c.n_got == 0)
		REQUIRE(rig_step(&rig));
	ck_assert_uint_eq(rig.now_us - came_us, 80 + 40 + 80 + 80 + 40); /* its 8, one of a, its 4 */
	finish(&rig, &a, 1);
	ck_assert_uint_eq(rig.now_us, 1200 + 160); /* no time is lost between them */
	rig_close(&rig);
}
END_TEST

/* The first one waiting does not fit: one of lower rank does not overtake it, one of higher rank that fits goes at once. */
START_TEST(who_may_overtake)
{
	struct sched_opts opts = { .n_blocks = 10, .max_seqs = 4, .step_tokens = 128, .max_waiting = 4, .audit_every = 1 };
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
	struct sched_opts opts = { .n_blocks = 10, .max_seqs = 4, .step_tokens = 128, .max_waiting = 4, .audit_every = 1 };
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

/* While others run, a hundredth of the pool stays free for their next tokens; a single one may have all. */
START_TEST(some_blocks_are_spared)
{
	struct sched_opts opts = { .n_blocks = 200, .max_seqs = 40, .step_tokens = 4096, .max_waiting = 40 };
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

/* Who was parked does not catch up: its next token comes at once, the others at their pace. */
START_TEST(parked_time_is_gone)
{
	struct sched_opts opts = { .n_blocks = 9, .max_seqs = 4, .step_tokens = 64, .max_waiting = 4, .decode_us = 1000 };
	static struct request a;
	struct rig rig;

	rig_open(&rig, &opts);
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
	struct sched_opts opts = { .n_blocks = 8, .max_seqs = 2, .step_tokens = 16, .max_waiting = 3 };
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

/* n choices cost one prompt; whoever writes into the shared last block copies it first. */
START_TEST(choices_share_their_prompt)
{
	struct sched_opts opts = { .n_blocks = 20, .max_seqs = 4, .step_tokens = 64, .max_waiting = 9, .audit_every = 1 };
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
	struct sched_opts opts = { .n_blocks = 20, .max_seqs = 4, .step_tokens = 16, .max_waiting = 9, .audit_every = 1 };
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

/* Faults */

/* A backend that fails ends what was in the step, and what it left is found by nobody. */
START_TEST(a_failed_step_ends_its_sequences)
{
	struct sched_opts opts = { .n_blocks = 20, .max_seqs = 4, .step_tokens = 64, .max_waiting = 9, .audit_every = 1 };
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
	struct sched_opts opts = { .n_blocks = 8, .max_seqs = 4, .step_tokens = 128, .max_waiting = 9, .audit_every = 1 };

	for (uint32_t victim = 0; victim < 3; victim++) {
		static struct request a, b;
		struct rig rig;
		uint32_t pair[1][2] = { { (victim + 1) % 3, victim } };

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
	tcase_add_test(tc, every_short_history);
	tcase_add_test(tc, a_crowd_in_a_tiny_pool);
	tcase_add_test(tc, an_abort_frees_within_one_step);
	tcase_add_test(tc, time_is_taken_as_said);
	tcase_add_test(tc, prompts_do_not_hold_up_decodes);
	tcase_add_test(tc, a_full_budget_is_shared);
	tcase_add_test(tc, priority_goes_first_but_starves_nobody);
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
	tcase_add_test(tc, a_failed_step_ends_its_sequences);
	tcase_add_test(tc, wrong_blocks_are_noticed);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(sched_suite())
