/*
 * One line for each finished request, text or JSON, gathered per thread and written at 64
 * KiB, after a second, or at once for a failure of ours. Never keys, never prompts, never
 * query strings; every byte of foreign origin is escaped.
 */
#ifndef PROXY_ACCESS_LOG_H
#define PROXY_ACCESS_LOG_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "conf/conf.h"

struct access_log;
struct loop;

struct access_line {
	struct span request_id, client, method, path, model;
	const char *tenant; /* NULL: none */
	const char *route;
	const char *worker; /* NULL: none */
	const char *reason; /* of the decision */
	uint32_t matched, blocks;
	int status;
	enum fail why;
	uint64_t bytes_in, bytes_out;
	uint64_t queue_us, ttft_us, total_us;
	unsigned retries;
	const char *prefill;        /* the worker; NULL: there was no such leg */
	const char *prefill_reason; /* of that decision */
	uint64_t prefill_us;        /* 0: it did not end well */
	bool has_prefill_cached;    /* it said how many of the prompt's tokens it held */
	uint64_t prefill_cached, prefill_tokens;
};

struct access_log *access_log_new(struct loop *l);
void access_log_free(struct access_log *log); /* flushes; NULL is fine */
void access_log_line(
	struct access_log *log, enum log_format format, const struct access_line *line);
void access_log_flush(struct access_log *log);

#endif
