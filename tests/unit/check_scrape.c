/*
 * What a worker's /metrics and its JSON say: capacity, load, start time and id, of the
 * whole process and of each rank, from text that may be anything.
 */
#include "fleet/scrape.h"
#include "tests/unit/unit.h"
#include "worker/model_set.h"

static struct scrape scrape(const char *text)
{
	struct scrape s = {0};

	scrape_begin(&s);
	scrape_read(span_str(text), &s);
	return s;
}

START_TEST(test_capacity)
{
	ck_assert_uint_eq(scrape("").all.capacity_tokens, 0);
	ck_assert_uint_eq(
		scrape("# HELP vllm:cache_config_info x\n"
		       "# TYPE vllm:cache_config_info gauge\n"
		       "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\","
		       "engine=\"0\",num_gpu_blocks=\"2756\"} 1.0\n")
			.all.capacity_tokens,
		16 * 2756);
	/* The order of labels, blanks, CR LF and a missing last newline do not matter. */
	ck_assert_uint_eq(scrape("\r\nvllm:cache_config_info{num_gpu_blocks=\"10\", "
				 "block_size=\"32\"}  1\r\n")
				  .all.capacity_tokens,
		320);
	ck_assert_uint_eq(
		scrape("vllm:cache_config_info{num_gpu_blocks=\"10\",block_size=\"8\"} 1")
			.all.capacity_tokens,
		80);
}
END_TEST

START_TEST(test_capacity_of_several_engines)
{
	ck_assert_uint_eq(scrape("vllm:cache_config_info{engine=\"0\",block_size=\"16\","
				 "num_gpu_blocks=\"100\"} 1\n"
				 "vllm:cache_config_info{engine=\"1\",block_size=\"16\","
				 "num_gpu_blocks=\"200\"} 1\n")
				  .all.capacity_tokens,
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
		ck_assert_msg(scrape(lines[i]).all.capacity_tokens == 0, "%s", lines[i]);
}
END_TEST

START_TEST(test_a_brace_in_a_label_ends_nothing)
{
	ck_assert_uint_eq(
		scrape("vllm:cache_config_info{a=\"}\",block_size=\"2\",b=\"\\\"\","
		       "num_gpu_blocks=\"5\"} 1\n")
			.all.capacity_tokens,
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

/* The names of vLLM and of SGLang; gauges of several models and engines add up. */
START_TEST(test_load)
{
	struct scrape s =
		scrape("vllm:num_requests_running{engine=\"0\"} 3.0\n"
		       "vllm:num_requests_waiting{engine=\"0\"} 2.0\n"
		       "vllm:num_requests_waiting_by_reason{reason=\"capacity\"} "
		       "2.0\n");

	ck_assert(s.all.has_load);
	ck_assert_uint_eq(s.all.running, 3);
	ck_assert_uint_eq(s.all.waiting, 2);
	s = scrape("sglang:num_running_reqs{tp_rank=\"0\"} 4\n"
		   "sglang:num_running_reqs{tp_rank=\"1\"} 4\n"
		   "sglang:num_queue_reqs{tp_rank=\"0\",pp_rank=\"0\"} 5\n"
		   "sglang:num_queue_reqs{tp_rank=\"0\",pp_rank=\"1\"} 5\n"
		   "sglang:cache_config_info{page_size=\"64\",num_pages=\"10\"} 1\n");
	ck_assert_uint_eq(s.all.running, 4);
	ck_assert_uint_eq(s.all.waiting, 5);
	ck_assert_uint_eq(s.all.capacity_tokens, 640);
	ck_assert(!scrape("vllm:num_requests_running NaN\n").all.has_load);
	ck_assert(!scrape("vllm:num_requests_running\n").all.has_load);
	ck_assert(!scrape("").all.has_load);
	ck_assert_uint_eq(scrape("vllm:num_requests_running -4\n").all.running, 0);
	ck_assert_uint_eq(
		scrape("vllm:num_requests_running 1e300\n").all.running, 1000000000);
}
END_TEST

START_TEST(test_tokens)
{
	ck_assert(!scrape("").all.has_tokens);
	ck_assert(scrape("vllm:prompt_tokens_total 7\nvllm:generation_tokens_total{} 5\n"
			 "vllm:prompt_tokens_created 1.7e9\n")
			  .all.tokens == 12);
	ck_assert(scrape("sglang:prompt_tokens_total 0\n").all.has_tokens);
}
END_TEST

static struct scrape_engine engines[3];

static struct scrape of_ranks(
	void (*read)(struct span text, struct scrape *s), const char *text)
{
	struct scrape s = {.ranks = engines, .n_ranks = 3};

	scrape_begin(&s);
	read(span_str(text), &s);
	return s;
}

START_TEST(test_ranks)
{
	struct scrape s = of_ranks(scrape_read,
		"vllm:num_requests_running{engine=\"0\"} 3\n"
		"vllm:num_requests_running{engine=\"2\"} 4\n"
		"vllm:num_requests_waiting{engine=\"2\"} 1\n"
		"vllm:num_requests_waiting{engine=\"3\"} 50\n"
		"vllm:cache_config_info{engine=\"1\",block_size=\"16\","
		"num_gpu_blocks=\"10\"} 1\n");

	ck_assert_uint_eq(s.all.running, 7);
	ck_assert_uint_eq(s.all.waiting, 51);
	ck_assert_uint_eq(engines[0].running, 3);
	ck_assert(!engines[1].has_load);
	ck_assert_uint_eq(engines[1].capacity_tokens, 160);
	ck_assert_uint_eq(engines[2].running, 4);
	ck_assert_uint_eq(engines[2].waiting, 1);
	of_ranks(scrape_read, "sglang:num_running_reqs{dp_rank=\"1\"} 9\n");
	ck_assert_uint_eq(engines[1].running, 9);
	ck_assert_uint_eq(engines[1].capacity_tokens, 0);
	ck_assert(!engines[2].has_load);
	s = of_ranks(scrape_read, "vllm:prompt_tokens_total{engine=\"1\"} 7\n"
				  "vllm:generation_tokens_total{engine=\"1\"} 5\n"
				  "vllm:generation_tokens_total{engine=\"2\"} 3\n"
				  "vllm:generation_tokens_total 100\n");
	ck_assert(
		s.all.tokens == 115 && engines[1].tokens == 12 && engines[2].tokens == 3);
	ck_assert(!engines[0].has_tokens && engines[1].has_tokens);
}
END_TEST

/* vLLM 0.32 with two data-parallel engines: each says the blocks of both, and the tokens
 * of its own. */
START_TEST(test_f7_capacity_of_ranks)
{
	static const char with_tokens[] =
		"vllm:cache_config_info{block_size=\"32\",engine=\"0\","
		"kv_cache_size_tokens=\"1048576\",num_gpu_blocks=\"65536\"} 1.0\n"
		"vllm:cache_config_info{block_size=\"32\",engine=\"1\","
		"kv_cache_size_tokens=\"1048576\",num_gpu_blocks=\"65536\"} 1.0\n";
	static const char blocks_only[] =
		"vllm:cache_config_info{block_size=\"32\",engine=\"0\","
		"kv_cache_size_tokens=\"None\",num_gpu_blocks=\"65536\"} 1.0\n"
		"vllm:cache_config_info{block_size=\"32\",engine=\"1\","
		"kv_cache_size_tokens=\"None\",num_gpu_blocks=\"65536\"} 1.0\n";
	const char *const texts[] = {with_tokens, blocks_only};
	struct scrape s;
	size_t i;

	for (i = 0; i < ARRAY_LEN(texts); i++) {
		s = of_ranks(scrape_read, texts[i]);
		ck_assert_uint_eq(s.all.capacity_tokens, 2097152);
		ck_assert_uint_eq(engines[0].capacity_tokens, 1048576);
		ck_assert_uint_eq(engines[1].capacity_tokens, 1048576);
	}
	/* A hybrid model: the product says nothing. */
	ck_assert_uint_eq(scrape("vllm:cache_config_info{block_size=\"544\","
				 "kv_cache_size_tokens=\"7000\",num_gpu_blocks="
				 "\"900\"} 1\n")
				  .all.capacity_tokens,
		7000);
}
END_TEST

START_TEST(test_f7_capacity_of_sglang)
{
	struct scrape s = of_ranks(scrape_read,
		"sglang:max_total_num_tokens{dp_rank=\"0\",tp_rank=\"0\"} 30000.0\n"
		"sglang:max_total_num_tokens{dp_rank=\"0\",tp_rank=\"1\"} 30000.0\n"
		"sglang:max_total_num_tokens{dp_rank=\"1\",tp_rank=\"2\"} 30000.0\n"
		"sglang:max_total_num_tokens_swa{tp_rank=\"0\"} 7.0\n");

	ck_assert_uint_eq(s.all.capacity_tokens, 60000);
	ck_assert_uint_eq(engines[1].capacity_tokens, 30000);
	ck_assert_uint_eq(
		scrape("sglang:max_total_num_tokens{model_name=\"m\"} 30000.0\n")
			.all.capacity_tokens,
		30000);
	ck_assert_uint_eq(
		scrape("sglang:max_total_num_tokens NaN\n").all.capacity_tokens, 0);
}
END_TEST

/* SGLang counts what runs, too; llama.cpp has names of its own. */
START_TEST(test_c03_counters_of_engines)
{
	struct scrape s =
		scrape("sglang:realtime_tokens_total{mode=\"decode\"} 50\n"
		       "sglang:realtime_tokens_total{mode=\"prefill_compute\"} 100\n"
		       "sglang:generation_tokens_total 40\n");

	ck_assert(s.all.tokens == 190 && s.all.has_generated && s.all.generated == 50);
	s = scrape("llamacpp:prompt_tokens_total 9\nllamacpp:tokens_predicted_total 4\n"
		   "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n");
	ck_assert(s.all.tokens == 13 && !s.all.has_generated);
	ck_assert_uint_eq(s.all.running, 2);
	ck_assert_uint_eq(s.all.waiting, 1);
	s = scrape("vllm:prompt_tokens_total 9\nvllm:generation_tokens_total 4\n");
	ck_assert(s.all.tokens == 13 && s.all.has_generated && s.all.generated == 4);
}
END_TEST

/* Engines that are numbered across nodes; what they are called is kept. */
START_TEST(test_c11_labels_begin_with_another_number)
{
	struct scrape s =
		of_ranks(scrape_read, "vllm:num_requests_running{engine=\"6\"} 6\n"
				      "vllm:num_requests_running{engine=\"4\"} 4\n"
				      "other{engine=\"0\"} 4\n"
				      "vllm:num_requests_waiting{engine=\"5\"} 5\n");

	ck_assert_uint_eq(s.first_rank, 4);
	ck_assert_uint_eq(engines[0].running, 4);
	ck_assert_uint_eq(engines[1].waiting, 5);
	ck_assert_uint_eq(engines[2].running, 6);
	scrape_begin(&s);
	scrape_read(SPAN_LIT("vllm:num_requests_running{engine=\"5\"} 7\n"), &s);
	ck_assert_uint_eq(s.first_rank, 4);
	ck_assert_uint_eq(engines[1].running, 7);
	/* More, or fewer, than there are ranks say nothing. */
	s = of_ranks(scrape_read, "vllm:num_requests_running{engine=\"4\"} 1\n"
				  "vllm:num_requests_running{engine=\"7\"} 1\n");
	ck_assert_uint_eq(s.first_rank, 0);
	s = of_ranks(scrape_json, "[{\"dp_rank\":8,\"num_reqs\":1},{\"dp_rank\":9,"
				  "\"num_reqs\":2},{\"dp_rank\":10,\"num_reqs\":3}]");
	ck_assert_uint_eq(s.first_rank, 8);
	ck_assert_uint_eq(engines[2].running, 3);
}
END_TEST

/* vLLM leaves the line of each state that there was; its time tells which is the last. */
START_TEST(test_lora_adapters_of_the_newest_line)
{
	struct scrape s =
		scrape("vllm:lora_requests_info{max_lora=\"4\",running_lora_"
		       "adapters=\"a,b\",waiting_lora_adapters=\"\"} 1.7e+09\n"
		       "vllm:lora_requests_info{max_lora=\"2\",running_lora_"
		       "adapters=\"b, c\",waiting_lora_adapters=\"c,d,\"} 1.8e+09\n"
		       "vllm:lora_requests_info{max_lora=\"3\",running_lora_"
		       "adapters=\"\",waiting_lora_adapters=\"\"} 1.6e+09\n");
	const struct adapters_report *r = &s.adapters.report;

	ck_assert_uint_eq(r->slots, 2);
	ck_assert_uint_eq(r->n_running, 2);
	ck_assert_uint_eq(r->n, 3);
	ck_assert_uint_eq(r->names[0], model_hash(SPAN_LIT("b")));
	ck_assert_uint_eq(r->names[1], model_hash(SPAN_LIT("c")));
	ck_assert_uint_eq(r->names[2], model_hash(SPAN_LIT("d")));
	ck_assert_double_eq(scrape("vllm:num_requests_running 1\n").adapters.said_at, 0);
	s = scrape("vllm:lora_requests_info{running_lora_adapters=\"1,2,3,4,5,6,7,8,9,10,"
		   "11,12,13,14,15,16,17,18\"} 1\n");
	ck_assert_uint_eq(s.adapters.report.n, ADAPTERS_MAX);
	ck_assert_uint_eq(s.adapters.report.slots, 0);
}
END_TEST

START_TEST(test_json_loads)
{
	struct scrape s = of_ranks(scrape_json,
		"{\"timestamp\":1,\"dp_rank_count\":2,\"loads\":[{\"dp_rank\":1,"
		"\"num_running_reqs\":5,\"num_waiting_reqs\":2,\"max_total_num_tokens\":"
		"99},"
		"{\"dp_rank\":0,\"num_running_reqs\":1,\"num_waiting_reqs\":0}]}");

	ck_assert_uint_eq(s.all.running, 6);
	ck_assert_uint_eq(s.all.waiting, 2);
	ck_assert_uint_eq(engines[0].running, 1);
	ck_assert_uint_eq(engines[1].running, 5);
	ck_assert_uint_eq(engines[1].waiting, 2);
	ck_assert(!engines[2].has_load);
	s = of_ranks(scrape_json, "[{\"num_reqs\":7,\"num_waiting_reqs\":3},"
				  "{\"num_reqs\":1,\"num_waiting_reqs\":4},{}, 5, null]");
	ck_assert_uint_eq(engines[0].running, 4);
	ck_assert_uint_eq(engines[0].waiting, 3);
	ck_assert_uint_eq(engines[1].running, 0);
	ck_assert(!engines[2].has_load);
	s = of_ranks(scrape_json, "{\"load\":12}");
	ck_assert(s.all.has_load);
	ck_assert_uint_eq(s.all.running, 12);
	ck_assert(!engines[0].has_load);
	s = of_ranks(scrape_json, "{\"server_load\":0}");
	ck_assert(s.all.has_load);
}
END_TEST

START_TEST(test_json_server_info)
{
	struct scrape s = of_ranks(scrape_json,
		"{\"model_path\":\"m\",\"dp_size\":3,\"max_total_num_tokens\":1000}");

	ck_assert_uint_eq(s.all.capacity_tokens, 3000);
	ck_assert_uint_eq(engines[2].capacity_tokens, 1000);
	ck_assert_str_eq(s.id, "");
	s = of_ranks(scrape_json, "{\"engine_id\":\"e-1\",\"block_size\":16,"
				  "\"num_blocks\":100,\"dp_size\":0}");
	ck_assert_uint_eq(s.all.capacity_tokens, 1600);
	ck_assert_str_eq(s.id, "e-1");
	s = of_ranks(scrape_json, "{\"instance_id\":\"i\"}");
	ck_assert_str_eq(s.id, "i");
}
END_TEST

/* llama.cpp: --ctx-size 8192 --parallel 4. */
START_TEST(test_c08_llamacpp_has_room_in_its_slots)
{
	struct scrape s = of_ranks(scrape_json,
		"{\"default_generation_settings\":{\"params\":{},\"n_ctx\":2048},"
		"\"total_slots\":4,\"is_sleeping\":false}");

	ck_assert_uint_eq(s.all.capacity_tokens, 8192);
	ck_assert_str_eq(s.id, "");
}
END_TEST

START_TEST(test_json_that_says_nothing)
{
	static const char *const texts[] = {
		"",
		"nonsense",
		"null",
		"7",
		"\"load\"",
		"[]",
		"{}",
		"{\"load\":-1}",
		"{\"load\":\"5\"}",
		"{\"load\":1.5}",
		"{\"load\":99999999999999}",
		"{\"loads\":{}}",
		"{\"loads\":[{\"num_running_reqs\":-1}]}",
		"{\"max_total_num_tokens\":0}",
		"{\"max_total_num_tokens\":9007199254740993000}",
		"{\"block_size\":16}",
		"{\"block_size\":0,\"num_blocks\":5}",
		"{\"block_size\":281474976710656,\"num_blocks\":281474976710656}",
		"{\"default_generation_settings\":{\"n_ctx\":2048}}",
		"{\"default_generation_settings\":{\"n_ctx\":0},\"total_slots\":4}",
		"{\"default_generation_settings\":[],\"n_ctx\":2048,\"total_slots\":4}",
		"{\"engine_id\":\"\"}",
		"{\"engine_id\":5}",
		"{\"engine_id\":\"0123456789012345678901234567890123456789012345678901234"
		"567890123456789\"}",
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct scrape s = of_ranks(scrape_json, texts[i]);

		ck_assert_msg(!s.all.has_load, "%s", texts[i]);
		ck_assert_msg(s.all.capacity_tokens == 0, "%s", texts[i]);
		ck_assert_msg(s.id[0] == '\0', "%s", texts[i]);
		ck_assert_msg(!engines[0].has_load, "%s", texts[i]);
	}
}
END_TEST

/* What engines say besides: values in each spelling, none that is no number, and what
 * follows a value. */
START_TEST(test_c03_spellings_of_counters)
{
	struct scrape s =
		scrape("vllm:generation_tokens_total{engine=\"0\"} 1.048576e+06\n");

	ck_assert(s.all.has_generated);
	ck_assert(s.all.generated == 1048576);
	s = scrape("vllm:generation_tokens_total 7 1796128022000\n# EOF\n");
	ck_assert(s.all.generated == 7);
	s = scrape(
		"vllm:generation_tokens_total 7 # {trace_id=\"a\"} 1.0 1796128022.5\n");
	ck_assert(s.all.generated == 7);
	s = scrape("vllm:generation_tokens_total NaN\nvllm:num_requests_running +Inf\n");
	ck_assert(!s.all.has_tokens);
	ck_assert(!s.all.has_load);
	/* The age of the counter is no counter. */
	s = scrape("vllm:generation_tokens_created 1796128022.5\n");
	ck_assert(!s.all.has_tokens);
}
END_TEST

/* llama.cpp without --metrics. */
START_TEST(test_an_error_is_no_report)
{
	struct scrape s =
		scrape("{\"error\":{\"code\":501,\"message\":\"This server does "
		       "not support metrics endpoint.\"}}");

	ck_assert(!s.all.has_load);
	ck_assert(!s.all.has_tokens);
	ck_assert_uint_eq(s.all.capacity_tokens, 0);
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
	tcase_add_test(t, test_load);
	tcase_add_test(t, test_tokens);
	tcase_add_test(t, test_ranks);
	tcase_add_test(t, test_f7_capacity_of_ranks);
	tcase_add_test(t, test_f7_capacity_of_sglang);
	tcase_add_test(t, test_c03_counters_of_engines);
	tcase_add_test(t, test_c11_labels_begin_with_another_number);
	tcase_add_test(t, test_c03_spellings_of_counters);
	tcase_add_test(t, test_an_error_is_no_report);
	tcase_add_test(t, test_lora_adapters_of_the_newest_line);
	tcase_add_test(t, test_json_loads);
	tcase_add_test(t, test_json_server_info);
	tcase_add_test(t, test_c08_llamacpp_has_room_in_its_slots);
	tcase_add_test(t, test_json_that_says_nothing);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(scrape_suite())
