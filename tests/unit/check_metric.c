/*
 * base/metric: sums over threads, requests by label, histograms, and a text that
 * Prometheus can read.
 * What is counted stays for the life of the process, so tests compare with what was there
 * before.
 */
#include "base/metric.h"
#include "tests/unit/unit.h"

#include <pthread.h>
#include <string.h>

static const char *const route_names[] = {
	"chat", "completions", NULL, "chat", "a\"b\\c\n"};

static void name_routes(void)
{
	metric_set_routes(route_names, ARRAY_LEN(route_names));
}

static void run_in_thread(void *(*run)(void *), void *arg)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, run, arg), 0);
	pthread_join(thread, NULL);
}

static struct text scrape(void)
{
	struct text text = {0};

	metric_print(&text);
	ck_assert(!text.failed);
	ck_assert_ptr_nonnull(text.p);
	ck_assert_uint_eq(strlen(text.p), text.n);
	return text;
}

/*
 * The value behind a series, -1 where the text has none; a series printed twice is a
 * failure.
 */
static double value_of(const struct text *text, const char *series)
{
	size_t n = strlen(series);
	double value = -1;

	for (const char *line = text->p; line != NULL && *line != '\0';) {
		const char *end = strchr(line, '\n');

		ck_assert_ptr_nonnull(end);
		if (strncmp(line, series, n) == 0 && line[n] == ' ') {
			ck_assert_msg(value < 0, "%s twice", series);
			value = strtod(line + n, NULL);
		}
		line = end + 1;
	}
	return value;
}

static double scraped(const char *series)
{
	struct text text = scrape();
	double value = value_of(&text, series);

	text_free(&text);
	return value;
}

static void *count_registered(void *arg)
{
	(void)arg;
	metric_thread_start();
	metric_thread_start();
	metric_inc(METRIC_GUARDS_TAKEN);
	metric_add(METRIC_GUARDS_TAKEN, 4);
	metric_add(METRIC_BODY_MEMORY, 100);
	return NULL;
}

static void *count_unregistered(void *arg)
{
	(void)arg;
	metric_inc(METRIC_GUARDS_TAKEN);
	metric_add(METRIC_BODY_MEMORY, -30);
	return NULL;
}

/* Runs first: nothing has counted yet. */
START_TEST(zeros_are_printed)
{
	struct text text = scrape();

	ck_assert(value_of(&text, "kvsteer_guards_taken_total") == 0);
	ck_assert(value_of(&text, "kvsteer_connections{side=\"worker\"}") == 0);
	ck_assert(value_of(&text, "kvsteer_ttft_seconds_bucket{le=\"+Inf\"}") == 0);
	ck_assert(value_of(&text, "kvsteer_ttft_seconds_sum") == 0);
	ck_assert(value_of(&text, "kvsteer_ttft_seconds_count") == 0);
	ck_assert(value_of(&text,
			  "kvsteer_build_info{version=\"" KVSTEER_VERSION "\"}") == 1);
	text_free(&text);
}
END_TEST

/*
 * What a thread counted stays when it is gone; one thread may take back what another
 * gave.
 */
START_TEST(sums_threads)
{
	int64_t taken = metric_total(METRIC_GUARDS_TAKEN);
	int64_t memory = metric_total(METRIC_BODY_MEMORY);

	run_in_thread(count_registered, NULL);
	run_in_thread(count_registered, NULL);
	run_in_thread(count_unregistered, NULL);
	ck_assert_int_eq(metric_total(METRIC_GUARDS_TAKEN) - taken, 11);
	ck_assert_int_eq(metric_total(METRIC_BODY_MEMORY) - memory, 170);
	ck_assert(scraped("kvsteer_guards_taken_total") == (double)(taken + 11));
}
END_TEST

START_TEST(gauges_may_be_negative)
{
	int64_t before = metric_total(METRIC_QUEUE_DEPTH);

	metric_add(METRIC_QUEUE_DEPTH, -5 - before);
	ck_assert(metric_total(METRIC_QUEUE_DEPTH) == -5);
	metric_add(METRIC_QUEUE_DEPTH, 5 + before);
}
END_TEST

static void *request_some(void *arg)
{
	(void)arg;
	metric_thread_start();
	metric_request(0, 200, FAIL_NONE);
	metric_request(0, 200, FAIL_NONE);
	metric_request(1, 504, FAIL_WORKER_TIMEOUT);
	return NULL;
}

#define CHAT_OK "kvsteer_requests_total{route=\"chat\",code=\"200\",reason=\"ok\"}"

START_TEST(counts_requests)
{
	uint64_t all, errors, all_before, errors_before;

	metric_request_sum(&all_before, &errors_before);
	ck_assert(scraped(CHAT_OK) == 0); /* printed before it is counted */
	run_in_thread(request_some, NULL);
	metric_request(0, 200, FAIL_NONE); /* this thread has not registered */
	ck_assert(scraped(CHAT_OK) == 3);
	ck_assert(scraped("kvsteer_requests_total{route=\"completions\",code=\"504\","
			  "reason=\"worker_timeout\"}") == 1);
	ck_assert(scraped("kvsteer_requests_total{route=\"completions\",code=\"504\","
			  "reason=\"ok\"}") == -1);
	ck_assert(scraped("kvsteer_requests_total{route=\"completions\",code=\"200\","
			  "reason=\"worker_timeout\"}") == -1);
	ck_assert(scraped("kvsteer_requests_total{route=\"chat\",code=\"504\","
			  "reason=\"worker_timeout\"}") == -1);
	metric_request_sum(&all, &errors);
	ck_assert_uint_eq(all, all_before + 4);
	ck_assert_uint_eq(errors, errors_before + 1);
	metric_request(0, 503, FAIL_NO_WORKER);    /* ours */
	metric_request(0, 200, FAIL_WORKER_BROKE); /* broken off behind a good head */
	metric_request(0, 500, FAIL_NONE);         /* a worker's own answer */
	metric_request(0, 429, FAIL_QUEUE_FULL);
	metric_request(0, 0, FAIL_CLIENT_GONE);
	metric_request(0, 404, FAIL_PATH_NOT_FOUND);
	metric_request_sum(&all, &errors);
	ck_assert_uint_eq(all, all_before + 10);
	ck_assert_uint_eq(errors, errors_before + 4);
}
END_TEST

/*
 * Series with the same labels are one: rows 0 and 3 have one name, two failures have one
 * code.
 */
START_TEST(merges_equal_labels)
{
	metric_request(0, 400, FAIL_BAD_HOST);
	metric_request(3, 400, FAIL_BAD_CHUNK);
	metric_request(3, 400, FAIL_BAD_HOST);
	ck_assert(scraped("kvsteer_requests_total{route=\"chat\",code=\"400\","
			  "reason=\"malformed_request\"}") == 3);
}
END_TEST

START_TEST(odd_requests_are_other)
{
	metric_request(2, 0, FAIL_CLIENT_GONE);                 /* a row without a name */
	metric_request(63, 0, FAIL_CLIENT_GONE);                /* no such row */
	metric_request(METRIC_ROUTES_MAX, 0, FAIL_CLIENT_GONE); /* beyond the table */
	metric_request(UINT32_MAX, 0, FAIL_CLIENT_GONE);
	metric_request(2, -1, FAIL_CLIENT_GONE); /* no status */
	metric_request(2, 70000, FAIL_CLIENT_GONE);
	ck_assert(scraped("kvsteer_requests_total{route=\"other\",code=\"0\","
			  "reason=\"client_gone\"}") == 6);
}
END_TEST

START_TEST(labels_are_escaped)
{
	struct text text = {0};

	metric_label(&text, SPAN_LIT("a\\b\"c\nd"));
	metric_label(&text, span_make(NULL, 0));
	text_printf(&text, "|");
	ck_assert_str_eq(text.p, "a\\\\b\\\"c\\nd|");
	text_free(&text);
	ck_assert_ptr_null(text.p);
	metric_request(4, 200, FAIL_NONE);
	ck_assert(scraped("kvsteer_requests_total{route=\"a\\\"b\\\\c\\n\",code=\"200\","
			  "reason=\"ok\"}") == 1);
}
END_TEST

START_TEST(long_text_is_whole)
{
	struct text text = {0};
	char word[3000];

	memset(word, 'w', sizeof(word) - 1);
	word[sizeof(word) - 1] = '\0';
	for (int i = 0; i < 10; i++)
		text_printf(&text, "%s", word);
	for (size_t n = 200; n < 300; n++) /* about the room kept in hand */
		text_printf(&text, "%.*s", (int)n, word);
	ck_assert_uint_eq(text.n, 10 * 2999 + 100 * 200 + 99 * 100 / 2);
	ck_assert_uint_eq(strspn(text.p, "w"), text.n);
	text_free(&text);
}
END_TEST

START_TEST(keeps_quiet_once_failed)
{
	struct text text = {.failed = true};

	text_printf(&text, "a");
	metric_label(&text, SPAN_LIT("b"));
	metric_family(&text, "c", "gauge", "d");
	metric_print(&text);
	ck_assert(text.failed);
	ck_assert_uint_eq(text.n, 0);
	text_free(&text);
}
END_TEST

static void *observe_some(void *arg)
{
	(void)arg;
	metric_thread_start();
	metric_observe(METRIC_ROUTE_SECONDS, 0);
	metric_observe(METRIC_ROUTE_SECONDS, 1);
	metric_observe(METRIC_ROUTE_SECONDS, 2);
	metric_observe(METRIC_ROUTE_SECONDS, 100000);
	return NULL;
}

START_TEST(histograms_are_cumulative)
{
	struct text text;

	run_in_thread(observe_some, NULL);
	metric_observe(METRIC_ROUTE_SECONDS, 100001); /* unregistered, above all bounds */
	text = scrape();
	ck_assert(value_of(&text, "kvsteer_route_seconds_bucket{le=\"0.000001\"}") == 2);
	ck_assert(value_of(&text, "kvsteer_route_seconds_bucket{le=\"0.000002\"}") == 3);
	ck_assert(value_of(&text, "kvsteer_route_seconds_bucket{le=\"0.01\"}") == 3);
	ck_assert(value_of(&text, "kvsteer_route_seconds_bucket{le=\"0.1\"}") == 4);
	ck_assert(value_of(&text, "kvsteer_route_seconds_bucket{le=\"+Inf\"}") == 5);
	ck_assert(value_of(&text, "kvsteer_route_seconds_count") == 5);
	ck_assert_ptr_nonnull(strstr(text.p, "\nkvsteer_route_seconds_sum 0.200004\n"));
	text_free(&text);
}
END_TEST

START_TEST(ratio_is_in_thousandths)
{
	struct text text;

	metric_observe(METRIC_PREFIX_MATCH_RATIO, 0);
	metric_observe(METRIC_PREFIX_MATCH_RATIO, 300);
	metric_observe(METRIC_PREFIX_MATCH_RATIO, 301);
	metric_observe(METRIC_PREFIX_MATCH_RATIO, 1000);
	text = scrape();
	ck_assert(value_of(&text, "kvsteer_prefix_match_ratio_bucket{le=\"0\"}") == 1);
	ck_assert(value_of(&text, "kvsteer_prefix_match_ratio_bucket{le=\"0.3\"}") == 2);
	ck_assert(value_of(&text, "kvsteer_prefix_match_ratio_bucket{le=\"0.4\"}") == 3);
	ck_assert(value_of(&text, "kvsteer_prefix_match_ratio_bucket{le=\"1\"}") == 4);
	ck_assert_ptr_nonnull(strstr(text.p, "\nkvsteer_prefix_match_ratio_sum 1.601\n"));
	text_free(&text);
}
END_TEST

START_TEST(bounds_reach_as_far_as_documented)
{
	static const char *const series[] = {
		"kvsteer_request_seconds_bucket{le=\"0.005\"}",
		"kvsteer_request_seconds_bucket{le=\"600\"}",
		"kvsteer_ttft_seconds_bucket{le=\"0.001\"}",
		"kvsteer_ttft_seconds_bucket{le=\"60\"}",
		"kvsteer_queue_seconds_bucket{le=\"0.0025\"}",
		"kvsteer_queue_seconds_bucket{le=\"60\"}",
	};

	for (size_t i = 0; i < ARRAY_LEN(series); i++)
		ck_assert_msg(scraped(series[i]) >= 0, "%s", series[i]);
}
END_TEST

static bool belongs_to(const char *line, const char *family)
{
	size_t n = strlen(family);

	return strncmp(line, family, n) == 0 && strchr(" {_", line[n]) != NULL;
}

/*
 * HELP, TYPE, then samples of that family only; no family twice; bounds of a histogram
 * rise.
 */
START_TEST(text_is_well_formed)
{
	struct text text = scrape();
	char family[128] = "", seen[8192] = "\n", name[160], type[32];
	double last_bound = -1;

	for (char *line = strtok(text.p, "\n"); line != NULL; line = strtok(NULL, "\n")) {
		const char *le = strstr(line, "{le=\"");

		if (sscanf(line, "# HELP %127s", family) == 1) {
			snprintf(name, sizeof(name), "\n%s\n", family);
			ck_assert_msg(strstr(seen, name) == NULL, "%s twice", family);
			strcat(seen, name);
			line = strtok(NULL, "\n");
			ck_assert_int_eq(
				sscanf(line, "# TYPE %127s %31s", name, type), 2);
			ck_assert_str_eq(name, family);
			ck_assert_ptr_nonnull(strstr("counter gauge histogram", type));
			last_bound = -1;
			continue;
		}
		ck_assert_msg(belongs_to(line, family), "%s under %s", line, family);
		ck_assert(strncmp(line, "kvsteer_", 8) == 0);
		if (le != NULL) {
			ck_assert(strtod(le + 5, NULL) > last_bound);
			last_bound = strtod(le + 5, NULL);
		}
	}
	ck_assert_ptr_nonnull(strstr(seen, "\nkvsteer_connections\n"));
	ck_assert_ptr_nonnull(strstr(seen, "\nkvsteer_requests_total\n"));
	text_free(&text);
}
END_TEST

enum { WRITERS = 4, ROUNDS = 20000 };

static pthread_barrier_t all_ready;

static void *write_all(void *arg)
{
	if (*(const int *)arg % 2 == 0)
		metric_thread_start();
	pthread_barrier_wait(&all_ready); /* so that they do write at the same time */
	for (int i = 0; i < ROUNDS; i++) {
		metric_inc(METRIC_CONN_ACCEPTED);
		metric_observe(METRIC_TTFT_SECONDS, (uint64_t)i);
		metric_request((unsigned)i % 5, 200 + i % 40, FAIL_WORKER_BROKE);
	}
	return NULL;
}

/*
 * Two registered and two unregistered threads write while this one scrapes: nothing is
 * lost, no total goes back.
 */
START_TEST(scrapes_while_threads_write)
{
	static const char *const series = "kvsteer_connections_accepted_total";
	double before = scraped(series), last = before;
	double ttft = scraped("kvsteer_ttft_seconds_count");
	uint64_t all, errors, all_before, errors_before;
	pthread_t threads[WRITERS];
	int numbers[WRITERS];

	metric_request_sum(&all_before, &errors_before);
	ck_assert_int_eq(pthread_barrier_init(&all_ready, NULL, WRITERS), 0);
	for (int i = 0; i < WRITERS; i++) {
		numbers[i] = i;
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, write_all, &numbers[i]), 0);
	}
	for (int i = 0; i < 10; i++) {
		double now = scraped(series);

		ck_assert(now >= last);
		last = now;
	}
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&all_ready);
	ck_assert(scraped(series) == before + WRITERS * ROUNDS);
	ck_assert(scraped("kvsteer_ttft_seconds_count") == ttft + WRITERS * ROUNDS);
	metric_request_sum(&all, &errors);
	ck_assert_uint_eq(all - all_before, WRITERS * ROUNDS);
	ck_assert_uint_eq(errors - errors_before, WRITERS * ROUNDS);
}
END_TEST

static void *request_too_many(void *arg)
{
	if (*(const bool *)arg)
		metric_thread_start();
	for (unsigned route = 0; route < METRIC_ROUTES_MAX; route++)
		for (int status = 100; status < 200; status++)
			metric_request(route, status, FAIL_SHUTDOWN);
	return NULL;
}

static double all_requests(void)
{
	struct text text = scrape();
	double sum = 0;

	for (const char *at = text.p;
		(at = strstr(at, "\nkvsteer_requests_total{")) != NULL; at++)
		sum += strtod(strstr(at, "\"} ") + 3, NULL);
	text_free(&text);
	return sum;
}

/*
 * 6,400 series do not fit into a thread's 4,096 cells: the rest is counted as other, and
 * none is lost.
 */
START_TEST(overflow_is_counted)
{
	static const char *const other =
		"kvsteer_requests_total{route=\"other\",code=\"0\",reason=\"other\"}";

	for (int i = 0; i < 2; i++) {
		bool is_registered = i == 0;
		double before = all_requests(), other_before = MAX(scraped(other), 0);

		run_in_thread(request_too_many, &is_registered);
		ck_assert(all_requests() == before + METRIC_ROUTES_MAX * 100);
		ck_assert(
			scraped(other) >= other_before + METRIC_ROUTES_MAX * 100 - 4096);
	}
}
END_TEST

static Suite *metric_suite(void)
{
	Suite *suite = suite_create("metric");
	TCase *tc = tcase_create("metric");

	tcase_add_checked_fixture(tc, name_routes, NULL);
	tcase_add_test(tc, zeros_are_printed);
	tcase_add_test(tc, sums_threads);
	tcase_add_test(tc, gauges_may_be_negative);
	tcase_add_test(tc, counts_requests);
	tcase_add_test(tc, merges_equal_labels);
	tcase_add_test(tc, odd_requests_are_other);
	tcase_add_test(tc, labels_are_escaped);
	tcase_add_test(tc, long_text_is_whole);
	tcase_add_test(tc, keeps_quiet_once_failed);
	tcase_add_test(tc, histograms_are_cumulative);
	tcase_add_test(tc, ratio_is_in_thousandths);
	tcase_add_test(tc, bounds_reach_as_far_as_documented);
	tcase_add_test(tc, text_is_well_formed);
	tcase_add_test(tc, scrapes_while_threads_write);
	tcase_add_test(tc, overflow_is_counted);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(metric_suite())
