/*
 * One byte stream over a non-blocking socket: plain events, written at once, a queue only
 * for what the kernel did not take. Always true: queued bytes or a wanted on_writable
 * mean that ev_write is armed; ev_read is armed unless the stream is connecting, closed,
 * at its end, or paused with something waiting (then hangup stands in for it); after
 * stream_close() nothing is armed, so no callback can come. Used by conn, upstream,
 * http_server; TLS slips in at receive() and send_some().
 */
#include "io/stream.h"
#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <limits.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STREAM_MAGIC 0x5354524du
#define FLUSH_IOVS 64 /* chunks of the queue that one sendmsg takes */

static void on_read_event(evutil_socket_t fd, short what, void *arg);
static void on_write_event(evutil_socket_t fd, short what, void *arg);
static void on_hangup(void *arg);

void stream_init(
	struct stream *s, struct loop *l, const struct stream_ops *ops, void *arg)
{
	*s = (struct stream){.magic = STREAM_MAGIC,
		.fd = -1,
		.loop = l,
		.ops = ops,
		.arg = arg,
		.hangup = {.fd = -1, .fn = on_hangup, .arg = s}};
}

/* Both events in one block, assigned but not armed. */
static int make_events(struct stream *s, int fd)
{
	size_t size = (event_get_struct_event_size() + 15) & ~(size_t)15;
	struct event_base *base = loop_base(s->loop);
	char *block = malloc(2 * size);

	if (block == NULL)
		return ERR_NOMEM;
	s->ev_read = (struct event *)(void *)block;
	s->ev_write = (struct event *)(void *)(block + size);
	if (event_assign(s->ev_read, base, fd, EV_READ | EV_PERSIST, on_read_event, s) !=
			0 ||
		event_assign(s->ev_write, base, fd, EV_WRITE | EV_PERSIST, on_write_event,
			s) != 0) {
		free(block);
		s->ev_read = s->ev_write = NULL;
		return ERR_NOMEM;
	}
	return 0;
}

/* A fresh life for the struct; the binding stays. */
static int start_life(struct stream *s, int fd)
{
	assert(s->magic == STREAM_MAGIC && s->fd < 0);
	stream_init(s, s->loop, s->ops, s->arg);
	if (make_events(s, fd) != 0)
		return ERR_NOMEM;
	s->fd = fd;
	return 0;
}

static int arm_read(struct stream *s)
{
	if (s->read_is_armed)
		return 0;
	if (event_add(s->ev_read, NULL) != 0)
		return ERR_NOMEM;
	s->read_is_armed = true;
	return 0;
}

static void disarm_read(struct stream *s)
{
	if (s->read_is_armed)
		event_del(s->ev_read);
	s->read_is_armed = false;
}

static int arm_write(struct stream *s)
{
	if (s->write_is_armed)
		return 0;
	if (event_add(s->ev_write, NULL) != 0)
		return ERR_NOMEM;
	s->write_is_armed = true;
	return 0;
}

static void disarm_write(struct stream *s)
{
	if (s->write_is_armed)
		event_del(s->ev_write);
	s->write_is_armed = false;
}

int stream_open(struct stream *s, int fd)
{
	if (start_life(s, fd) == 0 && arm_read(s) == 0)
		return 0;
	if (s->fd < 0)
		close(fd);
	else
		stream_close(s);
	return ERR_NOMEM;
}

int stream_connect(struct stream *s, const union sock_addr *a)
{
	int fd, err = sock_connect(a, &fd);

	if (err != 0)
		return err;
	if (start_life(s, fd) != 0) {
		close(fd);
		return ERR_NOMEM;
	}
	if (arm_write(s) != 0) {
		stream_close(s);
		return ERR_NOMEM;
	}
	s->is_connecting = true;
	return 0;
}

static void drop_queue(struct stream *s)
{
	if (s->out != NULL)
		evbuffer_free(s->out);
	s->out = NULL;
}

void stream_close(struct stream *s)
{
	assert(s->magic == STREAM_MAGIC);
	if (s->fd < 0)
		return;
	disarm_read(s);
	disarm_write(s);
	loop_hangup_disarm(s->loop, &s->hangup);
	free(s->ev_read);
	s->ev_read = s->ev_write = NULL;
	drop_queue(s);
	close(s->fd);
	s->fd = -1;
	s->is_connecting = false;
}

void stream_abort(struct stream *s)
{
	if (s->fd >= 0)
		sock_abort_on_close(s->fd);
	stream_close(s);
}

/* Nobody reads: only the end of the connection is of interest from now on. */
static void park(struct stream *s)
{
	disarm_read(s);
	if (s->end_was_told || s->hangup.fd >= 0)
		return;
	/* Without memory in the kernel the end goes unnoticed until somebody reads or
	 * writes. */
	(void)!loop_hangup_arm(s->loop, &s->hangup, s->fd, !s->saw_eof);
}

static void on_hangup(void *arg)
{
	struct stream *s = arg;

	assert(s->magic == STREAM_MAGIC);
	clock_update();
	s->end_was_told = true;
	s->ops->on_peer_closed(s->arg);
}

static void on_read_event(evutil_socket_t fd, short what, void *arg)
{
	struct stream *s = arg;

	(void)fd;
	(void)what;
	assert(s->magic == STREAM_MAGIC);
	clock_update();
	if (s->is_paused || s->saw_eof)
		park(s);
	else
		s->ops->on_readable(s->arg);
}

/*
 * recv() and sendmsg() by their numbers: as points where a thread may be cancelled, which
 * nobody is here, they cost two locked instructions more each in a program with threads.
 */
static ssize_t call_recv(int fd, void *buf, size_t n)
{
	return syscall(SYS_recvfrom, fd, buf, n, 0, NULL, NULL);
}

static ssize_t call_sendmsg(int fd, const struct msghdr *m)
{
	return syscall(SYS_sendmsg, fd, m, MSG_NOSIGNAL);
}

static ssize_t receive(struct stream *s, void *buf, size_t n)
{
	ssize_t got;

	do
		got = call_recv(s->fd, buf, n);
	while (got < 0 && errno == EINTR);
	return got;
}

ssize_t stream_read(struct stream *s, void *buf, size_t n)
{
	ssize_t got;

	assert(s->magic == STREAM_MAGIC && n > 0);
	if (s->fd < 0)
		return ERR_CLOSED;
	if (s->read_failed)
		return ERR_IO;
	if (s->saw_eof)
		return ERR_CLOSED;
	if (s->is_connecting)
		return ERR_AGAIN;
	got = receive(s, buf, n);
	if (got > 0) {
		s->bytes_in += (uint64_t)got;
		return got;
	}
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return ERR_AGAIN;
	s->saw_eof = true; /* the next event, if the owner stays, parks it */
	s->read_failed = got < 0;
	return got < 0 ? ERR_IO : ERR_CLOSED;
}

void stream_pause(struct stream *s)
{
	s->is_paused = true;
}

void stream_resume(struct stream *s)
{
	if (!s->is_paused)
		return;
	s->is_paused = false;
	if (s->fd < 0 || s->is_connecting || s->read_is_armed || s->saw_eof)
		return;
	loop_hangup_disarm(s->loop, &s->hangup);
	if (arm_read(s) == 0)
		return;
	s->read_failed = true; /* the kernel has no memory: say so by way of a read */
	event_active(s->ev_read, EV_READ, 0);
}

/* Remembers that writing is over; what is queued is lost. */
static int fail_write(struct stream *s, int error)
{
	s->write_failed = true;
	drop_queue(s);
	if (error == ENOMEM)
		return ERR_NOMEM;
	return error == EPIPE ? ERR_CLOSED : ERR_IO;
}

/* One sendmsg, for at most IOV_MAX pieces: bytes taken, 0 when the kernel is full, or
 * ERR_*. No SIGPIPE. */
static ssize_t send_some(struct stream *s, const struct iovec *iov, int n)
{
	struct msghdr m = {
		.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n};
	ssize_t sent;

	do
		sent = call_sendmsg(s->fd, &m);
	while (sent < 0 && errno == EINTR);
	if (sent >= 0) {
		s->bytes_out += (uint64_t)sent;
		return sent;
	}
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return 0;
	return fail_write(s, errno);
}

static size_t sum_bytes(const struct iovec *iov, int n)
{
	size_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += iov[i].iov_len;
	return sum;
}

/* As send_some(), for any number of pieces; *is_all: nothing of them is left. An error
 * after some bytes shows itself at the next call. */
static inline ssize_t send_all(
	struct stream *s, const struct iovec *iov, int n, bool *is_all)
{
	size_t total = 0;

	*is_all = false;

	while (n > 0) {
		int part = MIN(n, IOV_MAX);
		size_t want = sum_bytes(iov, part);
		ssize_t sent = want > 0 ? send_some(s, iov, part) : 0;

		if (sent < 0)
			return total > 0 ? (ssize_t)total : sent;
		total += (size_t)sent;
		if ((size_t)sent < want)
			break;
		iov += part;
		n -= part;
	}
	*is_all = n == 0;
	return (ssize_t)total;
}

/* 0 when bytes may be written now. */
static int check_writable(const struct stream *s)
{
	assert(s->magic == STREAM_MAGIC);
	if (s->fd < 0 || s->write_failed)
		return ERR_CLOSED;
	return s->shut_after_flush ? ERR_STATE : 0;
}

ssize_t stream_send(struct stream *s, const struct iovec *iov, int n)
{
	int err = check_writable(s);
	ssize_t sent = 0;
	bool is_all;

	if (err != 0)
		return err;
	assert(stream_queued(s) == 0);
	if (!s->is_connecting) {
		sent = send_all(s, iov, n, &is_all);
		if (sent < 0 || is_all)
			return sent;
	}
	if (arm_write(s) != 0)
		return fail_write(s, ENOMEM);
	s->want_writable = true;
	return sent;
}

/* Copies what lies behind the first skip bytes into the queue. */
static int enqueue(struct stream *s, const struct iovec *iov, int n, size_t skip)
{
	if (s->out == NULL)
		s->out = evbuffer_new();
	if (s->out == NULL)
		return ERR_NOMEM;
	for (; n > 0; iov++, n--) {
		size_t cut = MIN(skip, iov->iov_len);

		skip -= cut;
		if (iov->iov_len > cut &&
			evbuffer_add(s->out, (char *)iov->iov_base + cut,
				iov->iov_len - cut) != 0)
			return ERR_NOMEM;
	}
	return 0;
}

int stream_write(struct stream *s, const struct iovec *iov, int n)
{
	int err = check_writable(s);
	ssize_t sent = 0;
	bool is_all;

	if (err != 0)
		return err;
	if (!s->is_connecting && stream_queued(s) == 0) {
		sent = send_all(s, iov, n, &is_all);
		if (sent < 0)
			return (int)sent;
		if (is_all)
			return 0;
		if (s->write_failed)
			return ERR_IO;
	}
	if (enqueue(s, iov, n, (size_t)sent) != 0 || arm_write(s) != 0)
		return fail_write(s, ENOMEM);
	if (stream_queued(s) <= STREAM_HIGH_BYTES)
		return 0;
	s->was_full = true;
	return ERR_LIMIT;
}

size_t stream_queued(const struct stream *s)
{
	return s->out != NULL ? evbuffer_get_length(s->out) : 0;
}

/* What the peer's kernel has acknowledged. */
static uint64_t acked_bytes(const struct stream *s)
{
	int unacked = 0;

	if (s->fd < 0 || ioctl(s->fd, SIOCOUTQ, &unacked) != 0 || unacked < 0)
		return 0;
	return s->bytes_out - MIN((uint64_t)unacked, s->bytes_out);
}

bool stream_moved(const struct stream *s, struct stream_mark *mark)
{
	struct stream_mark now = {.out = s->bytes_out, .acked = acked_bytes(s)};
	bool moved = now.out > mark->out || now.acked > mark->acked;

	*mark = now;
	return moved;
}

void stream_shutdown_write(struct stream *s)
{
	if (s->fd < 0 || s->is_shut)
		return;
	s->shut_after_flush = true;
	if (s->is_connecting || stream_queued(s) > 0)
		return;
	s->is_shut = true;
	(void)shutdown(s->fd, SHUT_WR);
}

/* Hands the kernel what it takes of the queue. */
static void flush(struct stream *s)
{
	while (stream_queued(s) > 0) {
		struct evbuffer_iovec iov[FLUSH_IOVS];
		int n = MIN(evbuffer_peek(s->out, -1, NULL, iov, FLUSH_IOVS), FLUSH_IOVS);
		size_t want = sum_bytes(iov, n);
		ssize_t sent = send_some(s, iov, n);

		if (sent < 0)
			return;
		evbuffer_drain(s->out, (size_t)sent);
		if ((size_t)sent < want)
			return;
	}
	drop_queue(s);
	if (s->shut_after_flush)
		stream_shutdown_write(s);
}

/* Calls on_writable if somebody waits for it; false when the stream is closed then. */
static bool tell_writable(struct stream *s)
{
	bool is_low = stream_queued(s) <= STREAM_LOW_BYTES;

	if (!s->want_writable && !(s->was_full && is_low))
		return true;
	s->want_writable = false;
	s->was_full = false;
	s->ops->on_writable(s->arg);
	return s->fd >= 0;
}

static bool finish_connect(struct stream *s)
{
	int err = sock_connect_result(s->fd);

	s->is_connecting = false;
	if (err == 0)
		err = arm_read(s);
	if (err != 0)
		stream_close(s);
	s->ops->on_connected(s->arg, err);
	return s->fd >= 0 && !s->is_connecting;
}

static void on_write_event(evutil_socket_t fd, short what, void *arg)
{
	struct stream *s = arg;

	(void)fd;
	(void)what;
	assert(s->magic == STREAM_MAGIC);
	clock_update();
	if (s->is_connecting && !finish_connect(s))
		return;
	flush(s);
	if (!tell_writable(s) || s->is_connecting)
		return;
	if (stream_queued(s) == 0 && !s->want_writable)
		disarm_write(s);
}
