/*
 * The answers that the router makes itself: of paths that it serves, and of requests that
 * failed before a byte of a worker's answer was sent. Called by request.c and intake.c.
 */
#ifndef PROXY_OWN_ANSWER_H
#define PROXY_OWN_ANSWER_H

#include "base/base.h"
#include "base/span.h"
#include "route/path_table.h"

struct http_head;
struct io_thread;
struct request;
struct site;

/* Makes the id of the request. */
void own_answer_make_id(struct request *r);
/* A new id in place of the client's. */
void own_answer_new_id(struct request *r);
/* The whole answer of a path that the router serves itself. */
void own_answer_local(struct request *r);
/* Whether the client may use the router's own API; else why not. */
enum fail own_answer_gate(struct request *r);
/* The path names a model, and the list has it: with PATH_MODEL own_answer_local() answers
 * it. */
bool own_answer_has_model(struct request *r);
/* What all workers said to a call for all of them (fan_out.h). */
void own_answer_of_all(struct request *r);
/* The answer of a failure (r->why, which has a status). */
void own_answer_failure(struct request *r);

/*
 * Makes the router's own answers; set once by the daemon before the threads start.
 * Returns the status and sets *body to new memory (NULL: none) with its length and
 * content type.
 */
enum local_answer {
	LOCAL_READINESS,
	LOCAL_MODELS,
	LOCAL_MODEL, /* `model` */
	LOCAL_FINISH_SESSION,
	LOCAL_GATE /* whether the client may administer: no body */
};
struct local_asked {
	enum local_answer what;
	enum path_shape shape;
	const struct site *site; /* that the request began under */
	const char *base;        /* of head's offsets */
	const struct http_head *head;
	struct span client_ip;
	struct span model;
};
typedef int local_answer_fn(void *arg, struct io_thread *t,
	const struct local_asked *asked, char **body, size_t *n);
void own_answer_set_local(local_answer_fn *fn, void *arg);

#endif
