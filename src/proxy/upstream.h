/*
 * One exchange with a worker (connect or re-use, send, read the answer), and each
 * thread's pool of idle worker connections. It knows no requests. Its owner asks it
 * (exchange_head, exchange_body), and it calls the one wake(arg) that it was given when
 * asking again may help.
 *
 * A connection goes back to the pool only when the request was fully sent, the answer
 * ended by its framing with no byte to spare, neither side said close, and the version
 * was 1.1 (C24). Idle ones keep their read event armed: any byte or EOF closes them.
 */
#ifndef PROXY_UPSTREAM_H
#define PROXY_UPSTREAM_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "http/http_head.h"
#include "route/route_key.h"
#include "worker/reach.h"

struct exchange;
struct io_thread;
struct upstream_idle;
struct worker;

struct exchange_opts {
	struct span head; /* built in a scratch buffer: copied when it cannot be sent at
			     once */
	struct span body; /* must live until the exchange ends */
	bool in_pieces;   /* body is empty, and comes by exchange_piece() */
	enum http_method method;
	bool fresh_only; /* no pooled connection */
	/* What was asked: the events of its stream are read by that. */
	enum route_endpoint endpoint;
	/* What is no stream is looked at: is it an error's object? */
	bool reads_objects;
	/* Of a stream that is read, header and all are held back until content comes. */
	bool holds;
	/* The worker is in doubt: after so long without an answer the owner is woken, see
	 * exchange_late(); 0: it is no trial, or has all the time. Of a stream
	 * what comes before content, which a wedged engine sends as well, is no answer,
	 * and is held back. */
	uint64_t trial_timeout_ms;
	/* What was known of connects when the worker was chosen: it is not tried any more
	 * once one has failed since. */
	struct reach_seen reach_seen;
	/* Each is of one phase; 0: no limit. The first byte of a stream is its first
	 * content. */
	uint64_t connect_timeout_ms, first_byte_timeout_ms, stream_idle_timeout_ms;
	/* The whole must be over then, whatever phase it is in, paused ones too; 0: no
	 * limit. */
	uint64_t total_due_ms;
	uint64_t idle_ms; /* how long its connection is kept; 0: not at all */
};

/* Starts; failures show in exchange_head(). wake is never called from inside. NULL: out
 * of memory. */
struct exchange *exchange_start(struct io_thread *t, struct worker *w,
	const struct exchange_opts *o, void (*wake)(void *arg), void *arg);
/*
 * A body in pieces: with each the head goes too, if it has not gone yet. After
 * exchange_start() one piece, which may be empty, is given in the same turn if one is
 * wanted. The memory of data and of what frames it must live until the next is wanted:
 * wake is called then. last: nothing follows.
 */
struct exchange_piece {
	struct span before, data, after;
	bool last;
};
/* Connected, all that was given is taken, and the last was not given yet. */
bool exchange_wants_piece(const struct exchange *ex);
void exchange_piece(struct exchange *ex, const struct exchange_piece *p);
/* Sets the wake that it calls from now on: its owner changes. */
void exchange_set_wake(struct exchange *ex, void (*wake)(void *arg), void *arg);
/* Closes the worker's connection at once (the worker sees it and aborts). No wake after
 * it returns. Nulls the pointer; NULL is fine. */
void exchange_cancel(struct exchange **ex);
/* After EXCHANGE_END: the connection goes to the pool if it may. Nulls the pointer. */
void exchange_finish(struct exchange **ex);

enum exchange_result { EXCHANGE_OK, EXCHANGE_AGAIN, EXCHANGE_END, EXCHANGE_FAILED };

/*
 * The final answer's head (interim ones are consumed). An error's comes with its body, all
 * of it, unless that is long or late. OK: *head and *base live until the
 * next exchange call of this thread or the end of the turn.
 */
enum exchange_result exchange_head(
	struct exchange *ex, const struct http_head **head, const char **base);
/*
 * OK: body bytes, decoded, alive until the next call of this thread or the end of the
 * turn; exchange_at_end() tells whether they are the last. END: the body is complete.
 * FAILED: it broke off.
 */
enum exchange_result exchange_body(struct exchange *ex, struct span *data);
bool exchange_at_end(const struct exchange *ex);
/* Until it wakes its owner, exchange_body() has nothing more: neither bytes nor an end. */
bool exchange_is_drained(const struct exchange *ex);
/* What has come of a stream is no content yet. ex may be NULL. */
bool exchange_awaits_content(const struct exchange *ex);
/* The stream says that its engine failed; it may be read on. */
bool exchange_said_error(const struct exchange *ex);
/* What exchange_body() gave last is one event, in the shape of those before it: content,
 * and nothing of KV transfers. */
bool exchange_is_alike(const struct exchange *ex);
/* Its engine aborted the stream, and somebody had asked for that. */
bool exchange_abort_was_asked(const struct exchange *ex);
/* An event of ours may follow what has come: it is an event stream that can be read, and
 * its last event is whole. */
bool exchange_is_between_events(const struct exchange *ex);
/* The answer is an event stream: its events count for the worker's progress. */
void exchange_count_events(struct exchange *ex);
/* Stops reading from the worker until resumed (the client is slow). Only the whole has a
 * deadline meanwhile: wake() is called if that passes. */
void exchange_pause(struct exchange *ex);
void exchange_resume(struct exchange *ex);

/* Of the body: what has come, and was not read yet. */
struct span exchange_at_hand(const struct exchange *ex);
enum fail exchange_failure(const struct exchange *ex);
enum exchange_late {
	EXCHANGE_IN_TIME,
	/* trial_timeout_ms has passed in silence, and its engine was not seen to compute. */
	EXCHANGE_TRIAL_OVER,
	/* It has not begun to connect, since the connects of others are late. */
	EXCHANGE_DIAL_LATE
};
/* Told once. It may be cancelled; else it is an exchange like any other from now on. */
enum exchange_late exchange_late(struct exchange *ex);
/* It was cut at total_due_ms: it failed as WORKER_TIMEOUT, but not by its worker. */
bool exchange_was_overlong(const struct exchange *ex);
/* It was cut for silence, which says nothing of its worker: inside an answer, or while
 * its engine's counters grew. */
bool exchange_was_excused(const struct exchange *ex);
bool exchange_was_reused(const struct exchange *ex);
/* Not a byte of an answer came, or none that its owner has got. */
bool exchange_was_silent(const struct exchange *ex);
/* A header came, of a stream that is held back still. */
bool exchange_was_held(const struct exchange *ex);
/* Nor was it tried: it waited for the connects of others. */
bool exchange_never_dialed(const struct exchange *ex);
/* The connection was never made. */
bool exchange_never_connected(const struct exchange *ex);

struct upstream_idle *upstream_idle_new(struct io_thread *t);
void upstream_idle_free(struct upstream_idle *idle);
/* Closes the idle connections to workers that have left. */
void upstream_idle_tidy(struct upstream_idle *idle);
/* Closes every idle connection (descriptors are short, or the daemon ends). */
void upstream_idle_close_all(struct upstream_idle *idle);
void exchange_free_all(struct io_thread *t);

#endif
