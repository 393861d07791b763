/*
 * Takes kv_transfer_params out of a response as it passes: they name hosts, blocks and
 * tokens that are no client's business. What is taken out becomes blanks, so lengths stay,
 * and a response without any passes untouched. In JSON and in event streams, at any depth,
 * however the bytes are cut. Pure; part of its request (by value).
 *
 * No parser is needed: inside a JSON string the quotes around such a name would be
 * escaped, so the name between plain quotes and before a colon is a member's name.
 */
#ifndef REWRITE_KV_VEIL_H
#define REWRITE_KV_VEIL_H

#include "base/base.h"
#include "base/span.h"
#include "base/text.h"

#define KV_VEIL_HELD 96 /* the longest beginning of a member that waits for its rest */

struct kv_veil {
	uint8_t state;    /* enum state in kv_veil.c */
	bool is_emptied;  /* the value's brackets stay */
	bool takes_comma; /* it was its object's first member */
	bool is_in_string, is_escaped;
	/* What went out last: an odd number of backslashes; a brace, and then blanks. */
	bool ends_escaping, ends_opening;
	uint32_t depth; /* of brackets, inside the value */
	uint8_t n_held;
	char held[KV_VEIL_HELD];
};

/* A response begins; what is held needs no value. */
static inline void kv_veil_begin(struct kv_veil *v)
{
	memset(v, 0, offsetof(struct kv_veil, held));
}

/* It is outside of any such member. */
static inline bool kv_veil_rests(const struct kv_veil *v)
{
	return v->state == 0 && v->n_held == 0;
}
/* What is held back, where no more will come: it tells nothing. */
static inline struct span kv_veil_held(const struct kv_veil *v)
{
	return span_make(v->held, v->n_held);
}
/* True: the next bytes of the response can go as they are. last: none follow. */
bool kv_veil_is_idle(struct kv_veil *v, struct span data, bool last);
/*
 * Else: what the client may have by now is *data, in out, which the caller frees. Some may
 * be held back until the next call. ERR_NOMEM: *data is empty.
 */
int kv_veil_pass(
	struct kv_veil *v, struct span *data, bool last, struct text *out) MUST_CHECK;

#endif
