/*
 * Whose address a request has that proxies pass on: well-formed ways, spoofed ones, and
 * words that are no addresses.
 */
#include "base/err.h"
#include "http/http_forwarded.h"
#include "http/http_parse.h"
#include "tests/unit/unit.h"

#include <string.h>

/* The trusted: 10.0.0.0/8, 127.0.0.1, fd00::/8, and in the last rows "unix:". */
#define PEER "10.0.0.1"
#define XFF "X-Forwarded-For: "

static const struct {
	const char *peer, *fields, *client;
} rows[] = {
	{PEER, "", PEER},
	{PEER, XFF "192.0.2.7\r\n", "192.0.2.7"},
	{PEER, XFF "2001:db8::7\r\n", "2001:db8::7"},
	/* further proxies in between */
	{PEER, XFF "192.0.2.7, 10.0.0.2\r\n", "192.0.2.7"},
	{PEER, XFF "192.0.2.7,10.0.0.3 ,\t127.0.0.1\r\n", "192.0.2.7"},
	{"fd00::1", XFF "192.0.2.7, fd00::2, 10.0.0.2\r\n", "192.0.2.7"},
	/* spoofed: what the client sent stands left of what the proxy added */
	{PEER, XFF "1.1.1.1, 192.0.2.7\r\n", "192.0.2.7"},
	{PEER, XFF "1.1.1.1, 192.0.2.7, 10.0.0.2\r\n", "192.0.2.7"},
	{PEER, XFF "10.0.0.9, 192.0.2.7\r\n", "192.0.2.7"},
	{PEER, XFF "127.0.0.1, ::1, 192.0.2.7\r\n", "192.0.2.7"},
	{PEER, XFF "a b c, 192.0.2.7\r\n", "192.0.2.7"},
	{PEER, XFF "192.0.2.7\"\r\n", PEER},
	/* all are proxies: the first one asks for itself */
	{PEER, XFF "10.0.0.5, 10.0.0.2\r\n", "10.0.0.5"},
	/* several lines are one list */
	{PEER, XFF "1.1.1.1\r\n" XFF "192.0.2.7\r\n", "192.0.2.7"},
	{PEER, XFF "192.0.2.7\r\n" XFF "10.0.0.2\r\n", "192.0.2.7"},
	{PEER, XFF "192.0.2.7\r\nA: b\r\n" XFF "10.0.0.2, 10.0.0.3\r\n", "192.0.2.7"},
	{PEER, XFF "1.1.1.1\r\n" XFF "\r\n" XFF "192.0.2.7\r\n" XFF "\r\n", "192.0.2.7"},
	/* ports and brackets */
	{PEER, XFF "192.0.2.7:4711\r\n", "192.0.2.7"},
	{PEER, XFF "[2001:db8::7]\r\n", "2001:db8::7"},
	{PEER, XFF "[2001:db8::7]:4711, 10.0.0.2:80\r\n", "2001:db8::7"},
	{PEER, XFF "1.1.1.1, [fd00::3]:1\r\n", "1.1.1.1"},
	/* IPv4 in IPv6 is IPv4 */
	{PEER, XFF "::ffff:192.0.2.7\r\n", "192.0.2.7"},
	{PEER, XFF "192.0.2.7, ::ffff:10.0.0.2\r\n", "192.0.2.7"},
	{"::ffff:10.0.0.1", XFF "192.0.2.7\r\n", "192.0.2.7"},
	/* empty items are none */
	{PEER, XFF ", ,192.0.2.7,, \r\n", "192.0.2.7"},
	{PEER, XFF ",\r\n", PEER},
	/* a word that is none: the last one known */
	{PEER, XFF "unknown\r\n", PEER},
	{PEER, XFF "192.0.2.7, unknown\r\n", PEER},
	{PEER, XFF "192.0.2.7, unknown, 10.0.0.2\r\n", "10.0.0.2"},
	{PEER, XFF "192.0.2.7, _hidden:80, 10.0.0.2\r\n", "10.0.0.2"},
	{PEER, XFF "1.1.1.1, 192.0.2.7:99999\r\n", PEER},
	{PEER, XFF "1.1.1.1, [192.0.2.7]\r\n", PEER},
	{PEER, XFF "1.1.1.1, [2001:db8::7\r\n", PEER},
	{PEER, XFF "1.1.1.1, [2001:db8::7]x\r\n", PEER},
	{PEER, XFF "1.1.1.1, 192.0.2.007.1\r\n", PEER},
	{PEER, XFF "1.1.1.1, fe80::1%eth0\r\n", PEER},
	{PEER, XFF "1.1.1.1 192.0.2.7\r\n", PEER},
	/* no other header counts, nor another spelling; Connection hides nobody */
	{PEER, "Forwarded: for=1.1.1.1\r\nX-Real-IP: 1.1.1.1\r\n", PEER},
	{PEER, XFF "192.0.2.7\r\nX_Forwarded_For: 1.1.1.1\r\n", "192.0.2.7"},
	{PEER, "Connection: X-Forwarded-For\r\n" XFF "192.0.2.7\r\n", "192.0.2.7"},
	{NULL, XFF "1.1.1.1, 192.0.2.7\r\n", "192.0.2.7"},
	{NULL, XFF "unknown\r\n", "unix"},
	{NULL, "", "unix"},
};

static struct http_head head;
static struct ip_set trusted;

static void set_up(void)
{
	char *const items[] = {"10.0.0.0/8", "127.0.0.1", "fd00::/8", "unix:"};

	ck_assert_int_eq(ip_set_init(&trusted, items, ARRAY_LEN(items)), 0);
}

static void tear_down(void)
{
	ip_set_free(&trusted);
}

static void parse(const char *text)
{
	enum fail why = FAIL_NONE;

	ck_assert_msg(http_parse_request(text, (uint32_t)strlen(text), &head, &why) == 0,
		"%s: %s", text, fail_text(why));
}

static enum fail read_from(const char *peer, const char *text, struct http_who *client)
{
	struct ip ip = {.family = IP_NONE};
	struct http_who from;

	if (peer != NULL)
		ck_assert_int_eq(ip_parse(span_str(peer), &ip), 0);
	http_who_set(&from, &ip);
	parse(text);
	return http_forwarded_read(&trusted, &from, text, &head, client);
}

START_TEST(b19_whose_address)
{
	char text[1024];
	struct http_who client;

	snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: a\r\n%s\r\n",
		rows[_i].fields);
	ck_assert_int_eq(read_from(rows[_i].peer, text, &client), FAIL_NONE);
	ck_assert_msg(span_is(http_who_text(&client), rows[_i].client),
		"%s: %.*s, not %s", rows[_i].fields, (int)client.text_len, client.text,
		rows[_i].client);
	ck_assert(span_eq(http_who_hop(&client), client.ip.family == IP_NONE
							 ? SPAN_LIT("unknown")
							 : http_who_text(&client)));
}
END_TEST

static void make_hops(char *out, size_t n, unsigned in_first, unsigned in_second)
{
	size_t at = (size_t)snprintf(out, n, "GET / HTTP/1.1\r\nHost: a\r\n" XFF);

	for (unsigned i = 0; i < in_first; i++)
		at += (size_t)snprintf(out + at, n - at, "10.0.0.%u,", i);
	at += (size_t)snprintf(out + at, n - at, "\r\n" XFF);
	for (unsigned i = 0; i < in_second; i++)
		at += (size_t)snprintf(out + at, n - at, ", x%u", i);
	snprintf(out + at, n - at, "\r\n\r\n");
}

START_TEST(b19_more_than_32_hops)
{
	static const struct {
		unsigned first, second;
		enum fail why;
	} counts[] = {
		{32, 0, FAIL_NONE},
		{33, 0, FAIL_TOO_MANY_HOPS},
		{0, 32, FAIL_NONE},
		{0, 33, FAIL_TOO_MANY_HOPS},
		{16, 16, FAIL_NONE},
		{1, 32, FAIL_TOO_MANY_HOPS},
		{200, 3, FAIL_TOO_MANY_HOPS},
	};
	char text[4096];
	struct http_who client;

	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		make_hops(text, sizeof(text), counts[i].first, counts[i].second);
		ck_assert_msg(read_from(PEER, text, &client) == counts[i].why,
			"%u and %u", counts[i].first, counts[i].second);
	}
}
END_TEST

START_TEST(scheme)
{
	static const struct {
		const char *fields, *proto;
	} said[] = {
		{"", "http"},
		{"X-Forwarded-Proto: https\r\n", "https"},
		{"X-Forwarded-Proto: HTTPS\r\n", "https"},
		{"X-Forwarded-Proto: http\r\n", "http"},
		{"X-Forwarded-Proto: gopher\r\n", "http"},
		{"X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\n", "http"},
		{"X-Forwarded-Proto: http\r\nX-Forwarded-Proto: https\r\n", "https"},
		{"X_Forwarded_Proto: https\r\n", "http"},
	};
	char text[256];

	for (size_t i = 0; i < ARRAY_LEN(said); i++) {
		snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: a\r\n%s\r\n",
			said[i].fields);
		parse(text);
		ck_assert_msg(span_is(http_forwarded_proto(text, &head), said[i].proto),
			"%s", said[i].fields);
	}
}
END_TEST

static Suite *http_forwarded_suite(void)
{
	Suite *s = suite_create("http_forwarded");
	TCase *t = tcase_create("http_forwarded");

	tcase_add_checked_fixture(t, set_up, tear_down);
	tcase_add_loop_test(t, b19_whose_address, 0, ARRAY_LEN(rows));
	tcase_add_test(t, b19_more_than_32_hops);
	tcase_add_test(t, scheme);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(http_forwarded_suite())
