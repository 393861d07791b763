/*
 * One KVX/1 connection, either side of it: frames in, checked; frames out. Embedded by
 * value in its owner, whose memory must outlive the turn in which it is closed
 * (loop_reap).
 */
#ifndef ENGINE_KVX_KVX_LINK_H
#define ENGINE_KVX_KVX_LINK_H

#include "io/stream.h"
#include "kvx/kvx_frame.h"

struct kvx_link_ops {
	/* Connected, after kvx_link_connect(). */
	void (*on_up)(void *arg);
	/* A whole frame, its sums right. May close the link. */
	void (*on_frame)(void *arg, const struct kvx_header *h, struct span payload);
	/* The queue is low again, after a send had said that it is full. */
	void (*on_writable)(void *arg);
	/* The link was closed: ERR_CLOSED, ERR_REFUSED, ERR_TIMEOUT, ERR_IO, ERR_NOMEM;
	 * ERR_PARSE: a damaged frame; ERR_LIMIT: too long a frame. Not after
	 * kvx_link_close(). */
	void (*on_down)(void *arg, int err);
};

struct kvx_link {
	struct stream stream;
	const struct kvx_link_ops *ops;
	void *arg;
	unsigned char *in; /* bytes that are no whole frame yet */
	size_t n_in, cap_in;
	uint32_t max_len; /* of a payload */
	uint64_t lives;   /* connections so far */
};

void kvx_link_init(struct kvx_link *l, struct loop *loop, uint32_t max_len,
	const struct kvx_link_ops *ops, void *arg);
int kvx_link_open(
	struct kvx_link *l, int fd) MUST_CHECK; /* takes fd; ERR_NOMEM: it is closed */
int kvx_link_connect(struct kvx_link *l, const union sock_addr *a)
	MUST_CHECK; /* on_up or on_down comes later, unless this fails */
/*
 * Sends a frame with aux 0 and this payload in two pieces, of which either may be empty.
 * Never calls back: where the connection is broken, on_down comes later. True: the queue
 * is full; wait for on_writable.
 */
bool kvx_link_send(struct kvx_link *l, enum kvx_type type, uint32_t stream,
	struct span head, struct span body);
bool kvx_link_send_out(struct kvx_link *l, enum kvx_type type, uint32_t stream,
	const struct kvx_out *payload);
void kvx_link_answer_ping(struct kvx_link *l, const struct kvx_header *ping);
void kvx_link_close(struct kvx_link *l); /* idempotent */
/* After kvx_link_close(), when its memory goes. */
void kvx_link_free(struct kvx_link *l);

#endif
