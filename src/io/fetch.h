/*
 * One asynchronous HTTP request by libcurl with a deadline and a size cap, over TCP or a
 * unix socket: probes, discovery, kvsteerctl. No proxy, no redirects, no cookies. One
 * fetcher a loop.
 */
#ifndef IO_FETCH_H
#define IO_FETCH_H

#include "base/base.h"
#include "base/span.h"

struct loop;
struct fetcher;
struct fetch;

enum fetch_result {
	FETCH_OK,
	FETCH_REFUSED,
	FETCH_TIMEOUT,
	FETCH_RESOLVE,
	FETCH_TOO_BIG,
	FETCH_PROTOCOL,
	FETCH_TLS,
	FETCH_ERROR
};
const char *fetch_result_text(enum fetch_result r);

struct fetch_request {
	const char *url;
	const char *method;         /* NULL: GET */
	const char *unix_socket;    /* NULL: TCP */
	const char *const *headers; /* "Name: value", NULL-terminated; may be NULL */
	struct span body;    /* "application/json" unless the headers say otherwise */
	bool body_stays;     /* until the callback or the cancel: it is not copied */
	uint64_t timeout_ms; /* whole exchange; 0: none */
	uint64_t connect_timeout_ms; /* 0: libcurl's own */
	size_t max_body; /* FETCH_TOO_BIG above; 0: stop reading after the head (body not
			    wanted) */
	bool cuts_body;  /* above max_body the rest is not read, and that is no error */
	const char *tls_ca;  /* file of CA certificates for https; NULL: the system's */
	bool tls_unverified; /* https without looking at the certificate */
};
struct fetch_answer {
	enum fetch_result result;
	int status;       /* 0 unless FETCH_OK */
	struct span body; /* NUL-terminated beyond n; empty unless FETCH_OK */
	bool is_cut;      /* cuts_body: there was more */
	char error[256];  /* why, for logs; may hold the server's bytes */
};
typedef void fetch_done_fn(
	void *arg, const struct fetch_answer *a); /* answer lives as long as the call */

struct fetcher *fetcher_new(struct loop *l); /* NULL: no memory */
void fetcher_free(
	struct fetcher *f); /* cancels all; allowed in a callback; NULL is fine */
/* The callback comes later, once, whatever happens; the request is copied. */
struct fetch *fetch_start(struct fetcher *f, const struct fetch_request *req,
	fetch_done_fn *fn, void *arg); /* NULL: ERR_NOMEM */
void fetch_cancel(
	struct fetch *f); /* no callback afterwards; not from inside its own callback */

/* Blocking, for tools: result into *a; a->body is newly allocated (free a->body.p, which
 * may be NULL). */
void fetch_blocking(const struct fetch_request *req, struct fetch_answer *a);

#endif
