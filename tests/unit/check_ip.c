/*
 * IP addresses as values, and networks of them.
 */
#include "base/err.h"
#include "base/ip.h"
#include "tests/unit/unit.h"

#include <string.h>

START_TEST(addresses)
{
	static const struct {
		const char *text, *expected;
	} rows[] = {
		{"127.0.0.1", "127.0.0.1"},
		{"::1", "::1"},
		{"2001:DB8:0:0::1", "2001:db8::1"},
		{"::ffff:10.1.2.3", "10.1.2.3"},
		{"0:0:0:0:0:ffff:a01:203", "10.1.2.3"},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	};
	char out[IP_TEXT_MAX];
	struct ip a, b;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		memset(&a, 0x55, sizeof(a));
		ck_assert_int_eq(ip_parse(span_str(rows[i].text), &a), 0);
		ck_assert_uint_eq(ip_text(&a, out), strlen(rows[i].expected));
		ck_assert_str_eq(out, rows[i].expected);
		ck_assert_int_eq(ip_parse(span_str(out), &b), 0);
		ck_assert(ip_eq(&a, &b));
	}
	a = (struct ip){.family = IP_NONE};
	ck_assert_uint_eq(ip_text(&a, out), 4);
	ck_assert_str_eq(out, "unix");
}
END_TEST

START_TEST(words_that_are_no_addresses)
{
	static const char *const rows[] = {"", "a", "10.0.0", "10.0.0.256", "010.0.0.1x",
		" 10.0.0.1", "10.0.0.1 ", "[::1]", "::1%lo", "10.0.0.1:80", "unix",
		"1111:1111:1111:1111:1111:1111:111.111.111.11111111111"};
	struct ip a;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		ck_assert_msg(
			ip_parse(span_str(rows[i]), &a) == ERR_PARSE, "%s", rows[i]);
	ck_assert_int_eq(ip_parse(span_make("10.0.0.1\0", 9), &a), ERR_PARSE);
}
END_TEST

START_TEST(networks)
{
	static const struct {
		const char *block, *host;
		bool has;
	} rows[] = {
		{"10.0.0.0/8", "10.255.0.1", true},
		{"10.0.0.0/8", "11.0.0.1", false},
		{"10.1.2.3/8", "10.9.9.9", true},
		{"192.168.128.0/17", "192.168.128.1", true},
		{"192.168.128.0/17", "192.168.127.255", false},
		{"0.0.0.0/0", "1.2.3.4", true},
		{"0.0.0.0/0", "::1", false},
		{"0.0.0.0/0", "::ffff:1.2.3.4", true},
		{"::/0", "2001:db8::1", true},
		{"::/0", "1.2.3.4", false},
		{"1.2.3.4", "1.2.3.4", true},
		{"1.2.3.4", "1.2.3.5", false},
		{"1.2.3.4/32", "1.2.3.5", false},
		{" 10.0.0.0/8 ", "10.1.1.1", true},
		{"2001:db8::/33", "2001:db8:7fff::1", true},
		{"2001:db8::/33", "2001:db8:8000::1", false},
		{"::ffff:10.0.0.0/104", "10.3.3.3", true},
		{"::ffff:10.0.0.0/104", "::ffff:10.3.3.3", true},
		{"::ffff:10.0.0.0/104", "11.3.3.3", false},
		{"::ffff:10.0.0.1/88", "::ff00:0:1", true},
		{"::ffff:10.0.0.1/88", "10.0.0.1", false},
		{"fe80::1/128", "fe80::1", true},
		{"fe80::1/127", "fe80::2", false},
	};
	struct ip_net c;
	struct ip a;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ck_assert_int_eq(ip_net_parse(span_str(rows[i].block), &c), 0);
		ck_assert_int_eq(ip_parse(span_str(rows[i].host), &a), 0);
		ck_assert_msg(ip_net_has(&c, &a) == rows[i].has, "%s %s", rows[i].block,
			rows[i].host);
	}
}
END_TEST

START_TEST(networks_that_are_none)
{
	static const char *const rows[] = {"", "/8", "10.0.0.0/", "10.0.0.0/33",
		"::1/129", "10.0.0.0/-1", "10.0.0.0/8/8", "10.0.0.0/ 8", "name/8",
		"10.0.0/8", "1111:1111:1111:1111:1111:1111:111.111.111.1111111/8"};
	struct ip_net c;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		ck_assert_msg(
			ip_net_parse(span_str(rows[i]), &c) == ERR_PARSE, "%s", rows[i]);
	ck_assert_int_eq(ip_net_parse(span_make("10.0.0.0\0/8", 11), &c), ERR_PARSE);
}
END_TEST

START_TEST(sets)
{
	char *const items[] = {"10.0.0.0/8", "::1", "unix:"};
	struct ip ten, one, none = {.family = IP_NONE};
	struct ip_set s;

	ck_assert_int_eq(ip_parse(SPAN_LIT("::ffff:10.9.8.7"), &ten), 0);
	ck_assert_int_eq(ip_parse(SPAN_LIT("::1"), &one), 0);
	ck_assert_int_eq(ip_set_init(&s, items, 3), 0);
	ck_assert(ip_set_has(&s, &ten) && ip_set_has(&s, &one) && ip_set_has(&s, &none));
	ip_set_free(&s);
	ck_assert_int_eq(ip_set_init(&s, items, 1), 0);
	ck_assert(
		ip_set_has(&s, &ten) && !ip_set_has(&s, &one) && !ip_set_has(&s, &none));
	ip_set_free(&s);
	ck_assert_int_eq(ip_set_init(&s, NULL, 0), 0);
	ck_assert(!ip_set_has(&s, &ten) && !ip_set_has(&s, &none));
	ip_set_free(&s);
}
END_TEST

static Suite *ip_suite(void)
{
	Suite *s = suite_create("ip");
	TCase *t = tcase_create("ip");

	tcase_add_test(t, addresses);
	tcase_add_test(t, words_that_are_no_addresses);
	tcase_add_test(t, networks);
	tcase_add_test(t, networks_that_are_none);
	tcase_add_test(t, sets);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(ip_suite())
