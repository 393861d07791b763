/*
 * The raw line scanner in front of any parser: finds the end of a head or of a trailer
 * section, and refuses what no parser may see (checks C2, C3, C8 of the strictness list:
 * bare CR or LF, NUL and control bytes, folds, lines without colon, empty or non-token
 * names, limits). Resumable: the same verdict whether bytes come at once or one by one,
 * each byte looked at once, or twice.
 */
#ifndef HTTP_HTTP_SCAN_H
#define HTTP_HTTP_SCAN_H

#include "base/base.h"
#include "base/fail.h"

/* The bits of http_byte_class[]: what a byte may be part of. */
#define HTTP_TOKEN 1   /* methods, field names, codings */
#define HTTP_VISIBLE 2 /* request targets: 0x21-0x7e */
#define HTTP_TEXT 4    /* field values: HTAB, SP, 0x21-0x7e, 0x80-0xff */
extern const uint8_t http_byte_class[256];

static inline bool http_is(char c, uint8_t class_bits)
{
	return (http_byte_class[(uint8_t)c] & class_bits) != 0;
}

enum http_scan_kind { HTTP_SCAN_REQUEST, HTTP_SCAN_RESPONSE, HTTP_SCAN_TRAILER };

struct http_scan {
	uint8_t kind, state;
	uint8_t skipped; /* bytes of a leading empty line (at most one CRLF, requests
			    only) */
	uint16_t fields;
	uint32_t at, line_start; /* next byte to look at; start of the current line */
	uint64_t opaque;
};

void http_scan_start(struct http_scan *s, enum http_scan_kind kind);
/*
 * buf[0..n) holds all bytes since the start. Returns 0 and *head_len when complete;
 * ERR_AGAIN when more is needed; ERR_PARSE and *why (requests: 400, 414, 431, 505...;
 * answers and limits there: FAIL_WORKER_PROTOCOL). Errors show as soon as the offending
 * byte is there.
 */
int http_scan_run(struct http_scan *s, const char *buf, size_t n, uint32_t *head_len,
	enum fail *why) MUST_CHECK;
/*
 * The same over the bytes that follow those seen so far, which need not be kept: *used of
 * p[0..n) were looked at (all, unless the end or a fault was found). Content-Length and
 * Transfer-Encoding in a trailer section are refused.
 */
int http_scan_feed(struct http_scan *s, const char *p, size_t n, size_t *used,
	enum fail *why) MUST_CHECK;

#endif
