/*
 * The place in the queue that a request asks for. A header is only a client's claim, so
 * it counts only if the operator names it (priority_headers). Pure.
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
