/*
 * Tests of src/http as one parser: every case of the shared corpus, and cases of our own of the
 * kinds that it leaves out, each in one write, byte by byte and split in two at every offset.
 */
#include "base/metric.h"
#include "tests/unit/http_feed.h"
#include "tests/unit/unit.h"

#include <stdint.h>

#define CASE_SPLIT_MAX 300 /* longer ones are not split at every offset */

struct outcome {
	char verdict[24]; /* "forward", "reject-400", "abort", "close" */
	unsigned messages;
	bool keeps; /* the connection may serve another message */
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
	o->keeps = f->why == FAIL_NONE && !f->is_closing && f->pos == n;
	if (f->messages > 0)
		word = "forward";
	else if (f->is_response && f->heads > 0)
		word = "abort";
	else if (f->is_response)
		word = "reject-502";
	if (f->messages == 0 && !f->is_response && f->why != FAIL_NONE)
		snprintf(o->verdict, sizeof(o->verdict), "reject-%d", fail_status(f->why));
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
	       a->keeps == b->keeps && a->why == b->why && a->body_bytes == b->body_bytes &&
	       a->body_sum == b->body_sum;
}

/* The outcome of all ways to send the bytes, which must be one. */
static struct outcome run_all(const char *name, const char *bytes, size_t n, bool is_response,
			      enum http_method m)
{
	struct outcome whole, other;

	run_bytes(bytes, n, is_response, m, ALL_AT_ONCE, &whole);
	run_bytes(bytes, n, is_response, m, ONE_BY_ONE, &other);
	ck_assert_msg(is_same(&whole, &other), "%s: %s (%s) at once, but %s (%s) byte by byte", name,
		      whole.verdict, fail_text(whole.why), other.verdict, fail_text(other.why));
	for (size_t at = 1; n < CASE_SPLIT_MAX && at < n; at++) {
		run_bytes(bytes, n, is_response, m, at, &other);
		ck_assert_msg(is_same(&whole, &other), "%s: %s at once, but %s split at %zu", name,
			      whole.verdict, other.verdict, at);
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
	char *columns[8] = { NULL }, *rest = line;

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

	ck_assert_msg(unit_shared(file, path, sizeof(path)), "%s is listed but absent", file);
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

/* What the corpus says of the connection afterwards; rows about timing are the proxy's. */
static void check_after(const struct row *row, const struct outcome *o)
{
	bool is_early = strstr(row->file, "/066-") != NULL || strstr(row->file, "/067-") != NULL;

	if (strcmp(o->verdict, "forward") != 0 || strcmp(row->expected, "forward") != 0 || is_early)
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

	if (strcmp(row->expected, "drop") == 0) /* the pool's business: the bytes are fine */
		return true;
	ck_assert_msg(is_exact || is_among(row->also, o->verdict), "%s: %s, not %s (%s)", row->file,
		      o->verdict, row->expected, fail_text(o->why));
	if (!is_response && is_exact)
		ck_assert_msg(o->messages == (unsigned)atoi(row->count), "%s: %u requests, not %s",
			      row->file, o->messages, row->count);
	if (!is_exact)
		ck_assert_msg(o->messages <= 1, "%s: %u messages", row->file, o->messages);
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
			printf("soft: %s: %s, not %s\n", row.file, o.verdict, row.expected);
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

static Suite *parse_suite(void)
{
	Suite *s = suite_create("http_parse");
	TCase *t = tcase_create("corpus");

	metric_thread_start();
	tcase_add_test(t, corpus_requests);
	tcase_add_test(t, corpus_responses);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(parse_suite())
