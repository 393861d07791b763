/*
 * Which place in the queue a request asks for. A header is a client's claim: it counts
 * only where the operator names it (priority_headers). Pure.
 */
#ifndef POOL_PRIORITY_H
#define POOL_PRIORITY_H

#include "conf/conf.h"
#include "http/http_head.h"
#include "pool/queue.h"

/* "high", "normal" or "low", in any case, in the first header of the list that the
 * request has; normal where it has none, or says anything else. */
enum priority priority_read(
	const struct conf_list *headers, const char *base, const struct http_head *head);

#endif
