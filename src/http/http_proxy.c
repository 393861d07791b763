/*
 * The header of the PROXY protocol. See http_proxy.h. What is read and what is refused
 * follows HAProxy's proxy-protocol.txt, sections 2.1 and 2.2.
 */
#include "http/http_proxy.h"

#include "base/crc32c.h"
#include "base/err.h"

#include <string.h>

/* ---- version 1 ---- */

static const char line_start[] = "PROXY ";

/* Decimal, without further zeros in front. */
static bool is_port(struct span s)
{
	uint64_t port;

	return s.n <= 5 && span_to_u64(s, &port) == 0 && port <= UINT16_MAX &&
	       (s.n == 1 || s.p[0] != '0');
}

/* An address as it is written in the family that the line names. */
static int read_address(struct span s, bool is_v6, struct ip *out)
{
	if (s.n == 0 || (memchr(s.p, ':', s.n) != NULL) != is_v6)
		return ERR_PARSE;
	return ip_parse(s, out);
}

/* "TCP4 192.0.2.7 198.51.100.1 4711 443" */
static int read_words(struct span line, struct http_proxy *out)
{
	struct span family, source, target, ports[2];
	struct ip to;
	bool is_v6;

	if (!span_next(&line, ' ', &family))
		return ERR_PARSE;
	if (span_eq(family, SPAN_LIT("UNKNOWN")))
		return 0;
	is_v6 = span_eq(family, SPAN_LIT("TCP6"));
	if ((!is_v6 && !span_eq(family, SPAN_LIT("TCP4"))) ||
		!span_next(&line, ' ', &source) || !span_next(&line, ' ', &target) ||
		!span_next(&line, ' ', &ports[0]))
		return ERR_PARSE;
	ports[1] = line;
	if (read_address(source, is_v6, &out->ip) != 0 ||
		read_address(target, is_v6, &to) != 0 || !is_port(ports[0]) ||
		!is_port(ports[1]))
		return ERR_PARSE;
	out->has_ip = true;
	return 0;
}

static int read_line(const char *p, size_t n, struct http_proxy *out)
{
	const size_t start = sizeof(line_start) - 1;
	const char *end = memchr(p, '\n', MIN(n, (size_t)HTTP_PROXY_LINE_MAX));

	if (memcmp(p, line_start, MIN(n, start)) != 0)
		return ERR_PARSE;
	if (end == NULL)
		return n < HTTP_PROXY_LINE_MAX ? ERR_AGAIN : ERR_PARSE;
	out->len = (size_t)(end - p) + 1;
	if (out->len < start + 2 || end[-1] != '\r')
		return ERR_PARSE;
	return read_words(span_make(p + start, out->len - start - 2), out);
}

/* ---- version 2 ---- */

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"
#define SIGNATURE_LEN 12
#define FIXED_LEN 16
#define CMD_LOCAL 0x20 /* with the version, 2 */
#define CMD_PROXY 0x21
#define FAMILY_MAX 3 /* none, IPv4, IPv6, unix */
#define PROTOCOL_STREAM 1
#define PROTOCOL_MAX 2
#define TLV_CRC32C 3
#define TLV_HEAD_LEN 3
#define CRC_LEN 4

/* Of source and destination. */
static const size_t addresses_len[FAMILY_MAX + 1] = {0, 12, 36, 216};

static size_t get_u16(const char *p)
{
	return (size_t)(uint8_t)p[0] << 8 | (uint8_t)p[1];
}

static uint32_t get_u32(const char *p)
{
	return (uint32_t)get_u16(p) << 16 | (uint32_t)get_u16(p + 2);
}

/* The sum over the whole header, in which the sum itself counts as zero. */
static bool is_sum_right(struct span header, size_t at)
{
	static const char zero[CRC_LEN] = {0};
	uint32_t sum = crc32c(0, header.p, at);

	sum = crc32c(sum, zero, CRC_LEN);
	sum = crc32c(sum, header.p + at + CRC_LEN, header.n - at - CRC_LEN);
	return sum == get_u32(header.p + at);
}

/* What follows the addresses: type, length, value, one after the other to the end. */
static int check_extras(struct span header, size_t at)
{
	bool has_sum = false;

	while (at < header.n) {
		size_t room = header.n - at, len;
		bool is_sum = header.p[at] == TLV_CRC32C;

		if (room < TLV_HEAD_LEN)
			return ERR_PARSE;
		len = get_u16(header.p + at + 1);
		if (len > room - TLV_HEAD_LEN)
			return ERR_PARSE;
		if (is_sum && (has_sum || len != CRC_LEN ||
				      !is_sum_right(header, at + TLV_HEAD_LEN)))
			return ERR_PARSE;
		has_sum |= is_sum;
		at += TLV_HEAD_LEN + len;
	}
	return 0;
}

/* header: the whole of it. Nothing but addresses of TCP connections is taken: whose other
 * words they are, the peer is the client. */
static int read_body(struct span header, struct http_proxy *out)
{
	unsigned family = (uint8_t)header.p[13] >> 4, protocol = header.p[13] & 0xf;

	if (header.p[12] == CMD_LOCAL)
		return 0; /* whatever it says besides */
	if (family > FAMILY_MAX || protocol > PROTOCOL_MAX)
		return ERR_PARSE;
	if (family == 0 || protocol == 0)
		return 0;
	if (header.n < FIXED_LEN + addresses_len[family])
		return ERR_PARSE;
	if (protocol == PROTOCOL_STREAM && family < FAMILY_MAX) {
		out->has_ip = true;
		out->ip = family == 1 ? ip_v4(header.p + FIXED_LEN)
				      : ip_v6(header.p + FIXED_LEN);
	}
	return check_extras(header, FIXED_LEN + addresses_len[family]);
}

static int read_binary(const char *p, size_t n, struct http_proxy *out)
{
	if (memcmp(p, SIGNATURE, MIN(n, (size_t)SIGNATURE_LEN)) != 0)
		return ERR_PARSE;
	if (n > SIGNATURE_LEN && p[12] != CMD_LOCAL && p[12] != CMD_PROXY)
		return ERR_PARSE;
	if (n < FIXED_LEN)
		return ERR_AGAIN;
	out->len = FIXED_LEN + get_u16(p + 14);
	if (out->len > HTTP_PROXY_MAX)
		return ERR_PARSE;
	if (n < out->len)
		return ERR_AGAIN;
	return read_body(span_make(p, out->len), out);
}

int http_proxy_read(const char *p, size_t n, struct http_proxy *out)
{
	*out = (struct http_proxy){0};
	if (n == 0)
		return ERR_AGAIN;
	return p[0] == line_start[0] ? read_line(p, n, out) : read_binary(p, n, out);
}
