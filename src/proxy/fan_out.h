/*
 * A client's call that concerns every worker of a pool (path_table.h: is_for_all): the
 * request waits on its thread while the control thread asks them, which knows how
 * (fleet/fleet_call.h). It takes no place at a worker and is no load. A client that
 * leaves changes nothing: workers that were asked are not to be left with half a fleet's
 * weights.
 */
#ifndef PROXY_FAN_OUT_H
#define PROXY_FAN_OUT_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "io/mailbox.h"
#include "proxy/budget.h"

struct pool;
struct request;

#define FAN_OUT_BODY_MAX (64u << 20) /* tensors, for one */
#define FAN_OUT_FIELDS_MAX 4

/* The question is whole before it is handed over, and the answer before it comes back. */
struct fan_out {
	struct mail mail; /* over to the control thread, and back */
	struct mailbox *home;
	void (*wake)(void *arg);
	void *arg;
	bool is_left, has_come; /* its own thread's */

	struct pool *pool; /* a reference */
	const char *method;
	char *target;
	char *fields[FAN_OUT_FIELDS_MAX]; /* of its header, that go on; or NULL */
	bool hides_key;                   /* the client's credentials are among them */
	char *body;
	size_t body_n;
	struct budget budget; /* its own: it may outlive the request */
	bool drops_caches, stops_requests;
	bool is_router_call; /* of the vLLM router's API, rather than for workers */

	bool is_refused; /* too many are under way */
	bool is_good;    /* every worker did it */
	int status;      /* of a router call */
	bool is_text;    /* the answer is no JSON */
	char *answer;    /* JSON; NULL: out of memory */
	size_t answer_n;
};

/* Set once before the threads start: asks the workers, on any thread, and returns at
 * once; then fan_out_answer() or fan_out_free(). */
typedef void fan_out_runner(void *arg, struct fan_out *f);
void fan_out_set_runner(fan_out_runner *run, void *arg);
/* On the control thread: back to its own one, with f->answer. */
void fan_out_answer(struct fan_out *f);
/* On the control thread, when no I/O thread is left. */
void fan_out_free(struct fan_out *f);

/* Whether the request is to be put to all workers of its pool, which it knows. */
bool fan_out_is_meant(const struct request *r);
/* Puts it to them. FAIL_NONE: r->c->run is called when the answer is there. */
enum fail fan_out_start(struct request *r) MUST_CHECK;
/* The request ends. NULL is fine. */
void fan_out_leave(struct fan_out **f);

#endif
