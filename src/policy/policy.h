/*
 * Chooses a worker: one table of functions for each policy, over candidates that the pool
 * has gathered. Pure: no lock, clock or socket. The same code serves a real pick
 * and explain, so the explanation cannot diverge: a pick fills the terms of every
 * candidate as it goes.
 */
#ifndef POLICY_POLICY_H
#define POLICY_POLICY_H

#include "base/base.h"
#include "base/rng.h"
#include "base/span.h"
#include "conf/conf.h"
#include "policy/routing_key.h"

struct worker;

/* Decision reasons: tokens of metrics, logs and explain. */
/* clang-format off */
#define PICK_REASON_TABLE(X)                                                              \
	X(NONE, "none")                                                                   \
	X(PREFIX_HIT, "prefix_hit")	    /* a deepest holder */                        \
	X(PREFIX_NEXT, "prefix_next")	    /* the load of the deepest outweighed its     \
					       prefix: another holder */                  \
	X(OVERLOAD_SHED, "overload_shed")   /* that of every holder did: none of them */  \
	X(NO_MATCH, "no_match")		    /* nobody holds enough of it */               \
	X(AFFINITY_KEY, "affinity_key")	    /* its session or routing key */              \
	X(AFFINITY_PREFIX, "affinity_prefix") /* a hash of its prompt's beginning */      \
	X(AFFINITY_SKEW, "affinity_skew")   /* the home of either had too many requests */ \
	X(PINNED, "pinned")                                                               \
	X(RESPONSE_HOME, "response_home")   /* the worker that has what is continued */   \
	X(POLICY_ORDER, "policy_order")	    /* the policy looks at no prompt */           \
	X(ONLY_CANDIDATE, "only_candidate")                                               \
	X(TRIAL, "trial") \
	X(LEAST_BAD, "least_bad")                                                         \
	X(HASHES_SENT, "hashes_sent")	    /* the client hashed: nothing to match */
/* clang-format on */

enum pick_reason {
#define X(id, name) PICK_##id,
	PICK_REASON_TABLE(X)
#undef X
		PICK_REASON_MAX
};
const char *pick_reason_name(enum pick_reason r);

/* The terms of scores, for explain. A policy with a term of its own adds a row. */
/* clang-format off */
#define PICK_TERM_TABLE(X)                                                                \
	X(FRACTION, "fraction") /* of the prompt that the signal sees cached, weighted */ \
	X(LOAD, "load")         /* requests in flight, against the mean */                \
	X(FREE, "free")         /* share of slots that are free */                        \
	X(UNCACHED, "uncached") /* blocks of this prompt to compute, weighted */          \
	X(QUEUED, "queued")     /* blocks of others to compute before */                  \
	X(DECODE, "decode")     /* streams that take part of each step */                 \
	X(RECENT, "recent")     /* blocks computed of late, against the mean */
/* clang-format on */

enum pick_term {
#define X(id, name) TERM_##id,
	PICK_TERM_TABLE(X)
#undef X
		TERM_MAX
};
const char *pick_term_name(enum pick_term t);

struct candidate {
	struct worker *worker;
	struct span id;   /* the same in every router: normalised URL, rank */
	uint64_t id_hash; /* ring_id() of it */
	unsigned load;
	unsigned streams;      /* of the load, requests whose prefill is over */
	unsigned max_requests; /* 0: no cap */
	uint64_t queued;       /* blocks to compute for those whose prefill is not */
	double recent;         /* blocks it had to compute of late; fades */
	uint32_t depth; /* blocks of this prompt it is expected to hold, from the first */
	uint64_t last_picked; /* sequence numbers of the pool: ties rotate */
	uint64_t last_cold;
	/* Filled by the policy. */
	double fraction; /* of the prompt already held, in [0, 1] */
	double followed; /* the part of it that counts for the cost */
	double score;    /* higher is better; comparable within one decision */
	double terms[TERM_MAX];
	unsigned has_terms; /* bit t: the policy gave that term */
	bool is_overloaded;
};

static inline void candidate_term(struct candidate *c, enum pick_term t, double value)
{
	c->terms[t] = value;
	c->has_terms |= 1u << t;
}

struct pick_input {
	const struct policy_opts *opts;
	struct candidate *candidates; /* usable ones, in file order; n >= 1 */
	unsigned n;
	uint32_t blocks;      /* of the prompt, that could be matched */
	uint32_t size_blocks; /* its length in the pool's blocks: by its key, else guessed
				 from the body */
	bool hashes_sent;     /* by the client */
	const struct routing *routing; /* NULL: no routing keys were looked for */
	bool has_prefix;
	uint64_t prefix;     /* of the prompt's beginning (prefix_affinity) */
	void *const *states; /* of each policy that has one, by its kind */
	uint64_t now_ms;
	struct rng *rng;
};

struct pick_decision {
	unsigned index;
	enum pick_reason reason;
	bool is_cold; /* no prefix was followed */
};

/* The parts of a request that a policy reads: a set of bits. */
enum policy_wants {
	POLICY_WANTS_PROMPT = 1 << 0, /* all its block hashes, for the index */
	POLICY_WANTS_PREFIX =
		1 << 1, /* those of its beginning, where no session is named */
	POLICY_WANTS_SESSION = 1 << 2, /* the session: its headers, else body fields */
	POLICY_WANTS_KEY =
		1 << 3, /* any routing key: the listed headers, else body fields */
};

/* The workers of a role, for states that depend on all of them. */
struct policy_fleet {
	const struct span *ids;
	size_t n;
	uint64_t seed; /* a secret */
};

struct policy_ops {
	/* Prompts are hashed, matched and inserted only where this says so; NULL: never.
	 */
	bool (*needs_index)(const struct policy_opts *o);
	unsigned wants; /* besides what the index needs; policy_wants() has all of it */
	/* Chooses and explains; changes nothing but the candidates. */
	void (*pick)(const struct pick_input *in, struct pick_decision *out);

	/* Policies with a state, one for each role of a pool, which holds it under its
	 * lock. */
	bool is_of_fleet; /* it is made anew when workers come or go, outside the lock */
	void *(*state_new)(const struct policy_fleet *fleet); /* NULL: out of memory; the
								 policy then does
								 without */
	void (*state_free)(void *state);
	/* The policy's own choice (no pin) was taken; may be NULL, as the rest. */
	void (*on_pick)(const struct pick_input *in, const struct pick_decision *d);
	/* Drops entries that are too old, at most max of them; called each second. */
	void (*sweep)(
		void *state, const struct policy_opts *o, uint64_t now_ms, unsigned max);
	bool (*finish_session)(void *state, uint64_t session); /* false: unknown */
	void (*forget)(void *state, uint64_t id_hash);         /* that worker has left */
};

/* The row for a kind, and its name as configurations have it. */
const struct policy_ops *policy_ops(enum policy_kind kind);
const char *policy_name(enum policy_kind kind);

bool policy_needs_index(const struct policy_opts *o);
/* True if a policy of this kind decides for these options: as the policy, or as its
 * fallback. */
bool policy_is_used(const struct policy_opts *o, enum policy_kind kind);

/* Everything that a policy with these options reads, its fallback included. */
unsigned policy_wants(const struct policy_opts *o);

/* The answers that a request's head gives already. */
struct policy_head {
	bool hashes_sent; /* X-Kvsteer-Prefix */
	bool has_session; /* routing_key_session() finds it in the headers */
	bool has_key;     /* routing_key_any() does */
};
/* True if the body's session fields count. They do not if hashes that the client sent
 * stand for the body. */
bool policy_reads_fields(unsigned wants, bool hashes_sent);
/*
 * True if a policy with these wants must read the body, given the head's answers. The
 * caller need not ask for a request that is pinned or whose endpoint carries no prompt.
 * Hashes that were sent also stand for the body's session fields, if the policy takes
 * either. So the decision does not depend on whether the body was read for another
 * reason.
 */
bool policy_needs_body(unsigned wants, const struct policy_head *head);

/* Whole decision: only_candidate, else the policy's own. */
void policy_pick(const struct pick_input *in, struct pick_decision *out);

/* Least loaded; ties: least recently picked (or, cold: least recently given a cold
 * request), then file order. */
unsigned policy_least_loaded(const struct pick_input *in, bool cold);
/* The highest score; of equal ones the worker that holds more, and then as above. */
unsigned policy_best_score(const struct pick_input *in, bool cold);
/* least_requests as a whole decision, for a policy without a key to decide by. */
void policy_by_load(const struct pick_input *in, struct pick_decision *out);
/* A real pick was taken: the policy, or the fallback that it left the choice to, learns
 * of it. */
void policy_on_pick(const struct pick_input *in, const struct pick_decision *d);

#define X(id, name) extern const struct policy_ops policy_##name;
POLICY_TABLE(X, X)
#undef X

#endif
