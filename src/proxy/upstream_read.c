/*
 * The receiving half of an exchange: the answer's head, interim ones skipped, and its
 * body, decoded. Always true: what was read and not yet handed on lies at pending, in the
 * thread's scratch buffer, or in gather while a head is not whole. The exchange_head()
 * and exchange_body() of upstream.h.
 */
#include "proxy/upstream.h"

#include "base/clock.h"
#include "base/err.h"
#include "http/http_parse.h"
#include "io/wheel.h"
#include "proxy/answer.h"
#include "proxy/io_thread.h"
#include "proxy/upstream_state.h"
#include "worker/worker.h"

#include <stdlib.h>

/* A head that came in pieces is gathered here, with what follows it in the same read. */
#define GATHER_BYTES (HTTP_RESPONSE_HEAD_MAX + 4096)

static void count_bytes(struct exchange *ex, uint64_t n)
{
	atomic_fetch_add_explicit(&ex->worker->relay.bytes, n, memory_order_relaxed);
}

/* Each read moves the deadline: a store. What comes of a stream before content moves
 * nothing: an engine that is wedged has it said as well. */
static inline void touch(struct exchange *ex, size_t got)
{
	uint64_t now_ms = clock_now_ms();

	atomic_store_explicit(
		&ex->worker->relay.last_byte_ms, now_ms, memory_order_relaxed);
	if (ex->phase == PHASE_HEAD || ex->awaits_content)
		ex->uncounted += got;
	else
		count_bytes(ex, got);
	ex->silent_ms = 0;
	if (ex->awaits_content)
		return;
	/* Of a body the whole may not be over yet, so its timer stands. */
	if (ex->phase == PHASE_BODY && ex->o.total_due_ms == 0 && !ex->is_last &&
		ex->o.stream_idle_timeout_ms > 0)
		wheel_set(ex->t->wheel, &ex->uc->timer,
			now_ms + ex->o.stream_idle_timeout_ms);
	else
		exchange_watch(ex, exchange_is_trial(ex) ? ex->o.trial_timeout_ms
							 : ex->o.stream_idle_timeout_ms);
}

/* The answer has begun: its header, or the first content of its stream. */
static void note_begun(struct exchange *ex)
{
	ex->awaits_content = false;
	count_bytes(ex, ex->uncounted);
	ex->uncounted = 0;
}

/* One read into to[0..n). > 0; ERR_AGAIN; ERR_CLOSED at EOF; ERR_IO. */
static ssize_t read_once(struct exchange *ex, char *to, size_t n)
{
	ssize_t got;

	if (!ex->can_read)
		return ERR_AGAIN;
	got = stream_read(&ex->uc->stream, to, n);
	/* A short read has emptied the socket: what comes next is an event of its own. */
	ex->can_read = got == (ssize_t)n;
	if (got > 0) {
		ex->got_byte = true;
		touch(ex, (size_t)got);
	}
	return got;
}

/* The bytes at hand did not hold a whole head: keep them. */
static int keep_partial(struct exchange *ex)
{
	if (ex->gather == NULL) {
		ex->gather = malloc(GATHER_BYTES);
		if (ex->gather == NULL)
			return ERR_NOMEM;
	}
	if (ex->pending != ex->gather)
		memmove(ex->gather, ex->pending, ex->n_pending);
	ex->gathered = ex->n_pending;
	ex->pending = ex->gather;
	return 0;
}

static ssize_t read_head_bytes(struct exchange *ex)
{
	ssize_t n;

	if (ex->gathered == 0) {
		n = read_once(ex, io_scratch(ex->t), IO_SCRATCH_BYTES);
		ex->pending = io_scratch(ex->t);
		ex->n_pending = n > 0 ? (size_t)n : 0;
		return n;
	}
	assert(ex->gathered < GATHER_BYTES); /* the scanner refuses sooner */
	n = read_once(ex, ex->gather + ex->gathered, GATHER_BYTES - ex->gathered);
	if (n > 0)
		ex->gathered += (size_t)n;
	ex->pending = ex->gather;
	ex->n_pending = ex->gathered;
	return n;
}

static void begin_body(struct exchange *ex)
{
	const struct http_head *h = &ex->head;

	ex->framing = h->framing;
	ex->left = h->framing == HTTP_BODY_LENGTH ? h->content_length : 0;
	ex->may_pool =
		h->minor == 1 && !h->wants_close && h->framing != HTTP_BODY_UNTIL_CLOSE;
	ex->is_last = h->framing == HTTP_BODY_NONE ||
		      (h->framing == HTTP_BODY_LENGTH && ex->left == 0);
	if (h->framing == HTTP_BODY_CHUNKED)
		http_chunk_start(&ex->chunk, true, UINT64_MAX);
}

/* What has come of a body with its header: of a chunked one, its first chunk. */
static struct span first_bytes(const struct exchange *ex)
{
	struct span text = span_make(ex->pending, ex->n_pending), line;

	if (ex->framing != HTTP_BODY_CHUNKED)
		return text;
	return span_next(&text, '\n', &line) && span_next(&text, '\r', &line)
		       ? line
		       : span_make(NULL, 0);
}

/* An error's object: the client gets it as it comes, and what it says is told. */
static void begin_object(struct exchange *ex)
{
	ex->reads_object = ex->framing != HTTP_BODY_UNTIL_CLOSE &&
			   stream_watch_guess(first_bytes(ex)) != OBJECT_IS_OTHER;
}

/* Its owner may want to keep it while it asks another worker: it gets all of it at
 * once. */
static void begin_error(struct exchange *ex)
{
	ex->is_error = ex->awaits_content = ex->is_holding = true;
	ex->held_ms = clock_now_ms();
	exchange_await_content(ex);
}

/* What the answer is: a stream, whose engine sends its header before it computes? */
static void begin_answer(struct exchange *ex, const char *base)
{
	const struct http_head *h = &ex->head;
	bool is_good = h->status >= 200 && h->status < 300 && !ex->is_last;

	if (UNLIKELY(h->status >= 400 && !ex->is_last)) {
		begin_error(ex);
		return;
	}
	if (is_good && answer_is_event_stream(h, base) &&
		http_head_find(h, FIELD_CONTENT_ENCODING) == NULL)
		stream_watch_begin(&ex->watch, ex->o.endpoint);
	ex->o.holds &= ex->watch.is_on && stream_watch_knows(ex->o.endpoint);
	ex->awaits_content = ex->watch.is_on;
	ex->is_holding = ex->o.holds;
	if (is_good && !ex->watch.is_on && ex->o.reads_objects)
		begin_object(ex);
	if (is_good && exchange_is_trial(ex) && h->framing == HTTP_BODY_CHUNKED)
		ex->awaits_content = ex->is_holding = true;
	if (ex->awaits_content)
		exchange_await_content(ex);
	else
		note_begun(ex);
}

/* Takes one head off the pending bytes. OK: the final one; AGAIN: more bytes are needed;
 * END: it was an interim one. */
static enum exchange_result take_head(struct exchange *ex, const char **base)
{
	enum fail why = FAIL_WORKER_PROTOCOL;
	uint32_t head_len;
	int err = http_scan_run(&ex->scan, ex->pending, ex->n_pending, &head_len, &why);

	if (err == ERR_AGAIN)
		return EXCHANGE_AGAIN;
	if (err == 0)
		err = http_parse_response(
			ex->pending, head_len, ex->o.method, &ex->head, &why);
	if (err == 0 && ex->head.status < 200 && ++ex->interim > HTTP_INTERIM_MAX) {
		why = FAIL_WORKER_INTERIM;
		err = ERR_PARSE;
	}
	if (err != 0) {
		exchange_fail(ex, why);
		return EXCHANGE_FAILED;
	}
	*base = ex->pending;
	ex->pending += head_len;
	ex->n_pending -= head_len;
	ex->head_len = head_len;
	if (ex->head.status >= 200) {
		begin_body(ex);
		begin_answer(ex, *base);
		return EXCHANGE_OK;
	}
	http_scan_start(&ex->scan, HTTP_SCAN_RESPONSE);
	exchange_await_first_byte(ex);
	return EXCHANGE_END;
}

static enum exchange_result head_ended_early(struct exchange *ex)
{
	/* Half a head is a broken answer; none at all, a connection that was given up. */
	exchange_fail(ex, ex->got_byte ? FAIL_WORKER_PROTOCOL : FAIL_WORKER_RESET);
	return EXCHANGE_FAILED;
}

/* Bytes that were not scanned yet lie at pending, or one read brings some. */
static enum exchange_result more_head_bytes(struct exchange *ex)
{
	ssize_t n;

	if (ex->has_unscanned)
		return EXCHANGE_OK;
	n = read_head_bytes(ex);
	if (n == ERR_AGAIN)
		return EXCHANGE_AGAIN;
	return n > 0 ? EXCHANGE_OK : head_ended_early(ex);
}

/* The header of the final answer. OK: *base is its beginning, and the body follows at
 * pending. */
static enum exchange_result read_header(struct exchange *ex, const char **base)
{
	for (;;) {
		enum exchange_result r = more_head_bytes(ex);

		if (r != EXCHANGE_OK)
			return r;
		r = take_head(ex, base);
		if (r == EXCHANGE_OK || r == EXCHANGE_FAILED)
			return r;
		ex->has_unscanned = r == EXCHANGE_END && ex->n_pending > 0;
		if (r == EXCHANGE_END && ex->n_pending == 0)
			ex->gathered = 0;
		else if (r == EXCHANGE_AGAIN && keep_partial(ex) != 0) {
			exchange_fail(ex, FAIL_INTERNAL);
			return EXCHANGE_FAILED;
		}
	}
}

/* All of it has come. A stream that does not say so was cut by its engine. */
static enum exchange_result end_body(struct exchange *ex)
{
	if (!stream_watch_is_whole(&ex->watch)) {
		exchange_fail(ex, FAIL_WORKER_BROKE);
		return EXCHANGE_FAILED;
	}
	ex->phase = PHASE_ENDED;
	return EXCHANGE_END;
}

static enum exchange_result body_ended_early(struct exchange *ex, ssize_t n)
{
	if (ex->framing == HTTP_BODY_UNTIL_CLOSE && n == ERR_CLOSED) {
		ex->is_last = true;
		return end_body(ex);
	}
	exchange_fail(ex, FAIL_WORKER_BROKE);
	return EXCHANGE_FAILED;
}

static inline enum exchange_result take_chunks(struct exchange *ex, struct span *data)
{
	enum fail why;
	size_t n = 0, used = 0;
	int err;

	*data = http_chunk_alone(&ex->chunk, ex->pending, ex->n_pending);
	if (LIKELY(data->n > 0)) {
		ex->n_pending = 0;
		return EXCHANGE_OK;
	}
	err = http_chunk_decode(&ex->chunk, ex->pending, ex->n_pending, &n, &used, &why);
	*data = span_make(ex->pending, n);
	if (err == 0) {
		ex->is_last = true;
		ex->has_surplus = used < ex->n_pending;
	}
	ex->n_pending = 0;
	if (err != 0 && err != ERR_AGAIN) {
		exchange_fail(ex, why == FAIL_WORKER_CHUNKS ? why : FAIL_WORKER_BROKE);
		/* The worker sent the bytes before the fault, so they are delivered. */
		return n > 0 ? EXCHANGE_OK : EXCHANGE_FAILED;
	}
	return n > 0 || ex->is_last ? EXCHANGE_OK : EXCHANGE_AGAIN;
}

static enum exchange_result take_body(struct exchange *ex, struct span *data)
{
	size_t n = ex->n_pending;

	if (ex->framing == HTTP_BODY_CHUNKED)
		return take_chunks(ex, data);
	if (ex->framing == HTTP_BODY_LENGTH) {
		n = MIN(n, ex->left);
		ex->left -= n;
		ex->is_last = ex->left == 0;
		ex->has_surplus = n < ex->n_pending;
	}
	*data = span_make(ex->pending, n);
	ex->n_pending = 0;
	return EXCHANGE_OK;
}

void exchange_count_events(struct exchange *ex)
{
	ex->counts_events = true;
}

/* Engines send each event as a chunk; where there are no chunks, what one read brings is
 * one. */
static void count_events(struct exchange *ex)
{
	uint64_t n = 1;

	if (ex->framing == HTTP_BODY_CHUNKED) {
		n = ex->chunk.chunks - ex->counted;
		ex->counted = ex->chunk.chunks;
	}
	atomic_fetch_add_explicit(&ex->worker->relay.events, n, memory_order_relaxed);
}

/* Reads the events of a stream. */
static __attribute__((noinline)) void look(struct exchange *ex, struct span data)
{
	if (ex->watch.is_on)
		stream_watch_feed(&ex->watch, data);
	else if (ex->reads_object)
		stream_watch_object(&ex->watch, data, ex->is_last);
	if (UNLIKELY(ex->watch.is_abort) &&
		worker_expects_aborts(ex->worker, clock_now_ms())) {
		stream_watch_excuse_abort(&ex->watch);
		ex->abort_was_asked = true;
	}
	if (!ex->awaits_content || ex->is_error ||
		((ex->watch.is_on || ex->reads_object) &&
			stream_watch_is_silent(&ex->watch)))
		return;
	note_begun(ex);
	exchange_watch(ex, ex->o.stream_idle_timeout_ms);
}

/* What comes after the first content of a stream, and looks as what came before. */
static inline bool has_nothing_new(const struct exchange *ex, struct span data)
{
	return !ex->awaits_content && data.n > 0 && ex->watch.is_on &&
	       stream_watch_alike(&ex->watch, data) == data.n;
}

/* Of what was read: some of the body, decoded and looked at. */
static inline enum exchange_result take_pending(struct exchange *ex, struct span *data)
{
	enum exchange_result r = take_body(ex, data);

	ex->watch.is_alike = has_nothing_new(ex, *data);
	if (ex->watch.is_alike)
		return r;
	if ((data->n > 0 && (ex->watch.is_on || ex->awaits_content)) ||
		(ex->reads_object && !ex->watch.has_content))
		look(ex, *data);
	return r;
}

/* OK: some of the body; at its end it may be empty. */
static enum exchange_result read_body(struct exchange *ex, struct span *data)
{
	enum exchange_result r = EXCHANGE_AGAIN;

	*data = span_make(NULL, 0);
	if (!ex->can_read && ex->n_pending == 0 && !ex->is_last)
		return EXCHANGE_AGAIN;
	if (ex->is_last) {
		ex->has_surplus |= ex->n_pending > 0;
		return end_body(ex);
	}
	while (r == EXCHANGE_AGAIN) {
		if (ex->n_pending == 0) {
			ssize_t n = read_once(ex, io_scratch(ex->t), IO_SCRATCH_BYTES);

			if (n == ERR_AGAIN)
				return EXCHANGE_AGAIN;
			if (n <= 0)
				return body_ended_early(ex, n);
			ex->pending = io_scratch(ex->t);
			ex->n_pending = (size_t)n;
		}
		r = take_pending(ex, data);
	}
	return r;
}

/* ---- what is held back ---- */

/* The owner gets the header; and data, or all that was held back. */
static enum exchange_result hand_on(struct exchange *ex, struct span data)
{
	ex->is_holding = false;
	if (UNLIKELY(ex->is_error)) {
		note_begun(ex);
		exchange_watch(ex, ex->o.stream_idle_timeout_ms);
	}
	/* What came before a fault is handed on, and then the fault shows. */
	if (ex->phase != PHASE_FAILED)
		ex->phase = PHASE_BODY;
	ex->ready = data;
	return EXCHANGE_OK;
}

/* No more will come of it. */
static bool is_whole_error(const struct exchange *ex)
{
	return ex->is_error && (ex->is_last || ex->phase == PHASE_FAILED);
}

static bool is_held_enough(const struct exchange *ex)
{
	if (is_whole_error(ex))
		return true;
	return !ex->awaits_content || ex->held.n - ex->head_len > EXCHANGE_HOLD_BYTES ||
	       (ex->is_last && stream_watch_is_whole(&ex->watch));
}

static int hold_back(struct exchange *ex, struct span data)
{
	if (data.n > 0 && ex->held_ms == 0) {
		ex->held_ms = clock_now_ms();
		exchange_await_content(ex);
	}
	return text_add(&ex->held, data);
}

/* What was read with the header, which is at base. Most engines send it with the first
 * content: then all is handed on from where it is. */
static enum exchange_result begin_hold(struct exchange *ex, const char *base)
{
	struct span data = {NULL, 0};
	enum exchange_result r = EXCHANGE_AGAIN;

	if (!ex->is_holding)
		return hand_on(ex, data);
	if (ex->n_pending > 0)
		r = take_pending(ex, &data);
	if (!ex->awaits_content || is_whole_error(ex))
		return hand_on(ex, data);
	if (r == EXCHANGE_FAILED)
		return r;
	if (text_add(&ex->held, span_make(base, ex->head_len)) != 0 ||
		hold_back(ex, data) != 0)
		exchange_fail(ex, FAIL_OVERLOADED);
	return ex->failure == FAIL_NONE ? EXCHANGE_AGAIN : EXCHANGE_FAILED;
}

/* The header, and more perhaps, is held back until there is content. */
static enum exchange_result go_on_holding(struct exchange *ex, const char **base)
{
	struct span data;

	while (ex->is_holding && !is_held_enough(ex)) {
		enum exchange_result r = read_body(ex, &data);

		if (ex->is_error && (r == EXCHANGE_END || r == EXCHANGE_FAILED))
			break;
		if (r != EXCHANGE_OK)
			return r;
		if (hold_back(ex, data) != 0) {
			exchange_fail(ex, FAIL_OVERLOADED);
			return EXCHANGE_FAILED;
		}
	}
	*base = ex->held.p;
	return hand_on(
		ex, span_make(ex->held.p + ex->head_len, ex->held.n - ex->head_len));
}

/* ---- what its owner asks ---- */

enum exchange_result exchange_head(
	struct exchange *ex, const struct http_head **head, const char **base)
{
	enum exchange_result r;

	assert(ex->magic == EXCHANGE_MAGIC);
	if (ex->phase == PHASE_FAILED)
		return EXCHANGE_FAILED;
	if (ex->phase != PHASE_HEAD)
		return EXCHANGE_AGAIN;
	/* As when the request has just been sent: nothing has come, nothing is held back. */
	if (!ex->can_read && !ex->has_unscanned && ex->held.n == 0)
		return EXCHANGE_AGAIN;
	*head = &ex->head;
	if (ex->held.n == 0) {
		r = read_header(ex, base);
		if (r == EXCHANGE_OK)
			r = begin_hold(ex, *base);
		if (r != EXCHANGE_AGAIN || ex->held.n == 0)
			return r;
	}
	return go_on_holding(ex, base);
}

enum exchange_result exchange_body(struct exchange *ex, struct span *data)
{
	enum exchange_result r;

	assert(ex->magic == EXCHANGE_MAGIC);
	*data = span_make(NULL, 0);
	if (ex->ready.n > 0) {
		*data = ex->ready;
		ex->ready = span_make(NULL, 0);
		r = EXCHANGE_OK;
	} else if (ex->phase == PHASE_FAILED) {
		return EXCHANGE_FAILED;
	} else {
		r = read_body(ex, data);
	}
	if (r == EXCHANGE_OK && ex->counts_events)
		count_events(ex);
	return r;
}

bool exchange_is_drained(const struct exchange *ex)
{
	return !ex->can_read && ex->n_pending == 0 && ex->ready.n == 0 && !ex->is_last &&
	       ex->phase != PHASE_FAILED;
}

bool exchange_at_end(const struct exchange *ex)
{
	return ex->is_last && ex->ready.n == 0 && stream_watch_is_whole(&ex->watch);
}
