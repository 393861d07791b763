/*
 * The response that the client gets of a worker: its header, rebuilt, and its body as it
 * comes; and how it breaks. Called by request.c.
 */
#ifndef PROXY_RESPONSE_H
#define PROXY_RESPONSE_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "http/http_head.h"

struct request;

/* Makes the client's header of the worker's, to be sent with the first bytes of the body;
 * says how the body is framed and whether the connection is kept. False: it does not
 * fit. */
bool response_make_header(
	struct request *r, const struct http_head *a, const char *base) MUST_CHECK;
/* Sends the header, if it has not gone, and data. FAIL_NONE; or why the request ends. */
enum fail response_send(struct request *r, struct span data, bool last) MUST_CHECK;
/* The client is slow: its worker rests between the high and the low mark. True: wait. An
 * exchange that total_timeout has cut meanwhile does not wait for the client. */
bool response_is_held_back(struct request *r);
/* The client must see a broken response; an event stream says why first. Returns why the
 * request ends: as given, or the client has gone. */
enum fail response_cut(struct request *r, enum fail why) MUST_CHECK;

#endif
