/*
 * The merged model list: what a worker says, and what clients are told.
 */
#include "base/text.h"
#include "fleet/models.h"
#include "io/js.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

static char *merge(const char *const *answers, size_t n)
{
	struct models *m = models_new();
	struct js *parts[8] = {NULL};
	size_t i, len = 0;
	char *text;

	for (i = 0; i < n; i++)
		ck_assert_int_eq(models_parse(span_str(answers[i]), &parts[i]), 0);
	ck_assert_int_eq(models_publish(m, (const struct js *const *)parts, n), 0);
	text = models_copy(m, &len);
	ck_assert_uint_eq(strlen(text), len);
	for (i = 0; i < n; i++)
		js_free(parts[i]);
	models_free(m);
	return text;
}

START_TEST(test_empty_at_first)
{
	struct models *m = models_new();
	size_t n;
	char *text = models_copy(m, &n);

	ck_assert_str_eq(text, "{\"object\":\"list\",\"data\":[]}");
	ck_assert_uint_eq(n, strlen(text));
	free(text);
	models_free(m);
}
END_TEST

START_TEST(test_first_of_an_id_wins)
{
	static const char *const answers[] = {
		"{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"root\":1},{\"id\":\"b\"}]"
		"}",
		"{\"data\":[{\"id\":\"c\"},{\"id\":\"a\",\"root\":2},{\"id\":\"c\"}]}",
	};
	char *text = merge(answers, ARRAY_LEN(answers));

	ck_assert_str_eq(text, "{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"root\":1},"
			       "{\"id\":\"b\"},{\"id\":\"c\"}]}");
	free(text);
}
END_TEST

START_TEST(test_answers_that_are_no_lists)
{
	static const char *const answers[] = {"", "[]", "{}", "{\"data\":{}}", "<html>",
		"{\"data\":[1,{},{\"id\":\"\"},{\"id\":7},null,{\"id\":\"x\"}]}",
		"{\"data\":[{\"id\":\"y\"}"};
	char *text = merge(answers, ARRAY_LEN(answers));

	ck_assert_str_eq(text, "{\"object\":\"list\",\"data\":[{\"id\":\"x\"}]}");
	free(text);
}
END_TEST

/* A list of n models, from first on. */
static char *list_of(unsigned first, unsigned n)
{
	struct text t = {0};
	unsigned i;

	text_printf(&t, "{\"data\":[");
	for (i = 0; i < n; i++)
		text_printf(&t, "%s{\"id\":\"m%u\"}", i > 0 ? "," : "", first + i);
	text_printf(&t, "]}");
	return t.p;
}

static unsigned count(const char *text, const char *what)
{
	unsigned n = 0;

	for (; (text = strstr(text, what)) != NULL; text++)
		n++;
	return n;
}

/* Many long lists, most of whose models are the same: by the square this takes minutes,
 * and the test its time limit. */
START_TEST(test_b9_long_lists_are_merged_in_their_length)
{
	struct models *m = models_new();
	struct js *parts[64];
	size_t n;
	char *text;

	for (unsigned i = 0; i < ARRAY_LEN(parts); i++) {
		char *list = list_of(i * 1000, 2 * MODELS_MAX);

		ck_assert_int_eq(models_parse(span_str(list), &parts[i]), 0);
		ck_assert_uint_eq(js_len(parts[i]), MODELS_MAX);
		free(list);
	}
	ck_assert_int_eq(
		models_publish(m, (const struct js *const *)parts, ARRAY_LEN(parts)), 0);
	text = models_copy(m, &n);
	ck_assert_uint_eq(count(text, "\"id\""), 63 * 1000 + MODELS_MAX);
	ck_assert_ptr_nonnull(strstr(text, "\"m67095\""));
	ck_assert_ptr_null(strstr(text, "\"m67096\""));
	free(text);
	for (unsigned i = 0; i < ARRAY_LEN(parts); i++)
		js_free(parts[i]);
	models_free(m);
}
END_TEST

static Suite *models_suite(void)
{
	Suite *s = suite_create("models");
	TCase *t = tcase_create("models");

	tcase_add_test(t, test_empty_at_first);
	tcase_add_test(t, test_first_of_an_id_wins);
	tcase_add_test(t, test_answers_that_are_no_lists);
	tcase_add_test(t, test_b9_long_lists_are_merged_in_their_length);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(models_suite())
