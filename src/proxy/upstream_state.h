/*
 * The parts of an exchange: upstream.c connects and sends, upstream_read.c reads the
 * response. No other file includes this. Touched by its own thread alone.
 */
#ifndef PROXY_UPSTREAM_STATE_H
#define PROXY_UPSTREAM_STATE_H

#include "base/list.h"
#include "base/text.h"
#include "http/http_chunk.h"
#include "http/http_head.h"
#include "http/http_scan.h"
#include "io/loop.h"
#include "io/stream.h"
#include "io/wheel.h"
#include "proxy/dial_line.h"
#include "proxy/upstream.h"
#include "rewrite/stream_watch.h"

struct addr_list;

#define EXCHANGE_MAGIC 0x45584348u
#define UPSTREAM_MAGIC 0x5550434fu

/* A client gets comments, pings and a role that come before content after this time, and
 * the header with them; or once there are so many bytes of them. */
#define EXCHANGE_HOLD_MS 15000
#define EXCHANGE_HOLD_BYTES (64u << 10)
/* An error's body is waited for so long: more than a lost packet takes to come again, and
 * less than another worker would be tried for. */
#define EXCHANGE_HOLD_ERROR_MS 500

/* A connection to a worker: used by one exchange, or idle in the pool. */
struct upstream_conn {
	uint32_t magic;
	struct reap reap;
	struct io_thread *t;
	struct worker *worker; /* a reference */
	struct exchange *ex;   /* NULL: idle */
	struct stream stream;
	struct wheel_timer timer; /* exchange_watch(); or the end of idleness */
	bool is_dialing;          /* counted in worker->reach */
	unsigned addr_epoch;      /* the worker's, as this one was made */
	TAILQ_ENTRY(upstream_conn) link;
};

enum phase { PHASE_CONNECT, PHASE_HEAD, PHASE_BODY, PHASE_ENDED, PHASE_FAILED };

struct exchange {
	uint32_t magic;
	struct exchange *next_free;
	struct reap reap;
	struct io_thread *t;
	struct worker *worker; /* borrowed: the guard holds it */
	struct upstream_conn *uc;
	void (*wake)(void *arg);
	void *arg;
	enum phase phase;
	enum fail failure;
	bool is_reused, got_byte, was_connected, is_paused;
	bool is_held;       /* counted in worker->held */
	bool is_ours;       /* a connect failed for want of files, ports or memory */
	bool is_overlong;   /* total_timeout cut it */
	bool is_excused;    /* cut for a silence that says nothing of its worker */
	uint64_t silent_ms; /* since then, where the wait was prolonged; 0: it was not */
	enum exchange_late late; /* not told yet */
	bool abort_was_asked;    /* its stream was aborted, as somebody wanted */
	uint64_t steps_seen;     /* of its worker's engine, as the trial's wait began */

	/* connecting */
	struct addr_list *addrs;
	unsigned addr_next, addrs_left, addr_epoch;
	bool was_dialed;
	bool has_told_late;
	uint64_t began_connecting_ms;
	struct dial_place dial_place;
	uint64_t connect_due_ms; /* of the address at hand; 0: no limit */

	/* sending */
	struct exchange_opts o;
	char *head_copy;
	struct exchange_piece piece; /* the whole body, or the piece in hand */
	size_t head_sent, piece_sent;
	bool send_broke;

	/* receiving */
	bool can_read, has_unscanned, is_last, may_pool, has_surplus;
	bool counts_events;
	uint64_t counted;  /* chunks of them */
	bool reads_object; /* the answer is none, and may be an error's object */
	/* No content has come of a stream; and its owner gets nothing before. */
	bool awaits_content, is_holding;
	bool is_error; /* an error's header has come: its body is awaited as content is */
	uint64_t first_due_ms; /* its first byte; 0: at any time */
	uint64_t held_ms;      /* since then more than the header is held back; 0: not */
	uint64_t uncounted;    /* bytes that are no progress yet */
	struct text held;      /* what is held back: the header, the body decoded */
	size_t head_len;
	struct span ready; /* of the body: decoded, and not handed on yet */
	unsigned interim;
	struct http_scan scan;
	struct http_chunk chunk;
	enum http_framing framing;
	uint64_t left;
	char *gather;
	size_t gathered;
	char *pending; /* bytes read but not handed on, in scratch or gather */
	size_t n_pending;
	struct http_head head;
	struct stream_watch watch; /* of an answer that is an event stream */
};

/* The first failure stands. The owner learns of it when it asks: whoever calls this
 * outside its call wakes it. */
static inline void exchange_fail(struct exchange *ex, enum fail why)
{
	if (ex->phase == PHASE_FAILED)
		return;
	ex->phase = PHASE_FAILED;
	ex->failure = why;
}

/* A worker in doubt is tried, and has not answered yet. */
static inline bool exchange_is_trial(const struct exchange *ex)
{
	return ex->phase == PHASE_HEAD && ex->o.trial_timeout_ms > 0;
}

/* Sets the one timer of an exchange, in every phase: to what this phase may last from
 * now (0: no limit) or to the end of total_timeout, whichever comes first. */
void exchange_watch(struct exchange *ex, uint64_t limit_ms);
/* From the last byte of the request that the worker took, or from its last interim
 * answer. While more of the body is to come from the client, the client is awaited. */
void exchange_await_first_byte(struct exchange *ex);
/* Goes on waiting for it: for content, with a look at what is held back. */
void exchange_await_content(struct exchange *ex);

#endif
