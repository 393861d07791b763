/*
 * Prompts that another scheduler has computed: whatever the order of loads, failures,
 * drops, steps and pins that come and go, each sequence gets the text that it gets alone,
 * and nothing leaks or is used twice (the audits and the spy of sched_rig.h).
 */
#include "sched_requests.h"
#include "slow_backend.h"

enum { PAIRS_MAX = 24 };

/* One prompt on its way: computed by the first rig, pinned, loaded by the second. */
struct pair {
	struct request from, to;
	struct sched_pin *pin;
	struct sched_seq *loading;
	size_t found, next, n;
	bool was_local, was_loaded, has_failed;
};

static void on_load(void *arg, struct sched_seq *seq, size_t found, size_t n)
{
	struct pair *p = container_of(arg, struct pair, to);

	REQUIRE(p->loading == NULL && n == (p->to.n_prompt + KV_BLOCK - 1) / KV_BLOCK);
	p->found = p->next = found;
	p->n = n;
	p->was_local = found == n;
	p->loading = found < n ? seq : NULL;
}

static void on_kept(void *arg, struct sched_seq *seq, enum sched_end end)
{
	struct pair *p = container_of(arg, struct pair, from);

	on_end(arg, seq, end);
	p->pin = sched_take_pin(seq);
	REQUIRE((p->pin != NULL) == (end != SCHED_END_ERROR));
}

static const struct sched_ops from_ops = {.on_token = on_token, .on_end = on_kept};
static const struct sched_ops to_ops = {
	.on_load = on_load, .on_token = on_token, .on_end = on_end};

static void submit_with(struct rig *rig, struct request *r, const struct sched_ops *which,
	bool keeps, bool loads)
{
	struct sched_request request = {
		.prompt = r->prompt,
		.n_prompt = r->n_prompt,
		.max_new = r->max_new,
		.keeps_prompt = keeps,
		.wants_load = loads,
		.ops = which,
		.arg = r,
	};

	r->state = rig_state(r->prompt, r->n_prompt);
	r->seq = sched_submit(rig->sched, &request);
	REQUIRE(r->seq != NULL);
}

static bool step(struct rig *rig)
{
	spied = rig;
	return rig_step(rig);
}

/* The next block of a load, or its end. */
static void go_on(struct pair *p)
{
	unsigned char bytes[1024];

	if (p->loading == NULL)
		return;
	if (p->next < p->n) {
		ck_assert_int_eq(sched_read_pin(p->pin, p->next, bytes), 0);
		ck_assert_int_eq(sched_load_block(p->loading, p->next++, bytes), 0);
		return;
	}
	REQUIRE(sched_load_done(p->loading));
	p->was_loaded = true;
	p->loading = NULL;
}

static void fail_load(struct pair *p)
{
	if (p->loading == NULL)
		return;
	p->has_failed = true;
	sched_load_fail(p->loading);
	p->loading = NULL;
}

static void drop_to(struct pair *p)
{
	if (p->to.seq == NULL)
		return;
	p->to.was_dropped = true;
	p->loading = NULL;
	sched_drop(p->to.seq);
	p->to.seq = NULL;
}

/* Computes all prompts; each stays pinned. */
static void compute(struct rig *from, struct pair *pairs, size_t n, struct rng *rng)
{
	for (size_t i = 0; i < n; i++) {
		size_t n_prompt = 1 + rng_below(rng, PROMPT_MAX - 1);

		memset(&pairs[i], 0, sizeof(pairs[i]));
		if (rng_below(rng, 3) == 0)
			n_prompt = MAX(n_prompt / KV_BLOCK * KV_BLOCK, (size_t)KV_BLOCK) +
				   rng_below(rng, 2);
		make_request(&pairs[i].from, (unsigned)rng_below(rng, 3),
			MIN(n_prompt, (size_t)PROMPT_MAX), 1,
			(unsigned)rng_below(rng, 3));
		submit_with(from, &pairs[i].from, &from_ops, true, false);
	}
	while (step(from))
		;
	for (size_t i = 0; i < n; i++)
		REQUIRE(pairs[i].pin != NULL &&
			pairs[i].pin->n_tokens == pairs[i].from.n_prompt);
}

static void start(struct rig *to, struct pair *p, struct rng *rng)
{
	p->to = p->from;
	p->to.n_got = 0;
	p->to.max_new = 1 + (uint32_t)rng_below(rng, 40);
	submit_with(to, &p->to, &to_ops, false, rng_below(rng, 4) > 0);
}

static void random_turn(struct rig *to, struct pair *pairs, size_t n, struct rng *rng)
{
	struct pair *p = &pairs[rng_below(rng, n)];

	switch (rng_below(rng, 24)) {
	case 0:
		drop_to(p);
		break;
	case 1:
		fail_load(p);
		break;
	case 2:
		sched_flush(to->sched);
		break;
	case 3:
		spied = to;
		park(&p->to, !p->to.is_parked);
		break;
	case 4:
	case 5:
	case 6:
	case 7:
	case 8:
	case 9:
		(void)step(to);
		break;
	default:
		go_on(p);
	}
}

static void finish_all(struct rig *to, struct pair *pairs, size_t n)
{
	bool goes_on = true;

	for (size_t i = 0; i < n; i++) {
		if (pairs[i].to.seq != NULL)
			sched_park(pairs[i].to.seq, false);
		pairs[i].to.is_parked = false;
	}
	while (goes_on) {
		goes_on = step(to);
		for (size_t i = 0; i < n; i++) {
			goes_on |= pairs[i].loading != NULL;
			go_on(&pairs[i]);
		}
	}
}

/* What was loaded, and who does not load, does not need its pin any more. */
static void unpin(struct pair *p)
{
	if (p->pin == NULL || p->loading != NULL || p->to.seq != NULL)
		return;
	sched_unpin(p->pin);
	p->pin = NULL;
}

enum { NOISE = 6 };

/* The first rig computes something else beside, so that pins are read and go while a step
 * of theirs runs. */
static void make_noise(struct rig *from, struct request *noise, struct rng *rng)
{
	struct request *r = &noise[rng_below(rng, NOISE)];

	spied = from;
	switch (rng_below(rng, 4)) {
	case 0:
		if (r->seq != NULL)
			return;
		make_request(r, (unsigned)rng_below(rng, 3),
			1 + rng_below(rng, PROMPT_MAX), 1 + (uint32_t)rng_below(rng, 20),
			(unsigned)rng_below(rng, 9));
		submit(from, r, NULL);
		break;
	case 1:
		if (rng_below(rng, 6) == 0)
			drop(r);
		break;
	default:
		(void)step(from);
	}
}

struct happened {
	uint64_t loaded, failed, local, preemptions, dropped;
};

static void run_order(
	uint64_t seed, const struct backend_ops *under, bool is_late, struct happened *h)
{
	static struct pair pairs[PAIRS_MAX];
	static struct request noise[NOISE];
	struct sched_opts opts = {.n_blocks = 400,
		.max_seqs = 4,
		.max_waiting = 100,
		.step_tokens = 64,
		.audit_every = 1};
	struct rng rng;
	struct sim_pace pace = {0, 0, 0};
	struct rig from, to;
	size_t n, begun = 0;

	memset(noise, 0, sizeof(noise));
	rng_seed(&rng, seed);
	n = 1 + rng_below(&rng, PAIRS_MAX);
	rig_open_on(&from, &opts, under, NULL);
	from.is_late = is_late;
	compute(&from, pairs, n, &rng);
	opts.n_blocks = 11 + (uint32_t)rng_below(&rng, 30);
	opts.max_seqs = 1 + (unsigned)rng_below(&rng, 6);
	pace.decode_us = (double)rng_below(&rng, 2) * 50;
	pace.prefill_us = (double)rng_below(&rng, 2) * 7;
	rig_open_on(&to, &opts, under, &pace);
	to.is_late = is_late;
	while (begun < n) {
		start(&to, &pairs[begun++], &rng);
		for (uint64_t k = rng_below(&rng, 60); k > 0; k--) {
			random_turn(&to, pairs, begun, &rng);
			if (!is_late)
				continue;
			make_noise(&from, noise, &rng);
			unpin(&pairs[rng_below(&rng, begun)]);
		}
		sched_audit(to.sched);
		sched_audit(from.sched);
	}
	finish_all(&to, pairs, n);
	while (step(&from))
		;
	sched_audit(to.sched);
	REQUIRE(sched_running(to.sched) + sched_waiting(to.sched) +
			sched_loading(to.sched) ==
		0);
	REQUIRE(sched_used_blocks(to.sched) == 0 && sched_counts(to.sched)->broken == 0);
	for (size_t i = 0; i < n; i++) {
		REQUIRE(pairs[i].to.was_dropped ||
			pairs[i].to.n_got == pairs[i].to.max_new);
		h->loaded += pairs[i].was_loaded;
		h->failed += pairs[i].has_failed;
		h->local += pairs[i].was_local;
		h->dropped += pairs[i].to.was_dropped;
		unpin(&pairs[i]);
	}
	h->preemptions += sched_counts(to.sched)->preemptions;
	REQUIRE(sched_used_blocks(from.sched) == 0);
	sched_audit(from.sched);
	rig_close(&to);
	rig_close(&from);
}

START_TEST(every_order_gives_the_same_text)
{
	struct happened h = {0};

	for (uint64_t seed = 1; seed <= 2000; seed++)
		run_order(seed, &backend_sim, false, &h);
	/* The schedules did what they are for. */
	ck_assert_uint_gt(h.loaded, 5000);
	ck_assert_uint_gt(h.failed, 500);
	ck_assert_uint_gt(h.local, 200);
	ck_assert_uint_gt(h.dropped, 500);
	ck_assert_uint_gt(h.preemptions, 500);
}
END_TEST

/* The same while steps run, on both sides. */
START_TEST(every_order_with_steps_that_end_late)
{
	struct happened h = {0};

	for (uint64_t seed = 1; seed <= 150; seed++)
		run_order(seed, &backend_slow, true, &h);
	ck_assert_uint_gt(h.loaded, 300);
	ck_assert_uint_gt(h.failed, 40);
	ck_assert_uint_gt(h.local, 15);
	ck_assert_uint_gt(h.dropped, 40);
	ck_assert_uint_gt(h.preemptions, 20);
}
END_TEST

static struct rig from_rig, to_rig;
static struct pair one, two;

static void set_up(void)
{
	struct sim_pace pace = {.prefill_us = 1000};
	struct sched_opts opts = {.n_blocks = 16,
		.max_seqs = 2,
		.max_waiting = 9,
		.step_tokens = 64,
		.audit_every = 1};
	struct rng rng;

	rng_seed(&rng, 1);
	memset(&one, 0, sizeof(one));
	memset(&two, 0, sizeof(two));
	make_request(&one.from, 0, 60, 1, 0);
	make_request(&two.from, 1, 60, 1, 0);
	rig_open(&from_rig, &opts);
	submit_with(&from_rig, &one.from, &from_ops, true, false);
	submit_with(&from_rig, &two.from, &from_ops, true, false);
	while (step(&from_rig))
		;
	rig_open_paced(&to_rig, &opts, &pace);
	start(&to_rig, &one, &rng);
	sched_drop(one.to.seq);
	one.to.n_got = 0;
	one.to.max_new = 4;
	one.to.state = rig_state(one.to.prompt, 60);
}

static void tear_down(void)
{
	while (step(&to_rig))
		;
	sched_audit(to_rig.sched);
	ck_assert_uint_eq(sched_used_blocks(to_rig.sched), 0);
	if (one.pin != NULL)
		sched_unpin(one.pin);
	sched_unpin(two.pin);
	rig_close(&to_rig);
	rig_close(&from_rig);
}

/* The wrong prompt's blocks: each is well made, together they are found out, and it is
 * computed then. */
START_TEST(another_prompt_is_found_out)
{
	unsigned char bytes[1024];

	submit_with(&to_rig, &one.to, &to_ops, false, true);
	(void)step(&to_rig);
	ck_assert_ptr_nonnull(one.loading);
	ck_assert_uint_eq(one.n - one.found, 4);
	for (size_t i = 0; i < 4; i++) {
		ck_assert_int_eq(sched_read_pin(two.pin, i, bytes), 0);
		ck_assert_int_eq(sched_load_block(one.loading, i, bytes), 0);
	}
	ck_assert(!sched_load_done(one.loading));
	ck_assert_uint_eq(sched_loading(to_rig.sched), 1);
	memset(bytes, 0xff, sizeof(bytes));
	ck_assert_int_eq(sched_load_block(one.loading, 2, bytes), ERR_PARSE);
	fail_load(&one);
	while (step(&to_rig))
		;
	ck_assert_uint_eq(one.to.n_got, 4);
	ck_assert_uint_eq(sched_counts(to_rig.sched)->loaded_tokens, 0);
	ck_assert_uint_eq(sched_counts(to_rig.sched)->load_tokens, 60);
}
END_TEST

/* One that loads takes no turn of those that are computed, and waits for none of them. */
START_TEST(loads_are_beside_everything)
{
	struct request other;

	make_request(&other, 2, 100, 3, 0);
	other.seq = NULL;
	submit(&to_rig, &other, NULL);
	(void)step(&to_rig); /* its 100 ms begin */
	submit_with(&to_rig, &one.to, &to_ops, false, true);
	ck_assert_uint_eq(sched_wake_us(to_rig.sched), 0);
	sched_step(to_rig.sched, to_rig.now_us);
	ck_assert_ptr_nonnull(one.loading);
	ck_assert_uint_eq(sched_loading(to_rig.sched), 1);
	ck_assert_uint_eq(sched_running(to_rig.sched), 1);
	ck_assert_uint_eq(sched_waiting(to_rig.sched), 1);
	while (one.loading != NULL)
		go_on(&one);
	sched_step(to_rig.sched, to_rig.now_us);
	ck_assert_uint_eq(one.to.n_got, 1);
	ck_assert_uint_eq(other.n_got, 0);
	ck_assert_uint_eq(sched_cached(one.to.seq), 59);
	while (step(&to_rig))
		;
	ck_assert_uint_eq(one.to.n_got, 4);
	ck_assert_uint_eq(other.n_got, 3);
	ck_assert_uint_eq(sched_counts(to_rig.sched)->loaded_tokens, 59);
	ck_assert_uint_eq(sched_counts(to_rig.sched)->computed_tokens, 100 + 2 + 1 + 3);
}
END_TEST

/* What is pinned stays, though all else is needed; whoever waits for room goes on when it
 * goes. */
START_TEST(pins_hold_blocks)
{
	struct request big;

	sched_flush(from_rig.sched);
	ck_assert_uint_eq(sched_used_blocks(from_rig.sched), 8);
	make_request(&big, 2, 120, 20, 0);
	big.seq = NULL;
	submit(&from_rig, &big, NULL);
	while (step(&from_rig))
		;
	ck_assert_uint_lt(big.n_got, 20); /* 9 blocks are needed, 8 are free */
	ck_assert_uint_eq(sched_waiting(from_rig.sched), 1);
	sched_unpin(one.pin);
	one.pin = NULL;
	while (step(&from_rig))
		;
	ck_assert_uint_eq(big.n_got, 20);
}
END_TEST

static Suite *load_suite(void)
{
	Suite *suite = suite_create("sched_load");
	TCase *random = tcase_create("random"), *tc = tcase_create("load");

	tcase_set_timeout(random, 120);
	tcase_add_test(random, every_order_gives_the_same_text);
	tcase_add_test(random, every_order_with_steps_that_end_late);
	suite_add_tcase(suite, random);
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, another_prompt_is_found_out);
	tcase_add_test(tc, loads_are_beside_everything);
	tcase_add_test(tc, pins_hold_blocks);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(load_suite())
