/*
 * Whether the router can serve anything. All routers of a fleet share its workers: if one
 * model's outage withdrew them, it would be every model's. So one pool is enough; who
 * wants all of them asks for it. Runs on the I/O threads and on the control thread.
 */
#ifndef CONTROL_READINESS_H
#define CONTROL_READINESS_H

#include "base/base.h"

struct local_asked;
struct site;

/* Every pool has a usable worker for each role that it has workers for. */
bool readiness_is_whole(const struct site *site);
/*
 * The answer to GET /readiness: 200 if some pool can serve a request. Its query:
 * pool=NAME, that pool alone; strict, all of them and every role that they have workers
 * for. Returns the status; *body is new memory (NULL: none), n its length.
 */
int readiness_answer(
	const struct local_asked *asked, bool is_draining, char **body, size_t *n);

#endif
