/*
 * One exchange with a worker: connecting, sending, deadlines, the end; and the pool of
 * idle connections. Its answer is read in upstream_read.c. See upstream.h.
 */
#include "proxy/upstream.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/metric.h"
#include "base/poison.h"
#include "http/http_scan.h"
#include "io/loop.h"
#include "io/resolve.h"
#include "io/stream.h"
#include "io/wheel.h"
#include "proxy/io_thread.h"
#include "proxy/upstream_state.h"
#include "worker/worker.h"

#include <stdlib.h>

#define IDLE_BUCKETS 64
#define FREE_EXCHANGES_MAX 256

TAILQ_HEAD(idle_list, upstream_conn);

struct upstream_idle {
	struct io_thread *t;
	struct idle_list buckets[IDLE_BUCKETS];
};

static void dial_is_over(struct exchange *ex, int err);
static void send_more(struct exchange *ex);
static void on_timer(void *arg);
static void look_at_dial(void *arg);

/* ---- connections ---- */

static void upstream_conn_destroy(struct reap *r)
{
	struct upstream_conn *uc = container_of(r, struct upstream_conn, reap);

	uc->magic = 0;
	free(uc);
}

/* The first failure that casts doubt is told: the worker is probed at once. */
static void end_dial(struct upstream_conn *uc, enum dial_end end)
{
	struct process *p = uc->t->process;

	if (!uc->is_dialing)
		return;
	uc->is_dialing = false;
	if (reach_end(&uc->worker->reach, end, clock_now_ms()) && p->tell_doubt != NULL)
		p->tell_doubt(p->tell_arg);
	dial_line_call(p, uc->worker);
}

static void upstream_conn_close(struct upstream_conn *uc)
{
	end_dial(uc, DIAL_LEFT);
	wheel_stop(uc->t->wheel, &uc->timer);
	stream_close(&uc->stream);
	metric_add(METRIC_CONN_WORKER, -1);
	worker_unref(uc->worker);
	uc->worker = NULL;
	loop_reap(uc->t->loop, &uc->reap, upstream_conn_destroy);
}

static void idle_remove(struct upstream_conn *uc)
{
	struct upstream_idle *idle = uc->t->idle;

	TAILQ_REMOVE(&idle->buckets[uc->worker->id % IDLE_BUCKETS], uc, link);
}

static void idle_close(struct upstream_conn *uc)
{
	idle_remove(uc);
	upstream_conn_close(uc);
}

static struct upstream_conn *idle_take(struct upstream_idle *idle, const struct worker *w)
{
	unsigned epoch = atomic_load_explicit(&w->addr_epoch, memory_order_relaxed);
	struct upstream_conn *uc = TAILQ_FIRST(&idle->buckets[w->id % IDLE_BUCKETS]),
			     *next;

	for (; uc != NULL; uc = next) {
		next = TAILQ_NEXT(uc, link);
		if (uc->worker != w)
			continue;
		if (uc->addr_epoch == epoch) {
			idle_remove(uc);
			return uc;
		}
		idle_close(uc); /* its name stands for other addresses now */
	}
	return NULL;
}

static void idle_put(struct upstream_conn *uc, uint64_t idle_ms)
{
	struct upstream_idle *idle = uc->t->idle;

	uc->ex = NULL;
	/* The most recently used is taken first: the others grow old and go. */
	TAILQ_INSERT_HEAD(&idle->buckets[uc->worker->id % IDLE_BUCKETS], uc, link);
	wheel_set(uc->t->wheel, &uc->timer, clock_now_ms() + idle_ms);
}

/* While the client is awaited, to read or to send, silence is not the worker's: it is
 * counted whenever one of these changes. */
static void note_held(struct exchange *ex)
{
	bool is_held = ex->uc != NULL && !ex->is_last &&
		       (ex->is_paused || (ex->o.in_pieces && !ex->piece.last));

	if (is_held == ex->is_held)
		return;
	ex->is_held = is_held;
	atomic_fetch_add_explicit(
		&ex->worker->relay.held, is_held ? 1u : -1u, memory_order_relaxed);
}

/* With the last of its addresses the worker is in doubt, unless this machine is short. */
static void dial_failed(struct exchange *ex, int err)
{
	ex->is_ours |= err == ERR_LIMIT || err == ERR_NOMEM;
	if (ex->uc != NULL && ex->addrs_left == 0 && !ex->is_ours)
		end_dial(ex->uc, DIAL_FAILED);
}

static void on_connected(void *arg, int err)
{
	struct upstream_conn *uc = arg;
	struct exchange *ex = uc->ex;

	assert(uc->magic == UPSTREAM_MAGIC && ex != NULL);
	if (err != 0) {
		dial_is_over(ex, err);
		return;
	}
	end_dial(uc, DIAL_OK);
	ex->was_connected = true;
	ex->phase = PHASE_HEAD;
	exchange_await_first_byte(ex);
	if (ex->o.in_pieces)
		ex->wake(ex->arg);
	else
		send_more(ex);
}

static void on_readable(void *arg)
{
	struct upstream_conn *uc = arg;

	assert(uc->magic == UPSTREAM_MAGIC);
	if (uc->ex == NULL) {
		/* Idle: EOF, or a byte nobody asked for (a 408 as it closes). Either way
		 * it is done. */
		idle_close(uc);
		return;
	}
	uc->ex->can_read = true;
	uc->ex->wake(uc->ex->arg);
}

static void on_writable(void *arg)
{
	struct upstream_conn *uc = arg;

	assert(uc->magic == UPSTREAM_MAGIC);
	if (uc->ex == NULL)
		return;
	send_more(uc->ex);
	if (exchange_wants_piece(uc->ex))
		uc->ex->wake(uc->ex->arg);
}

static void on_peer_closed(void *arg)
{
	/* While paused for a slow client: what the worker sent before is still to be
	 * read, and the end shows then. */
	(void)arg;
}

static const struct stream_ops stream_ops = {
	on_connected, on_readable, on_writable, on_peer_closed};

static struct upstream_conn *upstream_conn_new(struct io_thread *t, struct worker *w)
{
	struct upstream_conn *uc = calloc(1, sizeof(*uc));

	if (uc == NULL)
		return NULL;
	uc->magic = UPSTREAM_MAGIC;
	uc->t = t;
	uc->worker = worker_ref(w);
	stream_init(&uc->stream, t->loop, &stream_ops, uc);
	wheel_timer_init(&uc->timer, on_timer, uc);
	metric_inc(METRIC_CONN_WORKER);
	return uc;
}

struct upstream_idle *upstream_idle_new(struct io_thread *t)
{
	struct upstream_idle *idle = calloc(1, sizeof(*idle));
	unsigned i;

	if (idle == NULL)
		return NULL;
	idle->t = t;
	for (i = 0; i < IDLE_BUCKETS; i++)
		TAILQ_INIT(&idle->buckets[i]);
	return idle;
}

void upstream_idle_close_all(struct upstream_idle *idle)
{
	unsigned i;

	for (i = 0; i < IDLE_BUCKETS; i++) {
		while (!TAILQ_EMPTY(&idle->buckets[i]))
			idle_close(TAILQ_FIRST(&idle->buckets[i]));
	}
}

void upstream_idle_tidy(struct upstream_idle *idle)
{
	struct upstream_conn *uc, *next;
	unsigned i;

	for (i = 0; i < IDLE_BUCKETS; i++) {
		TAILQ_FOREACH_SAFE(uc, &idle->buckets[i], link, next)
		{
			if (atomic_load(&uc->worker->is_removed))
				idle_close(uc);
		}
	}
}

void upstream_idle_free(struct upstream_idle *idle)
{
	if (idle == NULL)
		return;
	upstream_idle_close_all(idle);
	free(idle);
}

/* ---- deadlines ---- */

/* The earlier of the phase's limit, counted from now, and of the whole; 0: neither is
 * set. An answer that has come whole has no deadline: its client is awaited. */
static uint64_t due_ms(const struct exchange *ex, uint64_t limit_ms)
{
	uint64_t due = limit_ms > 0 ? clock_now_ms() + limit_ms : ex->o.total_due_ms;

	if (ex->is_last)
		return 0;
	return ex->o.total_due_ms > 0 ? MIN(due, ex->o.total_due_ms) : due;
}

static void set_timer(struct exchange *ex, uint64_t due)
{
	if (due > 0)
		wheel_set(ex->t->wheel, &ex->uc->timer, due);
	else
		wheel_stop(ex->t->wheel, &ex->uc->timer);
}

void exchange_watch(struct exchange *ex, uint64_t limit_ms)
{
	set_timer(ex, due_ms(ex, limit_ms));
}

/* Until then at the latest what is held back is held back. */
static uint64_t hold_due_ms(const struct exchange *ex)
{
	return ex->held_ms + (ex->is_error ? EXCHANGE_HOLD_ERROR_MS : EXCHANGE_HOLD_MS);
}

static bool is_held_long(const struct exchange *ex)
{
	return ex->is_holding && ex->held_ms > 0 && clock_now_ms() >= hold_due_ms(ex);
}

static bool is_overlong(const struct exchange *ex)
{
	return ex->o.total_due_ms > 0 && clock_now_ms() >= ex->o.total_due_ms;
}

static uint64_t engine_steps(const struct exchange *ex)
{
	return atomic_load_explicit(
		&ex->worker->report.engine_steps, memory_order_relaxed);
}

/* It is one like any other from now on; what was held back for the trial alone is handed
 * on. */
static void end_trial(struct exchange *ex)
{
	ex->late = EXCHANGE_TRIAL_OVER;
	ex->o.trial_timeout_ms = 0;
	ex->is_holding &= ex->o.holds;
	if (exchange_was_silent(ex) || ex->awaits_content)
		exchange_await_first_byte(ex);
	else
		exchange_watch(ex, ex->o.stream_idle_timeout_ms);
}

/* An answer that comes whole says nothing before: its engine may. */
static void trial_timed_out(struct exchange *ex)
{
	uint64_t waited_ms = ex->o.trial_timeout_ms,
		 *limit_ms = &ex->o.first_byte_timeout_ms;
	bool is_late = *limit_ms > 0 && *limit_ms <= waited_ms;
	uint64_t steps = engine_steps(ex);

	if (*limit_ms > 0) /* 0 would be no limit */
		*limit_ms = is_late ? 1 : *limit_ms - waited_ms;
	if (!is_late && exchange_was_silent(ex) && steps != ex->steps_seen) {
		ex->steps_seen = steps;
		exchange_await_first_byte(ex);
		return;
	}
	end_trial(ex);
	ex->wake(ex->arg);
}

/* The answer has begun and is silent: its engine may hold back what it makes, a tool's
 * argument until it closes. While its counter grows that is waited for as for a first
 * byte. */
static bool prolong_silence(struct exchange *ex)
{
	uint64_t now_ms = clock_now_ms(), limit_ms = ex->o.first_byte_timeout_ms;
	uint64_t until_ms = atomic_load_explicit(
		&ex->worker->report.engine_until_ms, memory_order_relaxed);

	if (ex->silent_ms == 0)
		ex->silent_ms = now_ms - MIN(now_ms, ex->o.stream_idle_timeout_ms);
	if (limit_ms > 0)
		until_ms = MIN(until_ms, ex->silent_ms + limit_ms);
	if (until_ms <= now_ms)
		return false;
	exchange_watch(ex, until_ms - now_ms);
	return true;
}

static bool is_computing(const struct exchange *ex)
{
	return atomic_load_explicit(&ex->worker->report.engine_until_ms,
		       memory_order_relaxed) > clock_now_ms();
}

static void fell_silent(struct exchange *ex)
{
	bool is_inside = ex->phase == PHASE_BODY && !ex->awaits_content;

	if (is_inside && prolong_silence(ex))
		return;
	ex->is_excused = is_inside || is_computing(ex);
	exchange_fail(ex, FAIL_WORKER_TIMEOUT);
	ex->wake(ex->arg);
}

static void on_timer(void *arg)
{
	struct upstream_conn *uc = arg;
	struct exchange *ex = uc->ex;

	assert(uc->magic == UPSTREAM_MAGIC);
	if (ex == NULL) {
		idle_close(uc);
		return;
	}
	ex->is_overlong = is_overlong(ex);
	if (!ex->is_overlong && is_held_long(ex)) {
		ex->is_holding = false;
		exchange_await_content(ex);
		ex->wake(ex->arg);
		return;
	}
	if (!ex->is_overlong && ex->phase == PHASE_CONNECT) {
		look_at_dial(ex);
		return;
	}
	if (!ex->is_overlong && exchange_is_trial(ex)) {
		trial_timed_out(ex);
		return;
	}
	if (!ex->is_overlong) {
		fell_silent(ex);
		return;
	}
	exchange_fail(ex, FAIL_WORKER_TIMEOUT);
	ex->wake(ex->arg);
}

static size_t piece_bytes(const struct exchange_piece *p)
{
	return p->before.n + p->data.n + p->after.n;
}

/* All that was given is taken. */
static bool is_taken(const struct exchange *ex)
{
	return ex->head_sent == ex->o.head.n && ex->piece_sent == piece_bytes(&ex->piece);
}

static bool is_sent(const struct exchange *ex)
{
	return ex->piece.last && is_taken(ex);
}

void exchange_await_first_byte(struct exchange *ex)
{
	bool is_worker_due = ex->piece.last || !is_taken(ex);
	uint64_t wait_ms = ex->o.trial_timeout_ms > 0 ? ex->o.trial_timeout_ms
						      : ex->o.first_byte_timeout_ms;

	ex->first_due_ms = is_worker_due && wait_ms > 0 ? clock_now_ms() + wait_ms : 0;
	exchange_await_content(ex);
}

static uint64_t earlier(uint64_t a_ms, uint64_t b_ms)
{
	return a_ms == 0 || b_ms == 0 ? MAX(a_ms, b_ms) : MIN(a_ms, b_ms);
}

void exchange_await_content(struct exchange *ex)
{
	/* An error's first byte has come. */
	uint64_t first_due = ex->is_error ? 0 : ex->first_due_ms;
	uint64_t due = earlier(first_due, ex->o.total_due_ms);

	if (ex->is_holding && ex->held_ms > 0)
		due = earlier(due, hold_due_ms(ex));
	set_timer(ex, ex->is_last ? 0 : due);
}

/* ---- connecting and sending ---- */

static const union sock_addr *address_at_hand(const struct exchange *ex)
{
	return &ex->addrs->addrs[(ex->addr_next - 1) % ex->addrs->n];
}

/* True: it may begin now. Else it waits for what the first connects bring. */
static bool may_dial(struct exchange *ex)
{
	struct reach *reach = &ex->worker->reach;
	uint64_t now_ms = clock_now_ms();

	if (reach_dial(reach, &ex->o.reach_seen, now_ms))
		return true;
	dial_line_join(ex->t->dial_line, &ex->dial_place, ex->worker);
	return !reach_has_failed(reach, &ex->o.reach_seen) &&
	       reach_dial(reach, &ex->o.reach_seen, now_ms);
}

static int dial(struct exchange *ex)
{
	uint64_t due_ms = earlier(ex->connect_due_ms, ex->o.total_due_ms);

	if (!may_dial(ex)) {
		/* It may have joined too late to be called. */
		if (reach_has_failed(&ex->worker->reach, &ex->o.reach_seen))
			due_ms = clock_now_ms();
		else if (!ex->has_told_late)
			due_ms = earlier(due_ms, ex->began_connecting_ms + REACH_LATE_MS);
		set_timer(ex, due_ms);
		return 0;
	}
	dial_line_leave(&ex->dial_place);
	ex->uc->is_dialing = true;
	ex->was_dialed = true;
	set_timer(ex, due_ms);
	return stream_connect(&ex->uc->stream, address_at_hand(ex));
}

static int connect_to(struct exchange *ex)
{
	uint64_t now_ms = clock_now_ms(), limit_ms = ex->o.connect_timeout_ms;

	ex->uc = upstream_conn_new(ex->t, ex->worker);
	if (ex->uc == NULL)
		return ERR_NOMEM;
	ex->uc->ex = ex;
	ex->uc->addr_epoch = ex->addr_epoch;
	ex->connect_due_ms = limit_ms > 0 ? now_ms + limit_ms : 0;
	note_held(ex);
	return dial(ex);
}

static void drop_connection(struct exchange *ex)
{
	struct upstream_conn *uc = ex->uc;

	dial_line_leave(&ex->dial_place);
	if (uc == NULL)
		return;
	ex->uc = NULL;
	note_held(ex); /* before the worker's reference may go */
	uc->ex = NULL;
	upstream_conn_close(uc);
}

/* Fails the exchange when no address is left. */
static void try_next_address(struct exchange *ex)
{
	int err;

	drop_connection(ex);
	while (ex->addrs_left > 0) {
		ex->addr_next++;
		ex->addrs_left--;
		err = connect_to(ex);
		if (err == 0)
			return;
		dial_failed(ex, err);
		drop_connection(ex);
	}
	exchange_fail(ex, FAIL_WORKER_UNREACHABLE);
}

static void dial_is_over(struct exchange *ex, int err)
{
	dial_failed(ex, err);
	try_next_address(ex);
	if (ex->phase == PHASE_FAILED)
		ex->wake(ex->arg);
}

/* It says nothing of the worker that others have not told. */
static void learn_of_failure(struct exchange *ex)
{
	ex->is_excused = true;
	dial_line_leave(&ex->dial_place);
	exchange_fail(ex, FAIL_WORKER_UNREACHABLE);
}

static void wait_is_over(struct exchange *ex)
{
	learn_of_failure(ex);
	ex->wake(ex->arg);
}

/* It waits for the results of others: they are late, so another worker may have it. */
static void look_at_wait(struct exchange *ex)
{
	int err;

	if (reach_has_failed(&ex->worker->reach, &ex->o.reach_seen)) {
		wait_is_over(ex);
		return;
	}
	err = dial(ex);
	if (err != 0) {
		dial_is_over(ex, err);
	} else if (!ex->uc->is_dialing && !ex->has_told_late &&
		   clock_now_ms() >= ex->began_connecting_ms + REACH_LATE_MS) {
		ex->has_told_late = true;
		ex->late = EXCHANGE_DIAL_LATE;
		ex->wake(ex->arg);
	}
}

static void look_at_dial(void *arg)
{
	struct exchange *ex = arg;

	if (ex->uc->is_dialing)
		dial_is_over(ex, ERR_TIMEOUT);
	else if (ex->connect_due_ms > 0 && clock_now_ms() >= ex->connect_due_ms)
		wait_is_over(ex);
	else
		look_at_wait(ex);
}

static void start_connecting(struct exchange *ex)
{
	ex->phase = PHASE_CONNECT;
	ex->began_connecting_ms = clock_now_ms();
	ex->dial_place.look = look_at_dial;
	ex->dial_place.arg = ex;
	ex->addr_epoch = atomic_load(&ex->worker->addr_epoch);
	ex->addrs = worker_addrs(ex->worker, &ex->addr_next);
	ex->addrs_left = ex->addrs != NULL ? (unsigned)ex->addrs->n : 0;
	if (reach_has_failed(&ex->worker->reach, &ex->o.reach_seen))
		learn_of_failure(ex);
	else
		try_next_address(ex);
}

/* The head lies in a scratch buffer of the thread: what could not be sent at once is
 * kept. */
static void keep_head(struct exchange *ex)
{
	if (ex->head_copy != NULL || ex->head_sent >= ex->o.head.n)
		return;
	ex->head_copy = malloc(ex->o.head.n);
	if (ex->head_copy == NULL) {
		exchange_fail(ex, FAIL_INTERNAL);
		return;
	}
	memcpy(ex->head_copy, ex->o.head.p, ex->o.head.n);
	ex->o.head.p = ex->head_copy;
}

static void count_sent(struct exchange *ex, size_t n)
{
	size_t of_head = MIN(n, ex->o.head.n - ex->head_sent);

	ex->head_sent += of_head;
	ex->piece_sent += n - of_head;
}

/* The parts of what was given that the worker has not taken yet: how many, and *sum of
 * their bytes. */
static int list_unsent(const struct exchange *ex, struct iovec iov[4], size_t *sum)
{
	const struct span parts[4] = {
		ex->o.head, ex->piece.before, ex->piece.data, ex->piece.after};
	size_t skip = ex->head_sent + ex->piece_sent;
	unsigned i;
	int n = 0;

	*sum = 0;
	/* No byte of a piece goes before the head is gone. */
	for (i = 0; i < ARRAY_LEN(parts); i++) {
		size_t cut = MIN(skip, parts[i].n), left = parts[i].n - cut;

		skip -= cut;
		*sum += left;
		if (left > 0)
			iov[n++] = (struct iovec){(void *)(parts[i].p + cut), left};
	}
	return n;
}

static bool may_send(const struct exchange *ex)
{
	return !ex->send_broke && (ex->phase == PHASE_HEAD || ex->phase == PHASE_BODY);
}

static void send_more(struct exchange *ex)
{
	while (!is_taken(ex) && may_send(ex)) {
		struct iovec iov[4];
		size_t want;
		int parts = list_unsent(ex, iov, &want);
		ssize_t n = stream_send(&ex->uc->stream, iov, parts);

		if (n < 0) {
			/* A worker may have answered and closed before it read
			 * everything: reading decides. */
			ex->send_broke = true;
			return;
		}
		count_sent(ex, (size_t)n);
		if (n > 0 && (!ex->got_byte || ex->awaits_content))
			exchange_await_first_byte(ex);
		if ((size_t)n < want)
			return;
	}
}

bool exchange_wants_piece(const struct exchange *ex)
{
	return ex->o.in_pieces && !ex->piece.last && may_send(ex) &&
	       ex->piece_sent == piece_bytes(&ex->piece);
}

void exchange_piece(struct exchange *ex, const struct exchange_piece *p)
{
	assert(ex->magic == EXCHANGE_MAGIC && exchange_wants_piece(ex));
	ex->piece = *p;
	ex->piece_sent = 0;
	note_held(ex);
	send_more(ex);
	keep_head(ex);
	if (ex->phase == PHASE_HEAD || ex->awaits_content)
		exchange_await_first_byte(ex);
}

static void exchange_reset(struct exchange *ex)
{
	/* All but the parsed head, which is big and written before it is read. */
	memset(ex, 0, offsetof(struct exchange, head));
	http_head_begin(&ex->head);
	stream_watch_init(&ex->watch);
	ex->magic = EXCHANGE_MAGIC;
}

static struct exchange *exchange_get(struct io_thread *t)
{
	struct exchange *ex = t->free_exchanges;

	if (ex == NULL)
		ex = malloc(sizeof(*ex));
	else {
		unpoison(ex, sizeof(*ex));
		t->free_exchanges = ex->next_free;
		t->n_free_exchanges--;
	}
	if (ex != NULL)
		exchange_reset(ex);
	return ex;
}

struct exchange *exchange_start(struct io_thread *t, struct worker *w,
	const struct exchange_opts *o, void (*wake)(void *arg), void *arg)
{
	struct exchange *ex = exchange_get(t);

	if (ex == NULL)
		return NULL;
	ex->t = t;
	ex->worker = w;
	ex->o = *o;
	ex->piece = (struct exchange_piece){.data = o->body, .last = !o->in_pieces};
	ex->wake = wake;
	ex->arg = arg;
	ex->steps_seen = engine_steps(ex);
	http_scan_start(&ex->scan, HTTP_SCAN_RESPONSE);
	ex->uc = o->fresh_only ? NULL : idle_take(t->idle, w);
	if (ex->uc == NULL) {
		start_connecting(ex);
	} else {
		ex->uc->ex = ex;
		note_held(ex);
		ex->is_reused = ex->was_connected = true;
		ex->phase = PHASE_HEAD;
		if (!o->in_pieces)
			send_more(ex);
		/* Else each part that is taken has begun the wait anew. */
		if (ex->head_sent == 0)
			exchange_await_first_byte(ex);
		if (o->in_pieces)
			return ex; /* with the first piece, which comes at once */
	}
	keep_head(ex);
	return ex;
}

void exchange_set_wake(struct exchange *ex, void (*wake)(void *arg), void *arg)
{
	ex->wake = wake;
	ex->arg = arg;
}

/* ---- the end ---- */

static void exchange_destroy(struct reap *r)
{
	struct exchange *ex = container_of(r, struct exchange, reap);
	struct io_thread *t = ex->t;

	if (t->n_free_exchanges >= FREE_EXCHANGES_MAX) {
		free(ex);
		return;
	}
	ex->next_free = t->free_exchanges;
	t->free_exchanges = ex;
	t->n_free_exchanges++;
	poison(ex, sizeof(*ex));
}

static void release(struct exchange *ex)
{
	ex->magic = 0;
	ex->wake = NULL;
	free(ex->head_copy);
	free(ex->gather);
	text_free(&ex->held);
	stream_watch_free(&ex->watch);
	addr_list_unref(ex->addrs);
	loop_reap(ex->t->loop, &ex->reap, exchange_destroy);
}

void exchange_cancel(struct exchange **exp)
{
	struct exchange *ex = *exp;

	if (ex == NULL)
		return;
	assert(ex->magic == EXCHANGE_MAGIC);
	*exp = NULL;
	drop_connection(ex);
	release(ex);
}

void exchange_finish(struct exchange **exp)
{
	struct exchange *ex = *exp;

	assert(ex->magic == EXCHANGE_MAGIC && ex->phase == PHASE_ENDED);
	if (!ex->may_pool || ex->has_surplus || !is_sent(ex) || ex->o.idle_ms == 0 ||
		ex->t->is_draining || atomic_load(&ex->worker->is_removed)) {
		exchange_cancel(exp);
		return;
	}
	*exp = NULL;
	exchange_resume(ex);
	note_held(ex);
	idle_put(ex->uc, ex->o.idle_ms);
	ex->uc = NULL;
	release(ex);
}

void exchange_free_all(struct io_thread *t)
{
	while (t->free_exchanges != NULL) {
		struct exchange *ex = t->free_exchanges;

		unpoison(ex, sizeof(*ex));
		t->free_exchanges = ex->next_free;
		free(ex);
	}
	t->n_free_exchanges = 0;
}

/* ---- what its owner asks ---- */

void exchange_pause(struct exchange *ex)
{
	if (ex->is_paused || ex->uc == NULL)
		return;
	ex->is_paused = true;
	note_held(ex);
	/* The silence is the client's, and its own deadline watches it. */
	exchange_watch(ex, 0);
	stream_pause(&ex->uc->stream);
}

void exchange_resume(struct exchange *ex)
{
	if (!ex->is_paused || ex->uc == NULL)
		return;
	ex->is_paused = false;
	note_held(ex);
	if (ex->awaits_content)
		exchange_await_content(ex);
	else
		exchange_watch(ex, ex->o.stream_idle_timeout_ms);
	stream_resume(&ex->uc->stream);
}

struct span exchange_at_hand(const struct exchange *ex)
{
	return ex->ready;
}

enum fail exchange_failure(const struct exchange *ex)
{
	return ex->failure;
}

enum exchange_late exchange_late(struct exchange *ex)
{
	enum exchange_late late = ex->late;

	ex->late = EXCHANGE_IN_TIME;
	return late;
}

bool exchange_was_overlong(const struct exchange *ex)
{
	return ex->is_overlong;
}

bool exchange_was_excused(const struct exchange *ex)
{
	return ex->is_excused;
}

bool exchange_was_reused(const struct exchange *ex)
{
	return ex->is_reused;
}

bool exchange_was_silent(const struct exchange *ex)
{
	return !ex->got_byte || ex->is_holding;
}

bool exchange_was_held(const struct exchange *ex)
{
	return ex->is_holding;
}

bool exchange_awaits_content(const struct exchange *ex)
{
	return ex != NULL && ex->awaits_content;
}

bool exchange_said_error(const struct exchange *ex)
{
	return ex->watch.has_error;
}

bool exchange_is_alike(const struct exchange *ex)
{
	return ex->watch.is_alike;
}

bool exchange_abort_was_asked(const struct exchange *ex)
{
	return ex->abort_was_asked;
}

bool exchange_is_between_events(const struct exchange *ex)
{
	return ex != NULL && ex->watch.is_on && !stream_watch_is_amid(&ex->watch);
}

bool exchange_never_dialed(const struct exchange *ex)
{
	return !ex->was_dialed && !ex->was_connected;
}

bool exchange_never_connected(const struct exchange *ex)
{
	return !ex->was_connected;
}
