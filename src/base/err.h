/*
 * Negative internal error codes and their texts: one table. Functions that can fail
 * return 0 or one of these.
 * Messages for clients are in another table: fail_table.h.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "base/base.h"

/* clang-format off */
#define ERR_TABLE(X)                                                 \
	X(NOMEM, "out of memory")                                    \
	X(PARSE, "malformed")                                        \
	X(RANGE, "out of range")                                     \
	X(LIMIT, "limit reached")                                    \
	X(EXISTS, "exists already")                                  \
	X(NOENT, "not found")                                        \
	X(IO, "input/output error")                                  \
	X(AGAIN, "try again")                                        \
	X(CLOSED, "closed by the peer")                              \
	X(REFUSED, "connection refused")                             \
	X(TIMEOUT, "timed out")                                      \
	X(RESOLVE, "name cannot be resolved")                        \
	X(TLS, "TLS error")                                          \
	X(STATE, "not possible in this state")                       \
	X(UNSUPPORTED, "not supported")                              \
	X(PERM, "not permitted")
/* clang-format on */

enum err {
	ERR_OK = 0,
	ERR_BASE_ = -1000,
#define X(name, text) ERR_##name,
	ERR_TABLE(X)
#undef X
		ERR_END_
};

/* A static text for 0 or a negative ERR_*; "unknown error" otherwise. */
const char *err_text(int err);

#endif
