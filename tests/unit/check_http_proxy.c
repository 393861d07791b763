/*
 * The header of the PROXY protocol: what is taken, what is refused, and the same verdict
 * whether it comes whole or byte by byte.
 */
#include "base/crc32c.h"
#include "base/err.h"
#include "http/http_proxy.h"
#include "tests/unit/unit.h"

#include <string.h>

#define SIG "\r\n\r\n\0\r\nQUIT\n"
#define FROM4 "\xc0\x00\x02\x07" /* 192.0.2.7 */
#define V4 FROM4 "\xc6\x33\x64\x01\x12\x67\x01\xbb"
#define MAPPED "\0\0\0\0\0\0\0\0\0\0\xff\xff" FROM4
#define FROM6 "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07"
#define V6 FROM6 "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x12\x67\x01\xbb"
#define REST "GET / HTTP/1.1\r\n"
#define FF8 "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
#define X20 "xxxxxxxxxxxxxxxxxxxx"

#define BYTES(text) text, sizeof(text) - 1

static const struct {
	const char *bytes;
	size_t n;
	int rc;
	size_t len;         /* of the header */
	const char *client; /* NULL: the peer */
} rows[] = {
	/* version 1 */
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n" REST), 0, 44,
		"192.0.2.7"},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 0 65535\r\n"), 0, 43, "192.0.2.7"},
	{BYTES("PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n"), 0, 45, "2001:db8::7"},
	{BYTES("PROXY TCP6 ::ffff:192.0.2.7 ::1 4711 443\r\n"), 0, 42, "192.0.2.7"},
	{BYTES("PROXY TCP6 " FF8 " " FF8 " 65535 65535\r\n"), 0, 104, FF8},
	{BYTES("PROXY UNKNOWN\r\n" REST), 0, 15, NULL},
	{BYTES("PROXY UNKNOWN " FF8 " " FF8 " 65535 65535\r\n"), 0, 107, NULL},
	{BYTES("PROXY UNKNOWN x" FF8 " " FF8 " 65535 65535\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 4711 443 \r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 4711\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7  198.51.100.1 4711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 04711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 4711 65536\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 -1 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 2001:db8::7 2001:db8::1 4711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP6 192.0.2.7 198.51.100.1 4711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.256 198.51.100.1 4711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 x 4711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4\0 192.0.2.7 198.51.100.1 4711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY UDP4 192.0.2.7 198.51.100.1 4711 443\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY UNKNOWNX\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY \r\n"), ERR_PARSE, 0, NULL},
	{BYTES("PROXY\r\n"), ERR_PARSE, 0, NULL},
	{BYTES("proxy TCP4"), ERR_PARSE, 0, NULL},
	{BYTES("POST / HTTP/1.1\r\n"), ERR_PARSE, 0, NULL},
	{BYTES(REST), ERR_PARSE, 0, NULL},
	{BYTES("PROXY TCP4 " X20 X20 X20 X20 X20 X20), ERR_PARSE, 0, NULL},
	{BYTES(""), ERR_AGAIN, 0, NULL},
	{BYTES("PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r"), ERR_AGAIN, 0, NULL},
	/* version 2 */
	{BYTES(SIG "\x21\x11\x00\x0c" V4 REST), 0, 28, "192.0.2.7"},
	{BYTES(SIG "\x21\x21\x00\x24" V6), 0, 52, "2001:db8::7"},
	{BYTES(SIG "\x21\x21\x00\x24" MAPPED MAPPED "abcd"), 0, 52, "192.0.2.7"},
	{BYTES(SIG "\x20\x00\x00\x00" REST), 0, 16, NULL},
	{BYTES(SIG "\x20\x11\x00\x0c" V4), 0, 28, NULL},
	{BYTES(SIG "\x20\xff\x00\x02zz"), 0, 18, NULL},
	{BYTES(SIG "\x21\x00\x00\x03xyz"), 0, 19, NULL},
	{BYTES(SIG "\x21\x12\x00\x0c" V4), 0, 28, NULL},
	/* what follows the addresses */
	{BYTES(SIG "\x21\x11\x00\x11" V4 "\x01\x00\x02h2"), 0, 33, "192.0.2.7"},
	{BYTES(SIG "\x21\x11\x00\x12" V4 "\x04\x00\x00\x02\x00\x00"), 0, 34, "192.0.2.7"},
	{BYTES(SIG "\x21\x11\x00\x0e" V4 "\x01\x00"), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x11\x00\x11" V4 "\x01\x00\x03h2"), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x11\x00\x10" V4 "\x01\x00\x00x"), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x11\x00\x13" V4 "\x03\x00\x04\x00\x00\x00\x00"), ERR_PARSE, 0,
		NULL},
	{BYTES(SIG "\x21\x11\x00\x12" V4 "\x03\x00\x03\x00\x00\x00"), ERR_PARSE, 0, NULL},
	/* versions, commands, families, lengths */
	{BYTES(SIG "\x11\x11\x00\x0c" V4), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x22\x11\x00\x0c" V4), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x41\x00\x0c" V4), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x13\x00\x0c" V4), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x11\x00\x0b\xc0\x00\x02\x07\xc6\x33\x64\x01\x12\x67\x01"),
		ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x21\x00\x0c" V4), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x31\x00\x0c" V4), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x11\x0f\xf1"), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x11\x0f\xf0" V4), ERR_AGAIN, 0, NULL},
	{BYTES("\r\n\r\n\0\r\nQUIT\r"), ERR_PARSE, 0, NULL},
	{BYTES("\r\nGET / HTTP/1.1"), ERR_PARSE, 0, NULL},
	{BYTES("\x16\x03\x01\x02\x00"), ERR_PARSE, 0, NULL},
	{BYTES(SIG "\x21\x11\x00\x0c" FROM4), ERR_AGAIN, 0, NULL},
};

/* From a block of its own, so that a sanitizer sees a look beyond it. */
static int read_block(const char *p, size_t n, struct http_proxy *out)
{
	char *block = malloc(n > 0 ? n : 1);
	int rc;

	ck_assert_ptr_nonnull(block);
	memcpy(block, p, n);
	rc = http_proxy_read(block, n, out);
	free(block);
	return rc;
}

static void check_client(const struct http_proxy *h, const char *client)
{
	char text[IP_TEXT_MAX];

	ck_assert_int_eq(h->has_ip, client != NULL);
	if (client == NULL)
		return;
	(void)ip_text(&h->ip, text);
	ck_assert_str_eq(text, client);
}

START_TEST(headers)
{
	struct http_proxy h;

	ck_assert_int_eq(read_block(rows[_i].bytes, rows[_i].n, &h), rows[_i].rc);
	if (rows[_i].rc == 0) {
		ck_assert_uint_eq(h.len, rows[_i].len);
		check_client(&h, rows[_i].client);
	}
	for (size_t n = 0; n < rows[_i].n; n++) {
		int rc = read_block(rows[_i].bytes, n, &h);

		if (rows[_i].rc == 0)
			ck_assert_int_eq(rc, n < rows[_i].len ? ERR_AGAIN : 0);
		else
			ck_assert(rc == ERR_AGAIN || rc == rows[_i].rc);
	}
}
END_TEST

static void put_sum(char *p, size_t n, size_t at)
{
	uint32_t sum;

	memset(p + at, 0, 4);
	sum = crc32c(0, p, n);
	for (unsigned i = 0; i < 4; i++)
		p[at + i] = (char)(sum >> (24 - 8 * i));
}

START_TEST(sums)
{
	/* a name, the sum, and more behind it */
	char bytes[] = SIG "\x21\x11\x00\x1d" V4 "\x02\x00\x01x"
			   "\x03\x00\x04\x00\x00\x00\x00"
			   "\x05\x00\x03xyz";
	const size_t n = sizeof(bytes) - 1, at = 28 + 4 + 3;
	struct http_proxy h;

	ck_assert_uint_eq(n, 16 + 0x1d);
	put_sum(bytes, n, at);
	ck_assert_int_eq(read_block(bytes, n, &h), 0);
	check_client(&h, "192.0.2.7");
	/* one bit of whatever byte, unless what it says is another matter */
	for (size_t i = 16; i < n; i++) {
		bytes[i] ^= 1;
		ck_assert_msg(read_block(bytes, n, &h) == ERR_PARSE ||
				      (i == 32 || i == 33 || i == 34),
			"byte %zu", i);
		bytes[i] ^= 1;
	}
	ck_assert_int_eq(read_block(bytes, n, &h), 0);
	/* twice */
	bytes[39] = 3;
	put_sum(bytes, n, at);
	ck_assert_int_eq(read_block(bytes, n, &h), ERR_PARSE);
}
END_TEST

START_TEST(the_longest)
{
	static char bytes[HTTP_PROXY_MAX + 1];
	const size_t extra = HTTP_PROXY_MAX - 28 - 3;
	struct http_proxy h;

	memcpy(bytes, SIG "\x21\x11\x0f\xf0" V4, 28);
	bytes[28] = 5;
	bytes[29] = (char)(extra >> 8);
	bytes[30] = (char)extra;
	ck_assert_int_eq(read_block(bytes, HTTP_PROXY_MAX - 1, &h), ERR_AGAIN);
	ck_assert_int_eq(read_block(bytes, HTTP_PROXY_MAX, &h), 0);
	ck_assert_uint_eq(h.len, HTTP_PROXY_MAX);
	ck_assert_int_eq(read_block(bytes, HTTP_PROXY_MAX + 1, &h), 0);
	ck_assert_uint_eq(h.len, HTTP_PROXY_MAX);
}
END_TEST

static Suite *http_proxy_suite(void)
{
	Suite *s = suite_create("http_proxy");
	TCase *t = tcase_create("http_proxy");

	tcase_add_loop_test(t, headers, 0, ARRAY_LEN(rows));
	tcase_add_test(t, sums);
	tcase_add_test(t, the_longest);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(http_proxy_suite())
