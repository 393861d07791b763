/*
 * One byte stream over a non-blocking socket: accept or connect, read, write at once,
 * queue what the kernel did not take, pause, notice EOF while paused, close. Plain
 * libevent events (no bufferevents: platform cost). TLS will slip in here and nowhere
 * else.
 *
 * Cost in the common case: recv(2) and sendmsg(2) only. The read event is persistent and
 * stays armed; the write event is armed only after EAGAIN. Pausing is lazy: only bytes
 * that come meanwhile disarm the read event. Embedded by value in its owner; belongs to
 * one loop. Callbacks may close the stream, but its memory must outlive the turn
 * (loop_reap).
 */
#ifndef IO_STREAM_H
#define IO_STREAM_H

#include "base/base.h"
#include "io/loop.h"
#include "io/sock.h"

#include <sys/uio.h>

struct evbuffer;
struct event;

#define STREAM_HIGH_BYTES 65536
#define STREAM_LOW_BYTES 32768

struct stream_ops {
	/* Connect finished: 0 or ERR_REFUSED, ERR_TIMEOUT, ERR_LIMIT, ERR_NOMEM, ERR_IO;
	 * unless 0 the stream is closed already. Only after stream_connect(). */
	void (*on_connected)(void *arg, int err);
	/* Bytes, EOF or an error can be read now (stream_read says which). */
	void (*on_readable)(void *arg);
	/* The queue fell to STREAM_LOW_BYTES or below after stream_write() had said
	 * "full", or the kernel takes bytes again after a short stream_send(); or writing
	 * failed meanwhile: the next write says so. */
	void (*on_writable)(void *arg);
	/* While paused: the peer sent FIN, or the connection broke. After stream_read()
	 * said ERR_CLOSED: the connection broke. At most once. */
	void (*on_peer_closed)(void *arg);
};

struct stream {
	uint32_t magic;
	int fd; /* -1: closed */
	struct loop *loop;
	const struct stream_ops *ops;
	void *arg;
	struct event *ev_read, *ev_write; /* one allocation; NULL while closed */
	struct loop_hangup hangup;        /* armed in place of ev_read: paused with bytes
					     waiting, or after EOF */
	struct evbuffer *out; /* made when first needed; NULL most of the time */
	bool is_connecting, is_paused, read_is_armed, write_is_armed;
	bool saw_eof, read_failed, write_failed, end_was_told;
	bool want_writable, was_full, shut_after_flush, is_shut;
	uint64_t bytes_in, bytes_out; /* by the kernel's account */
};

/* A closed stream bound to its loop and owner. */
void stream_init(
	struct stream *s, struct loop *l, const struct stream_ops *ops, void *arg);
/* Takes an accepted descriptor (non-blocking), reading enabled. ERR_NOMEM (fd is closed
 * then). */
int stream_open(struct stream *s, int fd) MUST_CHECK;
/* Starts connecting; on_connected comes later, never from inside this call. Errors at
 * once: ERR_*, and the stream stays closed. */
int stream_connect(struct stream *s, const union sock_addr *a) MUST_CHECK;

/* > 0 bytes; ERR_CLOSED at EOF (on_readable does not come again); ERR_AGAIN nothing
 * there; ERR_IO (reset). n > 0. */
ssize_t stream_read(struct stream *s, void *buf, size_t n) MUST_CHECK;
/*
 * Writes what the kernel takes now, queues nothing; returns bytes taken (maybe 0, then
 * on_writable comes) or ERR_IO/ERR_CLOSED. Only while the queue is empty.
 */
ssize_t stream_send(struct stream *s, const struct iovec *iov, int n) MUST_CHECK;
/*
 * Writes at once, queues (copies) the rest. 0; ERR_LIMIT when the queue now exceeds
 * STREAM_HIGH_BYTES (everything was taken: stop the source until on_writable);
 * ERR_IO/ERR_CLOSED when the peer is gone; ERR_NOMEM: bytes were lost, close it.
 * ERR_STATE after stream_shutdown_write(). While connecting everything is queued.
 */
int stream_write(struct stream *s, const struct iovec *iov, int n) MUST_CHECK;
size_t stream_queued(const struct stream *s);
/*
 * How far the peer has come. The kernel's word on it is finer than bytes_out, which stands
 * still while the kernel fills its own queue: a slow peer that takes a byte now and then
 * is told from one that takes nothing.
 */
struct stream_mark {
	uint64_t out, acked;
};
/* True: further than mark says. mark is where it is now. One system call. */
bool stream_moved(const struct stream *s, struct stream_mark *mark);

/* Stops/continues reading. Paused streams still report FIN and breakage through
 * on_peer_closed. Idempotent; free when nothing came in between. */
void stream_pause(struct stream *s);
void stream_resume(struct stream *s);
/* Sends FIN once the queue is empty. Idempotent. */
void stream_shutdown_write(struct stream *s);
/* Closes at once; queued bytes are lost. With abort: RST. Idempotent; no callback after
 * it returns. */
void stream_close(struct stream *s);
void stream_abort(struct stream *s);
static inline bool stream_is_open(const struct stream *s)
{
	return s->fd >= 0;
}

#endif
