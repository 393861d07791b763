/*
 * kv_transfer_params in responses: what is left of each, whole and cut at every byte.
 */
#include "rewrite/kv_veil.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

static const struct {
	const char *in, *gone[2]; /* what becomes blanks; ' is a quote */
} cases[] = {
	{"{'id':'x','kv_transfer_params':{'a':1}}", {",'kv_transfer_params':{'a':1}"}},
	{"{'kv_transfer_params':{'a':1},'id':'x'}", {"'kv_transfer_params':{'a':1},"}},
	{"{'kv_transfer_params':{'a':'}\\'{'}}", {"'kv_transfer_params':{'a':'}\\'{'}"}},
	{"{'a':1, 'kv_transfer_params' : { 'b': [1,{}] } , 'c':2}",
		{", 'kv_transfer_params' : { 'b': [1,{}] }"}},
	{"{'kv_transfer_params':{} , 'kv_transfer_params':[1] ,'a':0}",
		{"'kv_transfer_params':{} ,", "'kv_transfer_params':[1] ,"}},
	{"{'a':0,'kv_transfer_params':{},'kv_transfer_params':'x\\\\'}",
		{",'kv_transfer_params':{}", ",'kv_transfer_params':'x\\\\'"}},
	{"{'c':[{'kv_transfer_params':{'t':'k'}}]}", {"'kv_transfer_params':{'t':'k'}"}},
	{"data: {'n':1,'kv_transfer_params':{'t':1}}\n\ndata: [DONE]\n\n",
		{",'kv_transfer_params':{'t':1}"}},
	{"{'a':'x\\\\','kv_transfer_params':{'t':1}}", {",'kv_transfer_params':{'t':1}"}},
	/* Nothing is said. */
	{"{'kv_transfer_params':null,'a':1}", {NULL}},
	{"{'a':1,'kv_transfer_params': null}", {NULL}},
	/* No such member. */
	{"{'a':'kv_transfer_params','b':['kv_transfer_params']}", {NULL}},
	{"{'a':'{\\'kv_transfer_params\\':{\\'t\\':1}}'}", {NULL}},
	{"{'a':'x\\'kv_transfer_params','b':{'c':1}}", {NULL}},
	{"{'a\\'kv_transfer_params':{'c':1}}", {NULL}},
	{"{'kv_transfer_param':{'a':1},'Kv_transfer_params':{'a':1}}", {NULL}},
	{"{'a':1,'kv_transfer_params'", {NULL}},
	{"{'a':1,'kv_transfer_params':", {NULL}},
	{"{'a':1,", {NULL}},
	{"kv_transfer_params", {NULL}},
	{"", {NULL}},
};

static char *quoted(const char *text)
{
	char *copy = strdup(text);

	for (char *p = copy; *p != '\0'; p++) {
		if (*p == '\'')
			*p = '"';
	}
	return copy;
}

static void pass_on(
	struct kv_veil *v, const char *p, size_t n, bool last, struct text *all)
{
	/* In memory of its own: a look beyond it is seen. */
	char *piece = malloc(n + 1);
	struct span data = span_make(memcpy(piece, p, n), n);
	struct text out = {0};

	if (!kv_veil_is_idle(v, data, last))
		ck_assert_int_eq(kv_veil_pass(v, &data, last, &out), 0);
	ck_assert_int_eq(text_add(all, data), 0);
	text_free(&out);
	free(piece);
}

static void check(const char *in, const char *want, size_t cut, size_t size)
{
	struct kv_veil v = {0};
	struct text all = {0};
	size_t n = strlen(in), i;

	pass_on(&v, in, cut, cut == n, &all);
	for (i = cut; i < n; i += size)
		pass_on(&v, in + i, MIN(size, n - i), i + size >= n, &all);
	ck_assert_uint_eq(v.n_held, 0);
	ck_assert_msg(all.n == n && (n == 0 || memcmp(all.p, want, n) == 0),
		"cut at %zu, then each %zu:\n%s\nbecame\n%.*s", cut, size, in, (int)all.n,
		all.n > 0 ? all.p : "");
	text_free(&all);
}

START_TEST(test_b6_responses_say_nothing_of_transfers)
{
	char *in = quoted(cases[_i].in);
	char *want = quoted(cases[_i].in);
	size_t n = strlen(in), cut, i;

	for (i = 0; i < 2 && cases[_i].gone[i] != NULL; i++) {
		char *gone = quoted(cases[_i].gone[i]), *at = strstr(want, gone);

		ck_assert_ptr_nonnull(at);
		memset(at, ' ', strlen(gone));
		free(gone);
	}
	for (cut = 0; cut <= n; cut++) {
		check(in, want, cut, n > 0 ? n : 1);
		check(in, want, cut, 1);
		check(in, want, cut, 7);
	}
	free(in);
	free(want);
}
END_TEST

/* So many blanks behind a comma are not held back: the value's inside goes. */
START_TEST(test_b6_a_member_whose_comma_has_gone_is_emptied)
{
	static const char rest[] =
		"\"kv_transfer_params\":{\"a\":[1],\"b\":\"}\"},\"c\":1}";
	static const char want[] = "\"kv_transfer_params\":{               },\"c\":1}";
	char in[512];
	struct kv_veil v = {0};
	struct text all = {0};

	memset(in, ' ', 300);
	memcpy(in, "{\"a\":1,", 7);
	memcpy(in + 300, rest, sizeof(rest) - 1);
	pass_on(&v, in, 300, false, &all);
	ck_assert_uint_eq(all.n, 300);
	pass_on(&v, in + 300, sizeof(rest) - 1, true, &all);
	ck_assert_uint_eq(all.n, 300 + sizeof(rest) - 1);
	ck_assert_int_eq(memcmp(all.p + 300, want, sizeof(want) - 1), 0);
	text_free(&all);
}
END_TEST

START_TEST(what_says_nothing_passes_where_it_is)
{
	struct kv_veil v = {0};
	static const char event[] =
		"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
	struct span data = span_str(event);

	ck_assert(kv_veil_is_idle(&v, data, false));
}
END_TEST

static Suite *kv_veil_suite(void)
{
	Suite *s = suite_create("kv_veil");
	TCase *t = tcase_create("kv_veil");

	tcase_add_loop_test(
		t, test_b6_responses_say_nothing_of_transfers, 0, ARRAY_LEN(cases));
	tcase_add_test(t, test_b6_a_member_whose_comma_has_gone_is_emptied);
	tcase_add_test(t, what_says_nothing_passes_where_it_is);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(kv_veil_suite())
