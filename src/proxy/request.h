/*
 * The spine: one request from its first byte to its access line, as a table of named
 * steps in one file (request.c). Owned by its conn; lives on one thread; keeps the site
 * that it began with.
 */
#ifndef PROXY_REQUEST_H
#define PROXY_REQUEST_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"

struct client;
struct io_thread;
struct request;

/* NULL: out of memory. */
struct request *request_new(struct io_thread *t, struct client *c);
/*
 * Runs steps until one must wait (false) or the request is finished (true:
 * request_keeps_alive() and request_used() say how the connection goes on, then
 * request_free()).
 */
bool request_run(struct request *r);
/* The client left, stalled, or was too slow; or the daemon ends. The next request_run()
 * finishes it. */
void request_abort(struct request *r, enum fail why);
bool request_keeps_alive(const struct request *r);
/* Its answer was cut: the connection must end with a reset, so that the client sees a
 * broken message. */
bool request_was_cut(const struct request *r);
/* It is sound, but was refused before all of its body was read: its client may still be
 * sending. */
bool request_is_unread(const struct request *r);
/* Client bytes at the buffer's front that belong to it. */
size_t request_used(const struct request *r);
void request_free(struct request *r);

/* A deadline that conn keeps for it: the absolute end of the head, of silence in the
 * body, or of its wait for a worker; 0: none. */
uint64_t request_deadline_ms(const struct request *r);
/* It waits for the rest of the client's head or body. */
bool request_is_reading(const struct request *r);
/* The client asked for an answer after its FIN (Connection: close, 1.0), as half_close
 * says. */
bool request_survives_eof(const struct request *r);
/* Fills the log prefix "c=12 w=w1 step=forward". */
size_t request_log_prefix(const void *request, char *out, size_t n);
void request_free_all(struct io_thread *t);

#endif
