/*
 * Completion progress: the two recorded incidents in numbers (origin systems A6), what is
 * not one, recovery and trials. A fleet is played tick by tick in virtual time.
 */
#include "worker/progress.h"

#include "base/rng.h"
#include "tests/unit/unit.h"

#include <string.h>

#define TICK_MS 500
#define FLEET_MAX 8

static struct fleet {
	unsigned n;
	uint64_t now_ms;
	struct progress progress[FLEET_MAX];
	struct progress_sample sample[FLEET_MAX];
	double rate[FLEET_MAX]; /* events/s and stream; < 0: wedged */
	double owed[FLEET_MAX];
	struct progress_opts opts[FLEET_MAX];
	unsigned changes;
} f;

static void start(unsigned n)
{
	unsigned i;

	memset(&f, 0, sizeof(f));
	f.n = n;
	f.now_ms = 1000000;
	for (i = 0; i < n; i++)
		f.opts[i] = (struct progress_opts){60000, 0.2, 30000};
}

static void load(unsigned i, unsigned in_flight, unsigned streams, double rate)
{
	f.sample[i].in_flight = in_flight;
	f.sample[i].streams = streams;
	f.rate[i] = rate;
}

static void tick(void)
{
	struct progress *group[FLEET_MAX];
	unsigned i;

	f.now_ms += TICK_MS;
	for (i = 0; i < f.n; i++) {
		struct progress_sample *s = &f.sample[i];

		group[i] = &f.progress[i];
		if (f.rate[i] <= 0 || s->streams == 0)
			continue;
		f.owed[i] += f.rate[i] * s->streams * TICK_MS / 1000;
		s->events += (uint64_t)f.owed[i];
		s->bytes += 200 * (uint64_t)f.owed[i];
		f.owed[i] -= (double)(uint64_t)f.owed[i];
	}
	f.changes += progress_judge(group, f.sample, f.opts, f.n, f.now_ms);
}

static void play(uint64_t ms)
{
	uint64_t end_ms = f.now_ms + ms;

	while (f.now_ms < end_ms)
		tick();
}

static enum progress_verdict verdict(unsigned i)
{
	return f.progress[i].verdict;
}

/* How long until worker i has this verdict; UINT64_MAX: not within limit_ms. */
static uint64_t time_to(unsigned i, enum progress_verdict v, uint64_t limit_ms)
{
	uint64_t began_ms = f.now_ms;

	while (verdict(i) != v) {
		if (f.now_ms - began_ms > limit_ms)
			return UINT64_MAX;
		tick();
	}
	return f.now_ms - began_ms;
}

/* 129 requests in flight, silent for 61 minutes: told as slow within degraded_window, as
 * stalled within stall_timeout. */
START_TEST(wedged_engine_with_129_in_flight)
{
	start(4);
	load(0, 129, 129, 200);
	load(1, 100, 90, 200);
	load(2, 100, 90, 200);
	load(3, 100, 90, 200);
	play(60000);
	ck_assert_uint_eq(f.changes, 0);
	load(0, 129, 129, -1);
	ck_assert_uint_le(time_to(0, PROGRESS_DEGRADED, 200000), 33500);
	ck_assert_uint_le(time_to(0, PROGRESS_STALLED, 200000), 31000);
	play(3600000);
	ck_assert_uint_eq(f.changes, 2);
	ck_assert_uint_ge(progress_age_ms(&f.progress[0], f.now_ms), 3600000);
	/* It unblocks: back at once. */
	load(0, 129, 129, 200);
	ck_assert_uint_le(time_to(0, PROGRESS_FINE, 10000), 2 * TICK_MS);
}
END_TEST

/* 141 requests at 1.0 tokens/s each against 105 at 49.6: fewer bytes although more
 * requests; and the same with fewer requests than the peers have. */
START_TEST(degraded_engine_that_would_attract_traffic)
{
	unsigned fewer;

	for (fewer = 0; fewer < 2; fewer++) {
		start(4);
		load(0, 105, 105, 49.6);
		load(1, 105, 105, 49.6);
		load(2, 105, 105, 49.6);
		load(3, 105, 105, 49.6);
		play(60000);
		load(3, fewer ? 40 : 141, fewer ? 40 : 141, 1.0);
		ck_assert_uint_le(time_to(3, PROGRESS_DEGRADED, 100000), 33500);
		ck_assert_uint_eq(f.changes, 1);
		ck_assert_int_eq(verdict(0), PROGRESS_FINE);
		play(600000);
		ck_assert_uint_eq(f.changes, 1);
		load(3, 10, 10, 45);
		ck_assert_uint_le(time_to(3, PROGRESS_FINE, 100000), 6500);
	}
}
END_TEST

/* A parser holds back what the engine makes: as many tokens as its peers, no events. And
 * one whose engine stands still, too, is degraded. */
START_TEST(c03_tokens_count_as_events_do)
{
	unsigned i;

	start(3);
	for (i = 0; i < 3; i++) {
		load(i, 4, 4, i == 0 ? 0 : 20);
		f.sample[i].has_tokens = true;
		f.sample[i].token_rate = 80;
	}
	/* Bytes: the engine's growth is no stall either (watch.c). */
	f.opts[0].stall_timeout_ms = 0;
	play(300000);
	ck_assert_uint_eq(f.changes, 0);
	f.sample[0].token_rate = 0;
	ck_assert_uint_le(time_to(0, PROGRESS_DEGRADED, 100000), 33500);
	f.sample[0].token_rate = 80;
	ck_assert_uint_le(time_to(0, PROGRESS_FINE, 100000), 6500);
	/* Peers whose events hold ten tokens each say nothing of one without counters. */
	f.sample[0].has_tokens = false;
	load(0, 4, 4, 20);
	f.sample[1].token_rate = f.sample[2].token_rate = 800;
	play(300000);
	ck_assert_int_eq(verdict(0), PROGRESS_FINE);
}
END_TEST

/* Half as fast as the others, or bursty, is not degraded. */
START_TEST(slower_is_not_degraded)
{
	unsigned i;

	start(3);
	load(0, 10, 10, 10000);
	load(1, 10, 10, 10000);
	load(2, 10, 10, 2100);
	play(600000);
	ck_assert_uint_eq(f.changes, 0);
	for (i = 0; i < 20; i++) { /* slow for 25 s, then one good slice */
		load(2, 10, 10, 100);
		play(25000);
		load(2, 10, 10, 10000);
		play(6000);
	}
	ck_assert_uint_eq(f.changes, 0);
}
END_TEST

/* Short requests that never stream, long prefills, idleness: no verdict. */
START_TEST(what_is_no_stall)
{
	unsigned i;

	start(2);
	load(1, 5, 5, 1000);
	for (i = 0; i < 1000; i++) { /* completions without bytes seen between */
		load(0, 3, 0, 0);
		f.sample[0].completions++;
		play(30000);
	}
	load(0, 0, 0, 0);
	play(3600000);
	ck_assert_uint_eq(f.changes, 0);
	load(0, 1, 0, 0); /* begins after an hour of idleness: its clock starts now */
	play(59000);
	ck_assert_uint_eq(f.changes, 0);
	f.sample[0].bytes++;
	play(59000);
	ck_assert_uint_eq(f.changes, 0);
}
END_TEST

/* Alone, or with peers that have nothing to do: twice the time. */
START_TEST(nobody_to_compare_with)
{
	unsigned n;

	for (n = 1; n <= 3; n++) {
		uint64_t ms;

		start(n);
		load(0, 4, 4, -1);
		ms = time_to(0, PROGRESS_STALLED, 500000);
		ck_assert_uint_ge(ms, 120000);
		ck_assert_uint_le(ms, 121500);
	}
}
END_TEST

/* One peer is enough to be compared with; one with too little to show is none. */
START_TEST(peers_need_samples)
{
	start(2);
	load(0, 10, 10, 50);
	load(1, 10, 10, 10000);
	ck_assert_uint_ne(time_to(0, PROGRESS_DEGRADED, 60000), UINT64_MAX);
	start(2);
	load(0, 10, 10, 50);
	load(1, 0, 0, 0);
	play(600000);
	ck_assert_uint_eq(f.changes, 0);
}
END_TEST

/* Old evidence goes: 24 s slow, a minute of silence, 6 s slow. */
START_TEST(slowness_long_ago_does_not_count)
{
	start(2);
	load(0, 10, 10, 50);
	load(1, 10, 10, 10000);
	play(24000);
	load(0, 0, 0, 0);
	play(120000);
	load(0, 10, 10, 50);
	play(9000);
	ck_assert_int_eq(verdict(0), PROGRESS_FINE);
	play(40000);
	ck_assert_int_eq(verdict(0), PROGRESS_DEGRADED);
}
END_TEST

static void stall_worker_0(void)
{
	start(2);
	load(0, 5, 5, -1);
	load(1, 5, 5, 1000);
	ck_assert_uint_ne(time_to(0, PROGRESS_STALLED, 200000), UINT64_MAX);
}

/* An idle one is tried after a back-off that doubles to its bound, and counts from the
 * end of the last trial, however long that hung. */
START_TEST(trials_back_off)
{
	uint64_t last_ms, want_ms = PROGRESS_TRIAL_MS;
	unsigned i;

	stall_worker_0();
	play(PROGRESS_TRIAL_MS + TICK_MS);
	ck_assert(!progress_trial_due(&f.progress[0], 5, f.now_ms)); /* not idle */
	load(0, 0, 0, 0);
	for (i = 0; i < 10; i++) {
		play(TICK_MS);
		ck_assert(progress_trial_due(&f.progress[0], 0, f.now_ms));
		progress_trial_begun(&f.progress[0], f.now_ms);
		want_ms = MIN(2 * want_ms, (uint64_t)PROGRESS_TRIAL_MAX_MS);
		load(0, 1, 0, 0);
		play(60000); /* the router gives up */
		last_ms = f.now_ms;
		ck_assert(!progress_trial_due(&f.progress[0], 0, f.now_ms));
		load(0, 0, 0, 0);
		while (!progress_trial_due(&f.progress[0], 0, f.now_ms))
			play(TICK_MS);
		ck_assert_uint_ge(f.now_ms - last_ms, want_ms);
		ck_assert_uint_le(f.now_ms - last_ms, want_ms + 2 * TICK_MS);
	}
	ck_assert_int_eq(verdict(0), PROGRESS_STALLED);
	progress_trial_begun(&f.progress[0], f.now_ms);
	f.sample[0].bytes += 10;
	play(TICK_MS);
	ck_assert_int_eq(verdict(0), PROGRESS_FINE);
	ck_assert(!progress_trial_due(&f.progress[0], 0, f.now_ms + 10000000));
}
END_TEST

/* A degraded worker's trial: over before there is a rate, it was quick enough; longer,
 * its rate tells. */
START_TEST(trials_of_a_degraded_worker)
{
	start(2);
	load(0, 10, 10, 50);
	load(1, 10, 10, 10000);
	ck_assert_uint_ne(time_to(0, PROGRESS_DEGRADED, 60000), UINT64_MAX);
	load(0, 0, 0, 0);
	play(PROGRESS_TRIAL_MS);
	progress_trial_begun(&f.progress[0], f.now_ms);
	load(0, 1, 1, 50);
	play(20000);
	f.sample[0].completions++;
	load(0, 0, 0, 0);
	play(20000);
	ck_assert_int_eq(verdict(0), PROGRESS_DEGRADED);
	progress_trial_begun(&f.progress[0], f.now_ms);
	f.sample[0].bytes += 100;
	f.sample[0].completions++;
	play(TICK_MS);
	ck_assert_int_eq(verdict(0), PROGRESS_FINE);
}
END_TEST

START_TEST(off_is_off)
{
	unsigned i;

	start(2);
	for (i = 0; i < 2; i++)
		f.opts[i] = (struct progress_opts){0, 0, 30000};
	load(0, 5, 5, -1);
	load(1, 5, 5, 1000);
	play(3600000);
	load(0, 5, 5, 1);
	play(3600000);
	ck_assert_uint_eq(f.changes, 0);
}
END_TEST

/* Whatever happens to workers that all behave alike, none is singled out. */
START_TEST(equals_are_never_singled_out)
{
	struct rng rng;
	unsigned seed, i, step;

	for (seed = 0; seed < 40; seed++) {
		rng_seed(&rng, seed);
		start(5);
		for (step = 0; step < 200; step++) {
			for (i = 0; i < f.n; i++) {
				unsigned k = (unsigned)rng_below(&rng, 30);

				load(i, k + (unsigned)rng_below(&rng, 5), k,
					5000 + (double)rng_below(&rng, 5000));
				f.sample[i].completions += rng_below(&rng, 3);
			}
			play(TICK_MS * (1 + rng_below(&rng, 10)));
		}
		ck_assert_uint_eq(f.changes, 0);
	}
}
END_TEST

static Suite *progress_suite(void)
{
	Suite *s = suite_create("progress");
	TCase *c = tcase_create("progress");

	tcase_set_timeout(c, 60);
	tcase_add_test(c, wedged_engine_with_129_in_flight);
	tcase_add_test(c, degraded_engine_that_would_attract_traffic);
	tcase_add_test(c, slower_is_not_degraded);
	tcase_add_test(c, c03_tokens_count_as_events_do);
	tcase_add_test(c, what_is_no_stall);
	tcase_add_test(c, nobody_to_compare_with);
	tcase_add_test(c, peers_need_samples);
	tcase_add_test(c, slowness_long_ago_does_not_count);
	tcase_add_test(c, trials_back_off);
	tcase_add_test(c, trials_of_a_degraded_worker);
	tcase_add_test(c, off_is_off);
	tcase_add_test(c, equals_are_never_singled_out);
	suite_add_tcase(s, c);
	return s;
}

UNIT_MAIN(progress_suite())
