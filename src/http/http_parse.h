/*
 * A scanned head to struct http_head: start line and fields by our own reading, judged by
 * http_rules.c, then llhttp over the same bytes as second opinion (its only includer):
 * any disagreement on accept/refuse or framing is a refusal and counted
 * (METRIC_FRAMING_DISAGREE).
 */
#ifndef HTTP_HTTP_PARSE_H
#define HTTP_HTTP_PARSE_H

#include "base/fail.h"
#include "http/http_head.h"

/* buf[0..head_len) as http_scan_run() found it. 0, or ERR_PARSE and *why; *out is then
 * undefined (it is too large to be built aside). */
int http_parse_request(const char *buf, uint32_t head_len, struct http_head *out,
	enum fail *why) MUST_CHECK;
/* for_method: the request's method (responses to HEAD have no body). *why is
 * FAIL_WORKER_PROTOCOL. */
int http_parse_response(const char *buf, uint32_t head_len, enum http_method for_method,
	struct http_head *out, enum fail *why) MUST_CHECK;

/* Feeds llhttp the three known-bad heads of its loose build; false: the program must
 * refuse to run. */
bool http_parse_selftest(void);

#endif
