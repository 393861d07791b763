/*
 * The answers that the router makes itself: of paths that it serves, and of requests that
 * failed before a byte of a worker's answer was sent. Called by the steps of request.c;
 * part of its request.
 */
#ifndef PROXY_OWN_ANSWER_H
#define PROXY_OWN_ANSWER_H

struct request;

/* The id that the request goes by. */
void own_answer_make_id(struct request *r);
/* In place of what the client sent. */
void own_answer_new_id(struct request *r);
/* Of a path that is served here: whole. */
void own_answer_local(struct request *r);
/* Says why it failed (r->why, which has a status). */
void own_answer_failure(struct request *r);

#endif
