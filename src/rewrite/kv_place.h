/*
 * The places in a client's body that kv_split.c finds and kv_splice.c changes: the
 * members that differ between the bodies, and the ends of the objects to which members
 * may be added. In order of place; a member's own members follow it. Used by these two
 * files alone.
 */
#ifndef REWRITE_KV_PLACE_H
#define REWRITE_KV_PLACE_H

#include "base/base.h"
#include "rewrite/kv_transfer.h"

/* A body with more of them is nobody's: it is refused, so that they take no memory. */
#define KV_PLACES_MAX 1024

enum kv_what {
	KV_IS_OTHER, /* of no interest */
	/* Recorded. */
	KV_IS_TRANSFER, /* never passes */
	KV_IS_STREAM,
	KV_IS_STREAM_OPTIONS,
	KV_IS_MAX_TOKENS,
	KV_IS_OUTPUT_TOKENS, /* max_output_tokens */
	KV_IS_LIMIT,         /* another limit of tokens */
	KV_IS_MIN_TOKENS,    /* min_tokens */
	KV_IS_MINIMUM,       /* another least number of tokens */
	KV_IS_SAMPLING,      /* sampling_params */
	KV_IS_EXTRA,         /* extra_args */
	KV_IS_END,           /* of the object of that level */
	/* Only looked at. */
	KV_IS_XARGS, /* vllm_xargs */
	KV_IS_SAMPLES,
	KV_IS_BEST_OF,
	KV_IS_WHOLE, /* with anything but null, false and nothing: not in two legs */
	KV_IS_PROMPT,
	KV_IS_EMBEDDINGS
};

/* Which object: the body's, its sampling_params, or one that engines take arguments of
 * their own from. */
enum kv_level { KV_AT_TOP, KV_AT_SAMPLING, KV_AT_EXTRA, KV_LEVELS };

struct kv_place {
	uint8_t what;  /* enum kv_what */
	uint8_t level; /* enum kv_level */
	uint8_t kind;  /* enum json_event of the value */
	bool is_own;   /* its object is where the endpoint reads transfers and limits */
	bool is_first; /* of its object's members */
	uint32_t start, value, end; /* its name, its value, behind it */
	uint32_t before;            /* the end of the member before it */
	uint32_t after;   /* the start of the member behind it; of the last its own end */
	uint32_t members; /* KV_IS_END (its start is the bracket): how many there are */
};

#endif
