/*
 * Why a request ended, as an enum over fail_table.h, and the OpenAI-shaped error body for
 * it.
 * The lowest layer, so that sock, tls and http can name a failure.
 */
#ifndef BASE_FAIL_H
#define BASE_FAIL_H

#include "base/base.h"
#include "base/fail_table.h"

enum fail {
#define X(name, status, type, code, text) FAIL_##name,
	FAIL_TABLE(X)
#undef X
		FAIL_MAX
};

int fail_status(enum fail why);
const char *fail_code(enum fail why);
const char *fail_type(enum fail why);
const char *fail_text(enum fail why);
/* It is a worker's failure, not the client's or the router's. */
bool fail_is_workers(enum fail why);
/*
 * True if the next request's start is still known after this failure, so that the
 * connection may stay open.
 */
bool fail_keeps_connection(enum fail why);
/*
 * The standard reason phrase for a status ("Not Found"); "Unknown" where there is none.
 */
const char *fail_reason_phrase(int status);

/*
 * {"error":{"message":…,"type":…,"param":null,"code":…}} into out (NUL-terminated);
 * returns the length. 1 KiB is always enough.
 */
size_t fail_body(enum fail why, char *out, size_t n);
/* The same with another message: the inside of a JSON string. */
size_t fail_body_saying(enum fail why, const char *message, char *out, size_t n);

#endif
