/*
 * Forms: which Content-Types begin one, what fields they have, and that no cut of the
 * body changes what is found.
 */
#include "route/form_scan.h"
#include "tests/unit/unit.h"

#include <stdlib.h>

static const struct {
	const char *type;
	const char *boundary; /* NULL: no form */
} types[] = {
	{"multipart/form-data; boundary=b", "b"},
	{" Multipart/Form-Data ;charset=utf-8; Boundary=\"a b+1\" ; x=y", "a b+1"},
	{"multipart/form-data;boundary=b;boundary=c", "b"},
	{"multipart/form-data; x=\"boundary=c; \\\"\"; boundary=b", "b"},
	{"multipart/form-data", NULL}, {"multipart/form-data; boundary=", NULL},
	{"multipart/form-data; boundary=\"\"", NULL},
	{"multipart/form-data2; boundary=b", NULL}, {"multipart/mixed; boundary=b", NULL},
	{"application/json", NULL}, {"", NULL},
	{"multipart/form-data; boundary="
	 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		NULL}, /* 71 */
};

START_TEST(content_types)
{
	const char *boundary = types[_i].boundary;
	struct form_scan f;

	ck_assert(form_scan_begin(&f, span_str(types[_i].type)) == (boundary != NULL));
	if (boundary == NULL)
		return;
	ck_assert_uint_eq(f.n_mark, 4 + strlen(boundary));
	ck_assert(memcmp(f.mark + 4, boundary, f.n_mark - 4) == 0);
}
END_TEST

#define PART(head, value) "--b\r\nContent-Disposition: " head "\r\n\r\n" value "\r\n"

static const struct {
	const char *body;
	const char *fields; /* "name=value;", a file's name with a * */
} forms[] = {
	{PART("form-data; name=\"model\"", "m") "--b--\r\n", "model=m;"},
	{PART("form-data; name=\"a\"", "1") PART("form-data; name=\"b\"", "2") "--b--",
		"a=1;b=2;"},
	{PART("form-data; name=\"f\"; filename=\"x\"", "1\r\n--c\r\n2") "--b--",
		"f*=1\r\n--c\r\n2;"},
	{PART("FORM-DATA ; Name=model ; FileName*=utf-8''x", "m") "--b--", "model*=m;"},
	{PART("form-data; name=\"a\\\"b; c\"", "") "--b--", "a\\\"b; c=;"},
	{"before\r\n" PART("form-data; name=\"a\"", "1") "--b--", "a=1;"},
	{"\r\n" PART("form-data; name=\"a\"", "1") "--b--", "a=1;"},
	{"--b \t\r\nX: y\r\ncontent-DISPOSITION :form-data;name=a\r\n\r\n1\r\n--b--",
		"a=1;"},
	{"--b\r\n\r\nno head\r\n--b--", "=no head;"},
	{PART("attachment; name=\"a\"", "1") "--b--", "=1;"},
	{PART("form-data; filename=\"a\"", "1") "--b--", "*=1;"},
	{PART("form-data; name=\"a\"", "1"), ""},
	{PART("form-data; name=\"a\"", "1") "--bb\r\n", "a=1;"},
	{"--b--", ""},
	{"--b", ""},
	{"", ""},
	{"no form at all", ""},
};

static void scan(const char *body, size_t n, size_t step, char *out, size_t room)
{
	struct form_scan f;
	struct form_field field;
	size_t used = 0;

	ck_assert(form_scan_begin(&f, SPAN_LIT("multipart/form-data; boundary=b")));
	out[0] = '\0';
	for (size_t to = MIN(step, n);; to = MIN(to + step, n)) {
		/* The body moves, and has nothing behind it. */
		char *copy = malloc(to + 1);

		memcpy(copy, body, to);
		while (form_scan_next(&f, copy, to, &field))
			used += (size_t)snprintf(out + used, room - used,
				SPAN_FMT "%s=%.*s;", SPAN_ARG(field.name),
				field.is_file ? "*" : "", (int)(field.end - field.value),
				copy + field.value);
		free(copy);
		if (to == n)
			return;
	}
}

START_TEST(no_cut_changes_what_is_found)
{
	const char *body = forms[_i].body;
	char found[512];

	for (size_t step = 1; step <= strlen(body) + 1; step++) {
		scan(body, strlen(body), step, found, sizeof(found));
		ck_assert_str_eq(found, forms[_i].fields);
	}
}
END_TEST

/* A head without end does not make the scan go on for ever. */
START_TEST(a_long_head_ends_it)
{
	enum { N = 40000 };
	char *body = malloc(N + 1), found[64];

	memset(body, 'x', N);
	memcpy(body, "--b\r\n", 5);
	scan(body, N, 1000, found, sizeof(found));
	ck_assert_str_eq(found, "");
	free(body);
}
END_TEST

static Suite *form_scan_suite(void)
{
	Suite *s = suite_create("form_scan");
	TCase *tc = tcase_create("form_scan");

	tcase_add_loop_test(tc, content_types, 0, ARRAY_LEN(types));
	tcase_add_loop_test(tc, no_cut_changes_what_is_found, 0, ARRAY_LEN(forms));
	tcase_add_test(tc, a_long_head_ends_it);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(form_scan_suite())
