/*
 * Worker URLs, host:port, networks and globs: what is taken, how it is normalised, and
 * what each refusal says.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "conf/conf_table.h"
#include "unit.h"

#include <string.h>

#define LONG50 "12345678901234567890123456789012345678901234567890"

static const struct {
	const char *text, *normal, *host;
	unsigned port;
	const char *base, *host_header;
	bool tls;
} good_urls[] = {
	{"http://10.0.0.1:8000", "http://10.0.0.1:8000", "10.0.0.1", 8000, "",
		"10.0.0.1:8000", 0},
	{"http://10.0.0.1:8000/", "http://10.0.0.1:8000", "10.0.0.1", 8000, "",
		"10.0.0.1:8000", 0},
	{"HTTP://GPU1.Example:80", "http://gpu1.example", "gpu1.example", 80, "",
		"gpu1.example", 0},
	{"http://w0.test", "http://w0.test", "w0.test", 80, "", "w0.test", 0},
	{"https://w0.test", "https://w0.test", "w0.test", 443, "", "w0.test", 1},
	{"https://w0.test:80", "https://w0.test:80", "w0.test", 80, "", "w0.test:80", 1},
	{"http://[::1]:8001", "http://[::1]:8001", "::1", 8001, "", "[::1]:8001", 0},
	{"http://[0:0:0:0:0:0:0:1]", "http://[::1]", "::1", 80, "", "[::1]", 0},
	{"http://[FD00::A]:1/x", "http://[fd00::a]:1/x", "fd00::a", 1, "/x",
		"[fd00::a]:1", 0},
	{"http://h:1/team-a/", "http://h:1/team-a", "h", 1, "/team-a", "h:1", 0},
	{"http://h:1/a/b%20c", "http://h:1/a/b%20c", "h", 1, "/a/b%20c", "h:1", 0},
	{"http://h:1/v10", "http://h:1/v10", "h", 1, "/v10", "h:1", 0},
	{"http://h:1/v1/team", "http://h:1/v1/team", "h", 1, "/v1/team", "h:1", 0},
	{"unix:/run/x.sock", "unix:/run/x.sock", "/run/x.sock", 0, "", "localhost", 0},
	{"UNIX:///run/x.sock", "unix:/run/x.sock", "/run/x.sock", 0, "", "localhost", 0},
	{"unix:/" LONG50 LONG50 "123456", "unix:/" LONG50 LONG50 "123456",
		"/" LONG50 LONG50 "123456", 0, "", "localhost", 0},
	{"http://my_host-1:65535", "http://my_host-1:65535", "my_host-1", 65535, "",
		"my_host-1:65535", 0},
};

START_TEST(takes_good_urls)
{
	struct conf_url u, copy;
	const char *why = NULL;

	ck_assert_int_eq(conf_url_parse(span_str(good_urls[_i].text), &u, &why), 0);
	ck_assert_str_eq(u.text, good_urls[_i].normal);
	ck_assert_str_eq(u.host, good_urls[_i].host);
	ck_assert_uint_eq(u.port, good_urls[_i].port);
	ck_assert_str_eq(u.base, good_urls[_i].base);
	ck_assert_str_eq(u.host_header, good_urls[_i].host_header);
	ck_assert(u.tls == good_urls[_i].tls);
	ck_assert_int_eq(conf_url_copy(&u, &copy), 0);
	conf_url_free(&u);
	ck_assert_ptr_null(u.text);
	/* What is normal stays as it is. */
	ck_assert_int_eq(conf_url_parse(span_str(copy.text), &u, &why), 0);
	ck_assert_str_eq(u.text, copy.text);
	conf_url_free(&u);
	conf_url_free(&copy);
}
END_TEST

START_TEST(urls_name_workers)
{
	static const struct {
		const char *url, *name;
	} cases[] = {
		{"http://10.0.0.1:8000/a", "10.0.0.1:8000"},
		{"unix:/run/vllm/a.sock", "a.sock"},
		{"unix:/run/a+b", "a_b"},
		{"unix:/run/", "unix"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct conf_url u;
		const char *why;
		char *name;

		ck_assert_int_eq(conf_url_parse(span_str(cases[i].url), &u, &why), 0);
		name = conf_url_name(&u);
		ck_assert_str_eq(name, cases[i].name);
		free(name);
		conf_url_free(&u);
	}
}
END_TEST

static const struct {
	const char *text, *message, *hint;
} bad_urls[] = {
	{"", "empty", "http://"},
	{"8001", "no scheme", "http://127.0.0.1:8001?"},
	{"localhost:8001", "no scheme", "http://localhost:8001?"},
	{"//h:1", "no scheme", "http://"},
	{"http:/h:1", "no scheme", ""},
	{"http://", "no host", ""},
	{"http:///v1", "no host", ""},
	{"http://:8000", "no host", ""},
	{"http://::1:8001", "more than one colon", "[::1]:8000"},
	{"http://[::1", "closing bracket", ""},
	{"http://[::1]8000", "after the bracket", ""},
	{"http://[]:1", "no IPv6 address", ""},
	{"http://[fe80::1%eth0]:1", "zone", ""},
	{"http://[1.2.3.4]:1", "no IPv6 address", ""},
	{"http://h:99999", "out of range", "65535"},
	{"http://h:65536", "out of range", "65535"},
	{"http://h:99999999999999999999999", "out of range", "65535"},
	{"http://h:0", "out of range", "65535"},
	{"http://h:", "no port", ""},
	{"http://h:80a", "not a number", ""},
	{"http://h:-1", "not a number", ""},
	{"http://h:+1", "not a number", ""},
	{"http://10.0.0.256:1", "no valid IPv4", ""},
	{"http://10.0.1:1", "no valid IPv4", ""},
	{"http://-h:1", "no valid host name", ""},
	{"http://a..b:1", "no valid host name", ""},
	{"http://h\xc3\xa4:1", "outside ASCII", ""},
	{"http://h(1):1", "other characters", "xn--"},
	{"http://u:secret@h:1", "a password", "worker_key"},
	{"http://h:8000@1", "a rank", "dp_size"},
	{"http://h:1?x=1", "query", ""},
	{"http://h:1/a?x=1", "query", ""},
	{"http://h:1/a#b", "fragment", ""},
	{"http://h:1/v1", "/v1/v1", "remove /v1"},
	{"http://h:1/v1/", "/v1/v1", "remove /v1"},
	{"http://h:1/team/v1", "/v1/v1", "remove /v1"},
	{"http://h:1//a", "empty or dotted", ""},
	{"http://h:1/a/../b", "empty or dotted", ""},
	{"http://h:1/.", "empty or dotted", ""},
	{"http://h:1/%2", "incomplete escape", ""},
	{"http://h:1/%zz", "incomplete escape", ""},
	{"http://h:1/a\"b", "no path may hold", ""},
	{"http://h:1 http://h:2", "blanks", ""},
	{"http://h:1\r\nX: y", "blanks", ""},
	{"ftp://h:1", "neither http nor https", ""},
	{"grpc://h:1", "gRPC", "HTTP"},
	{"unix:", "no absolute path", "unix:/run"},
	{"unix:run/x", "no absolute path", "unix:/run"},
	{"unix://host/run/x", "no absolute path", ""},
	{"unix:/", "no absolute path", ""},
	{"unix:////x", "no absolute path", ""},
	{"unix:/" LONG50 LONG50 "1234567", "too long for a socket", "107"},
};

START_TEST(refuses_bad_urls)
{
	struct conf_url u = {.text = (char *)0x1};
	struct conf_fault fault;
	const char *why = NULL;

	ck_assert_int_eq(
		conf_url_read(span_str(bad_urls[_i].text), &u, &fault), ERR_PARSE);
	ck_assert_msg(strstr(fault.message, bad_urls[_i].message) != NULL, "%s: %s",
		bad_urls[_i].text, fault.message);
	ck_assert_msg(strstr(fault.hint, bad_urls[_i].hint) != NULL, "%s: %s",
		bad_urls[_i].text, fault.hint);
	ck_assert_ptr_null(strstr(fault.hint, "secret"));
	ck_assert_int_eq(
		conf_url_parse(span_str(bad_urls[_i].text), &u, &why), ERR_PARSE);
	ck_assert_str_eq(why, fault.message);
	ck_assert_ptr_eq(u.text, (char *)0x1); /* untouched */
}
END_TEST

START_TEST(refuses_long_urls)
{
	char text[3000] = "http://";
	struct conf_url u;
	const char *why;

	memset(text + 7, 'a', 254);
	ck_assert_int_eq(conf_url_parse(span_str(text), &u, &why), ERR_PARSE);
	ck_assert_ptr_nonnull(strstr(why, "too long"));
	text[7 + 253] = '\0';
	ck_assert_int_eq(conf_url_parse(span_str(text), &u, &why), 0);
	conf_url_free(&u);
	memset(text + 7, 'a', sizeof(text) - 8);
	text[9] = '/';
	ck_assert_int_eq(conf_url_parse(span_str(text), &u, &why), ERR_PARSE);
	ck_assert_ptr_nonnull(strstr(why, "too long"));
}
END_TEST

static const struct {
	const char *text, *host;
	unsigned port;
	const char *message, *hint;
} addresses[] = {
	{"127.0.0.1:30000", "127.0.0.1", 30000, NULL, NULL},
	{"localhost:0", "localhost", 0, NULL, NULL},
	{"[::]:80", "::", 80, NULL, NULL},
	{":80", "", 80, NULL, NULL},
	{"LOCALHOST:1", "localhost", 1, NULL, NULL},
	{"", NULL, 0, "no host", ""},
	{"30000", NULL, 0, "port without an address", ":30000"},
	{"127.0.0.1", NULL, 0, "no port", ""},
	{"[::1]", NULL, 0, "no port", ""},
	{"::1:80", NULL, 0, "more than one colon", "brackets"},
	{"::", NULL, 0, "more than one colon", "brackets"},
	{":", NULL, 0, "no port", ""},
	{"*:80", NULL, 0, "no valid host", "begin with :"},
	{"h:70000", NULL, 0, "out of range", "65535"},
	{"h:http", NULL, 0, "not a number", ""},
	{"h/x:1", NULL, 0, "other characters", ""},
};

START_TEST(reads_addresses)
{
	struct span text = span_str(addresses[_i].text);
	char *host = (char *)0x1;
	uint16_t port = 7;
	struct conf_fault fault;
	const char *why;

	if (addresses[_i].host != NULL) {
		ck_assert_int_eq(conf_hostport_parse(text, &host, &port, &why), 0);
		ck_assert_str_eq(host, addresses[_i].host);
		ck_assert_uint_eq(port, addresses[_i].port);
		free(host);
		return;
	}
	ck_assert_int_eq(conf_hostport_read(text, &host, &port, &fault), ERR_PARSE);
	ck_assert_msg(strstr(fault.message, addresses[_i].message) != NULL, "%s",
		fault.message);
	ck_assert_msg(strstr(fault.hint, addresses[_i].hint) != NULL, "%s", fault.hint);
	ck_assert_int_eq(conf_hostport_parse(text, &host, &port, &why), ERR_PARSE);
	ck_assert_str_eq(why, fault.message);
	ck_assert_ptr_eq(host, (char *)0x1);
	ck_assert_uint_eq(port, 7);
}
END_TEST

/* The text need not end in a NUL: each read stays inside an exact heap block. */
START_TEST(stays_inside_the_span)
{
	static const char *const texts[] = {"http://h:1/a", "http://[::1]:1", "8001",
		"30000", "h:1", "10.0.0.0/8", "http://h:1/%4", "[", ":", "http://"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		for (size_t n = 1; n <= strlen(texts[i]); n++) {
			scoped_free char *block = malloc(n);
			struct conf_url u = {0};
			struct conf_fault fault;
			char *host = NULL;
			uint16_t port;

			memcpy(block, texts[i], n);
			if (conf_url_read(span_make(block, n), &u, &fault) == 0)
				conf_url_free(&u);
			if (conf_hostport_read(
				    span_make(block, n), &host, &port, &fault) == 0)
				free(host);
			if (conf_cidr_check(span_make(block, n), &fault) != 0)
				ck_assert_str_ne(fault.message, "");
		}
	}
}
END_TEST

START_TEST(checks_networks)
{
	static const char *const good[] = {"10.0.0.0/8", "0.0.0.0/0", "127.0.0.1", "::1",
		"fd00::/8", "::/0", "10.1.2.3/32", "2001:db8::/33"};
	static const char *const bad[] = {"10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/",
		"10.0.0/8", "fd00::1/64", "::/129", "host", "10.0.0.0/-1", "", "[::1]",
		"10.0.0.0/8/8"};
	struct conf_fault fault;

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		ck_assert_msg(
			conf_cidr_check(span_str(good[i]), &fault) == 0, "%s", good[i]);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		ck_assert_msg(conf_cidr_check(span_str(bad[i]), &fault) == ERR_PARSE,
			"%s", bad[i]);
}
END_TEST

static const struct {
	const char *pattern, *text;
	bool matches;
} globs[] = {
	{"llama", "llama", true},
	{"llama", "llama3", false},
	{"llama", "llam", false},
	{"llama*", "llama", true},
	{"llama*", "llama-3-8b", true},
	{"*-8b", "llama-3-8b", true},
	{"*-8b", "llama-3-8b-8", false},
	{"*8*8*", "x8y8z", true},
	{"*8*8*", "x8yz", false},
	{"qwen?", "qwen3", true},
	{"qwen?", "qwen", false},
	{"*", "", true},
	{"", "", true},
	{"", "x", false},
	{"?", "", false},
	{"a*b*c", "abcbc", true},
	{"org/*", "org/model/x", true},
	{"a*", "*", false},
	{"[a]", "a", false},
	{"A", "a", false},
};

START_TEST(matches_globs)
{
	ck_assert_msg(conf_glob(globs[_i].pattern, span_str(globs[_i].text)) ==
			      globs[_i].matches,
		"%s %s", globs[_i].pattern, globs[_i].text);
}
END_TEST

/* A pattern that costs a naive matcher an exponential time. */
START_TEST(globs_stay_cheap)
{
	char text[4001];

	memset(text, 'a', 4000);
	text[4000] = '\0';
	ck_assert(!conf_glob("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", span_str(text)));
}
END_TEST

static Suite *conf_url_suite(void)
{
	Suite *suite = suite_create("conf_url");
	TCase *tc = tcase_create("all");

	tcase_add_loop_test(tc, takes_good_urls, 0, ARRAY_LEN(good_urls));
	tcase_add_test(tc, urls_name_workers);
	tcase_add_loop_test(tc, refuses_bad_urls, 0, ARRAY_LEN(bad_urls));
	tcase_add_test(tc, refuses_long_urls);
	tcase_add_loop_test(tc, reads_addresses, 0, ARRAY_LEN(addresses));
	tcase_add_test(tc, stays_inside_the_span);
	tcase_add_test(tc, checks_networks);
	tcase_add_loop_test(tc, matches_globs, 0, ARRAY_LEN(globs));
	tcase_add_test(tc, globs_stay_cheap);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(conf_url_suite())
