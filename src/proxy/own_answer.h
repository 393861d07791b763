/*
 * The answers that the router makes itself: of paths that it serves, and of requests that
 * failed before a byte of a worker's answer was sent. Called by request.c and intake.c.
 */
#ifndef PROXY_OWN_ANSWER_H
#define PROXY_OWN_ANSWER_H

#include "base/base.h"
#include "base/span.h"

struct http_head;
struct io_thread;
struct request;
struct site;

/* The id that the request goes by. */
void own_answer_make_id(struct request *r);
/* In place of what the client sent. */
void own_answer_new_id(struct request *r);
/* Of a path that is served here: whole. */
void own_answer_local(struct request *r);
/* Says why it failed (r->why, which has a status). */
void own_answer_failure(struct request *r);

/*
 * Asked for answers that are made here; set once by the daemon before the threads start.
 * Returns the status and sets *body to new memory (NULL: none) with its length and
 * content type.
 */
enum local_answer { LOCAL_READINESS, LOCAL_MODELS, LOCAL_FINISH_SESSION };
struct local_asked {
	enum local_answer what;
	const struct site *site; /* that the request began under */
	const char *base;        /* of head's offsets */
	const struct http_head *head;
	struct span client_ip;
};
typedef int local_answer_fn(void *arg, struct io_thread *t,
	const struct local_asked *asked, char **body, size_t *n);
void own_answer_set_local(local_answer_fn *fn, void *arg);

#endif
