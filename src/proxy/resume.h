/*
 * Streams that go on elsewhere when their worker breaks (resume_streams): which do, what
 * the client gets of each worker's bytes, and what the next worker is asked. Part of its
 * request (a pointer, NULL: the stream ends with its worker), and at no cost where the
 * key is off.
 */
#ifndef PROXY_RESUME_H
#define PROXY_RESUME_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "http/http_head.h"
#include "proxy/decision.h"

struct budget;
struct no_response;
struct resume;
struct retry_case;

/* FORWARD, with the header a of a response that the client gets. NULL: this stream cannot
 * be resumed, or memory is short. body: the client's, whole. budget: the request's. */
struct resume *resume_new(const struct http_head *a, const char *base, bool is_chat,
	struct span body, struct budget *budget);
/* RELAY: what the client gets of *data. abort_was_asked: an abort in it is no error.
 * ERR_NOMEM. */
int resume_relay(
	struct resume *m, struct span *data, bool last, bool abort_was_asked) MUST_CHECK;

/* The worker said that it failed: the client has what came before. NULL is fine. */
bool resume_has_error(const struct resume *m);
/* The client has whole events only. False for NULL. */
bool resume_is_whole(const struct resume *m);

/* A further worker took over the stream, or may. NULL is fine. */
bool resume_is_on(const struct resume *m);
/* The worker broke off, or the one that was to resume the stream failed: elsewhere, the
 * rest, or a cut. Counts it. */
struct decision resume_failed(struct resume *m, struct retry_case *c, enum fail why);
/* FORWARD: the worker that is to resume the stream sent no response. */
struct decision resume_no_response(
	struct resume *m, struct retry_case *c, const struct no_response *end);
/* FORWARD: the worker that is to resume the stream answered. NEXT_STEP: it does. */
struct decision resume_answered(struct resume *m, struct retry_case *c,
	const struct http_head *a, const char *base);
/* No worker resumes the stream: it is cut. Counts it. */
struct decision resume_gives_up(enum fail why);
/* NEXT_REST: the last bytes of the stream. */
struct span resume_rest(const struct resume *m);
/* The body to send; client's: where nothing was said yet. */
struct span resume_body(const struct resume *m, struct span clients);
void resume_free(struct resume *m);

#endif
