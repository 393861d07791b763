/*
 * How a worker is chosen: one table of functions for each policy, over candidates that
 * the pool has gathered. Pure: no lock, clock or socket. The same code serves a real pick
 * and explain, so the explanation cannot diverge: a pick fills the terms of every
 * candidate as it goes.
 */
#ifndef MODEL_POLICY_H
#define MODEL_POLICY_H

#include "base/base.h"
#include "base/rng.h"
#include "base/span.h"
#include "model/conf.h"

struct worker;

/* Decision reasons: tokens of metrics, logs and explain. */
/* clang-format off */
#define PICK_REASON_TABLE(X)                                                              \
	X(NONE, "none")                                                                   \
	X(PREFIX_HIT, "prefix_hit")	    /* the deepest holder */                      \
	X(PREFIX_NEXT, "prefix_next")	    /* the deepest was overloaded: the next one */ \
	X(OVERLOAD_SHED, "overload_shed")   /* every holder was overloaded */             \
	X(NO_MATCH, "no_match")		    /* nobody holds enough of it */               \
	X(AFFINITY_KEY, "affinity_key")                                                   \
	X(AFFINITY_PREFIX, "affinity_prefix")                                             \
	X(AFFINITY_SKEW, "affinity_skew")                                                 \
	X(PINNED, "pinned")                                                               \
	X(POLICY_ORDER, "policy_order")	    /* the policy looks at no prompt */           \
	X(ONLY_CANDIDATE, "only_candidate")                                               \
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

struct candidate {
	struct worker *worker;
	unsigned load;
	uint32_t depth; /* blocks of this prompt it is believed to hold, from the first */
	uint64_t last_picked; /* sequence numbers of the pool: ties rotate */
	uint64_t last_cold;
	/* Filled by the policy. */
	double fraction; /* of the prompt already held, in [0, 1] */
	double score;    /* higher is better; comparable within one decision */
	bool is_overloaded;
};

struct pick_input {
	const struct policy_opts *opts;
	struct candidate *candidates; /* usable ones, in file order; n >= 1 */
	unsigned n;
	uint32_t blocks;  /* of the prompt */
	bool hashes_sent; /* by the client */
	struct rng *rng;
};

struct pick_decision {
	unsigned index;
	enum pick_reason reason;
	bool is_cold; /* no prefix was followed */
};

/* What a policy reads of a request: a set of bits. */
enum policy_wants {
	POLICY_WANTS_PROMPT = 1 << 0, /* all its block hashes, for the index */
	POLICY_WANTS_PREFIX =
		1 << 1, /* those of its beginning, where no session is named */
	POLICY_WANTS_SESSION = 1 << 2, /* the session: its headers, else body fields */
	POLICY_WANTS_KEY =
		1 << 3, /* any routing key: the listed headers, else body fields */
};

struct policy_ops {
	const char *name;
	bool needs_index; /* prompts are hashed, matched and inserted only for these */
	unsigned wants;   /* besides what the index needs; policy_wants() has all of it */
	void (*pick)(const struct pick_input *in, struct pick_decision *out);
};

/* The row for a kind. */
const struct policy_ops *policy_ops(enum policy_kind kind);

/* All that a policy with these options reads, its fallback included. */
unsigned policy_wants(const struct policy_opts *o);

/* What the head of a request says already. */
struct policy_head {
	bool hashes_sent; /* X-Kvsteer-Prefix */
	bool has_session; /* routing_key_session() finds it in the headers */
	bool has_key;     /* routing_key_any() does */
};
/*
 * Whether a policy with these wants must read the body, when the head says that much. A
 * request that is pinned, or whose endpoint carries no prompt, need not be asked about.
 * Hashes that were sent stand for the body's session fields too, where the policy takes
 * either: what is decided does not depend on who else has read the body.
 */
bool policy_needs_body(unsigned wants, const struct policy_head *head);

/* Whole decision: only_candidate, else the policy's own. */
void policy_pick(const struct pick_input *in, struct pick_decision *out);

/* Least loaded; ties: least recently picked (or, cold: least recently given a cold
 * request), then file order. */
unsigned policy_least_loaded(const struct pick_input *in, bool cold);

extern const struct policy_ops policy_cache_aware;
extern const struct policy_ops policy_least_requests;
extern const struct policy_ops policy_round_robin;
extern const struct policy_ops policy_random;

#endif
