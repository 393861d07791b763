/*
 * A KVX/1 connection over io/stream. See kvx_link.h.
 * Always true: what is in `in` between two reads is less than one frame.
 * Called by kvx_server.c and kvx_client.c.
 */
#include "kvx/kvx_link.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <sys/socket.h>

enum {
	READ_BYTES = 65536,
	QUEUE_MAX =
		1
		<< 20, /* besides a block: who asks for more without reading is cut off */
};

static void link_down(struct kvx_link *l, int err)
{
	kvx_link_close(l);
	l->ops->on_down(l->arg, err);
}

/* The frame at p, of which n bytes are there. Returns its length; 0: it is not whole yet;
 * or ERR_*. */
static ssize_t take_frame(struct kvx_link *l, const unsigned char *p, size_t n)
{
	struct kvx_header h;
	struct span payload;
	int err;

	if (n < KVX_HEADER_BYTES)
		return 0;
	err = kvx_header_read(p, l->max_len, &h);
	if (err != 0)
		return err;
	if (n - KVX_HEADER_BYTES < h.len)
		return 0;
	payload = span_make((const char *)p + KVX_HEADER_BYTES, h.len);
	if (!kvx_payload_fits(&h, payload))
		return ERR_PARSE;
	l->ops->on_frame(l->arg, &h, payload);
	return (ssize_t)(KVX_HEADER_BYTES + h.len);
}

static void take_frames(struct kvx_link *l)
{
	uint64_t life = l->lives;
	size_t at = 0;

	while (stream_is_open(&l->stream)) {
		ssize_t used = take_frame(l, l->in + at, l->n_in - at);

		if (l->lives != life)
			return; /* closed, and connected anew */
		if (used < 0) {
			link_down(l, (int)used);
			return;
		}
		if (used == 0)
			break;
		at += (size_t)used;
	}
	if (at > 0)
		memmove(l->in, l->in + at, l->n_in - at);
	l->n_in -= at;
}

static void on_readable(void *arg)
{
	struct kvx_link *l = arg;
	ssize_t got;

	if (mem_grow(&l->in, &l->cap_in, l->n_in + READ_BYTES, 1) != 0) {
		link_down(l, ERR_NOMEM);
		return;
	}
	got = stream_read(&l->stream, l->in + l->n_in, READ_BYTES);
	if (got == ERR_AGAIN)
		return;
	if (got < 0) {
		link_down(l, (int)got);
		return;
	}
	l->n_in += (size_t)got;
	take_frames(l);
}

static void on_connected(void *arg, int err)
{
	struct kvx_link *l = arg;

	if (err != 0)
		link_down(l, err);
	else
		l->ops->on_up(l->arg);
}

static void on_writable(void *arg)
{
	struct kvx_link *l = arg;

	if (l->ops->on_writable != NULL)
		l->ops->on_writable(l->arg);
}

static void on_peer_closed(void *arg)
{
	link_down(arg, ERR_CLOSED);
}

void kvx_link_init(struct kvx_link *l, struct loop *loop, uint32_t max_len,
	const struct kvx_link_ops *ops, void *arg)
{
	static const struct stream_ops stream_ops = {
		.on_connected = on_connected,
		.on_readable = on_readable,
		.on_writable = on_writable,
		.on_peer_closed = on_peer_closed,
	};

	*l = (struct kvx_link){.ops = ops, .arg = arg, .max_len = max_len};
	stream_init(&l->stream, loop, &stream_ops, l);
}

int kvx_link_open(struct kvx_link *l, int fd)
{
	return stream_open(&l->stream, fd);
}

int kvx_link_connect(struct kvx_link *l, const union sock_addr *a)
{
	l->n_in = 0;
	l->lives++;
	return stream_connect(&l->stream, a);
}

static bool send_frame(struct kvx_link *l, const struct kvx_header *h, struct span head,
	struct span body)
{
	unsigned char header[KVX_HEADER_BYTES];
	struct iovec iov[3] = {
		{header, sizeof(header)},
		{(void *)(uintptr_t)head.p, head.n},
		{(void *)(uintptr_t)body.p, body.n},
	};
	int err;

	if (!stream_is_open(&l->stream))
		return false;
	kvx_header_write(h, header);
	err = stream_write(&l->stream, iov, ARRAY_LEN(iov));
	if ((err != 0 && err != ERR_LIMIT) ||
		stream_queued(&l->stream) > QUEUE_MAX + l->max_len)
		(void)shutdown(l->stream.fd, SHUT_RDWR); /* reading will tell */
	return err == ERR_LIMIT;
}

bool kvx_link_send(struct kvx_link *l, enum kvx_type type, uint32_t stream,
	struct span head, struct span body)
{
	struct kvx_header h = {
		.type = (uint8_t)type,
		.stream = stream,
		.len = (uint32_t)(head.n + body.n),
		.crc = crc32c(crc32c(0, head.p, head.n), body.p, body.n),
	};

	return send_frame(l, &h, head, body);
}

bool kvx_link_send_out(struct kvx_link *l, enum kvx_type type, uint32_t stream,
	const struct kvx_out *payload)
{
	assert(!payload->is_full);
	return kvx_link_send(l, type, stream,
		span_make((const char *)payload->p, payload->n), span_make(NULL, 0));
}

void kvx_link_answer_ping(struct kvx_link *l, const struct kvx_header *ping)
{
	struct kvx_header h = {
		.type = KVX_PONG, .stream = ping->stream, .aux = ping->aux};

	(void)send_frame(l, &h, span_make(NULL, 0), span_make(NULL, 0));
}

void kvx_link_close(struct kvx_link *l)
{
	stream_close(&l->stream);
}

void kvx_link_free(struct kvx_link *l)
{
	kvx_link_close(l);
	free(l->in);
	l->in = NULL;
	l->n_in = l->cap_in = 0;
}
