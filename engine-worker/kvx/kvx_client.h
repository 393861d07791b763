/*
 * The decode side of KVX/1: pulls of KV blocks from prefill workers, one connection for
 * all pulls from the same one. Runs on the loop; the step loop never waits for it, and
 * nothing here calls back from inside a call of its own.
 */
#ifndef ENGINE_KVX_KVX_CLIENT_H
#define ENGINE_KVX_KVX_CLIENT_H

#include "kvx/kvx_frame.h"

struct loop;
union sock_addr;
struct kvx_client;
struct kvx_pull;

struct kvx_client_opts {
	const struct kvx_hello
		*self;       /* may change between kvx_client_cut() and the next pull */
	uint64_t connect_ms; /* for connect and HELLO, each of two tries */
	uint64_t stall_ms;   /* without a frame of a pull */
};

/* Why a pull ends. */
enum kvx_end_why {
	KVX_OK,
	KVX_UNREACHABLE, /* no connection, or no HELLO_OK in time */
	KVX_BROKE,       /* the connection ended */
	KVX_STALLED,
	KVX_CORRUPT, /* a damaged frame, or blocks that are not what they should be */
	KVX_INCOMPATIBLE,
	KVX_OTHER_ENGINE, /* another process than the one that has the blocks */
	KVX_GONE,         /* the lease is over */
	KVX_REFUSED,
	KVX_WHY_MAX
};

struct kvx_pull_ops {
	/* The next block, the index-th of the prompt; false: it is not usable. May not
	 * free the pull. */
	bool (*on_block)(void *arg, uint32_t index, struct span bytes);
	/* All blocks were there, or why not; after kvx_pull_start(), once. May free the
	 * pull. */
	void (*on_end)(void *arg, enum kvx_end_why why);
};

struct kvx_source {
	const union sock_addr *addr;
	struct span request,
		engine_id; /* at most KVX_REQUEST_MAX and KVX_ENGINE_ID_BYTES */
	unsigned char token[KVX_TOKEN_BYTES];
	uint64_t lease_ms; /* > 0; a sixth of it is between two heartbeats */
};

struct kvx_client *kvx_client_new(struct loop *l, const struct kvx_client_opts *opts);
void kvx_client_cut(struct kvx_client
		*c); /* all connections end; there must be no pulls but freed ones */
void kvx_client_free(struct kvx_client *c); /* likewise; NULL is fine */
/* How many RELEASE frames could not be sent. */
uint64_t kvx_client_lost_releases(const struct kvx_client *c);

/* Connects, and keeps the lease alive from now on. NULL: out of memory. */
struct kvx_pull *kvx_pull_new(struct kvx_client *c, const struct kvx_source *source,
	const struct kvx_pull_ops *ops, void *arg);
/* Pulls blocks skip to n_blocks - 1 of a prompt of n_tokens. */
void kvx_pull_start(
	struct kvx_pull *p, uint32_t skip, uint32_t n_blocks, uint32_t n_tokens);
/* Ends it, whatever it does, and gives the lease back for this reason; 0: leaves the
 * lease to its time. NULL is fine. */
void kvx_pull_free(struct kvx_pull *p, unsigned reason);

const char *kvx_end_text(enum kvx_end_why why);

#endif
