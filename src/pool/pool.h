/*
 * One pool: its workers by role, their loads, its prefix index, generation and policy,
 * behind one lock. Pick, guard and index insertion are one critical section. Work
 * under the lock has a bounded, small cost (hashing and scanning happen before). Shared
 * between threads; every function locks for itself. Made and updated by the control
 * thread (a reload changes it in place); lives by reference count.
 */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "base/base.h"
#include "base/rng.h"
#include "conf/conf.h"
#include "policy/policy.h"
#include "pool/queue.h"
#include "prefix/prefix_index.h"
#include "route/route_key.h"
#include "worker/guard.h"
#include "worker/registry.h"
#include "worker/worker.h"

struct pool;
struct text;

/*
 * Told on the control thread, outside the lock, when workers come and go. make_room
 * (NULL: nobody needs it) comes before n workers that may come: with ERR_NOMEM none does,
 * and without it on_worker_add cannot fail.
 */
struct pool_ops {
	int (*make_room)(void *arg, size_t n);
	void (*on_worker_add)(void *arg, struct pool *p, struct worker *w);
	void (*on_worker_remove)(void *arg, struct pool *p, struct worker *w);
};

struct pool *pool_new(const char *name, const uint64_t boot_secret[2],
	const struct pool_ops *ops, void *arg); /* NULL: out of memory */
/* Seeds the random choices, for simulations, whose runs must be repeatable. */
void pool_seed(struct pool *p, uint64_t seed);
struct pool *pool_ref(struct pool *p);
void pool_unref(struct pool *p);
const char *pool_name(const struct pool *p);

/*
 * New options and workers (those of conf whose pool is this one), in two steps, so that
 * several pools change together or not at all. The first may fail (ERR_NOMEM: nothing
 * changed), the second cannot. A plan is committed or abandoned, once; conf lives
 * until then, and nothing else changes the pool's workers in between.
 */
struct pool_plan;
int pool_prepare(struct pool *p, const struct pool_conf *pc, const struct conf *conf,
	struct pool_plan **out) MUST_CHECK;
void pool_commit(struct pool_plan *plan, uint64_t now_ms);
void pool_abandon(struct pool_plan *plan); /* NULL is fine */
/* How many workers come with the plan; whoever commits it makes room for them before. */
size_t pool_plan_new(const struct pool_plan *plan);
/* All of it at once. */
int pool_update(struct pool *p, const struct pool_conf *pc, const struct conf *conf,
	uint64_t now_ms) MUST_CHECK;
int pool_add_worker(struct pool *p,
	const struct worker_conf *c) MUST_CHECK; /* ERR_EXISTS, ERR_NOMEM */
/* ERR_NOENT; a group's name takes all its ranks. */
int pool_remove_worker(struct pool *p, struct span name) MUST_CHECK;
/* Before the last reference goes: no worker is left, nothing is picked any more. */
void pool_close(struct pool *p);

/* True if requests of this role are keyed by their prompt. Unlocked, may be stale by one
 * reload: harmless. */
bool pool_needs_key(const struct pool *p, enum role role);
/* The parts of a request that its policy reads (enum policy_wants). */
unsigned pool_wants(const struct pool *p, enum role role);
enum load_source pool_load_source(const struct pool *p, enum role role);
void pool_key_opts(const struct pool *p, enum role role, struct route_key_opts *out);

/* The needs of a request. */
struct pool_ask {
	enum role role;
	uint64_t kv_group;     /* pool_look's, of the workers that will do; 0: any */
	bool is_further_leg;   /* its request has a pick already and is not new */
	struct route_key *key; /* NULL: nothing known of the prompt */
	const struct routing *routing; /* as pool_wants() says; NULL: none */
	struct span model;             /* empty: any */
	struct span lora; /* the adapter, where the request names one beside the model */
	struct span pinned; /* worker, or group of ranks, by name; empty: policy */
	/* Only this rank, of any worker. Ignored if no worker has ranks. */
	bool is_rank_pinned;
	uint32_t pinned_rank;
	uint64_t home; /* host_id of the only workers allowed; 0: any */
	/* ids, or host_ids, of workers that failed this request; ascending, n_tried */
	const uint64_t *tried;
	unsigned n_tried;
	uint32_t tenant;     /* whose it is; BREAKER_NO_TENANT: there are none */
	uint64_t body_bytes; /* how long the prompt may be, where no key says it */
	/* It has been a trial, or its response has begun: it is no trial now. */
	bool is_no_trial;
	bool is_free; /* pool_may_retry(): whatever the budget says */
	/* If no worker is fit, the least bad one is taken. */
	bool is_last_resort;
	/* An answer is at hand: a worker that rests (Retry-After) is no better. */
	bool is_choosy;
	struct slots *slots; /* of the process; NULL: no cap */
	unsigned max_slots;
	uint64_t now_ms;
	/* The pool's own: hash of the model, where some of its workers list it and others
	 * do not; 0: any worker has it, as far as is known. */
	uint64_t listed;
	uint64_t adapter; /* the pool's own: hash of its LoRA adapter; 0: none is known */
};

static inline bool pool_ask_is_pinned(const struct pool_ask *ask)
{
	return ask->pinned.n > 0 || ask->is_rank_pinned;
}

/* The prediction and the insertion; kept by the request for withdraw. */
struct pool_insertion {
	uint64_t worker_id, stamp;
	uint32_t epoch, slot, from, blocks;
};

struct pool_pick {
	enum pick_reason reason;
	uint32_t matched, blocks;
	struct pool_insertion insertion;
	/* The worker's options in force now. */
	uint64_t connect_timeout_ms, first_byte_timeout_ms, stream_idle_timeout_ms,
		total_timeout_ms, upstream_idle_ms;
	unsigned max_retries;
	struct status_set retry_on;
	bool retries_same, holds_headers, resumes_streams;
	/* This request is the trial of a worker in doubt (its breaker is half-open, or it
	 * is stalled or degraded and idle). The trial may take that long; 0: any time. */
	bool is_trial;
	uint64_t trial_timeout_ms;
	struct reach_seen reach_seen; /* of the worker's connects */
	/* For pairs of prefill and decode. */
	uint64_t kv_group;
	uint64_t uncached_tokens; /* as in pool_look */
	unsigned bootstrap_port, dp_size;
};

/*
 * Mixes the public hashes of key into index keys of this pool, in place, before the lock;
 * once for each request. Hashes that were mixed under an earlier generation match
 * nothing.
 */
void pool_seal_key(struct pool *p, struct route_key *key, struct span tenant);

/* The one model that all workers of the pool have, for keys that name none. Empty: not
 * known, or several. */
#define POOL_MODEL_MAX 256
void pool_set_only_model(struct pool *p, struct span model);
/* Its length. */
size_t pool_only_model(struct pool *p, char to[POOL_MODEL_MAX]);

/*
 * Chooses, takes the guard, inserts. 0, or
 *   ERR_LIMIT  workers are fit for it, but all full, or all slots of the process taken
 *   ERR_STATE  all workers that could serve it are out: unhealthy, draining, breaker open
 *   ERR_NOENT  no worker could serve it: none of that role or model, or all were tried
 *   ERR_PARSE  no worker has the pinned name or rank
 */
int pool_pick(struct pool *p, const struct pool_ask *ask, struct guard *g,
	struct pool_pick *out) MUST_CHECK;
/* The choice of pool_pick() now. Nothing is changed; errors as its own. */
struct pool_look {
	uint64_t kv_group;        /* of that worker */
	uint64_t uncached_tokens; /* about: of the prompt, what it must compute */
};
int pool_look(
	struct pool *p, const struct pool_ask *ask, struct pool_look *out) MUST_CHECK;
/* True if pool_pick() would find a worker. */
bool pool_has_candidate(struct pool *p, const struct pool_ask *ask);
enum retry_leave {
	RETRY_YES, /* there is another worker, and the retry is taken from the budget */
	RETRY_NOBODY, /* else all were tried, or none is fit */
	RETRY_SPENT,  /* the budget (retry_budget) has none left */
};
/* Tells whether a request that failed may go to another worker. may_queue: a full worker
 * counts too. */
enum retry_leave pool_may_retry(
	struct pool *p, const struct pool_ask *ask, bool may_queue);

/*
 * A request that waits for a worker. Filled by its owner. From the ERR_AGAIN of
 * pool_pick_or_wait() to pool_wait_end() it belongs to the pool, and the data that it and
 * its ask point to must not change. The thread that frees a slot for it writes guard and
 * pick.
 */
struct pool_waiter {
	struct waiter waiter;
	struct pool_ask ask;
	struct guard *guard;
	struct pool_pick *pick;
	int outcome; /* the pool's; what pool_wait_end() returns */
	/* Called once, under the pool's lock and on any thread, when the wait is over:
	 * may only post mail. */
	void (*wake)(struct pool_waiter *w);
};
/*
 * pool_pick(w->ask), but behind requests that wait already. On ERR_LIMIT and ERR_STATE,
 * if may_wait(arg, err) returns true, w is queued: ERR_AGAIN.
 */
int pool_pick_or_wait(struct pool *p, struct pool_waiter *w, enum priority priority,
	bool (*may_wait)(void *arg, int err), void *arg) MUST_CHECK;
/*
 * It waits no more. 0: it was granted; its guard is held and pick is there. ERR_AGAIN:
 * the wait was not over. Else what pool_pick() says now: every worker that it could have
 * had is gone.
 */
int pool_wait_end(struct pool *p, struct pool_waiter *w) MUST_CHECK;
/*
 * After something was freed, or a worker came back or left: serves the requests that can
 * be served now, and refuses those that no worker is left for. Costs one look where
 * nobody waits.
 */
void pool_serve(struct pool *p, uint64_t now_ms);
unsigned pool_waiting(const struct pool *p);
/* The least bad worker is tried where all are out (last_resort). Unlocked. */
bool pool_has_last_resort(const struct pool *p, enum role role);
/* How long a request waits while all workers are out (no_worker_wait). Unlocked. */
uint64_t pool_no_worker_wait_ms(const struct pool *p, enum role role);
/* Responses that its workers completed each second recently; measured by pool_sweep(). */
double pool_finish_rate(const struct pool *p);
/* The exchange failed before a 2xx head: the insertion is taken back. */
void pool_withdraw(
	struct pool *p, const struct route_key *key, const struct pool_insertion *ins);

/*
 * Why none of the workers that are asked for can have it: "Pool p has 3 workers: 2
 * sleeping, 1 kept out by its breaker.", as the inside of a JSON string. *back_ms: one
 * may be back then; 0: not known.
 */
void pool_tell_outage(
	struct pool *p, const struct pool_ask *ask, struct text *out, uint64_t *back_ms);

/* The session lives on no worker any more, in any role. False: it did not. */
bool pool_finish_session(struct pool *p, struct span session);

struct explain_candidate {
	char worker[64];
	const char *out_of_play; /* NULL: a candidate; else why not: "model", "tried",
				    "state", "unreachable", "late", "breaker",
				    "paused", "full" */
	const char *state;
	unsigned load;
	uint32_t depth;
	double fraction, score;
	double terms[TERM_MAX];
	unsigned has_terms; /* bit t: terms[t] is part of this policy's score */
	bool is_overloaded;
};
struct explain {
	struct explain_candidate *candidates; /* owned: free() */
	size_t n;
	int chosen; /* index; -1: none */
	enum pick_reason reason;
	uint32_t blocks;
	const char *policy;
};
/* The same code as pool_pick, without guard, insertion or sequence numbers. ERR_PARSE:
 * the pin names no worker; ERR_NOMEM. */
int pool_explain(
	struct pool *p, const struct pool_ask *ask, struct explain *out) MUST_CHECK;

/*
 * Prefill and decode. A pool is split while it has decode workers, or prefill workers
 * and no unified ones; unified workers of a split pool get no requests. Unlocked.
 */
bool pool_is_split(const struct pool *p);
/* The role whose workers serve a request alone: decode in a split pool. */
enum role pool_whole_role(const struct pool *p);
/* The role and group of the worker, or group of ranks, of that name. False: there is
 * none. */
bool pool_find_role(
	struct pool *p, struct span name, enum role *role, uint64_t *kv_group);
enum kv_connector pool_connector(const struct pool *p);
/* kv_params = pass: KV transfer fields go from client to worker, where the pool is not
 * split, and back. */
bool pool_passes_transfers(const struct pool *p);
/* Bodies are read for such fields, if for nothing else: they must not reach an engine. */
bool pool_searches_bodies(const struct pool *p);
/*
 * The engine id of a prefill worker at its bootstrap server, for connectors that need it.
 * The control thread sets it (empty: no longer known). Any thread reads it into out; the
 * length is returned, 0: not known.
 */
void pool_set_engine(struct pool *p, struct worker *w, struct span id);
size_t pool_engine(struct pool *p, const struct worker *w, char out[KV_ENGINE_MAX]);
/* No prefill worker was available after no_worker_wait. Until one is, no request
 * waits. */
bool pool_lacks_prefill(const struct pool *p);
/* True if this changes anything. */
bool pool_note_prefill(struct pool *p, bool is_lacking);

/* Usable workers of a role. */
unsigned pool_usable(struct pool *p, enum role role);
unsigned pool_workers(struct pool *p, enum role role);
/*
 * The i-th worker in order, without a reference; NULL behind the last one. Only for the
 * control thread, which alone changes the list.
 */
struct worker *pool_worker_at(const struct pool *p, size_t i);
/* A reference to each worker, in order; the caller unrefs each and frees the array. NULL
 * with *n 0 when there are none or memory is short. */
struct worker **pool_list(struct pool *p, size_t *n);
struct worker *pool_find(struct pool *p, struct span name); /* a reference, or NULL */
/* A worker or a group of ranks has this name. */
bool pool_has_name(struct pool *p, struct span name);

uint64_t pool_generation(const struct pool *p);
/*
 * Entries of another generation stop matching at once, and none is made any more by
 * requests that were keyed before; their memory goes with the ordinary sweep, and first
 * where room is needed. Returns the new generation.
 */
uint64_t pool_bump_generation(struct pool *p);
/* Sets an earlier generation: its entries that are still there match again. */
void pool_set_generation(struct pool *p, uint64_t generation);
/* The worker's cache is gone (restart, flush). */
void pool_clear_worker(struct pool *p, struct worker *w);
/* So are those of all ranks of its host. */
void pool_clear_host(struct pool *p, const struct worker *w);
/* True if its workers are of several hosts. */
bool pool_has_hosts(struct pool *p);
/*
 * The models that a worker lists (NULL: not known), which it keeps. A request for one
 * that some workers list goes to those alone; the others serve anything. Workers with
 * `models` in their configuration go by that. Control thread.
 */
struct model_set;
void pool_set_models(struct pool *p, struct worker *w, struct model_set *models);
/* Its workers list different models: requests are to be asked for theirs. Unlocked. */
bool pool_lists_differ(const struct pool *p);
/* Those of a worker's list that are LoRA adapters, which it keeps; NULL: none. */
void pool_set_adapters(struct pool *p, struct worker *w, struct model_set *adapters);
/* What its engine says of them. */
struct adapters_report;
void pool_adapters_reported(
	struct pool *p, struct worker *w, const struct adapters_report *report);
/* Some worker lists one. Unlocked. */
bool pool_has_adapters(const struct pool *p);
/* A worker that does what is asked, other than w and not tried yet, lists the model. */
bool pool_has_lister(struct pool *p, const struct pool_ask *ask, const struct worker *w);
/* A worker said that it has no such model: the lists may be of yesterday. Unlocked. */
void pool_doubt_models(struct pool *p, uint64_t now_ms);
/* When that was last; 0: never. */
uint64_t pool_models_doubted_ms(const struct pool *p);
/* A worker of the pool lists it. */
bool pool_lists_model(struct pool *p, struct span model);
/* Learned KV capacity in tokens (0: unknown); the configured one wins. It outlives
 * reloads and changes of policy. Control thread. */
void pool_worker_capacity(struct pool *p, struct worker *w, uint64_t tokens);
uint64_t pool_worker_blocks(struct pool *p, const struct worker *w);
void pool_index_stats(struct pool *p, enum role role, struct prefix_index_stats *out);
const char *pool_policy_name(const struct pool *p, enum role role);
/* Expired entries go; called by the control thread every second. */
void pool_sweep(struct pool *p, uint64_t now_ms);
/* Decisions so far by reason (of all roles). */
uint64_t pool_decisions(const struct pool *p, enum role role, enum pick_reason reason);

#endif
