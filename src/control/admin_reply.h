/*
 * How the admin API answers: JSON documents, and failures as
 * {"error":{"message","code"}}. Used by the admin_*.c files.
 */
#ifndef CONTROL_ADMIN_REPLY_H
#define CONTROL_ADMIN_REPLY_H

#include "base/base.h"
#include "base/fail.h"
#include "io/js.h"

struct conf_errors;
struct http_call;

/* X(NAME, status, code) */
#define ADMIN_FAIL_TABLE(X)                      \
	X(INVALID, 400, "invalid")               \
	X(NO_WORKER, 404, "worker_not_found")    \
	X(NO_POOL, 404, "pool_not_found")        \
	X(NO_TENANT, 404, "tenant_not_found")    \
	X(EXISTS, 409, "exists")                 \
	X(BUSY, 409, "busy")                     \
	X(REFUSED, 422, "reload_failed")         \
	X(UPGRADE_FAILED, 422, "upgrade_failed") \
	X(MEMORY, 503, "out_of_memory")

enum admin_fail {
#define X(name, status, code) ADMIN_##name,
	ADMIN_FAIL_TABLE(X)
#undef X
};

/*
 * Takes the document. Where memory ran out while it was made, so that something may be
 * missing in it, the answer is 503 out_of_memory instead.
 */
void admin_reply(struct http_call *call, int status, struct js *document);
/*
 * The same for a call that has changed something: its status stands even if there is no
 * memory for the document, which may be NULL then.
 */
void admin_reply_done(struct http_call *call, int status, struct js *document);
void admin_fail(struct http_call *call, enum admin_fail why, const char *fmt, ...)
	PRINTF_LIKE(3, 4);
/* The first error is the message; all are in errors[], warnings in warnings[]. */
void admin_fail_conf(
	struct http_call *call, enum admin_fail why, const struct conf_errors *errors);
/* Answers requests that the server itself refuses. */
void admin_on_fail(void *arg, struct http_call *call, enum fail why);
/* The errors (or the warnings) of a list, as an array of objects. */
struct js *admin_conf_errors(const struct conf_errors *errors, bool warnings);

#endif
