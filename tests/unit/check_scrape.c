/*
 * What a worker's /metrics says: capacity and start time, from text that may be anything.
 */
#include "control/scrape.h"
#include "tests/unit/unit.h"

static struct scrape scrape(const char *text)
{
	struct scrape s;

	scrape_read(span_str(text), &s);
	return s;
}

START_TEST(test_capacity)
{
	ck_assert_uint_eq(scrape("").capacity_tokens, 0);
	ck_assert_uint_eq(
		scrape("# HELP vllm:cache_config_info x\n"
		       "# TYPE vllm:cache_config_info gauge\n"
		       "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\","
		       "engine=\"0\",num_gpu_blocks=\"2756\"} 1.0\n")
			.capacity_tokens,
		16 * 2756);
	/* The order of labels, blanks, CR LF and a missing last newline do not matter. */
	ck_assert_uint_eq(scrape("\r\nvllm:cache_config_info{num_gpu_blocks=\"10\", "
				 "block_size=\"32\"}  1\r\n")
				  .capacity_tokens,
		320);
	ck_assert_uint_eq(
		scrape("vllm:cache_config_info{num_gpu_blocks=\"10\",block_size=\"8\"} 1")
			.capacity_tokens,
		80);
}
END_TEST

START_TEST(test_capacity_of_several_engines)
{
	ck_assert_uint_eq(scrape("vllm:cache_config_info{engine=\"0\",block_size=\"16\","
				 "num_gpu_blocks=\"100\"} 1\n"
				 "vllm:cache_config_info{engine=\"1\",block_size=\"16\","
				 "num_gpu_blocks=\"200\"} 1\n")
				  .capacity_tokens,
		4800);
}
END_TEST

START_TEST(test_capacity_not_said)
{
	static const char *const lines[] = {
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1",
		"vllm:cache_config_info{block_size=\"16\"} 1",
		"vllm:cache_config_info{my_block_size=\"16\",num_gpu_blocks=\"3\"} 1",
		"vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"3\"} 1",
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"-3\"} 1",
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"3",
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"3\"}",
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks="
		"\"18446744073709551615\"} 1",
		"vllm:cache_config_info{a=\"}block_size=\\\"16\\\",num_gpu_blocks="
		"\\\"3\\\"\"} 1",
		"vllm:cache_config_info 1",
		"xvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"3\"} 1",
		"{{{{",
		"}",
		"\"\"\"",
		"a{b=\"\\",
		"vllm:cache_config_info{",
	};
	size_t i;

	for (i = 0; i < ARRAY_LEN(lines); i++)
		ck_assert_msg(scrape(lines[i]).capacity_tokens == 0, "%s", lines[i]);
}
END_TEST

START_TEST(test_a_brace_in_a_label_ends_nothing)
{
	ck_assert_uint_eq(
		scrape("vllm:cache_config_info{a=\"}\",block_size=\"2\",b=\"\\\"\","
		       "num_gpu_blocks=\"5\"} 1\n")
			.capacity_tokens,
		10);
}
END_TEST

START_TEST(test_start_time)
{
	ck_assert(
		scrape("process_start_time_seconds 1.76e+09\n").start_seconds == 1.76e9);
	ck_assert(scrape("x 1\nprocess_start_time_seconds 5.25 1700000000\n")
			  .start_seconds == 5.25);
	ck_assert(scrape("process_start_time_seconds NaN\n").start_seconds == 0);
	ck_assert(scrape("process_start_time_seconds -1\n").start_seconds == 0);
	ck_assert(scrape("process_start_time_seconds +Inf\n").start_seconds == 0);
	ck_assert(scrape("process_start_time_seconds\n").start_seconds == 0);
	ck_assert(scrape("process_start_time_seconds 1x\n").start_seconds == 0);
	ck_assert(scrape("process_start_time_seconds_total 7\n").start_seconds == 0);
}
END_TEST

static Suite *scrape_suite(void)
{
	Suite *s = suite_create("scrape");
	TCase *t = tcase_create("scrape");

	tcase_add_test(t, test_capacity);
	tcase_add_test(t, test_capacity_of_several_engines);
	tcase_add_test(t, test_capacity_not_said);
	tcase_add_test(t, test_a_brace_in_a_label_ends_nothing);
	tcase_add_test(t, test_start_time);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(scrape_suite())
