/*
 * Chunked transfer coding, decoded strictly (checks C13-C15) and encoded. Decoding is in
 * place: data bytes are moved to the front of what was given. Trailers are scanned and
 * dropped. Resumable at any byte.
 */
#ifndef HTTP_HTTP_CHUNK_H
#define HTTP_HTTP_CHUNK_H

#include "base/base.h"
#include "base/fail.h"
#include "base/span.h"
#include "http/http_scan.h"

#define HTTP_CHUNK_EXT_MAX 4096       /* extension bytes of one body */
#define HTTP_CHUNK_OVERHEAD_MAX 16384 /* raw bytes allowed beyond 9 × data */

struct http_chunk {
	uint8_t state;
	uint8_t digits;
	bool is_response;
	uint64_t left; /* of the current chunk */
	uint64_t data_bytes, raw_bytes;
	uint64_t chunks;   /* begun so far, the last one not counted */
	uint64_t max_data; /* FAIL_BODY_TOO_LARGE at the size line that passes it */
	uint32_t ext_bytes;
	uint32_t trailer_len;
	struct http_scan trailer;
	uint64_t opaque[2];
};

void http_chunk_start(struct http_chunk *c, bool is_response, uint64_t max_data);
/*
 * Decodes buf[0..n): on return buf[0..*data_len) is data, and *used bytes of input were
 * consumed. That is all of them, unless the body ended: then the next message begins at
 * buf + *used. 0: the body ended (last chunk and trailers seen); ERR_AGAIN:
 * goes on; ERR_PARSE and *why. On ERR_PARSE the data before the fault is given too.
 */
int http_chunk_decode(struct http_chunk *c, char *buf, size_t n, size_t *data_len,
	size_t *used, enum fail *why) MUST_CHECK;

/* Of n bytes that are one chunk and no more, without an extension, as most reads of a
 * stream are: its data, where it lies. p NULL: they are something else, and nothing has
 * changed. */
struct span http_chunk_alone(struct http_chunk *c, const char *buf, size_t n);

/* "1f\r\n" into out; returns the length (at most 18). The caller adds data and CRLF; the
 * end is "0\r\n\r\n". */
#define HTTP_CHUNK_LINE_MAX 18
size_t http_chunk_line(uint64_t size, char out[HTTP_CHUNK_LINE_MAX]);

#endif
