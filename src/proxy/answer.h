/*
 * The request's id, and header lines that the router adds to answers. Pure text: each
 * writes whole lines into out (room is the caller's: ANSWER_LINES_MAX holds all together)
 * and returns the length.
 */
#ifndef PROXY_ANSWER_H
#define PROXY_ANSWER_H

#include "base/base.h"
#include "base/fail.h"
#include "base/rng.h"
#include "base/span.h"
#include "http/http_head.h"
#include "route/path_table.h"
#include "route/route_key.h"

#define ANSWER_LINES_MAX 512
#define REQUEST_ID_MAX 128
#define ANSWER_EVENT_MAX 1536

/*
 * The id of a request: the one that the client sent if it is sane (1 to REQUEST_ID_MAX
 * of A-Z a-z 0-9 . _ : -), else 32 random hex digits. Into out (REQUEST_ID_MAX bytes);
 * returns the length.
 */
size_t answer_request_id(struct span sent, struct rng *rng, char *out);
/* By the content type of a worker's answer. */
bool answer_is_event_stream(const struct http_head *a, const char *base);
/* X-Request-Id. id: at most REQUEST_ID_MAX bytes. */
size_t answer_id_line(struct span id, char *out);
/* Allow, from a bit set of enum http_method. */
size_t answer_allow_line(unsigned methods, char *out);
/* Retry-After in seconds. */
size_t answer_retry_line(unsigned secs, char *out);
/* WWW-Authenticate, for a client without a valid key. */
size_t answer_challenge_line(char *out);
/*
 * The body of a failure in the shape of the API (into ANSWER_ERROR_MAX bytes). message: at
 * most 768 bytes, nothing that JSON escapes; id: that of the request.
 */
#define ANSWER_ERROR_MAX 1280
size_t answer_error_body(enum path_shape shape, enum fail why, const char *message,
	struct span id, char out[ANSWER_ERROR_MAX]);
/* A failure, as an event of a stream that answers a request of this endpoint. */
size_t answer_error_event(
	enum route_endpoint endpoint, enum fail why, char out[ANSWER_EVENT_MAX]);
/* X-Kvsteer-Worker and X-Kvsteer-Cached: matched/total blocks, and what a prefill worker
 * said of its cache. worker: at most 64 bytes. */
struct answer_cached {
	uint32_t matched, blocks;
	bool is_told;            /* by a prefill worker, in tokens */
	uint64_t cached, prompt; /* prompt 0: not told */
};
size_t answer_worker_lines(
	struct span worker, const struct answer_cached *cached, char *out);

#endif
