/*
 * Tests of src/http as one parser: every case of the shared corpus, and cases of our own
 * of the kinds that it leaves out, each in one write, byte by byte and split in two at
 * every offset.
 */
#include "base/metric.h"
#include "tests/unit/http_feed.h"
#include "tests/unit/unit.h"

#include <stdint.h>

#define CASE_SPLIT_MAX 300 /* longer ones are not split at every offset */

struct outcome {
	char verdict[24]; /* "forward", "reject-400", "abort", "close" */
	unsigned messages;
	bool keeps; /* whole messages, and the connection may serve another */
	enum fail why;
	uint64_t body_bytes;
	uint32_t body_sum;
};

static void describe(const struct feed *f, size_t n, struct outcome *o)
{
	const char *word = "close";

	memset(o, 0, sizeof(*o));
	o->messages = f->messages;
	o->why = f->why;
	o->body_bytes = f->body_bytes;
	o->body_sum = f->body_sum;
	o->keeps = f->why == FAIL_NONE && !f->is_closing && f->pos == n &&
		   f->messages > 0 && f->messages == f->heads;
	if (f->messages > 0)
		word = "forward";
	else if (f->is_response && f->heads > 0)
		word = "abort";
	else if (f->is_response)
		word = "reject-502";
	if (f->messages == 0 && !f->is_response && f->why != FAIL_NONE)
		snprintf(
			o->verdict, sizeof(o->verdict), "reject-%d", fail_status(f->why));
	else
		snprintf(o->verdict, sizeof(o->verdict), "%s", word);
}

/* How the bytes come: all, first so many and then the rest, or one by one. */
#define ALL_AT_ONCE SIZE_MAX
#define ONE_BY_ONE (SIZE_MAX - 1)

static void run_bytes(const char *bytes, size_t n, bool is_response, enum http_method m,
	size_t split, struct outcome *o)
{
	char *copy = malloc(n);
	struct feed *f = malloc(sizeof(*f));

	ck_assert(f != NULL && (copy != NULL || n == 0));
	if (n > 0)
		memcpy(copy, bytes, n);
	feed_start(f, copy, is_response, m);
	for (size_t at = 1; split == ONE_BY_ONE && at < n; at++)
		feed_run(f, at);
	if (split < n)
		feed_run(f, split);
	feed_run(f, n);
	feed_eof(f);
	describe(f, n, o);
	free(f);
	free(copy);
}

static bool is_same(const struct outcome *a, const struct outcome *b)
{
	return strcmp(a->verdict, b->verdict) == 0 && a->messages == b->messages &&
	       a->keeps == b->keeps && a->why == b->why &&
	       a->body_bytes == b->body_bytes && a->body_sum == b->body_sum;
}

/* The outcome of all ways to send the bytes, which must be one. */
static struct outcome run_all(const char *name, const char *bytes, size_t n,
	bool is_response, enum http_method m)
{
	struct outcome whole, other;

	run_bytes(bytes, n, is_response, m, ALL_AT_ONCE, &whole);
	run_bytes(bytes, n, is_response, m, ONE_BY_ONE, &other);
	ck_assert_msg(is_same(&whole, &other),
		"%s: %s (%s) at once, but %s (%s) byte by byte", name, whole.verdict,
		fail_text(whole.why), other.verdict, fail_text(other.why));
	for (size_t at = 1; n < CASE_SPLIT_MAX && at < n; at++) {
		run_bytes(bytes, n, is_response, m, at, &other);
		ck_assert_msg(is_same(&whole, &other),
			"%s: %s at once, but %s split at %zu", name, whole.verdict,
			other.verdict, at);
	}
	return whole;
}

/* The shared corpus */

struct row {
	char file[128], expected[24], also[128], count[8], after[8];
};

/* Splits a line of a TSV; false for comments and the like. */
static bool read_row(char *line, bool is_response, struct row *row)
{
	char *columns[8] = {NULL}, *rest = line;

	line[strcspn(line, "\n")] = '\0';
	for (unsigned i = 0; i < 8; i++)
		columns[i] = strsep(&rest, "\t");
	if (line[0] == '#' || columns[6] == NULL)
		return false;
	snprintf(row->file, sizeof(row->file), "corpus/%s", columns[0]);
	snprintf(row->expected, sizeof(row->expected), "%s", columns[1]);
	snprintf(row->also, sizeof(row->also), "%s", columns[3]);
	snprintf(row->count, sizeof(row->count), "%s", is_response ? "1" : columns[4]);
	snprintf(row->after, sizeof(row->after), "%s", columns[is_response ? 4 : 5]);
	if (is_response && strcmp(columns[5], "HEAD") == 0)
		snprintf(row->count, sizeof(row->count), "H");
	return true;
}

static bool is_among(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; *p != '\0'; p += strcspn(p, "|"), p += *p == '|') {
		if (strcspn(p, "|") == n && strncmp(p, word, n) == 0)
			return true;
	}
	return false;
}

static char *read_shared(const char *file, size_t *n)
{
	char path[512], *bytes;
	FILE *in;
	long size;

	ck_assert_msg(
		unit_shared(file, path, sizeof(path)), "%s is listed but absent", file);
	in = fopen(path, "rb");
	ck_assert(in != NULL && fseek(in, 0, SEEK_END) == 0);
	size = ftell(in);
	rewind(in);
	bytes = malloc((size_t)size + 1);
	ck_assert(bytes != NULL && fread(bytes, 1, (size_t)size, in) == (size_t)size);
	fclose(in);
	*n = (size_t)size;
	return bytes;
}

/* What the corpus says of the connection afterwards; rows about timing are the proxy's.
 */
static void check_after(const struct row *row, const struct outcome *o)
{
	bool is_early =
		strstr(row->file, "/066-") != NULL || strstr(row->file, "/067-") != NULL;

	if (strcmp(o->verdict, "forward") != 0 || strcmp(row->expected, "forward") != 0 ||
		is_early)
		return;
	if (strcmp(row->after, "keep") == 0 || strcmp(row->after, "yes") == 0)
		ck_assert_msg(o->keeps, "%s: the connection must be kept", row->file);
	if (strcmp(row->after, "close") == 0 || strcmp(row->after, "no") == 0)
		ck_assert_msg(!o->keeps, "%s: the connection must be closed", row->file);
}

/* True when the outcome is the expected one, false when only an accepted one. */
static bool check_row(const struct row *row, const struct outcome *o, bool is_response)
{
	bool is_exact = strcmp(o->verdict, row->expected) == 0;

	if (strcmp(row->expected, "drop") ==
		0) /* the pool's business: the bytes are fine */
		return true;
	ck_assert_msg(is_exact || is_among(row->also, o->verdict), "%s: %s, not %s (%s)",
		row->file, o->verdict, row->expected, fail_text(o->why));
	if (!is_response && is_exact)
		ck_assert_msg(o->messages == (unsigned)atoi(row->count),
			"%s: %u requests, not %s", row->file, o->messages, row->count);
	if (!is_exact)
		ck_assert_msg(
			o->messages <= 1, "%s: %u messages", row->file, o->messages);
	check_after(row, o);
	return is_exact;
}

static void run_corpus(const char *list, bool is_response)
{
	char path[512], line[2048];
	unsigned cases = 0, soft = 0;
	struct row row;
	FILE *in;

	if (!unit_shared(list, path, sizeof(path)))
		return;
	in = fopen(path, "r");
	ck_assert(in != NULL);
	while (fgets(line, sizeof(line), in) != NULL) {
		struct outcome o;
		size_t n;
		char *bytes;

		if (!read_row(line, is_response, &row))
			continue;
		bytes = read_shared(row.file, &n);
		o = run_all(row.file, bytes, n, is_response,
			row.count[0] == 'H' ? HTTP_HEAD : HTTP_POST);
		free(bytes);
		cases++;
		if (!check_row(&row, &o, is_response)) {
			soft++;
			printf("soft: %s: %s, not %s\n", row.file, o.verdict,
				row.expected);
		}
	}
	fclose(in);
	printf("%s: %u cases, %u of them soft\n", list, cases, soft);
	ck_assert_uint_gt(cases, 0);
}

START_TEST(corpus_requests)
{
	run_corpus("corpus/request.tsv", false);
}
END_TEST

START_TEST(corpus_responses)
{
	run_corpus("corpus/response.tsv", true);
}
END_TEST

/* Whole messages of our own */

#define HOST "Host: a.example\r\n"
#define POST "POST /v1/completions HTTP/1.1\r\n" HOST
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define EVIL "GET /admin HTTP/1.1\r\n" HOST "\r\n"
#define GET_A "GET /a HTTP/1.1\r\n" HOST "\r\n"

struct own {
	const char *bytes, *verdict;
	unsigned messages;
	bool keeps;
};

/* Shapes that make one request into two behind a lenient parser, and lawful ones beside
 * them. */
/* clang-format off */
static const struct own own_requests[] = {
	{ POST "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Content-Length: 6\r\nContent-Length: 60\r\n\r\nabcdef" EVIL, "reject-400", 0, false },
	{ POST "Content-Length: 6\r\nContent-Length: 6\r\n\r\nabcdef" EVIL, "reject-400", 0, false },
	{ POST "Content-Length: +6\r\n\r\nabcdef" EVIL, "reject-400", 0, false },
	{ POST "Content-Length:  6 \r\n\r\nabcdef", "forward", 1, true },
	{ POST "Content-Length: 6,6\r\n\r\nabcdef" EVIL, "reject-400", 0, false },
	{ POST "Content-Length: 0x6\r\n\r\nabcdef" EVIL, "reject-400", 0, false },
	{ POST "Content-Length: 18446744073709551622\r\n\r\nabcdef" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding: \tchunked\r\n\r\n0\r\n\r\n" GET_A, "forward", 2, true },
	{ POST "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", "forward", 1, true },
	{ POST "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "X: y\r\n\tContent-Length: 6\r\n\r\nabcdef" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "X y: z\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "\x0bTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ POST "Transfer-Encoding: chunked\x0c\r\n\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ CHUNKED "0x5\r\nhello\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ CHUNKED "5 \r\nhello\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ CHUNKED "-1\r\nhello\r\n0\r\n\r\n" EVIL, "reject-400", 0, false },
	{ CHUNKED "0\r\nX: y\r\n\n" EVIL, "reject-400", 0, false },
	{ CHUNKED "0\r\n" EVIL, "reject-400", 0, false },
	/* The body of a request is its own, whatever the method */
	{ "GET / HTTP/1.1\r\n" HOST "Content-Length: 40\r\n\r\n" EVIL GET_A, "forward", 2, true },
	{ "DELETE / HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", "forward", 1, true },
	{ "HEAD / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" GET_A,
	  "forward", 2, true },
	{ POST "\r\n" GET_A, "forward", 2, true },
	/* Between requests: at most one empty line */
	{ GET_A "\r\n" GET_A, "forward", 2, true },
	{ GET_A "\r\n\r\n" GET_A, "forward", 1, false },
	{ GET_A "\n" GET_A, "forward", 1, false },
	{ "\r\n\r\n" GET_A, "reject-400", 0, false },
	{ "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n" GET_A, "reject-400", 0, false },
	{ "\n" GET_A, "reject-400", 0, false },
	{ " " GET_A, "reject-400", 0, false },
	{ GET_A GET_A GET_A, "forward", 3, true },
	/* Behind a close nothing is served */
	{ "GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n" EVIL, "forward", 1, false },
	{ "GET / HTTP/1.0\r\n\r\n" EVIL, "forward", 1, false },
	{ "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" GET_A, "forward", 2, true },
	/* A higher minor version is read as 1.1 */
	{ "GET / HTTP/1.2\r\n" HOST "\r\n" GET_A, "forward", 2, true },
	{ "\r\nGET / HTTP/1.9\r\n" HOST "Connection: close\r\n\r\n", "forward", 1, false },
	{ "POST / HTTP/1.7\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" GET_A, "forward", 2, true },
	{ "POST / HTTP/1.7\r\n" HOST "Content-Length: 2\r\nContent-Length: 2\r\n\r\nab", "reject-400", 0, false },
	{ "GET / HTTP/1.2\r\n\r\n", "reject-400", 0, false },
	/* Upgrade is ignored: what follows is the next request */
	{ "GET / HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" GET_A, "forward", 2, true },
	{ POST "Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab" GET_A, "forward", 2, true },
	/* Cut short */
	{ "G", "close", 0, false },
	{ "\r", "close", 0, false },
	{ POST, "close", 0, false },
	{ POST "Content-Length: 5\r\n\r\nhell", "close", 0, false },
	{ CHUNKED "5\r\nhello\r\n0\r\n", "close", 0, false },
	/* Other protocols */
	{ "\x16\x03\x01\x02", "reject-400", 0, false },
	{ "SSH-2.0-OpenSSH_9.2\r\n", "reject-400", 0, false },
	{ "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "reject-400", 0, false },
	{ "<policy-file-request/>", "reject-400", 0, false },
	{ "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "reject-505", 0, false },
};
/* clang-format on */

/* clang-format off */
static const struct own own_responses[] = {
	{ "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "forward", 1, true },
	{ "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\n\r\n", "forward", 1, false },
	{ "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 X\r\nContent-Length: 9\r\n\r\n"
	  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "forward", 1, true },
	{ "HTTP/1.1 100 Continue\r\n\r\n", "reject-502", 0, false },
	{ "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "abort", 0, false },
	{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz", "abort", 0, false },
	{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "abort", 0, false },
	{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n", "abort", 0, false },
	{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\nz", "forward", 1, false },
	{ "HTTP/1.1 200 OK\r\n\r\n", "forward", 1, false },
	{ "HTTP/1.1 200 OK\r\n\r\nx", "forward", 1, false },
	{ "HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n", "forward", 1, true },
	{ "HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nab", "forward", 1, true },
	{ "HTTP/1.9 100 Continue\r\n\r\nHTTP/1.2 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "forward", 1, true },
	{ "HTTP/1.2 200 OK\r\n\r\nab", "forward", 1, false },
	{ "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "reject-502", 0, false },
	{ "\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "reject-502", 0, false },
};
/* clang-format on */

static void run_own(const struct own *rows, size_t n, bool is_response)
{
	for (size_t i = 0; i < n; i++) {
		const struct own *row = &rows[i];
		struct outcome o = run_all(row->bytes, row->bytes, strlen(row->bytes),
			is_response, HTTP_POST);

		ck_assert_msg(strcmp(o.verdict, row->verdict) == 0, "%s: %s (%s)",
			row->bytes, o.verdict, fail_text(o.why));
		ck_assert_msg(o.messages == row->messages, "%s: %u messages", row->bytes,
			o.messages);
		ck_assert_msg(o.keeps == row->keeps, "%s: keeps %d", row->bytes, o.keeps);
	}
}

START_TEST(own_cases)
{
	run_own(own_requests, ARRAY_LEN(own_requests), false);
	run_own(own_responses, ARRAY_LEN(own_responses), true);
}
END_TEST

START_TEST(interim_answers_are_bounded)
{
	static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
	char text[1024];
	size_t n = 0;
	struct outcome o;

	for (unsigned i = 0; i < HTTP_INTERIM_MAX; i++)
		n += (size_t)sprintf(text + n, "%s", interim);
	n += (size_t)sprintf(text + n, "HTTP/1.1 204 X\r\n\r\n");
	o = run_all("interims", text, n, true, HTTP_POST);
	ck_assert_str_eq(o.verdict, "forward");
	memmove(text + sizeof(interim) - 1, text, n);
	memcpy(text, interim, sizeof(interim) - 1);
	o = run_all("interims", text, n + sizeof(interim) - 1, true, HTTP_POST);
	ck_assert_str_eq(o.verdict, "reject-502");
}
END_TEST

/* Field names */

static void check_id(const char *name, enum http_field_id want, bool want_lookalike)
{
	bool is_lookalike = !want_lookalike;
	enum http_field_id id = http_field_id(span_str(name), &is_lookalike);

	ck_assert_msg(id == want && is_lookalike == want_lookalike, "%s: %d, %d", name,
		(int)id, is_lookalike);
}

START_TEST(every_name_is_known)
{
#define X(id, name)                        \
	if (FIELD_##id != FIELD_X_KVSTEER) \
		check_id(name, FIELD_##id, false);
	HTTP_FIELD_TABLE(X)
#undef X
	check_id("HOST", FIELD_HOST, false);
	check_id("cOnTeNt-LeNgTh", FIELD_CONTENT_LENGTH, false);
	check_id("Content_Length", FIELD_CONTENT_LENGTH, true);
	check_id("X-KVSTEER-anything", FIELD_X_KVSTEER, false);
	check_id("X-Kvsteer-", FIELD_X_KVSTEER, false);
	check_id("X_Kvsteer-Prefix", FIELD_X_KVSTEER_PREFIX, true);
	check_id("x_kvsteer_y", FIELD_X_KVSTEER, true);
	check_id("X-Kvsteer", FIELD_OTHER, false);
	check_id("hosts", FIELD_OTHER, false);
	check_id("hos", FIELD_OTHER, false);
	check_id("h\x8fst", FIELD_OTHER, false);
	check_id("x_y", FIELD_OTHER, false);
	check_id("", FIELD_OTHER, false);
	check_id("_", FIELD_OTHER, false);
}
END_TEST

/* What one byte of a known name may be: the same letter in the other case, '_' for '-'.
 */
static void change_each_byte(const char *name, enum http_field_id id)
{
	char text[64];
	size_t n = strlen(name);
	struct span changed = {text, n};

	memcpy(text, name, n);
	for (size_t at = 0; at < n; at++) {
		for (int c = 0; c < 256; c++) {
			bool is_case = name[at] >= 'a' && name[at] <= 'z' &&
				       c == (name[at] ^ 0x20);
			bool is_like = name[at] == '-' && c == '_', is_lookalike;
			bool is_same = c == (unsigned char)name[at];
			enum http_field_id found;

			text[at] = (char)c;
			found = http_field_id(changed, &is_lookalike);
			ck_assert_msg((found == id) == (is_same || is_case || is_like),
				"%.*s: %d", (int)n, text, (int)found);
			ck_assert(found != id || is_lookalike == is_like);
		}
		text[at] = name[at];
	}
}

START_TEST(no_other_name_is_known)
{
#define X(id, name)                        \
	if (FIELD_##id != FIELD_X_KVSTEER) \
		change_each_byte(name, FIELD_##id);
	HTTP_FIELD_TABLE(X)
#undef X
}
END_TEST

START_TEST(fields_are_found)
{
	static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\nX-A:  1 \r\nx-a: 2\r\n"
				   "Accept:\r\n\r\n";
	struct http_head *h = malloc(sizeof(*h));
	const struct http_field *f;
	enum fail why;

	ck_assert(h != NULL && http_parse_request(text, sizeof(text) - 1, h, &why) == 0);
	ck_assert_uint_eq(h->n_fields, 4);
	f = http_head_find(h, FIELD_HOST);
	ck_assert(f != NULL && span_is(http_field_value(text, f), "a"));
	ck_assert(http_head_find(h, FIELD_VIA) == NULL);
	f = http_head_named(text, h, SPAN_LIT("X-a"));
	ck_assert(f == &h->fields[1] && span_is(http_field_value(text, f), "1"));
	f = http_head_named(text, h, SPAN_LIT("accept"));
	ck_assert(f != NULL && f->value_len == 0);
	ck_assert(http_head_named(text, h, SPAN_LIT("none")) == NULL);
	free(h);
}
END_TEST

START_TEST(llhttp_is_strict)
{
	ck_assert(http_parse_selftest());
}
END_TEST

static Suite *parse_suite(void)
{
	Suite *s = suite_create("http_parse");
	TCase *t = tcase_create("corpus");

	metric_thread_start();
	tcase_add_test(t, corpus_requests);
	tcase_add_test(t, corpus_responses);
	suite_add_tcase(s, t);
	t = tcase_create("own");
	tcase_add_test(t, own_cases);
	tcase_add_test(t, interim_answers_are_bounded);
	tcase_add_test(t, every_name_is_known);
	tcase_add_test(t, no_other_name_is_known);
	tcase_add_test(t, fields_are_found);
	tcase_add_test(t, llhttp_is_strict);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(parse_suite())
