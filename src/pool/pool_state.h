/*
 * The parts of a pool, for the files of the pool: pool.c (its life, workers and options),
 * pool_key.c (keys), pool_pick.c (pick, explain), pool_wait.c (waiting requests),
 * pool_policy.c (states of its policies) and pool_read.c (questions of other modules). No
 * other file includes this.
 */
#ifndef POOL_POOL_STATE_H
#define POOL_POOL_STATE_H

#include "policy/policy_state.h"
#include "pool/pool.h"
#include "pool/retry.h"

#include <pthread.h>
#include <stdatomic.h>

struct pool_role {
	struct policy_opts policy;
	_Atomic int load_source;       /* enum load_source */
	_Atomic unsigned prefix_block; /* bytes */
	_Atomic bool short_prompts, last_resort;
	_Atomic uint64_t no_worker_wait_ms;
	unsigned retry_percent;         /* retry_budget */
	_Atomic unsigned wants;         /* policy_wants() */
	_Atomic unsigned prefix_tokens; /* 0: no policy uses the prompt's beginning */
	struct policy_state state;
	bool is_state_stale;        /* the control thread's: it could not be made */
	struct prefix_index *index; /* NULL until a policy needs it */
	uint32_t index_epoch; /* which index: slots and stamps begin anew with each */
	struct prefix_index_opts index_opts;
	uint64_t decisions[PICK_REASON_MAX];
};

struct pool {
	_Atomic unsigned refs;
	char *name;
	uint64_t boot_secret[2];
	const struct pool_ops *ops;
	void *arg;
	_Atomic uint64_t generation;

	_Atomic unsigned waiting;             /* in the queue, or about to be */
	_Atomic unsigned n_workers[ROLE_MAX]; /* written under the lock */
	_Atomic bool lacks_prefill;
	_Atomic uint64_t models_doubted_ms;
	_Atomic bool lists_differ; /* its workers list different models */
	_Atomic bool has_adapters; /* and some of them LoRA adapters */
	_Atomic int connector;     /* enum kv_connector */
	/* Transfer fields of clients and responses pass (kv_params). */
	_Atomic bool passes_transfers;
	_Atomic bool has_connector;
	/* The control thread's, each second; the rate is in thousandths. */
	uint64_t measured_ms;
	_Atomic uint64_t finish_rate;

	/* Under the lock, which has its own cache line. The fields above are read without
	 * it. */
	CACHE_ALIGNED pthread_mutex_t lock;
	struct queue queue;
	char only_model[POOL_MODEL_MAX];
	size_t only_model_len; /* 0: unknown, or several */
	struct registry registry;
	struct pool_role roles[ROLE_MAX];
	uint64_t sequence; /* of picks */
	struct retry_budget retries;
	struct rng rng;
	/* Scratch of the pick in progress, sized for the registry. */
	struct candidate *candidates;
	uint32_t *depth;
	size_t cap_candidates, cap_depth;
	/* Told after the lock is released. */
	struct change {
		struct worker *worker; /* a reference */
		bool is_added;
	} * changes;
	size_t n_changes, cap_changes;
};

static inline void pool_lock(struct pool *p)
{
	int err = pthread_mutex_lock(&p->lock);

	assert(err == 0);
	(void)err;
}

static inline void pool_unlock(struct pool *p)
{
	int err = pthread_mutex_unlock(&p->lock);

	assert(err == 0);
	(void)err;
}

/* pool_pick.c: pool_pick() under the lock. */
int pool_pick_locked(struct pool *p, const struct pool_ask *ask, struct guard *g,
	struct pool_pick *out) MUST_CHECK;

/* No worker can be back within no_worker_wait: their breakers say so. Under the lock. */
bool pool_wait_is_vain(struct pool *p, const struct pool_ask *ask);

/* pool_wait.c: each second, on the control thread. */
void pool_measure(struct pool *p, uint64_t now_ms);

/* pool_outliers.c: likewise. */
void pool_judge_outliers(struct pool *p);

/* pool_policy.c: after the options or the workers changed; outside the lock. */
void pool_refresh_policies(struct pool *p);
/* Each second: makes the states for which memory was short. */
void pool_retry_policies(struct pool *p);

#endif
