/*
 * One backend: identity, address, health, load counter, reference count. Each
 * data-parallel rank behind one URL is a worker of its own; what they have in common is
 * their group: name as configured, URL, role.
 * Shared between threads. Identity is immutable after worker_new(); `load` is written by
 * guard.c only; atomics are readable without a lock; `conf` is swapped by the control
 * thread under the pool's lock; addresses have their own small lock. Lives as long as its
 * registry or any guard holds a reference.
 */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "conf/conf.h"
#include "worker/adapters.h"
#include "worker/breaker.h"
#include "worker/decay.h"
#include "worker/latency.h"
#include "worker/outlier.h"
#include "worker/pace.h"
#include "worker/progress.h"
#include "worker/reach.h"

#include <pthread.h>
#include <stdatomic.h>

struct addr_list;

#define KV_ENGINE_MAX 128

/* The state of a worker; in the order of worker_state_name(). */
enum worker_state {
	WORKER_STARTING, /* never answered a probe: no traffic */
	WORKER_HEALTHY,
	WORKER_SUSPECT,
	WORKER_STALLED,
	WORKER_DEGRADED,
	WORKER_UNHEALTHY,
	WORKER_LOADING,  /* it says that it loads its model: no traffic */
	WORKER_SLEEPING, /* it says that it sleeps: no traffic */
	WORKER_DRAINING,
	WORKER_STATE_MAX
};
const char *worker_state_name(enum worker_state s);

/*
 * The one small request that a stalled or degraded worker is tried with once it is idle:
 * the control thread offers it, the pick that takes it says so (under the pool's lock),
 * and the control thread then begins the next back-off.
 */
enum worker_trial { TRIAL_NONE, TRIAL_OFFERED, TRIAL_TAKEN };

/*
 * Blocks of the prompts that a worker was chosen for, and how many of them it was
 * believed to hold: all of them, and recent ones, which weigh half as much with each
 * minute that ends. Written under the pool's lock, read anywhere.
 */
struct hit_count {
	_Atomic uint64_t blocks, matched;
	_Atomic uint64_t recent_blocks, recent_matched;
	uint64_t minute_ms; /* when the running one began; under the lock */
};
void hit_count_add(
	struct hit_count *h, uint32_t matched, uint32_t blocks, uint64_t now_ms);

/* A rank as its engine numbers it, where that differs from the worker's own number. */
struct engine_rank {
	struct engine_rank *older;
	unsigned number;
	struct span line;
	char text[48];
};

struct model_set;

struct worker {
	uint64_t id;      /* never reused in this process */
	char *name;       /* as configured, or "gpu1@2" for rank 2 of several */
	char *group;      /* as configured */
	uint64_t host_id; /* the same for all ranks of a group, and for nobody else */
	unsigned rank;
	bool has_rank; /* one of several behind this URL: requests must name it */
	struct conf_url url;
	enum role role;
	/* The same in every router: "http://h:8000", or "http://h:8000@2" for a rank. */
	char *stable_id;
	size_t stable_len;
	uint64_t stable_hash;  /* ring_id() of it */
	struct span host_line; /* "Host: …\r\n" */
	struct span rank_line; /* worker_rank_line() */
	struct span url_base;

	/* Under the pool's lock for I/O threads; the control thread, the only writer,
	 * reads freely. */
	struct worker_conf *conf;
	enum worker_origin origin; /* conf's */

	/* One struct for each writer, by its name; anyone may read what is atomic. */

	/* The pool, under its lock. The control thread alone writes all but the picks. */
	struct {
		uint64_t last_picked, last_cold; /* sequence numbers of the pool */
		struct decay recent;             /* misses of late, in blocks */
		struct hit_count hits;
		uint32_t index_slot;
		struct model_set *models; /* that it lists; NULL: not known */
		/* Those of them that are LoRA adapters; NULL: none, or not known. */
		struct model_set *adapters_listed;
		struct adapters adapters; /* the picks' but for what is reported */
		uint64_t learned_tokens;  /* KV cache as the worker says; 0: not said */
		uint64_t measured;        /* completions that pool_measure() has seen */
		struct outlier_stats stats;
		_Atomic int outlier; /* enum outlier */
		struct latency_window latency;
		/* Its engine id at its bootstrap server (Mooncake); empty: not known. */
		char kv_engine[KV_ENGINE_MAX];
	} pool;

	/* health.c, on the control thread. */
	struct {
		char reason[160]; /* why the state is what it is */
		uint64_t state_since_ms;
		_Atomic uint64_t warm_since_ms; /* slow_start counts from here; 0: long
						   over */
	} probe;

	/* watch.c, on the control thread. */
	struct {
		struct progress progress; /* of its answers */
		char verdict_reason[160]; /* why progress.verdict is what it is */
	} watch;

	/* report.c, on the control thread: what the worker last said of itself. */
	struct {
		double engine_tokens; /* as its engine counts them; < 0: not said */
		/* Of them those that it generated, when that was said, how many a second
		 * came of late, and until when that counts. */
		double engine_generated; /* < 0: not said */
		uint64_t engine_generated_ms;
		double engine_rate;
		uint64_t engine_rate_until_ms;
		unsigned load_when_asked;
		_Atomic uint64_t engine_steps;    /* times that engine_tokens grew */
		_Atomic uint64_t engine_until_ms; /* so long it counts as computing, since
						     that grew of late; 0: never */
		_Atomic unsigned running, waiting;
		_Atomic unsigned others; /* beyond those of this router */
		_Atomic uint64_t at_ms;  /* when; 0: never */
		_Atomic uint64_t until_ms;
	} report;

	/* Any thread. */
	_Atomic int health;       /* enum worker_state; DRAINING: it says so itself */
	_Atomic bool is_draining; /* drained by an operator, or removed */
	_Atomic bool is_removed;
	_Atomic int trial;                         /* enum worker_trial */
	_Atomic(struct engine_rank *) engine_rank; /* NULL: rank; old ones live as long */
	_Atomic(char *) authorization; /* "Bearer …" from worker_key, or NULL; old ones
					  live until the worker goes */

	struct breaker breaker; /* reported to through guard.c */
	struct reach reach;

	pthread_mutex_t addr_lock;
	struct addr_list *addrs;     /* NULL: not resolved yet */
	_Atomic unsigned addr_epoch; /* times that addrs changed */
	unsigned addr_next;

	/* guard.c, on the data path: own cache line. */
	struct {
		CACHE_ALIGNED _Atomic unsigned load; /* requests in flight */
		_Atomic unsigned streams;            /* of them, past their prefill */
		_Atomic uint64_t queued_blocks;      /* uncached, of those not past it */
		struct pace pace; /* of its prefills; pool.c, too, as a queue begins */
		_Atomic uint64_t requests, completions, failures[FAIL_MAX];
		_Atomic uint64_t
			errors; /* answers of 5xx, which are not among failures */
		_Atomic uint64_t refusals; /* of 4xx that are no word of load */
	} guard;

	/* guard.c, once a good response. */
	CACHE_ALIGNED struct latency latency;

	/* upstream.c, on the data path. */
	struct {
		_Atomic uint64_t last_byte_ms; /* of any answer */
		_Atomic uint64_t bytes;        /* of answers, heads included */
		_Atomic uint64_t events;       /* of event streams */
		_Atomic unsigned held;         /* exchanges that wait for their client */
		/* So long its aborts are what a call has asked for; cache_drop.c and
		 * flush.c write it. */
		_Atomic uint64_t aborts_until_ms;
	} relay;
	_Atomic unsigned refs;
	struct retired *retired;
};

/* Takes a copy of c. NULL: out of memory. One reference for the caller. */
struct worker *worker_new(const struct worker_conf *c);
/*
 * Rank `rank` of c, which has several, or the one worker of it (its dp_start_rank).
 * sibling: one behind the same URL, or NULL. The new one takes over what is known of their
 * process: its state and addresses, and whether it drains.
 */
struct worker *worker_new_rank(
	const struct worker_conf *c, unsigned rank, struct worker *sibling);
struct worker *worker_ref(struct worker *w);
void worker_unref(struct worker *w);
/*
 * New options for the same identity (name, URL, role), in two steps. The first may fail,
 * the second cannot; the caller of commit holds the pool's lock. A change is committed or
 * abandoned, once. ERR_NOMEM.
 */
struct worker_change {
	struct worker_conf *conf;
	char *authorization;
	struct retired *retired;
};
int worker_prepare(const struct worker *w, const struct worker_conf *c,
	struct worker_change *out) MUST_CHECK;
void worker_commit(struct worker *w, struct worker_change *c);
void worker_abandon(struct worker_change *c);
/* Both at once. */
int worker_configure(struct worker *w, const struct worker_conf *c) MUST_CHECK;
/* w is the worker of c, or one of its ranks. */
bool worker_same_identity(const struct worker *w, const struct worker_conf *c);
/* The same, whatever its rank and the number of ranks. */
bool worker_is_sibling(const struct worker *w, const struct worker_conf *c);
/* The number of its kv_group, never 0; under the pool's lock. */
uint64_t worker_kv_group(const struct worker *w);
/* "X-data-parallel-rank: 2\r\n", as its engine wants it; empty without a rank. */
static inline struct span worker_rank_line(const struct worker *w)
{
	const struct engine_rank *e =
		atomic_load_explicit(&w->engine_rank, memory_order_acquire);

	return e != NULL ? e->line : w->rank_line;
}
/* Its engine calls it so. Control thread. Out of memory: it is called as it was. */
void worker_number_rank(struct worker *w, unsigned number);
/* name is w's, or that of its group. */
bool worker_has_name(const struct worker *w, struct span name);

enum worker_state worker_state(const struct worker *w);
/* Takes new requests: healthy or suspect, not draining, below max_requests. */
bool worker_is_usable(const struct worker *w);
/* It has max_requests. */
bool worker_is_full(const struct worker *w);

/* Sequentially consistent, as the drop is: a request that finds the worker full and then
 * waits is seen by a drop after that (pool_wait.c). */
static inline unsigned worker_load(const struct worker *w)
{
	return atomic_load(&w->guard.load);
}

/* As policies read them, in blocks and requests. */
static inline uint64_t worker_queued_blocks(const struct worker *w)
{
	return atomic_load_explicit(&w->guard.queued_blocks, memory_order_relaxed);
}

static inline unsigned worker_streams(const struct worker *w)
{
	return atomic_load_explicit(&w->guard.streams, memory_order_relaxed);
}

/* A call that makes engines abort requests goes to it, or is answered by it. */
#define WORKER_ABORTS_MS 10000
static inline void worker_expect_aborts(struct worker *w, uint64_t now_ms)
{
	atomic_store_explicit(&w->relay.aborts_until_ms, now_ms + WORKER_ABORTS_MS,
		memory_order_relaxed);
}
/* Somebody wants its requests to end: such a call, or who drains or removes it. */
static inline bool worker_expects_aborts(const struct worker *w, uint64_t now_ms)
{
	return now_ms <= atomic_load_explicit(
				 &w->relay.aborts_until_ms, memory_order_relaxed) ||
	       atomic_load_explicit(&w->is_draining, memory_order_relaxed);
}

/*
 * The worker said at now_ms that it has running and waiting requests; that counts up to
 * until_ms. own: the highest load that this router had there since it asked. Requests
 * beyond that are from other clients.
 */
void worker_report(struct worker *w, unsigned running, unsigned waiting, unsigned own,
	uint64_t now_ms, uint64_t until_ms);
static inline bool worker_report_is_fresh(const struct worker *w, uint64_t now_ms)
{
	return now_ms <= atomic_load_explicit(&w->report.until_ms, memory_order_relaxed);
}
/*
 * load_source = reported: own requests in flight now, and those of others as last
 * reported. Own ones are never counted twice; a stale report counts nothing.
 */
static inline unsigned worker_whole_load(const struct worker *w, uint64_t now_ms)
{
	unsigned own = worker_load(w);

	if (!worker_report_is_fresh(w, now_ms))
		return own;
	return own + atomic_load_explicit(&w->report.others, memory_order_relaxed);
}

/* It is stalled or degraded, idle, and may be tried with one request. */
bool worker_offers_trial(const struct worker *w);
/* A request was picked for it; true if it is a trial. Under the pool's lock. */
bool worker_take_trial(struct worker *w);
/*
 * slow_start: the share of its traffic that a worker which has just come (back) takes, up
 * to 1; grows in proportion to the time, from WARM_SHARE_MIN.
 */
#define WARM_SHARE_MIN 0.05
double worker_share(const struct worker *w, uint64_t now_ms);

/* Addresses: set takes the reference; get gives one (NULL: none yet) and the position to
 * start with (rotates). */
void worker_set_addrs(struct worker *w, struct addr_list *list);
struct addr_list *worker_addrs(struct worker *w, unsigned *start);

#endif
