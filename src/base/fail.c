/*
 * The rows of fail_table.h as look-ups, the error body, and the reason phrases of HTTP
 * statuses.
 * Texts in the table need no JSON escaping (check_fail.c holds them to that). Called by
 * every layer above.
 */
#include "base/fail.h"

#include <stdio.h>
#include <string.h>

struct fail_row {
	int status;
	const char *type, *code, *text;
};

static const struct fail_row rows[FAIL_MAX] = {
#define X(name, status, type, code, text) [FAIL_##name] = {status, type, code, text},
	FAIL_TABLE(X)
#undef X
};

static const struct fail_row *row_of(enum fail why)
{
	assert((unsigned)why < FAIL_MAX);
	return &rows[why];
}

int fail_status(enum fail why)
{
	return row_of(why)->status;
}

const char *fail_code(enum fail why)
{
	return row_of(why)->code;
}

const char *fail_type(enum fail why)
{
	return row_of(why)->type;
}

const char *fail_text(enum fail why)
{
	return row_of(why)->text;
}

bool fail_is_workers(enum fail why)
{
	return strcmp(row_of(why)->type, "upstream_error") == 0;
}

size_t fail_body(enum fail why, char *out, size_t n)
{
	return fail_body_saying(why, fail_text(why), out, n);
}

size_t fail_body_saying(enum fail why, const char *message, char *out, size_t n)
{
	const struct fail_row *row = row_of(why);
	int len;

	if (n == 0)
		return 0;
	len = snprintf(out, n,
		"{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
		"\"code\":\"%s\"}}",
		message, row->type, row->code);
	return len < 0 ? 0 : MIN((size_t)len, n - 1);
}

/* clang-format off */
/* RFC 9110 section 15 and the registry's later additions. */
static const struct {
	int status;
	const char *phrase;
} phrases[] = {
	{ 100, "Continue" },
	{ 101, "Switching Protocols" },
	{ 102, "Processing" },
	{ 103, "Early Hints" },
	{ 200, "OK" },
	{ 201, "Created" },
	{ 202, "Accepted" },
	{ 203, "Non-Authoritative Information" },
	{ 204, "No Content" },
	{ 205, "Reset Content" },
	{ 206, "Partial Content" },
	{ 300, "Multiple Choices" },
	{ 301, "Moved Permanently" },
	{ 302, "Found" },
	{ 303, "See Other" },
	{ 304, "Not Modified" },
	{ 305, "Use Proxy" },
	{ 307, "Temporary Redirect" },
	{ 308, "Permanent Redirect" },
	{ 400, "Bad Request" },
	{ 401, "Unauthorized" },
	{ 402, "Payment Required" },
	{ 403, "Forbidden" },
	{ 404, "Not Found" },
	{ 405, "Method Not Allowed" },
	{ 406, "Not Acceptable" },
	{ 407, "Proxy Authentication Required" },
	{ 408, "Request Timeout" },
	{ 409, "Conflict" },
	{ 410, "Gone" },
	{ 411, "Length Required" },
	{ 412, "Precondition Failed" },
	{ 413, "Content Too Large" },
	{ 414, "URI Too Long" },
	{ 415, "Unsupported Media Type" },
	{ 416, "Range Not Satisfiable" },
	{ 417, "Expectation Failed" },
	{ 421, "Misdirected Request" },
	{ 422, "Unprocessable Content" },
	{ 423, "Locked" },
	{ 424, "Failed Dependency" },
	{ 425, "Too Early" },
	{ 426, "Upgrade Required" },
	{ 428, "Precondition Required" },
	{ 429, "Too Many Requests" },
	{ 431, "Request Header Fields Too Large" },
	{ 451, "Unavailable For Legal Reasons" },
	{ 500, "Internal Server Error" },
	{ 501, "Not Implemented" },
	{ 502, "Bad Gateway" },
	{ 503, "Service Unavailable" },
	{ 504, "Gateway Timeout" },
	{ 505, "HTTP Version Not Supported" },
	{ 507, "Insufficient Storage" },
	{ 511, "Network Authentication Required" },
};
/* clang-format on */

const char *fail_reason_phrase(int status)
{
	for (size_t i = 0; i < ARRAY_LEN(phrases); i++)
		if (phrases[i].status == status)
			return phrases[i].phrase;
	return "Unknown";
}

bool fail_keeps_connection(enum fail why)
{
	switch (why) {
	case FAIL_MALFORMED_REQUEST:
	case FAIL_BAD_TARGET:
	case FAIL_BAD_HOST:
	case FAIL_BAD_FRAMING:
	case FAIL_BAD_CHUNK:
	case FAIL_CHUNK_EXTENSIONS:
	case FAIL_CHUNK_OVERHEAD:
	case FAIL_CONNECTION_TOO_LONG:
	case FAIL_BAD_HEADER:
	case FAIL_CLIENT_TIMEOUT:
	case FAIL_BODY_TOO_LARGE:
	case FAIL_MAX_BODY_SIZE:
	case FAIL_LINE_TOO_LARGE:
	case FAIL_HEAD_TOO_LARGE:
	case FAIL_TOO_MANY_FIELDS:
	case FAIL_TRAILER_TOO_LARGE:
	case FAIL_EXPECTATION:
	case FAIL_NOT_IMPLEMENTED:
	case FAIL_HTTP_VERSION:
		return false;
	default:
		return true;
	}
}
