/*
 * A day in virtual time (C08): thousands of sessions that pause for a minute to eight
 * hours between their turns, over the pool's own index and policy. A model of the
 * workers' caches, each least recently used first, says which turns can find their
 * prompts. The figures go to the log.
 */
#include "tests/unit/pool_rig.h"

#include <inttypes.h>
#include <math.h>

#define DAY_MS (UINT64_C(24) * 3600 * 1000)
#define PAUSE_MIN_MS 60000.0
#define PAUSE_MAX_MS (8 * 3600 * 1000.0)
#define TURN_MS 20000 /* how long a turn is computed */
#define TICK_MS 1000
#define SESSIONS 2000
#define WORKERS 8
#define TURN_BLOCKS 8
#define BLOCK_TOKENS 32
#define RUNNING_MAX 256

/* What a worker holds of a session in the model. */
struct copy {
	uint64_t turn; /* the last one there, counted over all sessions; 0: none */
	size_t blocks;
};

struct session {
	uint64_t next_ms;
	size_t blocks;
	int home; /* < 0: none yet */
	struct copy copies[WORKERS];
};

struct running {
	struct guard guard;
	uint64_t until_ms;
};

struct day {
	uint64_t turns; /* of sessions that have a home, likewise below */
	uint64_t home, whole;
	uint64_t fits, fits_found;    /* its prompt has its place by the model */
	uint64_t gone, gone_believed; /* it has not */
};

static struct session sessions[SESSIONS];
static struct running running[RUNNING_MAX];
static size_t n_running;
static uint64_t n_turns;
static struct rng rng;

static void end_turns(uint64_t now_ms)
{
	size_t i = 0;

	while (i < n_running) {
		if (running[i].until_ms > now_ms) {
			i++;
			continue;
		}
		guard_drop(&running[i].guard);
		running[i] = running[--n_running];
	}
}

/* As many pauses of 1 to 2 minutes as of 4 to 8 hours. */
static uint64_t pause_ms(void)
{
	double u = (double)(rng_next(&rng) >> 11) / 9007199254740992.0;

	return (uint64_t)(PAUSE_MIN_MS * pow(PAUSE_MAX_MS / PAUSE_MIN_MS, u));
}

/* The blocks that the worker used since the session's last turn there. */
static size_t used_since(unsigned worker, const struct copy *mine)
{
	size_t i, sum = 0;

	for (i = 0; i < SESSIONS; i++) {
		if (sessions[i].copies[worker].turn > mine->turn)
			sum += sessions[i].copies[worker].blocks;
	}
	return sum;
}

/* By the model: the whole prompt has its place, or nothing of it. A band between the two,
 * a twentieth of the capacity, is left to chance. */
static void judge(struct day *d, const struct session *s, size_t capacity, size_t matched)
{
	const struct copy *copy = &s->copies[s->home];
	size_t others = used_since((unsigned)s->home, copy);

	if (others + copy->blocks <= capacity - capacity / 20) {
		d->fits++;
		d->fits_found += matched == copy->blocks;
	} else if (others >= capacity + capacity / 20) {
		d->gone++;
		d->gone_believed += matched > 0;
	}
}

static void take_turn(struct day *d, struct session *s, uint64_t family, size_t capacity,
	uint64_t now_ms)
{
	struct route_key key;
	struct pool_ask ask;
	struct pool_pick out;
	struct guard g;
	size_t before = s->blocks;
	int at;

	s->blocks += TURN_BLOCKS;
	key = unit_sealed(pool, family, s->blocks, 0, s->blocks);
	ask = ask_for(&key);
	ask.now_ms = now_ms;
	out = pick_with(&ask, &g);
	at = atoi(g.worker->name + 1);
	if (s->home >= 0) {
		d->turns++;
		d->home += at == s->home;
		d->whole += at == s->home && out.matched == before;
		judge(d, s, capacity, at == s->home ? out.matched : 0);
	}
	s->home = at;
	s->copies[at] = (struct copy){++n_turns, s->blocks};
	ck_assert_uint_lt(n_running, RUNNING_MAX);
	running[n_running++] = (struct running){g, now_ms + TURN_MS};
	route_key_free(&key);
}

static struct day live_a_day(size_t capacity)
{
	struct day d = {0};
	uint64_t ms, i;

	n_turns = n_running = 0;
	rng_seed(&rng, 8);
	memset(sessions, 0, sizeof(sessions));
	pool = unit_pool_of(WORKERS, "");
	for (i = 0; i < WORKERS; i++) {
		char name[] = {'w', (char)('0' + i), '\0'};

		pool_worker_capacity(
			pool, unit_worker(pool, name), capacity * BLOCK_TOKENS);
	}
	for (i = 0; i < SESSIONS; i++) {
		sessions[i].home = -1;
		sessions[i].next_ms = pause_ms();
	}
	for (ms = 0; ms < DAY_MS; ms += TICK_MS) {
		end_turns(NOW + ms);
		for (i = 0; i < SESSIONS; i++) {
			if (sessions[i].next_ms > ms)
				continue;
			take_turn(&d, &sessions[i], i + 1, capacity, NOW + ms);
			sessions[i].next_ms = ms + TURN_MS + pause_ms();
		}
		pool_sweep(pool, NOW + ms);
	}
	end_turns(UINT64_MAX);
	return d;
}

static double share(uint64_t part, uint64_t all)
{
	return all == 0 ? 0 : (double)part / (double)all;
}

static void print_day(const struct day *d, size_t capacity)
{
	printf("%d sessions, %d workers of %zu blocks: %" PRIu64
	       " turns after the first, home %.3f %%, with the whole prompt %.3f %%; "
	       "prompts that have a place %" PRIu64
	       ", found %.3f %%; that have none %" PRIu64 ", believed %.3f %%\n",
		SESSIONS, WORKERS, capacity, d->turns, 100 * share(d->home, d->turns),
		100 * share(d->whole, d->turns), d->fits,
		100 * share(d->fits_found, d->fits), d->gone,
		100 * share(d->gone_believed, d->gone));
}

START_TEST(c08_sessions_keep_their_home_while_there_is_room)
{
	const size_t capacity = 80000;
	struct day d = live_a_day(capacity);
	struct prefix_index_stats stats;

	print_day(&d, capacity);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.evicted[PREFIX_EVICT_TTL], 0);
	ck_assert_uint_ge(d.turns, 10 * SESSIONS);
	ck_assert(share(d.home, d.turns) >= 0.99);
	ck_assert(share(d.whole, d.turns) >= 0.99);
}
END_TEST

START_TEST(c08_the_least_recently_used_leave_where_there_is_none)
{
	const size_t capacity = 8000;
	struct day d = live_a_day(capacity);
	struct prefix_index_stats stats;

	print_day(&d, capacity);
	pool_index_stats(pool, ROLE_UNIFIED, &stats);
	ck_assert_uint_eq(stats.evicted[PREFIX_EVICT_TTL], 0);
	ck_assert_uint_ge(d.fits, SESSIONS);
	ck_assert_uint_ge(d.gone, SESSIONS);
	ck_assert(share(d.fits_found, d.fits) >= 0.99);
	ck_assert(share(d.gone_believed, d.gone) <= 0.01);
}
END_TEST

static Suite *pool_day_suite(void)
{
	Suite *s = suite_create("pool_day");
	TCase *tc = tcase_create("day");
	tcase_add_checked_fixture(tc, set_up, tear_down);

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, c08_sessions_keep_their_home_while_there_is_room);
	tcase_add_test(tc, c08_the_least_recently_used_leave_where_there_is_none);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(pool_day_suite())
