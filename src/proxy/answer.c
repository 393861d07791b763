/*
 * Header lines that the router adds to answers. See answer.h.
 */
#include "proxy/answer.h"

#include "http/http_write.h"

#include <endian.h>
#include <stdio.h>

static size_t put(char *out, struct span s)
{
	memcpy(out, s.p, s.n);
	return s.n;
}

static bool is_sane_id(struct span s)
{
	size_t i;

	if (s.n == 0 || s.n > REQUEST_ID_MAX)
		return false;
	for (i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool is_alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
				(c >= 'A' && c <= 'Z');

		if (!is_alnum && c != '.' && c != '_' && c != ':' && c != '-')
			return false;
	}
	return true;
}

/* Eight hex digits of the lower 32 bits, the lowest first. */
static void put_hex(uint64_t bits, char *out)
{
	uint64_t digits = bits & 0xffffffffu, above_nine;

	digits = (digits | digits << 16) & 0x0000ffff0000ffffu;
	digits = (digits | digits << 8) & 0x00ff00ff00ff00ffu;
	digits = (digits | digits << 4) & 0x0f0f0f0f0f0f0f0fu;
	above_nine = (digits + 0x0606060606060606u) >> 4 & 0x0101010101010101u;
	digits = htole64(digits + 0x3030303030303030u + above_nine * ('a' - '0' - 10));
	memcpy(out, &digits, sizeof(digits));
}

size_t answer_request_id(struct span sent, struct rng *rng, char *out)
{
	unsigned i;

	if (is_sane_id(sent))
		return put(out, sent);
	for (i = 0; i < 32; i += 16) {
		uint64_t bits = rng_next(rng);

		put_hex(bits, out + i);
		put_hex(bits >> 32, out + i + 8);
	}
	return 32;
}

bool answer_is_event_stream(const struct http_head *a, const char *base)
{
	static const char type[] = "text/event-stream";
	const struct http_field *f = http_head_find(a, FIELD_CONTENT_TYPE);
	size_t n = sizeof(type) - 1;

	return f != NULL && f->value_len >= n &&
	       span_case_eq(span_make(base + f->value_off, n), SPAN_LIT(type)) &&
	       (f->value_len == n || memchr("; \t", base[f->value_off + n], 3) != NULL);
}

size_t answer_id_line(struct span id, char *out)
{
	size_t n = put(out, SPAN_LIT("X-Request-Id: "));

	n += put(out + n, id);
	return n + put(out + n, SPAN_LIT("\r\n"));
}

size_t answer_allow_line(unsigned methods, char *out)
{
	size_t n = put(out, SPAN_LIT("Allow: "));
	bool is_first = true;
	unsigned m;

	for (m = 0; m < HTTP_METHOD_MAX; m++) {
		if ((methods >> m & 1) == 0)
			continue;
		if (!is_first)
			n += put(out + n, SPAN_LIT(", "));
		is_first = false;
		n += put(out + n, span_str(http_method_name((enum http_method)m)));
	}
	return n + put(out + n, SPAN_LIT("\r\n"));
}

size_t answer_retry_line(unsigned secs, char *out)
{
	size_t n = put(out, SPAN_LIT("Retry-After: "));

	n += http_write_u64(secs, out + n);
	return n + put(out + n, SPAN_LIT("\r\n"));
}

size_t answer_challenge_line(char *out)
{
	return put(out, SPAN_LIT("WWW-Authenticate: Bearer\r\n"));
}

/* The words of each API for a status. The last row is for all others. */
static const struct error_type {
	int status;
	const char *anthropic, *llama;
} error_types[] = {
	{400, "invalid_request_error", "invalid_request_error"},
	{401, "authentication_error", "authentication_error"},
	{403, "permission_error", "permission_error"},
	{404, "not_found_error", "not_found_error"},
	{405, "invalid_request_error", "not_supported_error"},
	{408, "timeout_error", "unavailable_error"},
	{413, "request_too_large", "invalid_request_error"},
	{414, "invalid_request_error", "invalid_request_error"},
	{417, "invalid_request_error", "invalid_request_error"},
	{421, "invalid_request_error", "invalid_request_error"},
	{429, "rate_limit_error", "unavailable_error"},
	{431, "invalid_request_error", "invalid_request_error"},
	{501, "invalid_request_error", "not_supported_error"},
	{503, "overloaded_error", "unavailable_error"},
	{504, "timeout_error", "server_error"},
	{0, "api_error", "server_error"},
};

static const struct error_type *type_for(int status)
{
	const struct error_type *t = error_types;

	while (t->status != status && t->status != 0)
		t++;
	return t;
}

size_t answer_error_body(enum path_shape shape, enum fail why, const char *message,
	struct span id, char out[ANSWER_ERROR_MAX])
{
	int status = fail_status(why), n;

	switch (shape) {
	case SHAPE_ANTHROPIC:
		n = snprintf(out, ANSWER_ERROR_MAX,
			"{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"%"
			"s\","
			"\"code\":\"%s\"},\"request_id\":\"" SPAN_FMT "\"}",
			type_for(status)->anthropic, message, fail_code(why),
			SPAN_ARG(id));
		break;
	case SHAPE_OLLAMA:
		n = snprintf(out, ANSWER_ERROR_MAX, "{\"error\":\"%s\"}", message);
		break;
	case SHAPE_LLAMA:
		n = snprintf(out, ANSWER_ERROR_MAX,
			"{\"error\":{\"code\":%d,\"message\":\"%s\",\"type\":\"%s\"}}",
			status, message, type_for(status)->llama);
		break;
	case SHAPE_COHERE:
		n = snprintf(out, ANSWER_ERROR_MAX,
			"{\"message\":\"%s\",\"id\":\"" SPAN_FMT "\"}", message,
			SPAN_ARG(id));
		break;
	default:
		return fail_body_saying(why, message, out, ANSWER_ERROR_MAX);
	}
	assert(n > 0 && n < ANSWER_ERROR_MAX);
	return (size_t)n;
}

/* Anthropic's clients know no upstream_error. */
static const char *type_of_messages(enum fail why)
{
	return fail_is_workers(why) ? "api_error" : fail_type(why);
}

static int put_error(
	const char *before, enum fail why, const char *type, char out[ANSWER_EVENT_MAX])
{
	return snprintf(out, ANSWER_EVENT_MAX,
		"%s\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
		"\"code\":\"%s\"}}\n\n",
		before, fail_text(why), type, fail_code(why));
}

size_t answer_error_event(
	enum route_endpoint endpoint, enum fail why, char out[ANSWER_EVENT_MAX])
{
	char before[ANSWER_EVENT_MAX / 2];
	int n;

	switch (endpoint) {
	case ENDPOINT_MESSAGES:
		n = put_error("event: error\ndata: {\"type\":\"error\",", why,
			type_of_messages(why), out);
		break;
	case ENDPOINT_RESPONSES:
		/* The number is not known: which events there were is not counted. */
		snprintf(before, sizeof(before),
			"event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,"
			"\"code\":\"%s\",\"message\":\"%s\",\"param\":null,",
			fail_code(why), fail_text(why));
		n = put_error(before, why, fail_type(why), out);
		break;
	default:
		n = put_error("data: {", why, fail_type(why), out);
	}
	assert(n > 0 && n < ANSWER_EVENT_MAX);
	return (size_t)n;
}

static size_t put_told(const struct answer_cached *c, char *out)
{
	size_t n = 0;

	if (!c->is_told)
		return 0;
	n += put(out + n, SPAN_LIT("; prefill_cached="));
	n += http_write_u64(c->cached, out + n);
	if (c->prompt == 0)
		return n;
	n += put(out + n, SPAN_LIT("; prefill_tokens="));
	return n + http_write_u64(c->prompt, out + n);
}

size_t answer_worker_lines(
	struct span worker, const struct answer_cached *cached, char *out)
{
	size_t n = put(out, SPAN_LIT("X-Kvsteer-Worker: "));

	n += put(out + n, worker);
	n += put(out + n, SPAN_LIT("\r\nX-Kvsteer-Cached: "));
	n += http_write_u64(cached->matched, out + n);
	n += put(out + n, SPAN_LIT("/"));
	n += http_write_u64(cached->blocks, out + n);
	n += put_told(cached, out + n);
	return n + put(out + n, SPAN_LIT("\r\n"));
}
