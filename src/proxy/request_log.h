/*
 * The end of a request: its access line and its counts. Called by the
 * spine in FINISH, once for each request.
 */
#ifndef PROXY_REQUEST_LOG_H
#define PROXY_REQUEST_LOG_H

#include "base/base.h"

struct request;

/* False for a connection that closed before it sent a request. */
bool request_is_worth_a_line(const struct request *r);
void request_log_line(struct request *r, uint64_t now_us);
void request_count(struct request *r, uint64_t now_us);

#endif
