/*
 * control/ctl_view and ctl_metrics: figures and rates of a status document, the orders,
 * lines that fit, and documents that are not as they should be.
 */
#include "base/mem.h"
#include "ctl/ctl_metrics.h"
#include "ctl/ctl_view.h"
#include "io/js.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct view *read_text(
	const char *text, const struct view *before, uint64_t now_ms)
{
	const char *why = "";
	struct js *document = js_parse(span_str(text), &why);
	struct view *v;

	ck_assert_msg(document != NULL, "%s", why);
	v = view_read(document, before, now_ms);
	js_free(document);
	return v;
}

static char *draw(const struct view *v, const struct view_frame *f)
{
	char *text = NULL;
	size_t n = 0;
	FILE *to = open_memstream(&text, &n);

	ck_assert_ptr_nonnull(to);
	view_draw(v, f, to);
	ck_assert_int_eq(fclose(to), 0);
	return text;
}

#define FLEET(uptime, ended, requests)                                                   \
	"{\"version\":\"1.2.3\",\"state\":\"running\",\"uptime_ms\":" uptime             \
	",\"max_connections\":100,\"hit_share\":0.5,\"queue\":{\"depth\":3},"            \
	"\"counters\":{\"requests_ended\":" ended ",\"requests_errors\":2,"              \
	"\"requests_in_flight\":4,\"connections\":5,\"worker_connections\":6},"          \
	"\"workers\":["                                                                  \
	"{\"name\":\"w10\",\"state\":\"healthy\",\"reason\":\"200 in 1 ms\",\"load\":2," \
	"\"requests\":" requests ",\"failures\":0,\"progress_age_ms\":1500,"             \
	"\"hit_share\":0.25,\"ttft\":{\"n\":9,\"p50_ms\":4.26,\"p99_ms\":310.4},"        \
	"\"response_time\":{\"n\":9,\"p50_ms\":1234.5,\"p99_ms\":100000.0}},"            \
	"{\"name\":\"w2\",\"state\":\"stalled\",\"reason\":\"a\\u0007b\\u00e9\","        \
	"\"load\":7,\"requests\":9,\"failures\":1,\"progress_age_ms\":null,"             \
	"\"hit_share\":null},"                                                           \
	"{\"name\":\"w1\",\"state\":\"healthy\",\"reason\":\"\",\"load\":2,"             \
	"\"requests\":0,\"failures\":1,\"progress_age_ms\":0,\"hit_share\":1}]}"

START_TEST(figures)
{
	struct view *v = read_text(FLEET("61000", "100", "50"), NULL, 1000);

	ck_assert_str_eq(v->version, "1.2.3");
	ck_assert_int_eq(v->uptime_ms, 61000);
	ck_assert_int_eq(v->in_flight, 4);
	ck_assert_int_eq(v->queued, 3);
	ck_assert_int_eq(v->ended, 100);
	ck_assert_int_eq(v->errors, 2);
	ck_assert_int_eq(v->clients, 5);
	ck_assert_int_eq(v->to_workers, 6);
	ck_assert(v->hit == 0.5 && v->end_rate < 0 && v->error_rate < 0);
	ck_assert_uint_eq(v->n, 3);
	ck_assert_uint_eq(v->healthy, 2);
	ck_assert_int_eq(v->rows[0].progress_ms, 1500);
	ck_assert_int_eq(v->rows[1].progress_ms, -1);
	ck_assert_str_eq(v->rows[1].reason, "a?b??");
	ck_assert(v->rows[1].hit < 0 && v->rows[2].hit == 1);
	view_free(v);
	view_free(NULL);
}
END_TEST

/* Rates are of the time between; another process, or time that stood still, has none. */
START_TEST(rates)
{
	struct view *first = read_text(FLEET("61000", "100", "50"), NULL, 1000), *next;

	next = read_text(FLEET("63000", "130", "51"), first, 3000);
	ck_assert(next->end_rate == 15 && next->error_rate == 0);
	ck_assert(next->rows[0].request_rate == 0.5 && next->rows[1].request_rate == 0);
	view_free(next);
	next = read_text(FLEET("500", "3", "2"), first, 3000);
	ck_assert(next->end_rate < 0 && next->rows[0].request_rate < 0);
	view_free(next);
	next = read_text(FLEET("61000", "130", "51"), first, 1000);
	ck_assert(next->end_rate < 0);
	view_free(next);
	/* The same process, but a worker that was taken out and added again. */
	next = read_text(FLEET("63000", "130", "1"), first, 3000);
	ck_assert(next->rows[0].request_rate < 0);
	view_free(next);
	view_free(first);
}
END_TEST

static void check_order(enum view_order order, bool is_reversed, const char *wanted)
{
	struct view *v = read_text(FLEET("61000", "100", "50"), NULL, 1000);
	char names[64] = "";

	view_sort(v, order, is_reversed);
	for (size_t i = 0; i < v->n; i++) {
		strcat(names, v->rows[i].name);
		strcat(names, " ");
	}
	ck_assert_str_eq(names, wanted);
	view_free(v);
}

START_TEST(orders)
{
	check_order(VIEW_BY_LOAD, false, "w2 w1 w10 ");
	check_order(VIEW_BY_LOAD, true, "w10 w1 w2 ");
	check_order(VIEW_BY_HIT, false, "w10 w1 w2 ");
	check_order(VIEW_BY_TTFT, false, "w10 w1 w2 ");
	check_order(VIEW_BY_ERRORS, false, "w1 w2 w10 ");
	check_order(VIEW_BY_NAME, false, "w1 w2 w10 ");
	check_order(VIEW_BY_NAME, true, "w10 w2 w1 ");
}
END_TEST

START_TEST(plain_text)
{
	struct view_frame frame = {0};
	struct view *v = read_text(FLEET("61000", "100", "50"), NULL, 1000);
	char *text = draw(v, &frame);

	ck_assert_str_eq(text,
		"kvsteerd 1.2.3 running, up 1m 1s, 2 of 3 workers healthy\n"
		"- req/s, - errors/s, 4 in flight, 3 queued, hit 50%\n"
		"5 clients (at most 100), 6 connections to workers\n"
		"\n"
		"WORKER   STATE      LOAD  REQ/S  HIT ERRORS TTFT50 TTFT99 TIME50 TIME99 "
		" SILENT  REASON\n"
		"w10      healthy       2      -  25%      0  4.3ms  310ms   1.2s   100s "
		"     1s  200 in 1 ms\n"
		"w2       stalled       7      -    -      1      -      -      -      - "
		"      -  a?b??\n"
		"w1       healthy       2      - 100%      1      -      -      -      - "
		"    0ms\n");
	free(text);
	frame.columns = 80; /* no room for all of them */
	text = draw(v, &frame);
	ck_assert_ptr_nonnull(strstr(text, " 25%      0  4.3ms  310ms      1s  200"));
	free(text);
	frame.columns = 60;
	text = draw(v, &frame);
	ck_assert_ptr_nonnull(strstr(text, " 25%      0      1s  200"));
	free(text);
	view_free(v);
}
END_TEST

/* Each line is at most as wide, and there are at most as many, for every size. */
START_TEST(every_size)
{
	struct view *v = read_text(FLEET("61000", "100", "50"), NULL, 1000);

	free(v->rows[0].name);
	v->rows[0].name =
		xstrdup("a-worker-whose-name-is-longer-than-any-screen-is-wide-"
			"and-then-some-more-of-it-until-it-is-128-bytes-long-or");
	for (unsigned columns = 1; columns <= 130; columns++) {
		for (unsigned lines = 1; lines <= 12; lines++) {
			struct view_frame frame = {.columns = columns,
				.lines = lines,
				.notice = "a notice",
				.keys = "the keys"};
			char *text = draw(v, &frame), *at = text, *end;
			unsigned n = 0;

			for (; (end = strchr(at, '\n')) != NULL; at = end + 1, n++)
				ck_assert_uint_le((size_t)(end - at), columns);
			ck_assert_uint_le(n, lines);
			if (columns >= 60 && lines >= 10)
				ck_assert_ptr_nonnull(strstr(text, "\nw1 "));
			if (columns >= 60 && lines >= 7)
				ck_assert_ptr_nonnull(strstr(text, "\nthe keys\n"));
			free(text);
		}
	}
	view_free(v);
}
END_TEST

/* Another program's answer, or another version's: nothing that it says must be there. */
START_TEST(odd_documents)
{
	static const char *const texts[] = {
		"{}",
		"{\"workers\":null,\"counters\":[],\"queue\":7}",
		"{\"workers\":{},\"version\":7}",
		"{\"workers\":[1,null,{\"name\":7,\"load\":\"x\",\"hit_share\":\"y\"}]}",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct view *v = read_text(texts[i], NULL, 1);
		struct view_frame frame = {.columns = 80, .lines = 24, .is_screen = true};

		for (int order = 0; order < VIEW_ORDERS; order++)
			view_sort(v, (enum view_order)order, true);
		free(draw(v, &frame));
		view_free(v);
	}
}
END_TEST

static void check_metrics(const char *text, const char *wanted)
{
	struct js *document = ctl_metrics_document(text);
	char *got = js_print(document, false);

	ck_assert_str_eq(got, wanted);
	free(got);
	js_free(document);
}

START_TEST(metrics_as_json)
{
	check_metrics("", "{\"metrics\":[]}");
	check_metrics("# HELP a b\n# TYPE a gauge\na 1\n",
		"{\"metrics\":[{\"name\":\"a\",\"labels\":{},\"value\":1.0}]}");
	check_metrics("a{b=\"c\",d=\"e \\\"\\\\\\n}\"} 0.25\n",
		"{\"metrics\":[{\"name\":\"a\",\"labels\":{\"b\":\"c\",\"d\":\"e "
		"\\\"\\\\\\n}\"},"
		"\"value\":0.25}]}");
	/* What is no sample is left out. */
	check_metrics("a\n\n{b=\"c\"} 1\na{b} 1\na{b=\"c 1\na{b=\"c\" 1\nb 2",
		"{\"metrics\":[{\"name\":\"b\",\"labels\":{},\"value\":2.0}]}");
}
END_TEST

static Suite *view_suite(void)
{
	Suite *suite = suite_create("ctl_view");
	TCase *tc = tcase_create("ctl_view");

	tcase_add_test(tc, figures);
	tcase_add_test(tc, rates);
	tcase_add_test(tc, orders);
	tcase_add_test(tc, plain_text);
	tcase_add_test(tc, every_size);
	tcase_add_test(tc, odd_documents);
	tcase_add_test(tc, metrics_as_json);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(view_suite())
