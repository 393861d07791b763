/*
 * Requests that wait: who is served when, errors that say what is missing, the last
 * resort, breakers among the candidates, and that no wake-up and no slot is lost, with
 * threads that take, wait and drop (run under TSan as well).
 */
#include "base/err.h"
#include "base/rng.h"
#include "tests/unit/unit_model.h"

#include <pthread.h>
#include <semaphore.h>

#define NOW 1000000

static struct pool *pool;

struct client {
	struct pool_waiter waiter;
	struct guard guard;
	struct pool_pick pick;
	unsigned wakes;
	sem_t sem;
};

static struct client clients[16];

static void wake(struct pool_waiter *w)
{
	struct client *c = container_of(w, struct client, waiter);

	c->wakes++;
	sem_post(&c->sem);
}

static bool yes(void *arg, int err)
{
	int *seen = arg;

	if (seen != NULL)
		*seen = err;
	return true;
}

static bool no(void *arg, int err)
{
	(void)arg;
	(void)err;
	return false;
}

static void client_init(struct client *c)
{
	memset(c, 0, sizeof(*c));
	sem_init(&c->sem, 0, 0);
	c->waiter.ask = (struct pool_ask){.role = ROLE_UNIFIED, .now_ms = NOW};
	c->waiter.guard = &c->guard;
	c->waiter.pick = &c->pick;
	c->waiter.wake = wake;
}

static void set_up(void)
{
	unsigned i;

	for (i = 0; i < ARRAY_LEN(clients); i++)
		client_init(&clients[i]);
}

static void tear_down(void)
{
	unsigned i;

	for (i = 0; i < ARRAY_LEN(clients); i++) {
		guard_drop(&clients[i].guard);
		sem_destroy(&clients[i].sem);
	}
	ck_assert_uint_eq(pool_waiting(pool), 0);
	unit_close(pool);
}

static int ask_at(struct client *c, enum priority p, uint64_t now_ms)
{
	c->waiter.ask.now_ms = now_ms;
	return pool_pick_or_wait(pool, &c->waiter, p, yes, NULL);
}

static int ask(struct client *c)
{
	return ask_at(c, PRIORITY_NORMAL, NOW);
}

static void drop(struct client *c)
{
	guard_drop(&c->guard);
	pool_serve(pool, NOW);
}

static void one_worker(const char *extra)
{
	char text[256];

	snprintf(text, sizeof(text), "[worker a]\nurl = http://10.0.0.1:1\n%s", extra);
	pool = unit_pool(text);
}

START_TEST(served_in_order_of_arrival)
{
	unsigned i;

	one_worker("max_requests = 1\n");
	ck_assert_int_eq(ask(&clients[0]), 0);
	for (i = 1; i < 8; i++)
		ck_assert_int_eq(ask(&clients[i]), ERR_AGAIN);
	ck_assert_uint_eq(pool_waiting(pool), 7);
	ck_assert_uint_eq(worker_load(unit_worker(pool, "a")), 1);
	for (i = 0; i < 7; i++) {
		drop(&clients[i]);
		ck_assert_uint_eq(clients[i + 1].wakes, 1);
		ck_assert_ptr_nonnull(clients[i + 1].guard.worker);
		ck_assert_int_eq(pool_wait_end(pool, &clients[i + 1].waiter), 0);
		ck_assert_uint_eq(pool_waiting(pool), 6 - i);
	}
}
END_TEST

START_TEST(nobody_overtakes)
{
	one_worker("max_requests = 1\n");
	ck_assert_int_eq(ask(&clients[0]), 0);
	ck_assert_int_eq(ask(&clients[1]), ERR_AGAIN);
	/* It is free, but was not served yet: the newcomer serves who was there first. */
	guard_drop(&clients[0].guard);
	ck_assert_int_eq(ask(&clients[2]), ERR_AGAIN);
	ck_assert_int_eq(pool_wait_end(pool, &clients[1].waiter), 0);
	ck_assert_int_eq(pool_wait_end(pool, &clients[2].waiter), ERR_AGAIN);
}
END_TEST

START_TEST(who_leaves_frees_the_place)
{
	one_worker("max_requests = 1\n");
	ck_assert_int_eq(ask(&clients[0]), 0);
	ck_assert_int_eq(ask(&clients[1]), ERR_AGAIN);
	ck_assert_int_eq(ask(&clients[2]), ERR_AGAIN);
	ck_assert_int_eq(pool_wait_end(pool, &clients[1].waiter), ERR_AGAIN);
	drop(&clients[0]);
	ck_assert_uint_eq(clients[1].wakes, 0);
	ck_assert_int_eq(pool_wait_end(pool, &clients[2].waiter), 0);
	/* One that was granted and leaves gives it on. */
	ck_assert_int_eq(ask(&clients[3]), ERR_AGAIN);
	ck_assert_int_eq(ask(&clients[4]), ERR_AGAIN);
	drop(&clients[2]);
	ck_assert_int_eq(pool_wait_end(pool, &clients[3].waiter), 0);
	drop(&clients[3]);
	ck_assert_int_eq(pool_wait_end(pool, &clients[4].waiter), 0);
}
END_TEST

START_TEST(priorities_and_promotion)
{
	one_worker("max_requests = 1\n");
	ck_assert_int_eq(ask(&clients[0]), 0);
	ck_assert_int_eq(ask_at(&clients[1], PRIORITY_LOW, NOW), ERR_AGAIN);
	ck_assert_int_eq(ask_at(&clients[2], PRIORITY_NORMAL, NOW), ERR_AGAIN);
	ck_assert_int_eq(ask_at(&clients[3], PRIORITY_HIGH, NOW), ERR_AGAIN);
	drop(&clients[0]);
	ck_assert_int_eq(pool_wait_end(pool, &clients[3].waiter), 0);
	ck_assert_int_eq(ask_at(&clients[4], PRIORITY_HIGH, NOW + QUEUE_PROMOTE_MS * 2),
		ERR_AGAIN);
	guard_drop(&clients[3].guard);
	pool_serve(pool, NOW + QUEUE_PROMOTE_MS * 2);
	ck_assert_int_eq(pool_wait_end(pool, &clients[1].waiter), 0);
	ck_assert_int_eq(pool_wait_end(pool, &clients[2].waiter), ERR_AGAIN);
	ck_assert_int_eq(pool_wait_end(pool, &clients[4].waiter), ERR_AGAIN);
}
END_TEST

/* Who wants another model does not hold up those behind. */
START_TEST(who_cannot_be_served_holds_up_nobody)
{
	pool = unit_pool("[worker a]\nurl = http://10.0.0.1:1\nmax_requests = 1\n"
			 "models = x\n"
			 "[worker b]\nurl = http://10.0.0.2:1\nmax_requests = 1\n"
			 "models = y\n");
	clients[0].waiter.ask.model = clients[2].waiter.ask.model = SPAN_LIT("x");
	clients[1].waiter.ask.model = clients[3].waiter.ask.model = SPAN_LIT("y");
	ck_assert_int_eq(ask(&clients[0]), 0);
	ck_assert_int_eq(ask(&clients[1]), 0);
	ck_assert_int_eq(ask(&clients[2]), ERR_AGAIN);
	ck_assert_int_eq(ask(&clients[3]), ERR_AGAIN);
	drop(&clients[1]);
	ck_assert_int_eq(pool_wait_end(pool, &clients[3].waiter), 0);
	ck_assert_uint_eq(clients[2].wakes, 0);
	drop(&clients[0]);
	ck_assert_int_eq(pool_wait_end(pool, &clients[2].waiter), 0);
}
END_TEST

START_TEST(errors_say_what_is_missing)
{
	struct client *c = &clients[0];
	int seen = 0;

	pool = unit_pool("[worker a]\nurl = http://10.0.0.1:1\nmax_requests = 1\n"
			 "models = x\n"
			 "[worker b]\nurl = http://10.0.0.2:1\nmodels = y\n");
	c->waiter.ask.model = SPAN_LIT("z");
	ck_assert_int_eq(ask(c), ERR_NOENT);
	c->waiter.ask.model = SPAN_LIT("y");
	atomic_store(&unit_worker(pool, "b")->health, WORKER_UNHEALTHY);
	ck_assert_int_eq(pool_pick_or_wait(pool, &c->waiter, PRIORITY_NORMAL, no, NULL),
		ERR_STATE);
	clients[1].waiter.ask.model = SPAN_LIT("x");
	ck_assert_int_eq(ask(&clients[1]), 0);
	c->waiter.ask.model = SPAN_LIT("x");
	ck_assert_int_eq(pool_pick_or_wait(pool, &c->waiter, PRIORITY_NORMAL, no, NULL),
		ERR_LIMIT);
	ck_assert_int_eq(pool_pick_or_wait(pool, &c->waiter, PRIORITY_NORMAL, yes, &seen),
		ERR_AGAIN);
	ck_assert_int_eq(seen, ERR_LIMIT);
	ck_assert_int_eq(pool_wait_end(pool, &c->waiter), ERR_AGAIN);
	c->waiter.ask.pinned = SPAN_LIT("nobody");
	ck_assert_int_eq(ask(c), ERR_PARSE);
}
END_TEST

/* A worker that comes back, or is undrained, serves at once. */
START_TEST(a_worker_that_comes_back_serves)
{
	struct worker *a;

	one_worker("");
	a = unit_worker(pool, "a");
	atomic_store(&a->health, WORKER_UNHEALTHY);
	ck_assert_int_eq(ask(&clients[0]), ERR_AGAIN);
	ck_assert_int_eq(ask(&clients[1]), ERR_AGAIN);
	pool_serve(pool, NOW);
	ck_assert_uint_eq(clients[0].wakes, 0);
	atomic_store(&a->health, WORKER_HEALTHY);
	pool_serve(pool, NOW);
	ck_assert_int_eq(pool_wait_end(pool, &clients[0].waiter), 0);
	ck_assert_int_eq(pool_wait_end(pool, &clients[1].waiter), 0);
}
END_TEST

static const char *last_resort(struct client *c)
{
	guard_drop(&c->guard);
	c->waiter.ask.is_last_resort = true;
	if (pool_pick(pool, &c->waiter.ask, &c->guard, &c->pick) != 0)
		return "none";
	return c->guard.worker->name;
}

static void set_health(const char *name, enum worker_state s)
{
	atomic_store(&unit_worker(pool, name)->health, s);
}

static void open_breaker(const char *name)
{
	struct guard g = {0};
	unsigned i;

	for (i = 0; i < 10; i++) {
		guard_take(&g, unit_worker(pool, name));
		guard_report(&g, OUTCOME_FAILURE, NOW);
		guard_drop(&g);
	}
}

/* Breaker open, degraded, unhealthy, stalled; never starting or draining. */
START_TEST(the_least_bad_one_is_the_last_resort)
{
	struct client *c = &clients[0];

	pool = unit_pool("[worker a]\nurl = http://10.0.0.1:1\n"
			 "[worker b]\nurl = http://10.0.0.2:1\n"
			 "[worker c]\nurl = http://10.0.0.3:1\n"
			 "[worker d]\nurl = http://10.0.0.4:1\n"
			 "[worker e]\nurl = http://10.0.0.5:1\n"
			 "[worker f]\nurl = http://10.0.0.6:1\n");
	set_health("a", WORKER_STALLED);
	set_health("b", WORKER_UNHEALTHY);
	set_health("c", WORKER_DEGRADED);
	open_breaker("d");
	set_health("e", WORKER_STARTING);
	atomic_store(&unit_worker(pool, "f")->is_draining, true);
	ck_assert_int_eq(pool_pick(pool, &c->waiter.ask, &c->guard, &c->pick), ERR_STATE);
	ck_assert_str_eq(last_resort(c), "d");
	ck_assert_int_eq(c->pick.reason, PICK_LEAST_BAD);
	set_health("d", WORKER_STALLED);
	ck_assert_str_eq(last_resort(c), "c");
	set_health("c", WORKER_STALLED);
	ck_assert_str_eq(last_resort(c), "b");
	ck_assert_int_eq(c->pick.reason, PICK_LEAST_BAD);
	set_health("b", WORKER_STARTING);
	ck_assert_str_ne(last_resort(c), "none"); /* one that is stalled */
	set_health("a", WORKER_STARTING);
	set_health("c", WORKER_STARTING);
	set_health("d", WORKER_STARTING);
	ck_assert_str_eq(last_resort(c), "none");
	/* With one that is fit it is an ordinary pick. */
	set_health("b", WORKER_HEALTHY);
	ck_assert_str_eq(last_resort(c), "b");
	ck_assert_int_ne(c->pick.reason, PICK_LEAST_BAD);
}
END_TEST

/* An open breaker is no candidate; half-open it is one at a time; trials come back. */
START_TEST(breakers_among_candidates)
{
	struct client *a = &clients[0], *b = &clients[1];
	struct explain e;

	one_worker("cb_timeout = 1s\ncb_success_threshold = 1\n");
	open_breaker("a");
	ck_assert_int_eq(pool_explain(pool, &a->waiter.ask, &e), 0);
	ck_assert_str_eq(e.candidates[0].out_of_play, "breaker");
	free(e.candidates);
	ck_assert_int_eq(ask(a), ERR_AGAIN);
	pool_serve(pool, NOW + 999);
	ck_assert_uint_eq(a->wakes, 0);
	pool_serve(pool, NOW + 1000);
	ck_assert_int_eq(pool_wait_end(pool, &a->waiter), 0);
	ck_assert(a->guard.ticket.is_trial);
	ck_assert_int_eq(ask_at(b, PRIORITY_NORMAL, NOW + 1001), ERR_AGAIN);
	/* Dropped without a word: neutral, and its place is free for the next. */
	guard_drop(&a->guard);
	pool_serve(pool, NOW + 1002);
	ck_assert_int_eq(pool_wait_end(pool, &b->waiter), 0);
	ck_assert(b->guard.ticket.is_trial);
	ck_assert_int_eq(
		guard_report(&b->guard, OUTCOME_SUCCESS, NOW + 1003), BREAKER_HAS_CLOSED);
	ck_assert_int_eq(
		guard_report(&b->guard, OUTCOME_FAILURE, NOW + 1003), BREAKER_SAME);
	ck_assert_int_eq(ask_at(a, PRIORITY_NORMAL, NOW + 1004), 0);
	ck_assert(!a->guard.ticket.is_trial);
	/* A pause that the worker asked for. */
	breaker_pause(&unit_worker(pool, "a")->breaker, NOW + 5000);
	guard_drop(&a->guard);
	ck_assert_int_eq(pool_explain(pool, &a->waiter.ask, &e), 0);
	ck_assert_str_eq(e.candidates[0].out_of_play, "paused");
	free(e.candidates);
}
END_TEST

/* C04: a worker that rests has answered. Where nobody else is, it serves, at once. */
START_TEST(c04_all_rest_and_nobody_waits)
{
	struct client *c = &clients[0];
	struct pool_ask choosy;

	pool = unit_pool("[worker a]\nurl = http://10.0.0.1:1\n"
			 "[worker b]\nurl = http://10.0.0.2:1\nmax_requests = 1\n");
	breaker_pause(&unit_worker(pool, "a")->breaker, NOW + 5000);
	ck_assert_int_eq(ask(c), 0);
	ck_assert_str_eq(c->guard.worker->name, "b");
	/* The other one is full: a request queues for it, as it would without the pause. */
	ck_assert_int_eq(ask(&clients[1]), ERR_AGAIN);
	guard_drop(&c->guard);
	pool_serve(pool, NOW);
	ck_assert_int_eq(pool_wait_end(pool, &clients[1].waiter), 0);
	guard_drop(&clients[1].guard);
	breaker_pause(&unit_worker(pool, "b")->breaker, NOW + 5000);
	ck_assert_int_eq(ask(c), 0);
	ck_assert_int_eq(c->pick.reason, PICK_LEAST_BAD);
	/* With an answer at hand none is asked that rests. */
	choosy = c->waiter.ask;
	ck_assert_int_eq(pool_may_retry(pool, &choosy, false), RETRY_NOBODY);
	ck_assert_int_eq(pool_may_retry(pool, &choosy, true), RETRY_YES);
}
END_TEST

/* A failed connect puts a worker out at once; a late one sends others elsewhere. */
START_TEST(connects_are_evidence_at_once)
{
	struct client *c = &clients[0];
	struct reach *a, *b;

	pool = unit_pool("[worker a]\nurl = http://10.0.0.1:1\n"
			 "[worker b]\nurl = http://10.0.0.2:1\n");
	a = &unit_worker(pool, "a")->reach;
	b = &unit_worker(pool, "b")->reach;
	ck_assert(reach_dial(a, &(struct reach_seen){0}, NOW));
	ck_assert(!reach_is_late(a, NOW + REACH_LATE_MS - 1));
	ck_assert(reach_is_late(a, NOW + REACH_LATE_MS));
	c->waiter.ask.now_ms = NOW + REACH_LATE_MS;
	ck_assert_int_eq(pool_pick(pool, &c->waiter.ask, &c->guard, &c->pick), 0);
	ck_assert_str_eq(c->guard.worker->name, "b");
	guard_drop(&c->guard);
	ck_assert(reach_dial(b, &(struct reach_seen){0}, NOW));
	ck_assert(reach_end(b, DIAL_FAILED, NOW));
	/* Nobody else is there: one whose packet was lost is better than none. */
	ck_assert_int_eq(pool_pick(pool, &c->waiter.ask, &c->guard, &c->pick), 0);
	ck_assert_str_eq(c->guard.worker->name, "a");
	guard_drop(&c->guard);
	ck_assert(reach_end(a, DIAL_FAILED, NOW));
	ck_assert_int_eq(pool_pick(pool, &c->waiter.ask, &c->guard, &c->pick), ERR_STATE);
	ck_assert_str_ne(last_resort(c), "none");
	/* A connect that succeeds ends it, and so does a probe. */
	ck_assert(reach_dial(a, &(struct reach_seen){0}, NOW));
	ck_assert(!reach_end(a, DIAL_OK, NOW));
	ck_assert(!reach_is_doubted(a));
	ck_assert(reach_prove(b));
	ck_assert(!reach_prove(b));
}
END_TEST

/* Breakers that stay open for longer than no_worker_wait: nobody waits for them. */
START_TEST(a_wait_in_vain_is_none)
{
	struct client *c = &clients[0];

	pool = unit_pool("[pool default]\ncb_timeout = 60s\nno_worker_wait = 5s\n"
			 "[worker a]\nurl = http://10.0.0.1:1\n"
			 "[worker b]\nurl = http://10.0.0.2:1\n");
	open_breaker("a");
	open_breaker("b");
	ck_assert_int_eq(ask(c), ERR_STATE);
	ck_assert_str_ne(last_resort(c), "none");
	guard_drop(&c->guard);
	c->waiter.ask.is_last_resort = false;
	/* With five seconds left it may be back in time. */
	ck_assert_int_eq(ask_at(c, PRIORITY_NORMAL, NOW + 56000), ERR_AGAIN);
	ck_assert_int_eq(pool_wait_end(pool, &c->waiter), ERR_AGAIN);
	/* One that misses its probes may be back with the next. */
	set_health("b", WORKER_UNHEALTHY);
	ck_assert_int_eq(ask(c), ERR_AGAIN);
	ck_assert_int_eq(pool_wait_end(pool, &c->waiter), ERR_AGAIN);
}
END_TEST

/* The process's cap, over pools. */
START_TEST(slots_of_the_process)
{
	struct slots slots = {0};
	unsigned i;

	one_worker("");
	for (i = 0; i < 3; i++) {
		clients[i].waiter.ask.slots = &slots;
		clients[i].waiter.ask.max_slots = 2;
	}
	ck_assert_int_eq(ask(&clients[0]), 0);
	ck_assert_int_eq(ask(&clients[1]), 0);
	ck_assert_int_eq(ask(&clients[2]), ERR_AGAIN);
	ck_assert_uint_eq(slots.taken, 2);
	drop(&clients[1]);
	ck_assert_int_eq(pool_wait_end(pool, &clients[2].waiter), 0);
	ck_assert_uint_eq(slots.taken, 2);
	guard_drop(&clients[0].guard);
	guard_drop(&clients[2].guard);
	ck_assert_uint_eq(slots.taken, 0);
}
END_TEST

/* A worker that leaves takes with it what only it could have served; others wait on. */
START_TEST(nobody_waits_for_a_worker_that_left)
{
	struct client *homed = &clients[2], *any = &clients[3], *late = &clients[4];

	pool = unit_pool("[worker a]\nurl = http://10.0.0.1:1\nmax_requests = 1\n"
			 "[worker b]\nurl = http://10.0.0.2:1\nmax_requests = 1\n");
	homed->waiter.ask.home = unit_worker(pool, "a")->host_id;
	ck_assert_int_eq(ask(&clients[0]), 0);
	ck_assert_int_eq(ask(&clients[1]), 0);
	ck_assert_int_eq(ask(homed), ERR_AGAIN);
	ck_assert_int_eq(ask(any), ERR_AGAIN);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("a")), 0);
	pool_serve(pool, NOW);
	ck_assert_uint_eq(homed->wakes, 1);
	ck_assert_int_eq(pool_wait_end(pool, &homed->waiter), ERR_NOENT);
	ck_assert_ptr_null(homed->guard.worker);
	ck_assert_uint_eq(any->wakes, 0);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("b")), 0);
	/* Whoever asks next serves the queue, too. */
	ck_assert_int_eq(ask(late), ERR_NOENT);
	ck_assert_uint_eq(any->wakes, 1);
	ck_assert_int_eq(pool_wait_end(pool, &any->waiter), ERR_NOENT);
}
END_TEST

/* What a worker has completed says nothing of the others when it leaves. */
START_TEST(the_rate_outlives_a_worker)
{
	pool = unit_pool("[worker a]\nurl = http://10.0.0.1:1\n"
			 "[worker b]\nurl = http://10.0.0.2:1\n");
	pool_sweep(pool, NOW);
	atomic_store(&unit_worker(pool, "a")->guard.completions, 1000);
	atomic_store(&unit_worker(pool, "b")->guard.completions, 8);
	pool_sweep(pool, NOW + 1000);
	ck_assert_double_eq(pool_finish_rate(pool), 504);
	ck_assert_int_eq(pool_remove_worker(pool, SPAN_LIT("a")), 0);
	atomic_store(&unit_worker(pool, "b")->guard.completions, 16);
	pool_sweep(pool, NOW + 2000);
	ck_assert_double_eq(pool_finish_rate(pool), 256);
}
END_TEST

/* ---- threads ---- */

#define THREADS 4
#define TURNS 3000

static _Atomic unsigned in_flight, served, left;

static void *take_and_drop(void *arg)
{
	struct client c;
	struct rng rng;
	unsigned i;

	metric_thread_start();
	rng_seed(&rng, (uint64_t)(uintptr_t)arg);
	client_init(&c);
	for (i = 0; i < TURNS; i++) {
		int err = ask(&c);
		bool is_leaving = rng_below(&rng, 8) == 0;

		if (err == ERR_AGAIN) {
			if (!is_leaving)
				while (sem_wait(&c.sem) != 0)
					;
			if (pool_wait_end(pool, &c.waiter) != 0) {
				WANT(is_leaving);
				atomic_fetch_add(&left, 1);
				continue;
			}
			if (is_leaving) /* granted all the same: its letter came */
				while (sem_wait(&c.sem) != 0)
					;
		} else {
			WANT(err == 0);
		}
		WANT(atomic_fetch_add(&in_flight, 1) < 2);
		atomic_fetch_sub(&in_flight, 1);
		atomic_fetch_add(&served, 1);
		drop(&c);
	}
	sem_destroy(&c.sem);
	return NULL;
}

/* A wake-up that is lost hangs here: nobody else would serve the last one. */
START_TEST(no_wake_up_is_lost)
{
	pthread_t threads[THREADS];
	uintptr_t i;

	one_worker("max_requests = 2\n");
	served = left = 0;
	for (i = 0; i < THREADS; i++)
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, take_and_drop, (void *)(i + 1)),
			0);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(served + left, THREADS * TURNS);
}
END_TEST

/* Each look at a worker asks its breaker. */
static unsigned looks;

bool __real_breaker_admits(struct breaker *b, uint64_t now_ms);
bool __wrap_breaker_admits(struct breaker *b, uint64_t now_ms);

bool __wrap_breaker_admits(struct breaker *b, uint64_t now_ms)
{
	looks++;
	return __real_breaker_admits(b, now_ms);
}

/* While all slots of the process are taken nobody who waits costs a look at a worker; one
 * who may have more of them, since a reload, is not held up by those before it. */
START_TEST(no_worker_is_looked_at_in_vain)
{
	struct slots slots = {0};
	unsigned i;

	one_worker("");
	for (i = 0; i < 12; i++) {
		clients[i].waiter.ask.slots = &slots;
		clients[i].waiter.ask.max_slots = i < 11 ? 2 : 3;
	}
	for (i = 0; i < 11; i++)
		ck_assert_int_eq(ask(&clients[i]), i < 2 ? 0 : ERR_AGAIN);
	looks = 0;
	pool_serve(pool, NOW);
	ck_assert_uint_eq(looks, 0);
	ck_assert_int_eq(ask(&clients[11]), 0);
	ck_assert_uint_eq(looks, 1);
	drop(&clients[0]); /* two are taken, still */
	ck_assert_uint_eq(looks, 1);
	drop(&clients[11]);
	ck_assert_uint_eq(looks, 2);
	ck_assert_int_eq(pool_wait_end(pool, &clients[2].waiter), 0);
	ck_assert_uint_eq(slots.taken, 2);
	for (i = 3; i < 11; i++)
		ck_assert_int_eq(pool_wait_end(pool, &clients[i].waiter), ERR_AGAIN);
}
END_TEST

static Suite *pool_wait_suite(void)
{
	Suite *s = suite_create("pool_wait");
	TCase *c = tcase_create("pool_wait");

	tcase_set_timeout(c, 120);
	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_test(c, served_in_order_of_arrival);
	tcase_add_test(c, nobody_overtakes);
	tcase_add_test(c, who_leaves_frees_the_place);
	tcase_add_test(c, priorities_and_promotion);
	tcase_add_test(c, who_cannot_be_served_holds_up_nobody);
	tcase_add_test(c, errors_say_what_is_missing);
	tcase_add_test(c, a_worker_that_comes_back_serves);
	tcase_add_test(c, the_least_bad_one_is_the_last_resort);
	tcase_add_test(c, breakers_among_candidates);
	tcase_add_test(c, c04_all_rest_and_nobody_waits);
	tcase_add_test(c, connects_are_evidence_at_once);
	tcase_add_test(c, a_wait_in_vain_is_none);
	tcase_add_test(c, slots_of_the_process);
	tcase_add_test(c, no_worker_is_looked_at_in_vain);
	tcase_add_test(c, nobody_waits_for_a_worker_that_left);
	tcase_add_test(c, the_rate_outlives_a_worker);
	tcase_add_test(c, no_wake_up_is_lost);
	suite_add_tcase(s, c);
	return s;
}

UNIT_MAIN(pool_wait_suite())
