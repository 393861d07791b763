/*
 * A pointer and a length over bytes owned by someone else. Never assumes a NUL.
 * An empty span may have p == NULL. Used from the HTTP scanner upwards.
 */
#ifndef BASE_SPAN_H
#define BASE_SPAN_H

#include "base/base.h"

#include <string.h>

struct span {
	const char *p;
	size_t n;
};

#define SPAN_LIT(s) ((struct span){(s), sizeof(s) - 1})
#define SPAN_FMT "%.*s"
#define SPAN_ARG(s) (int)(s).n, ((s).p != NULL ? (s).p : "")

static inline struct span span_make(const char *p, size_t n)
{
	return (struct span){p, n};
}

static inline struct span span_str(const char *s)
{
	return (struct span){s, s != NULL ? strlen(s) : 0};
}

static inline bool span_eq(struct span a, struct span b)
{
	return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool span_is(struct span a, const char *s)
{
	return span_eq(a, span_str(s));
}

/* By bytes, then by length: below, 0 or above 0, as memcmp() says it. */
int span_order(struct span a, struct span b);

/* ASCII case folding only. */
bool span_case_eq(struct span a, struct span b);
bool span_starts(struct span a, struct span prefix);
bool span_ends(struct span a, struct span suffix);

/* Removes SP and HTAB (and with trim_all also CR, LF, VT, FF) at both ends. */
struct span span_trim(struct span a);
struct span span_trim_all(struct span a);

/*
 * Cuts the next piece off *rest up to sep (which is dropped). False when *rest is used
 * up.
 * "a,,b" gives "a", "", "b"; "a," gives "a" only; "" gives nothing.
 */
bool span_next(struct span *rest, char sep, struct span *piece);

/* Next word, words being parted by any number of SP or HTAB. False at the end. */
bool span_next_word(struct span *rest, struct span *word);

/*
 * Plain decimal digits only, no sign, no blanks; ERR_PARSE or ERR_RANGE (> UINT64_MAX).
 */
int span_to_u64(struct span a, uint64_t *out) MUST_CHECK;
/* Hex digits only, either case, no "0x"; ERR_PARSE, or ERR_RANGE for more than 16. */
int span_hex_u64(struct span a, uint64_t *out) MUST_CHECK;

/* A NUL-terminated copy, owned by the caller; NULL when out of memory. */
char *span_dup(struct span a) MUST_CHECK;

#endif
