/*
 * The hand-off of computed prompts between workers: what is kept here for others (leases,
 * offered in kv_transfer_params and served by KVX/1), and what is taken from them
 * (kv_load). Runs on the loop's thread.
 */
#ifndef ENGINE_KVX_KV_HANDOFF_H
#define ENGINE_KVX_KV_HANDOFF_H

#include "kvx/kv_params.h"
#include "kvx/kvx_client.h"
#include "kvx/lease.h"

struct engine;
struct engine_histograms;
struct handoff;
struct js;
struct kv_load;
struct loop;
struct sched_seq;

/* By order of flags and of HELLO. */
enum engine_role { ROLE_UNIFIED, ROLE_PREFILL, ROLE_DECODE };

enum { HANDOFF_PEERS_MAX = 32 };

struct handoff_opts {
	enum engine_role role;
	union sock_addr listen; /* family AF_UNSPEC: nothing is kept nor taken */
	const char *advertise;  /* an address for others; NULL: that of listen */
	struct ip_net
		peers[HANDOFF_PEERS_MAX]; /* from and to whom there are connections */
	size_t n_peers;
	uint64_t lease_ms, connect_ms, stall_ms;
	double max_leased; /* part of all blocks */
	bool recomputes;   /* a prompt that cannot be taken is computed; else its request
			      fails */
	const char *model;
};

struct handoff_counts {
	uint64_t failed, recomputed; /* transfers */
	uint64_t lost_releases, expired;
	uint32_t leases, leased_blocks; /* now */
	uint64_t sent_blocks;
};

const char *role_text(enum engine_role role);

/* Listens, but answers nobody before handoff_ready(). engine_id and histograms must
 * outlive it. ERR_NOMEM; ERR_IO: listening, errno tells. */
int handoff_new(struct loop *l, const struct handoff_opts *opts, const char *engine_id,
	struct engine_histograms *histograms, struct handoff **out) MUST_CHECK;
/* From now on this engine, which is ready, keeps and takes prompts. Before this only its
 * role, its address and whether it is idle may be asked. ERR_NOMEM. */
int handoff_ready(struct handoff *h, struct engine *engine) MUST_CHECK;
/* As if the process had ended: before the engine forgets its blocks, and after engine_id
 * has changed. There must be no loads. */
void handoff_restart(struct handoff *h);
void handoff_free(struct handoff *h); /* after all loads; NULL is fine */
bool handoff_is_on(const struct handoff *h);
enum engine_role handoff_role(const struct handoff *h);
/* Port and address of the listener; 0 and "": there is none. */
uint16_t handoff_port(const struct handoff *h);
const char *handoff_host(const struct handoff *h);
/* Engines of the same group can hand prompts over: the beginning of what HELLO compares,
 * in hex. */
const char *handoff_group(const struct handoff *h);
bool handoff_is_idle(const struct handoff *h); /* nothing is kept for anybody */
struct handoff_counts handoff_counts(const struct handoff *h);

/* Keeping */

/* Keeps room for a prompt of n_tokens besides the others. False: there is none. */
bool handoff_reserve(struct handoff *h, size_t n_tokens) MUST_CHECK;
void handoff_unreserve(struct handoff *h, size_t n_tokens);
/* From the sequence's on_end(): the kv_transfer_params by which its prompt can be taken.
 * NULL: it is not kept. */
struct js *handoff_offer(struct handoff *h, struct sched_seq *seq, const char *request);
/* Gives back what is kept. False: the token is not of this process. *was_kept: it was
 * still there. */
bool handoff_release(struct handoff *h, struct span request,
	const unsigned char token[KVX_TOKEN_BYTES], bool *was_kept) MUST_CHECK;

/* Taking */

enum kv_loaded { KV_LOADED_TRANSFERRED, KV_LOADED_LOCAL, KV_LOADED_RECOMPUTED };

struct kv_load_ops {
	/* The prompt is there, or will be computed. */
	void (*on_loaded)(void *arg, enum kv_loaded how);
	/* The prompt cannot be loaded: the sequence, which still loads, is to be dropped.
	 * May free the load. */
	void (*on_failed)(void *arg, enum kvx_end_why why);
};

/* From the request's arrival. NULL: out of memory. */
struct kv_load *kv_load_new(struct handoff *h, const struct kv_params *params,
	const struct kv_load_ops *ops, void *arg);
/* From on_load(), with what it says. */
void kv_load_start(struct kv_load *load, struct sched_seq *seq, size_t found, size_t n,
	size_t n_tokens);
/* Before its sequence is dropped. Gives back a lease that was not used. NULL is fine. */
void kv_load_free(struct kv_load *load);

#endif
