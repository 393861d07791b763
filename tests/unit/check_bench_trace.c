/* Traces: what a line must hold, where faults are said to be, and the real ones. */
#include "base/cleanup.h"
#include "base/err.h"
#include "bench/trace.h"
#include "tests/unit/unit.h"

#include <string.h>

#define LINE(at, in, out, ids)                                                      \
	"{\"timestamp\": " at ", \"input_length\": " in ", \"output_length\": " out \
	", \"hash_ids\": [" ids "]}\n"

static struct trace trace;
static struct trace_fault fault;

static void set_up(void)
{
	memset(&trace, 0, sizeof(trace));
	memset(&fault, 0, sizeof(fault));
}

static void tear_down(void)
{
	trace_free(&trace);
}

static int read_text(const char *text)
{
	return trace_read(span_str(text), &trace, &fault);
}

START_TEST(three_requests)
{
	ck_assert_int_eq(read_text(LINE("500", "513", "7", "3,4") "\n\r\n" LINE(
				 "500", "512", "0", "3") LINE("1500.5", "0", "1", "")),
		0);
	ck_assert_uint_eq(trace.n, 3);
	ck_assert_uint_eq(trace.prompt_tokens, 1025);
	ck_assert_uint_eq(trace.output_tokens, 8);
	ck_assert_uint_eq(trace.requests[0].at_us, 0);
	ck_assert_uint_eq(trace.requests[0].n_ids, 2);
	ck_assert_uint_eq(trace.requests[1].at_us, 0);
	ck_assert_uint_eq(trace.requests[1].n_ids, 1);
	ck_assert_uint_eq(trace.requests[2].at_us, 1000500);
	ck_assert_uint_eq(trace.requests[2].n_ids, 0);
	ck_assert_uint_eq(trace.ids[trace.requests[0].first_id + 1], 4);
	ck_assert_uint_eq(trace.ids[trace.requests[1].first_id], 3);
}
END_TEST

/* The first line that can tell says which blocks they are; all others must agree. */
START_TEST(blocks_of_16_tokens)
{
	ck_assert_int_eq(read_text(LINE("0", "0", "1", "") LINE("0", "16", "1", "4") LINE(
				 "0", "33", "1", "4,5,6") LINE("0", "48", "1", "4,5,7")),
		0);
	ck_assert_uint_eq(trace.block_tokens, 16);
	ck_assert_uint_eq(trace.n, 4);
	ck_assert_uint_eq(trace.requests[2].n_ids, 3);
	trace_free(&trace);
	ck_assert_int_eq(
		read_text(LINE("0", "16", "1", "4") LINE("0", "17", "1", "4")), 0);
	ck_assert_uint_eq(trace.block_tokens, 512);
	trace_free(&trace);
	ck_assert_int_eq(read_text(LINE("0", "9", "1", "4")), 0);
	ck_assert_uint_eq(trace.block_tokens, 512);
	trace_free(&trace);
	ck_assert_int_eq(
		read_text(LINE("0", "33", "1", "4,5,6") LINE("0", "33", "1", "4")),
		ERR_PARSE);
	ck_assert_uint_eq(fault.line, 2);
}
END_TEST

START_TEST(no_newline_at_the_end)
{
	ck_assert_int_eq(
		read_text("{\"timestamp\":0,\"input_length\":1,\"output_length\":1,"
			  "\"hash_ids\":[0]}"),
		0);
	ck_assert_uint_eq(trace.n, 1);
}
END_TEST

static const struct {
	const char *text;
	size_t line;
	const char *says;
} faults[] = {
	{"", 1, "no request"},
	{"\n\n", 2, "no request"},
	{LINE("0", "1", "1", "0") "nonsense\n", 2, "line 1 column"},
	{LINE("0", "1", "1", "0") "[]\n", 2, "JSON object"},
	{LINE("5", "1", "1", "0") LINE("4", "1", "1", "0"), 2, "earlier"},
	{LINE("-1", "1", "1", "0"), 1, "timestamp"},
	{LINE("\"0\"", "1", "1", "0"), 1, "timestamp"},
	{LINE("1e300", "1", "1", "0"), 1, "timestamp"},
	{LINE("0", "-1", "1", "0"), 1, "input_length"},
	{LINE("0", "1.5", "1", "0"), 1, "input_length"},
	{LINE("0", "16777217", "1", "0"), 1, "input_length"},
	{LINE("0", "1", "null", "0"), 1, "output_length"},
	{LINE("0", "513", "1", "0"), 1, "one id for each"},
	{LINE("0", "512", "1", "0,1"), 1, "one id for each"},
	{LINE("0", "1", "1", "\"a\""), 1, "hash_ids"},
	{"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}", 1, "hash_ids"},
};

START_TEST(one_fault)
{
	ck_assert_int_eq(read_text(faults[_i].text), ERR_PARSE);
	ck_assert_uint_eq(fault.line, faults[_i].line);
	ck_assert_msg(
		strstr(fault.message, faults[_i].says) != NULL, "%s", fault.message);
	ck_assert_ptr_null(trace.requests);
}
END_TEST

/* Their sums, as computed by another program. */
static const struct {
	const char *file;
	size_t n;
	uint64_t prompt_tokens, output_tokens, last_us;
} real[] = {
	{"traces/conversation_trace.jsonl", 12031, 144793823, 4122048, 3536999000},
	{"traces/synthetic_trace.jsonl", 3993, 61194628, 595432, 1022025000},
};

START_TEST(real_traces)
{
	char path[4096], *text;
	scoped_file FILE *f = NULL;
	size_t n;

	if (!unit_shared(real[_i].file, path, sizeof(path)))
		return;
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	text = malloc(8 << 20);
	ck_assert_ptr_nonnull(text);
	n = fread(text, 1, 8 << 20, f);
	ck_assert_int_eq(trace_read(span_make(text, n), &trace, &fault), 0);
	free(text);
	ck_assert_uint_eq(trace.n, real[_i].n);
	ck_assert_uint_eq(trace.prompt_tokens, real[_i].prompt_tokens);
	ck_assert_uint_eq(trace.output_tokens, real[_i].output_tokens);
	ck_assert_uint_eq(trace.requests[trace.n - 1].at_us, real[_i].last_us);
}
END_TEST

static Suite *trace_suite(void)
{
	Suite *suite = suite_create("bench_trace");
	TCase *tc = tcase_create("bench_trace");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, three_requests);
	tcase_add_test(tc, blocks_of_16_tokens);
	tcase_add_test(tc, no_newline_at_the_end);
	tcase_add_loop_test(tc, one_fault, 0, ARRAY_LEN(faults));
	tcase_add_loop_test(tc, real_traces, 0, ARRAY_LEN(real));
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(trace_suite())
