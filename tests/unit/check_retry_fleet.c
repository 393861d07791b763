/*
 * Whether the retry budget suits a fleet: played in virtual time with a real pool, its
 * breakers and its budget at their default settings. Two workers of which one dies: no
 * client sees an error until the breaker or the probes have put it out, and none after
 * that. All workers dead: retries stay within what the budget promises.
 */
#include "base/err.h"
#include "policy/routing_key.h"
#include "pool/retry.h"
#include "tests/unit/unit_model.h"

#define START_MS 1000000
#define RUN_MS 60000
#define ANSWER_MS 400      /* an answer takes this long */
#define UNHEALTHY_MS 18500 /* three probes, 5 s and a tenth apart, the last 2 s long */
#define FLIGHTS 1024
#define STEP_MS 5 /* of the clock */

/* How a dead worker fails, and how long that takes to show. */
static const struct {
	const char *name;
	uint64_t ms;
} deaths[] = {{"refuses", 5}, {"is not there", 2000}};

static const char *const policies[] = {"least_requests", "round_robin", "power_of_two",
	"random", "cache_aware", "consistent_hash"};
static const unsigned rates[] = {1, 2, 5, 10, 20, 50};

/* One request with a worker. */
struct flight {
	struct guard guard;
	uint64_t ends_ms;
	uint64_t tried[8];
	unsigned n_tried;
};

struct fleet {
	const char *policy;
	unsigned n, n_dead; /* w0 and on, from dies_ms on */
	unsigned rate;      /* requests a second */
	bool in_bursts;     /* all of a second's at once */
	const char *lines;  /* more of its pool */
	uint64_t dies_ms, failure_ms;

	/* The play's. */
	struct pool *pool;
	/* Of all requests alike: policies that go by these prefer one worker, w0. */
	struct route_key key;
	struct routing routing;
	uint64_t now_ms;
	unsigned requests, retries, errors;
	struct flight flights[FLIGHTS];
	unsigned n_flights; /* used of these, at most */
};

static bool is_dead(const struct fleet *f, const struct worker *w)
{
	return f->now_ms >= START_MS + f->dies_ms &&
	       (unsigned)atoi(w->name + 1) < f->n_dead;
}

static struct flight *free_flight(struct fleet *f)
{
	unsigned i = 0;

	while (i < f->n_flights && f->flights[i].guard.worker != NULL)
		i++;
	WANT(i < FLIGHTS);
	f->n_flights = MAX(f->n_flights, i + 1);
	return &f->flights[i];
}

static struct pool_ask ask_of(struct fleet *f, const struct flight *at)
{
	return (struct pool_ask){.role = ROLE_UNIFIED,
		.key = &f->key,
		.routing = &f->routing,
		.tried = at->tried,
		.n_tried = at->n_tried,
		.now_ms = f->now_ms};
}

static void fly(struct fleet *f, struct flight *at)
{
	struct pool_ask ask = ask_of(f, at);
	struct pool_pick pick;

	if (pool_pick(f->pool, &ask, &at->guard, &pick) != 0) {
		f->errors++;
		return;
	}
	at->ends_ms =
		f->now_ms + (is_dead(f, at->guard.worker) ? f->failure_ms : ANSWER_MS);
}

/* As the proxy does: it counts, the worker is among the tried, and the pool says whether
 * there is another try. */
static void fail_over(struct fleet *f, struct flight *at)
{
	struct pool_ask ask;

	at->tried[at->n_tried++] = at->guard.worker->id;
	guard_report(&at->guard, OUTCOME_FAILURE, f->now_ms);
	guard_drop(&at->guard);
	ask = ask_of(f, at);
	if (pool_may_retry(f->pool, &ask, true) != RETRY_YES) {
		f->errors++;
		return;
	}
	f->retries++;
	fly(f, at);
}

static void end_flights(struct fleet *f)
{
	for (unsigned i = 0; i < f->n_flights; i++) {
		struct flight *at = &f->flights[i];

		if (at->guard.worker == NULL || at->ends_ms > f->now_ms)
			continue;
		if (is_dead(f, at->guard.worker)) {
			fail_over(f, at);
			continue;
		}
		guard_report(&at->guard, OUTCOME_SUCCESS, f->now_ms);
		guard_drop(&at->guard);
	}
}

static void begin_flights(struct fleet *f, uint64_t ms)
{
	unsigned every_ms = f->in_bursts ? 1000 : 1000 / f->rate;
	unsigned n = f->in_bursts ? f->rate : 1;

	for (; ms % every_ms == 0 && n > 0; n--) {
		struct flight *at = free_flight(f);

		at->n_tried = 0;
		f->requests++;
		fly(f, at);
	}
}

/* What the control thread does. */
static void probe(struct fleet *f, uint64_t ms)
{
	char name[16];

	for (unsigned i = 0; ms == f->dies_ms + UNHEALTHY_MS && i < f->n_dead; i++) {
		snprintf(name, sizeof(name), "w%u", i);
		atomic_store(&unit_worker(f->pool, name)->health, WORKER_UNHEALTHY);
	}
}

/* Gives it a key whose first worker is w0. */
static void find_routing(struct fleet *f)
{
	struct guard g = {0};
	struct pool_pick pick;
	bool is_found = false;

	f->routing.any.from = ROUTING_HEADER;
	f->now_ms = START_MS;
	while (!is_found) {
		struct flight none = {0};
		struct pool_ask ask = ask_of(f, &none);

		f->routing.point += UINT64_C(0x9e3779b97f4a7c15);
		ck_assert_int_eq(pool_pick(f->pool, &ask, &g, &pick), 0);
		is_found = strcmp(g.worker->name, "w0") == 0;
		guard_drop(&g);
	}
}

static void play(struct fleet *f, bool with_probes)
{
	char lines[256];

	snprintf(lines, sizeof(lines), "policy = %s\n%s", f->policy,
		f->lines != NULL ? f->lines : "");
	f->pool = unit_pool_of(f->n, lines);
	f->key = unit_sealed(f->pool, 7, 20, 7, 20);
	find_routing(f);
	for (uint64_t ms = 0; ms < RUN_MS; ms += STEP_MS) {
		f->now_ms = START_MS + ms;
		if (with_probes)
			probe(f, ms);
		end_flights(f);
		begin_flights(f, ms);
	}
	for (unsigned i = 0; i < f->n_flights; i++)
		guard_drop(&f->flights[i].guard);
	route_key_free(&f->key);
	unit_close(f->pool);
}

static void one_dies(const char *policy, unsigned rate, unsigned death, uint64_t dies_ms,
	bool in_bursts)
{
	static struct fleet f;

	f = (struct fleet){.policy = policy,
		.n = 2,
		.n_dead = 1,
		.rate = rate,
		.in_bursts = in_bursts,
		.dies_ms = dies_ms,
		.failure_ms = deaths[death].ms};
	play(&f, true);
	ck_assert_uint_ge(f.requests, rate * RUN_MS / 1000);
	ck_assert_msg(f.errors == 0,
		"%s: one %s from %u ms on, %u a second%s: %u errors, %u retries", policy,
		deaths[death].name, (unsigned)dies_ms, rate,
		in_bursts ? " in bursts" : "", f.errors, f.retries);
}

/* Whatever the rate, and whether it was busy before or has just come. */
START_TEST(one_of_two_dies_and_no_client_notices)
{
	static const uint64_t dies_ms[] = {0, 100, 30000};
	unsigned rate, death, dies, bursts;

	for (rate = 0; rate < ARRAY_LEN(rates); rate++)
		for (death = 0; death < ARRAY_LEN(deaths); death++)
			for (dies = 0; dies < ARRAY_LEN(dies_ms); dies++)
				for (bursts = 0; bursts < 2; bursts++)
					one_dies(policies[_i], rates[rate], death,
						dies_ms[dies], bursts);
}
END_TEST

/* All are dead, and no breaker helps: what is sent there, beyond what clients send, stays
 * within the share and RETRY_MIN each RETRY_WINDOW_MS, at low rates and at high ones. */
START_TEST(a_fleet_that_fails_is_not_stormed)
{
	static const unsigned storms[] = {1, 10, 50, 200};
	static struct fleet f;

	f = (struct fleet){.policy = "least_requests",
		.lines = "cb_failure_threshold = 1000000000\n",
		.n = 4,
		.n_dead = 4,
		.rate = storms[_i],
		.failure_ms = deaths[0].ms};
	play(&f, false);
	ck_assert_uint_ge(f.errors + 1, f.requests);
	ck_assert_uint_le(
		f.retries, f.requests / 5 + RETRY_MIN * (RUN_MS / RETRY_WINDOW_MS + 1));
	ck_assert_uint_le(f.retries, 3 * f.requests); /* the other workers */
}
END_TEST

static Suite *retry_fleet_suite(void)
{
	Suite *s = suite_create("retry_fleet");
	TCase *tc = tcase_create("retry_fleet");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(
		tc, one_of_two_dies_and_no_client_notices, 0, (int)ARRAY_LEN(policies));
	tcase_add_loop_test(tc, a_fleet_that_fails_is_not_stormed, 0, 4);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(retry_fleet_suite())
