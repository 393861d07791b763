/*
 * A whole connection at parser level: bytes in pieces through scanner, parser and body
 * reader, as the proxy does it, and what came of them. Used by the tests and the fuzz
 * target of src/http. The bytes lie in the caller's writable buffer; chunked data is
 * decoded in it.
 */
#ifndef UNIT_HTTP_FEED_H
#define UNIT_HTTP_FEED_H

#include "base/err.h"
#include "http/http_chunk.h"
#include "http/http_parse.h"
#include "http/http_scan.h"

#include <string.h>

#define FEED_MAX_BODY (64u << 20)

enum feed_at { FEED_HEAD, FEED_LENGTH, FEED_CHUNKED, FEED_UNTIL_CLOSE, FEED_OVER };

struct feed {
	bool is_response;
	enum http_method for_method;
	enum feed_at at;
	char *buf;
	size_t pos; /* consumed */
	struct http_scan scan;
	struct http_chunk chunk;
	uint64_t left;
	/* What came of it */
	unsigned heads, messages, interims;
	enum fail why; /* FAIL_NONE so far */
	bool failed_in_body;
	bool is_closing; /* no further message on this connection */
	uint64_t body_bytes;
	uint32_t body_sum; /* of the body bytes, in order */
	struct http_head head;
};

static inline void feed_start(
	struct feed *f, char *buf, bool is_response, enum http_method m)
{
	memset(f, 0, offsetof(struct feed, head));
	f->is_response = is_response;
	f->for_method = m;
	f->buf = buf;
	http_scan_start(&f->scan, is_response ? HTTP_SCAN_RESPONSE : HTTP_SCAN_REQUEST);
}

static inline void feed_fail(struct feed *f, enum fail why)
{
	f->failed_in_body = f->at != FEED_HEAD;
	f->why = why;
	f->at = FEED_OVER;
}

static inline void feed_body(struct feed *f, const char *p, size_t n)
{
	f->body_bytes += n;
	for (size_t i = 0; i < n; i++)
		f->body_sum = f->body_sum * 31 + (uint8_t)p[i];
}

static inline void feed_message_end(struct feed *f)
{
	f->messages++;
	f->at = f->is_closing || f->is_response ? FEED_OVER : FEED_HEAD;
	http_scan_start(
		&f->scan, f->is_response ? HTTP_SCAN_RESPONSE : HTTP_SCAN_REQUEST);
}

static inline void feed_head_end(struct feed *f)
{
	const struct http_head *h = &f->head;

	f->heads++;
	f->is_closing = h->wants_close;
	if (f->is_response && h->status < 200) {
		f->heads--;
		http_scan_start(&f->scan, HTTP_SCAN_RESPONSE);
		if (++f->interims > HTTP_INTERIM_MAX)
			feed_fail(f, FAIL_WORKER_PROTOCOL);
		return;
	}
	f->left = h->content_length;
	if (h->framing == HTTP_BODY_LENGTH && !f->is_response && f->left > FEED_MAX_BODY)
		feed_fail(f, FAIL_BODY_TOO_LARGE);
	else if (h->framing == HTTP_BODY_LENGTH && f->left > 0)
		f->at = FEED_LENGTH;
	else if (h->framing == HTTP_BODY_CHUNKED)
		f->at = FEED_CHUNKED;
	else if (h->framing == HTTP_BODY_UNTIL_CLOSE)
		f->at = FEED_UNTIL_CLOSE;
	else
		feed_message_end(f);
	http_chunk_start(
		&f->chunk, f->is_response, f->is_response ? UINT64_MAX : FEED_MAX_BODY);
}

static inline bool feed_take_head(struct feed *f, size_t avail)
{
	const char *base = f->buf + f->pos;
	uint32_t head_len = 0;
	enum fail why = FAIL_NONE;
	int r = http_scan_run(&f->scan, base, avail - f->pos, &head_len, &why);

	if (r == 0 && f->is_response)
		r = http_parse_response(base, head_len, f->for_method, &f->head, &why);
	else if (r == 0)
		r = http_parse_request(base, head_len, &f->head, &why);
	if (r == ERR_PARSE)
		feed_fail(f, why);
	if (r != 0)
		return false;
	f->pos += head_len;
	feed_head_end(f);
	return true;
}

static inline void feed_take_chunked(struct feed *f, size_t avail)
{
	size_t data_len, used;
	enum fail why = FAIL_NONE;
	char *p = f->buf + f->pos;
	int r = http_chunk_decode(&f->chunk, p, avail - f->pos, &data_len, &used, &why);

	feed_body(f, p, data_len);
	f->pos += used;
	if (r == ERR_PARSE)
		feed_fail(f, why);
	else if (r == 0)
		feed_message_end(f);
}

static inline void feed_take_plain(struct feed *f, size_t avail)
{
	size_t n = avail - f->pos;

	if (f->at == FEED_LENGTH && n > f->left)
		n = (size_t)f->left;
	feed_body(f, f->buf + f->pos, n);
	f->pos += n;
	f->left -= n;
	if (f->at == FEED_LENGTH && f->left == 0)
		feed_message_end(f);
}

/* buf[0..avail) is there now. */
static inline void feed_run(struct feed *f, size_t avail)
{
	while (f->pos < avail && f->at != FEED_OVER) {
		if (f->at == FEED_CHUNKED)
			feed_take_chunked(f, avail);
		else if (f->at != FEED_HEAD)
			feed_take_plain(f, avail);
		else if (!feed_take_head(f, avail))
			return;
	}
}

static inline void feed_eof(struct feed *f)
{
	if (f->at == FEED_UNTIL_CLOSE)
		feed_message_end(f);
}

#endif
