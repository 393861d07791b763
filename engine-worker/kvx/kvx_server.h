/*
 * The prefill side of KVX/1: a listener whose connections are answered with the blocks of
 * leases. The step loop is not involved.
 */
#ifndef ENGINE_KVX_KVX_SERVER_H
#define ENGINE_KVX_KVX_SERVER_H

#include "kvx/kvx_frame.h"
#include "kvx/lease.h"

struct loop;
struct ip_net;
struct kvx_server;

struct kvx_server_opts {
	const struct kvx_hello
		*self; /* may change between kvx_server_cut() and the next turn */
	struct leases *leases;
	const struct ip_net *peers; /* who may connect */
	size_t n_peers;
	/* The bytes of a lease's i-th block, self->block_bytes of them; not 0: it failed.
	 */
	int (*read)(void *arg, const struct lease *lease, uint32_t i, void *dst);
	/* A lease was added, renewed or ended. */
	void (*on_leases)(void *arg);
	void *arg;
};

struct kvx_server_counts {
	uint64_t pulls, blocks, bytes, refused; /* refused: connections and pulls */
};

/* Takes the listening descriptor. NULL: out of memory. */
struct kvx_server *kvx_server_new(
	struct loop *l, int listen_fd, const struct kvx_server_opts *opts);
void kvx_server_cut(
	struct kvx_server *s); /* all connections break, as when the process ends */
const struct kvx_server_counts *kvx_server_counts(const struct kvx_server *s);
void kvx_server_free(struct kvx_server *s); /* NULL is fine */

#endif
