/* URLs of servers, right and wrong. */
#include "base/err.h"
#include "bench/url.h"
#include "tests/unit/unit.h"

#include <string.h>

static const struct {
	const char *text, *host, *authority, *prefix;
	unsigned port;
} good[] = {
	{"http://127.0.0.1:8000", "127.0.0.1", "127.0.0.1:8000", "", 8000},
	{"http://a.test", "a.test", "a.test", "", 80},
	{"http://a.test/", "a.test", "a.test", "", 80},
	{"http://a.test:9/v1", "a.test", "a.test:9", "", 9},
	{"http://a.test:9/v1/", "a.test", "a.test:9", "", 9},
	{"http://a.test/team-a//", "a.test", "a.test", "/team-a", 80},
	{"http://a.test/team-a/v1", "a.test", "a.test", "/team-a", 80},
	{"http://a.test/x-v1", "a.test", "a.test", "/x-v1", 80},
	{"http://[::1]:8000", "::1", "[::1]:8000", "", 8000},
	{"http://[::1]", "::1", "[::1]", "", 80},
	{"http://a.test:65535", "a.test", "a.test:65535", "", 65535},
};

START_TEST(good_urls)
{
	struct url url;
	const char *why;

	ck_assert_msg(url_parse(good[_i].text, &url, &why) == 0, "%s", good[_i].text);
	ck_assert_str_eq(url.host, good[_i].host);
	ck_assert_str_eq(url.authority, good[_i].authority);
	ck_assert_str_eq(url.prefix, good[_i].prefix);
	ck_assert_uint_eq(url.port, good[_i].port);
}
END_TEST

static const struct {
	const char *text, *says;
} bad[] = {
	{"", "is expected"},
	{"a.test:8000", "is expected"},
	{"ftp://a.test", "is expected"},
	{"https://a.test", "TLS"},
	{"http://", "is expected"},
	{"http:///v1", "is expected"},
	{"http://a.test:0", "is expected"},
	{"http://a.test:65536", "is expected"},
	{"http://a.test:x", "is expected"},
	{"http://u:p@a.test", "a user and password cannot be sent"},
	{"http://[::1", "is expected"},
	{"http://::1", "is expected"},
	{"http://a.test/a b", "is expected"},
	{"http://a.test/a\r\nX: y", "is expected"},
	{"http://a.test/?x=1", "is expected"},
	{"http://a.test/#x", "is expected"},
	{"http://a test", "is expected"},
};

START_TEST(bad_urls)
{
	struct url url = {.port = 7};
	const char *why = "";

	ck_assert_msg(
		url_parse(bad[_i].text, &url, &why) == ERR_PARSE, "%s", bad[_i].text);
	ck_assert_msg(strstr(why, bad[_i].says) != NULL, "%s: %s", bad[_i].text, why);
	ck_assert_uint_eq(url.port, 7);
}
END_TEST

START_TEST(too_long)
{
	char text[2048] = "http://a.test/";
	struct url url;
	const char *why;

	memset(text + 14, 'p', 600);
	ck_assert_int_eq(url_parse(text, &url, &why), ERR_PARSE);
	memcpy(text, "http://", 7);
	memset(text + 7, 'h', 300);
	text[307] = '\0';
	ck_assert_int_eq(url_parse(text, &url, &why), ERR_PARSE);
}
END_TEST

static Suite *url_suite(void)
{
	Suite *suite = suite_create("bench_url");
	TCase *tc = tcase_create("bench_url");

	tcase_add_loop_test(tc, good_urls, 0, ARRAY_LEN(good));
	tcase_add_loop_test(tc, bad_urls, 0, ARRAY_LEN(bad));
	tcase_add_test(tc, too_long);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(url_suite())
