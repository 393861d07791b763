/* The step loop: steps are made when they are due, one a turn, and its liveness is that
 * of the loop, not of the process. */
#include "backend/backend_sim.h"
#include "base/clock.h"
#include "core/engine.h"
#include "io/loop.h"
#include "slow_backend.h"
#include "unit.h"

static struct loop *loop;
static struct engine *engine;
static unsigned tokens, ends;

static void on_token(void *arg UNUSED, struct sched_seq *seq UNUSED,
	const struct sample_out *out UNUSED)
{
	tokens++;
}

static void on_end(
	void *arg UNUSED, struct sched_seq *seq UNUSED, enum sched_end end UNUSED)
{
	ends++;
}

static const struct sched_ops ops = {.on_token = on_token, .on_end = on_end};

static void set_up_on(const struct backend_ops *backend, double speed)
{
	static struct sim_pace sim;
	struct engine_opts opts = {
		.backend = backend,
		.open = {.model = "sim", .n_blocks = 16, .own = &sim},
		.sched = {.max_seqs = 4, .max_waiting = 4, .step_tokens = 64},
	};

	sim = (struct sim_pace){.prefill_us = speed * 1000, .decode_us = speed * 10000};
	loop = loop_new();
	ck_assert_ptr_nonnull(loop);
	ck_assert_int_eq(engine_new(loop, &opts, &engine), 0);
	while (!engine_is_ready(engine))
		loop_turn(loop, -1);
	tokens = ends = 0;
}

static void set_up_with(double speed)
{
	set_up_on(&backend_sim, speed);
}

static void tear_down(void)
{
	engine_free(engine);
	engine_free(NULL);
	loop_free(loop);
}

static struct sched_seq *submit(uint32_t max_new)
{
	static const uint32_t prompt[] = {5, 6, 7};
	struct sched_request r = {
		.prompt = prompt, .n_prompt = 3, .max_new = max_new, .ops = &ops};

	return sched_submit(engine_sched(engine), &r);
}

START_TEST(a_step_a_turn)
{
	set_up_with(0);
	ck_assert_ptr_nonnull(submit(5));
	for (unsigned k = 1; k <= 5; k++) {
		loop_turn(loop, -1);
		ck_assert_uint_eq(tokens, k);
	}
	ck_assert_uint_eq(ends, 1);
	loop_turn(loop, 0); /* nothing is due any more */
	ck_assert_uint_eq(tokens, 5);
	tear_down();
}
END_TEST

START_TEST(steps_wait_for_their_time)
{
	uint64_t begun_us = clock_us();

	set_up_with(1);
	ck_assert_ptr_nonnull(submit(3));
	while (ends == 0)
		loop_turn(loop, -1);
	ck_assert_uint_ge(clock_us() - begun_us, 3000 + 2 * 10000);
	tear_down();
}
END_TEST

START_TEST(alive_is_who_makes_steps)
{
	const uint64_t late_us = (uint64_t)ENGINE_STALL_MS * 1000 + 1000000;
	struct sched_seq *seq;

	set_up_with(0);
	ck_assert(engine_is_live(engine, clock_us() + late_us)); /* nothing to do */
	ck_assert_ptr_nonnull(submit(2));
	ck_assert(engine_is_live(engine, clock_us()));
	ck_assert(!engine_is_live(
		engine, clock_us() + late_us)); /* the loop does not turn */
	seq = submit(2);
	ck_assert(!engine_is_live(
		engine, clock_us() + late_us)); /* more work is no sign of life */
	loop_turn(loop, -1);
	ck_assert(engine_is_live(engine, clock_us()));
	ck_assert(!engine_is_live(engine, clock_us() + late_us));
	loop_turn(loop, -1);
	ck_assert_uint_eq(ends, 2);
	ck_assert(engine_is_live(engine, clock_us() + late_us));
	seq = submit(9);
	loop_turn(loop, -1);
	sched_park(seq, true); /* waits for its client: nothing is due */
	ck_assert(engine_is_live(engine, clock_us() + late_us));
	tear_down();
}
END_TEST

/* A step that takes long is not late before its time. */
START_TEST(slow_is_not_dead)
{
	set_up_with(1000); /* a prompt of 3 tokens takes 3 s */
	ck_assert_ptr_nonnull(submit(2));
	loop_turn(loop, -1);
	ck_assert(engine_is_live(
		engine, clock_us() + 2000000 + (uint64_t)ENGINE_STALL_MS * 1000));
	ck_assert(!engine_is_live(
		engine, clock_us() + 4000000 + (uint64_t)ENGINE_STALL_MS * 1000));
	tear_down();
}
END_TEST

/* Faults */

/* Nothing is done while wedged, and nobody can tell from engine_is_live(); then it goes
 * on, without catching up. */
START_TEST(wedged_stands_still)
{
	const uint64_t late_us = (uint64_t)ENGINE_STALL_MS * 1000 + 1000000;
	uint64_t until_us;

	set_up_with(1);
	ck_assert_ptr_nonnull(submit(4));
	while (tokens < 1)
		loop_turn(loop, -1);
	engine_set_pace(engine, 1, true);
	until_us = clock_us() + 50000; /* five tokens' time */
	while (clock_us() < until_us)
		loop_turn(loop, 10);
	ck_assert_uint_eq(tokens, 1);
	ck_assert(engine_is_live(engine, clock_us() + late_us));
	ck_assert_ptr_nonnull(submit(1)); /* taken, and not begun */
	ck_assert(engine_is_live(engine, clock_us() + late_us));
	loop_turn(loop, 0);
	ck_assert_uint_eq(sched_waiting(engine_sched(engine)), 1);
	until_us = clock_us() + 15000; /* two more of the first one's tokens take more */
	engine_set_pace(engine, 1, false);
	while (ends < 2)
		loop_turn(loop, -1);
	ck_assert_uint_ge(clock_us(), until_us);
	ck_assert_uint_eq(tokens, 5);
	tear_down();
}
END_TEST

START_TEST(slow_takes_its_factor)
{
	uint64_t begun_us;

	set_up_with(1);
	ck_assert_ptr_nonnull(submit(4));
	while (tokens < 1)
		loop_turn(loop, -1);
	engine_set_pace(engine, 5, false);
	begun_us = clock_us();
	while (tokens < 3)
		loop_turn(loop, -1);
	ck_assert_uint_ge(
		clock_us() - begun_us, 5 * 10000); /* one whole token between two */
	ck_assert(!engine_is_live(
		engine, clock_us() + 60000 + (uint64_t)ENGINE_STALL_MS * 1000));
	engine_set_pace(engine, 10000, false); /* 100 s to the next one */
	ck_assert(engine_is_live(engine, clock_us() + 20000000));
	loop_turn(loop, 30);
	ck_assert_uint_eq(tokens, 3);
	engine_set_pace(engine, 1, false);
	while (ends < 1)
		loop_turn(loop, -1);
	tear_down();
}
END_TEST

static int poked_err = 1;

static void on_poked(void *arg, int err)
{
	++*(unsigned *)arg;
	poked_err = err;
}

/* A poke is answered by a step, though none is due; not while wedged, and not after it
 * was taken back. */
START_TEST(a_poke_is_one_step)
{
	unsigned pokes = 0;
	struct engine_poke poke = {.fn = on_poked, .arg = &pokes}, other = poke;

	set_up_with(1);
	engine_poke(engine, &poke);
	loop_turn(loop, -1);
	ck_assert_uint_eq(pokes, 1);
	ck_assert_int_eq(poked_err, 0);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->steps, 0);
	loop_turn(loop, 20);
	ck_assert_uint_eq(pokes, 1);
	engine_set_pace(engine, 1, true);
	engine_poke(engine, &poke);
	engine_poke(engine, &other);
	loop_turn(loop, 20);
	ck_assert_uint_eq(pokes, 1);
	engine_poke_cancel(engine, &other);
	engine_poke_cancel(engine, &other);
	engine_set_pace(engine, 1, false);
	loop_turn(loop, -1);
	ck_assert_uint_eq(pokes, 2);
	tear_down();
}
END_TEST

START_TEST(a_restart_knows_nothing)
{
	struct sched_seq *seq;

	set_up_with(0);
	seq = submit(9);
	loop_turn(loop, -1);
	sched_drop(seq);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->prompt_tokens, 3);
	ck_assert_int_eq(engine_restart(engine), 0);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->prompt_tokens, 0);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->steps, 0);
	tokens = 0;
	ck_assert_ptr_nonnull(submit(2));
	loop_turn(loop, -1);
	loop_turn(loop, -1);
	ck_assert_uint_eq(tokens, 2);
	tear_down();
}
END_TEST

/* Steps that end late */

static void hold_steps(void)
{
	slow_hold(true);
	set_up_on(&backend_slow, 0);
}

static void let_go(void)
{
	slow_hold(false);
	tear_down();
}

/* The loop turns while a step runs; what ended begins the next step in the same turn. */
START_TEST(the_loop_does_not_wait)
{
	hold_steps();
	ck_assert_ptr_nonnull(submit(5));
	loop_turn(loop, -1);
	for (int k = 0; k < 3; k++)
		loop_turn(loop, 0);
	ck_assert_uint_eq(tokens, 0);
	ck_assert_uint_eq(sched_running(engine_sched(engine)), 1);
	ck_assert_ptr_nonnull(submit(5)); /* taken meanwhile */
	for (unsigned k = 1; k <= 3; k++) {
		slow_let(1);
		loop_turn(loop, -1);
		ck_assert_uint_eq(sched_counts(engine_sched(engine))->steps, k + 1);
	}
	ck_assert_uint_eq(tokens, 1 + 2 + 2);
	slow_hold(false);
	while (ends < 2)
		loop_turn(loop, -1);
	ck_assert_uint_eq(tokens, 10);
	let_go();
}
END_TEST

START_TEST(who_leaves_during_a_step_is_gone)
{
	struct sched_seq *seq;

	hold_steps();
	seq = submit(5);
	loop_turn(loop, -1);
	sched_drop(seq);
	ck_assert_uint_eq(sched_used_blocks(engine_sched(engine)), 0);
	loop_turn(loop, 0);
	slow_let(1);
	loop_turn(loop, -1);
	ck_assert_uint_eq(tokens + ends, 0);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->steps, 1);
	let_go();
}
END_TEST

/* A step that runs is alive for as long as steps may take; the longest one counts three
 * times. */
START_TEST(a_long_step_is_alive)
{
	const uint64_t stall_us = (uint64_t)ENGINE_STALL_MS * 1000;

	ck_assert_uint_eq(engine_stall_after_ms(0), 5000);
	ck_assert_uint_eq(engine_stall_after_ms(1666000), 5000);
	ck_assert_uint_eq(engine_stall_after_ms(3000000), 9000);
	hold_steps();
	ck_assert_ptr_nonnull(submit(9));
	loop_turn(loop, -1);
	ck_assert_uint_eq(engine_stall_ms(engine), 5000);
	ck_assert(engine_is_live(engine, clock_us()));
	ck_assert(!engine_is_live(engine, clock_us() + stall_us + 1));
	sched_drop(submit(1)); /* work that comes and goes is no sign of life */
	ck_assert(!engine_is_live(engine, clock_us() + stall_us + 1));
	slow_hold(false);
	while (ends < 1)
		loop_turn(loop, -1);
	ck_assert(engine_is_live(engine, clock_us() + 2 * stall_us));
	let_go();
}
END_TEST

/* It is asked while a step runs, and answered by one of its own after it, though more is
 * due. */
START_TEST(a_poke_waits_for_its_turn)
{
	unsigned pokes = 0;
	struct engine_poke poke = {.fn = on_poked, .arg = &pokes};

	hold_steps();
	ck_assert_ptr_nonnull(submit(9));
	loop_turn(loop, -1);
	engine_poke(engine, &poke);
	loop_turn(loop, 0);
	slow_let(1);
	loop_turn(loop, -1);
	ck_assert(tokens == 1 && pokes == 0);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->steps, 1);
	slow_let(1);
	loop_turn(loop, -1);
	ck_assert(tokens == 1 && pokes == 1 && poked_err == 0);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->steps, 2);
	engine_poke(engine, &poke);
	engine_poke_cancel(engine, &poke);
	let_go();
}
END_TEST

/* What ends the engine, or begins it anew, waits for the step that runs, of whatever
 * kind. */
START_TEST(an_end_waits_for_the_step)
{
	unsigned pokes = 0;
	struct engine_poke poke = {.fn = on_poked, .arg = &pokes};

	for (int kind = 0; kind < 4; kind++) {
		struct sched_seq *seq = NULL;

		hold_steps();
		if (kind < 2)
			seq = submit(9);
		else
			engine_poke(engine, &poke);
		loop_turn(loop, -1);
		slow_let(1);
		if (kind % 2 == 0) {
			if (seq != NULL)
				sched_drop(seq);
			ck_assert_int_eq(engine_restart(engine), 0);
			engine_poke_cancel(engine, &poke);
			slow_hold(false);
			ck_assert_ptr_nonnull(submit(2));
			while (ends == 0)
				loop_turn(loop, -1);
			ck_assert_uint_eq(tokens, 2);
		}
		engine_poke_cancel(engine, &poke);
		let_go();
	}
	ck_assert_uint_eq(pokes, 0);
}
END_TEST

/* Steps that end at any time, before and after the loop looks. */
START_TEST(thousands_of_steps)
{
	slow_hold(false);
	set_up_on(&backend_slow, 0);
	for (unsigned k = 1; k <= 300; k++) {
		ck_assert_ptr_nonnull(submit(3));
		ck_assert_ptr_nonnull(submit(5));
		while (ends < 2 * k)
			loop_turn(loop, -1);
	}
	ck_assert_uint_eq(tokens, 300 * 8);
	tear_down();
}
END_TEST

static Suite *engine_suite(void)
{
	Suite *suite = suite_create("engine");
	TCase *tc = tcase_create("engine");

	tcase_add_test(tc, a_step_a_turn);
	tcase_add_test(tc, steps_wait_for_their_time);
	tcase_add_test(tc, alive_is_who_makes_steps);
	tcase_add_test(tc, slow_is_not_dead);
	tcase_add_test(tc, wedged_stands_still);
	tcase_add_test(tc, slow_takes_its_factor);
	tcase_add_test(tc, a_poke_is_one_step);
	tcase_add_test(tc, a_restart_knows_nothing);
	tcase_add_test(tc, the_loop_does_not_wait);
	tcase_add_test(tc, who_leaves_during_a_step_is_gone);
	tcase_add_test(tc, a_long_step_is_alive);
	tcase_add_test(tc, a_poke_waits_for_its_turn);
	tcase_add_test(tc, an_end_waits_for_the_step);
	tcase_add_test(tc, thousands_of_steps);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(engine_suite())
