/*
 * Fuzz target of src/http. The first byte says what the rest is (a client's bytes, a
 * worker's, a chunked body), the second where it is split. What must hold:
 *   - one write and any split give the same messages, bodies and verdict;
 *   - a head that passes, written anew, passes again with the same meaning;
 *   - a chunked body that the decoder takes is taken by llhttp too, with the same data
 *     and the same end, unless it has extensions (llhttp 8 refuses some legal ones).
 */
#include "http/llhttp_names.h"

#include "base/metric.h"
#include "http/http_rules.h"
#include "http/http_write.h"
#include "tests/unit/http_feed.h"

#include <stdlib.h>

/* Also where assert() would say too little. */
#define MUST(fact)               \
	do {                     \
		if (!(fact))     \
			abort(); \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc UNUSED, char ***argv UNUSED)
{
	metric_thread_start();
	MUST(http_parse_selftest());
	return 0;
}

static char *copy_of(const char *p, size_t n)
{
	char *copy = malloc(n + (n == 0));

	MUST(copy != NULL);
	if (n > 0)
		memcpy(copy, p, n);
	return copy;
}

/* A connection */

/* step 0: all at once; otherwise pieces of step bytes */
static struct feed *feed_pieces(
	const char *p, size_t n, bool is_response, enum http_method m, size_t step)
{
	struct feed *f = malloc(sizeof(*f));
	char *copy = copy_of(p, n);

	MUST(f != NULL);
	feed_start(f, copy, is_response, m);
	for (size_t at = step; step > 0 && at < n; at += step)
		feed_run(f, at);
	feed_run(f, n);
	feed_eof(f);
	free(copy);
	return f;
}

static void compare_feeds(
	const char *p, size_t n, bool is_response, enum http_method m, size_t step)
{
	struct feed *whole = feed_pieces(p, n, is_response, m, 0);
	struct feed *pieces = feed_pieces(p, n, is_response, m, step);

	MUST(whole->messages == pieces->messages && whole->heads == pieces->heads);
	MUST(whole->interims == pieces->interims && whole->at == pieces->at);
	MUST(whole->why == pieces->why && whole->is_closing == pieces->is_closing);
	MUST(whole->body_bytes == pieces->body_bytes &&
		whole->body_sum == pieces->body_sum);
	MUST(whole->failed_in_body == pieces->failed_in_body);
	free(whole);
	free(pieces);
}

/* Heads written anew */

static bool parse_head(const char *p, size_t n, bool is_response, enum http_method m,
	struct http_head *h)
{
	struct http_scan scan;
	uint32_t head_len;
	enum fail why;

	http_scan_start(&scan, is_response ? HTTP_SCAN_RESPONSE : HTTP_SCAN_REQUEST);
	if (http_scan_run(&scan, p, n, &head_len, &why) != 0)
		return false;
	if (is_response)
		return http_parse_response(p, head_len, m, h, &why) == 0;
	return http_parse_request(p, head_len, h, &why) == 0;
}

static void rewrite_request(const char *p, const struct http_head *h)
{
	struct http_request_out o = {
		.base = p,
		.head = h,
		.host_line = SPAN_LIT("Host: w:1\r\n"),
		.peer_ip = SPAN_LIT("::1"),
		.proto = SPAN_LIT("http"),
		.is_forwarded = h->n_fields % 2 == 1,
		.request_id = SPAN_LIT("x"),
		.framing = h->framing,
		.content_length = h->content_length,
	};
	size_t cap = h->head_len + 15 + HTTP_WRITE_ROOM, n;
	struct http_head *again = malloc(sizeof(*again));
	char *out = malloc(cap);

	MUST(out != NULL && again != NULL);
	n = http_write_request(&o, out, cap);
	MUST(n > 0);
	/* our fields may pass a limit that the client's just kept */
	if (n <= HTTP_REQUEST_HEAD_MAX && h->n_fields + 5 <= HTTP_REQUEST_FIELDS_MAX &&
		h->target_len < HTTP_LINE_MAX - 32) {
		MUST(parse_head(out, n, false, HTTP_GET, again));
		MUST(again->head_len == n && again->method == h->method);
		MUST(again->framing == h->framing &&
			again->content_length == h->content_length);
		MUST(span_eq(http_head_path(p, h), http_head_path(out, again)));
		MUST(!again->wants_close && !again->has_upgrade && !again->expect_100);
		MUST(http_head_find(again, FIELD_X_KVSTEER) == NULL);
		MUST(http_head_find(again, FIELD_CONNECTION) == NULL);
	}
	free(out);
	free(again);
}

static void rewrite_response(const char *p, const struct http_head *h, enum http_method m)
{
	struct http_response_out o = {
		.base = p,
		.head = h,
		.framing = h->framing,
		.content_length = h->content_length,
		.keepalive_secs = 75,
		.request_id = SPAN_LIT("x"),
	};
	size_t cap = h->head_len + 1 + HTTP_WRITE_ROOM, n;
	struct http_head *again = malloc(sizeof(*again));
	char *out = malloc(cap);

	MUST(out != NULL && again != NULL);
	n = http_write_response(&o, out, cap);
	MUST(n > 0);
	if (n <= HTTP_RESPONSE_HEAD_MAX && h->n_fields + 5 <= HTTP_FIELDS_MAX) {
		MUST(parse_head(out, n, true, m, again));
		MUST(again->head_len == n && again->status == h->status);
		MUST(again->framing == h->framing && again->has_length == h->has_length);
		MUST(again->content_length == h->content_length);
	}
	free(out);
	free(again);
}

static void rewrite_head(const char *p, size_t n, bool is_response, enum http_method m)
{
	struct http_head *h = malloc(sizeof(*h));
	char *copy = copy_of(p, n);

	MUST(h != NULL);
	if (parse_head(copy, n, is_response, m, h)) {
		if (is_response)
			rewrite_response(copy, h, m);
		else
			rewrite_request(copy, h);
	}
	free(copy);
	free(h);
}

/* Chunked bodies beside llhttp */

struct body {
	llhttp_t parser; /* first: callbacks get it */
	bool is_complete;
	uint64_t n;
	uint32_t sum;
};

static int on_body(llhttp_t *parser, const char *p, size_t n)
{
	struct body *b = (struct body *)parser;

	b->n += n;
	for (size_t i = 0; i < n; i++)
		b->sum = b->sum * 31 + (uint8_t)p[i];
	return 0;
}

static int on_complete(llhttp_t *parser)
{
	((struct body *)parser)->is_complete = true;
	return HPE_PAUSED;
}

static size_t decode_llhttp(const char *p, size_t n, struct body *b)
{
	static const char head[] =
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
	static const llhttp_settings_t settings = {
		.on_body = on_body, .on_message_complete = on_complete};
	llhttp_errno_t r;

	memset(b, 0, sizeof(*b));
	llhttp_init(&b->parser, HTTP_REQUEST, &settings);
	MUST(llhttp_execute(&b->parser, head, sizeof(head) - 1) == HPE_OK);
	r = llhttp_execute(&b->parser, p, n);
	return r == HPE_OK ? n : (size_t)(llhttp_get_error_pos(&b->parser) - p);
}

static void compare_chunked(const char *p, size_t n, size_t step)
{
	char *copy = copy_of(p, n);
	struct http_chunk c;
	struct body theirs;
	size_t at = 0, data_len, used, end = decode_llhttp(copy, n, &theirs);
	uint64_t data = 0;
	uint32_t sum = 0;
	enum fail why;
	int r = ERR_AGAIN;

	http_chunk_start(&c, false, UINT64_MAX);
	while (at < n && r == ERR_AGAIN) {
		r = http_chunk_decode(
			&c, copy + at, MIN(step, n - at), &data_len, &used, &why);
		for (size_t i = 0; i < data_len; i++)
			sum = sum * 31 + (uint8_t)copy[at + i];
		data += data_len;
		at += used;
	}
	if (r == 0 && (theirs.is_complete || memchr(p, ';', at) == NULL)) {
		MUST(theirs.is_complete && end == at);
		MUST(theirs.n == data && theirs.sum == sum);
	}
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	const char *p = (const char *)bytes + 2;
	enum http_method m;
	size_t n, step;

	if (size < 2)
		return 0;
	n = size - 2;
	step = 1 + bytes[1] % 64;
	m = bytes[0] & 8 ? HTTP_HEAD : HTTP_POST;
	if (bytes[0] % 4 == 2) {
		compare_chunked(p, n, step);
		return 0;
	}
	compare_feeds(p, n, bytes[0] % 4 == 1, m, step);
	rewrite_head(p, n, bytes[0] % 4 == 1, m);
	return 0;
}
