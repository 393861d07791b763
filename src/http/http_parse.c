/*
 * Owns the reading of a scanned head into struct http_head, and the second opinion on it.
 *
 * The scanner guarantees: CRLF line ends only, a start line of the right shape, a token
 * and a colon in each field line, no control bytes. So reading needs no checks of its
 * own; judging is http_rules.c's. Then llhttp parses the same raw bytes and must see the
 * same message: a head that it refuses, or frames in another way, is refused here and
 * counted (METRIC_FRAMING_DISAGREE). Where it would close and we would not, the
 * connection closes. Nothing else of llhttp's result is used.
 *
 * Called by client connections, by upstream exchanges and by the small server, once a
 * head.
 */
#include "http/llhttp_names.h"

#include "base/err.h"
#include "base/metric.h"
#include "http/http_parse.h"
#include "http/http_rules.h"

#include <string.h>

/* Field names */

static const struct {
	const char *name;
	size_t len;
} http_field_table[FIELD_ID_MAX] = {
#define X(id, name) [FIELD_##id] = {name, sizeof(name) - 1},
	HTTP_FIELD_TABLE(X)
#undef X
};

/* Each known name has a slot of its own: (length + 14 * last character) modulo SLOTS. */
#define SLOTS 128
static const uint8_t slots[SLOTS] = {
	[1] = FIELD_FORWARDED,
	[4] = FIELD_X_REQUEST_ID,
	[8] = FIELD_TE,
	[9] = FIELD_X_CONVERSATION_ID,
	[10] = FIELD_DATE,
	[13] = FIELD_UPGRADE,
	[14] = FIELD_CONNECTION,
	[16] = FIELD_KEEP_ALIVE,
	[17] = FIELD_AUTHORIZATION,
	[18] = FIELD_CONTENT_TYPE,
	[20] = FIELD_PROXY_CONNECTION,
	[21] = FIELD_X_KVSTEER_EXPLAIN,
	[23] = FIELD_PROXY_AUTHORIZATION,
	[24] = FIELD_PROXY_AUTHENTICATE,
	[32] = FIELD_X_KVSTEER_PREFIX,
	[35] = FIELD_X_FORWARDED_PROTO,
	[39] = FIELD_X_API_KEY,
	[41] = FIELD_X_REAL_IP,
	[50] = FIELD_CONTENT_ENCODING,
	[51] = FIELD_TRANSFER_ENCODING,
	[62] = FIELD_CONTENT_LENGTH,
	[66] = FIELD_SERVER,
	[67] = FIELD_TRAILER,
	[71] = FIELD_RETRY_AFTER,
	[75] = FIELD_X_FORWARDED_FOR,
	[76] = FIELD_X_KVSTEER_WORKER,
	[81] = FIELD_VIA,
	[88] = FIELD_HTTP2_SETTINGS,
	[92] = FIELD_HOST,
	[94] = FIELD_EXPECT,
	[117] = FIELD_X_REWRITE_URL,
	[118] = FIELD_X_ORIGINAL_URL,
};

/* clang-format off */
static const bool is_hop_by_hop[FIELD_ID_MAX] = {
	[FIELD_CONNECTION] = true,	   [FIELD_KEEP_ALIVE] = true,
	[FIELD_PROXY_CONNECTION] = true,   [FIELD_PROXY_AUTHORIZATION] = true,
	[FIELD_PROXY_AUTHENTICATE] = true, [FIELD_TE] = true,
	[FIELD_TRAILER] = true,		   [FIELD_TRANSFER_ENCODING] = true,
	[FIELD_UPGRADE] = true,		   [FIELD_HTTP2_SETTINGS] = true,
};
/* clang-format on */

/* Lower case, and '-' for '_'. */
static char fold(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c | 0x20);
	return c == '_' ? '-' : c;
}

static bool begins_folded(struct span name, const char *with, size_t len)
{
	if (name.n < len)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (fold(name.p[i]) != with[i])
			return false;
	}
	return true;
}

/* The eight bytes at name are those at known, letters in any case. Known names have
 * letters, digits and '-', of which letters alone have the bit 0x40. */
static bool is_same_word(const char *name, const char *known)
{
	uint64_t a, b;

	memcpy(&a, name, sizeof(a));
	memcpy(&b, known, sizeof(b));
	return ((a ^ b) & ~((b & 0x4040404040404040u) >> 1)) == 0;
}

/* Both have len bytes. Never with '_' for '-'; false says nothing of short names. */
static bool is_plainly(const char *name, const char *known, size_t len)
{
	if (len < 8)
		return false;
	for (size_t i = 0; i + 8 < len; i += 8) {
		if (!is_same_word(name + i, known + i))
			return false;
	}
	return is_same_word(name + len - 8, known + len - 8);
}

/* Names that are known by their beginning. */
static enum http_field_id family_of(struct span name)
{
	static const enum http_field_id families[] = {FIELD_X_KVSTEER, FIELD_X_FORWARDED};

	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		if (begins_folded(name, http_field_table[families[i]].name,
			    http_field_table[families[i]].len))
			return families[i];
	}
	return FIELD_OTHER;
}

enum http_field_id http_field_id(struct span name, bool *is_lookalike)
{
	enum http_field_id id;

	*is_lookalike = false;
	if (name.n == 0)
		return FIELD_OTHER;
	id = slots[(name.n + 14u * (unsigned)(name.p[name.n - 1] | 0x20)) % SLOTS];
	if (http_field_table[id].len == name.n &&
		is_plainly(name.p, http_field_table[id].name, name.n))
		return id;
	if (id == FIELD_OTHER || http_field_table[id].len != name.n ||
		!begins_folded(name, http_field_table[id].name, name.n)) {
		id = family_of(name);
		if (id == FIELD_OTHER)
			return id;
	}
	*is_lookalike = memchr(name.p, '_', name.n) != NULL;
	return id;
}

const struct http_field *http_head_find_there(
	const struct http_head *h, enum http_field_id id)
{
	for (unsigned i = 0; i < h->n_fields; i++) {
		if (h->fields[i].id == id)
			return &h->fields[i];
	}
	return NULL;
}

const struct http_field *http_head_named(
	const char *base, const struct http_head *h, struct span name)
{
	for (unsigned i = 0; i < h->n_fields; i++) {
		if (span_case_eq(http_field_name(base, &h->fields[i]), name))
			return &h->fields[i];
	}
	return NULL;
}

/* Reading */

/* The treatment of a spelling with '_' in a request: refused, dropped, or a field like
 * any other. */
static void read_lookalike(
	struct http_judged *j, struct http_field *f, enum http_field_id id)
{
	switch (id) {
	case FIELD_CONTENT_LENGTH:
	case FIELD_TRANSFER_ENCODING:
	case FIELD_X_API_KEY:
	case FIELD_PROXY_AUTHORIZATION:
		j->has_lookalike = true;
		break;
	case FIELD_X_KVSTEER:
	case FIELD_X_KVSTEER_PREFIX:
	case FIELD_X_KVSTEER_WORKER:
	case FIELD_X_KVSTEER_EXPLAIN:
		f->id = FIELD_X_KVSTEER;
		j->head->present |= UINT64_C(1) << FIELD_X_KVSTEER;
		break;
	case FIELD_X_FORWARDED:
	case FIELD_X_FORWARDED_FOR:
	case FIELD_X_FORWARDED_PROTO:
	case FIELD_X_REAL_IP:
	case FIELD_X_ORIGINAL_URL:
	case FIELD_X_REWRITE_URL:
	case FIELD_X_REQUEST_ID:
		f->is_hop = !j->head->is_response;
		break;
	default:
		break;
	}
}

static void note_field(struct http_judged *j, struct http_field *f)
{
	bool is_lookalike;
	enum http_field_id id = http_field_id(http_field_name(j->base, f), &is_lookalike);

	f->id = FIELD_OTHER;
	f->is_hop = false;
	if (UNLIKELY(is_lookalike)) {
		read_lookalike(j, f, id);
		return;
	}
	f->id = (uint8_t)id;
	j->head->present |= UINT64_C(1) << id;
	f->is_hop = is_hop_by_hop[id];
	if (j->count[id]++ == 0)
		j->first[id] = (uint16_t)(f - j->head->fields);
}

/* One field line at p; returns the start of the next line. */
static const char *read_field(
	struct http_judged *j, struct http_field *f, const char *p, const char *end)
{
	const char *colon = memchr(p, ':', (size_t)(end - p));
	const char *cr = memchr(colon, '\r', (size_t)(end - colon));
	const char *value = colon + 1, *value_end = cr;

	while (value < value_end && (*value == ' ' || *value == '\t'))
		value++;
	while (value < value_end && (value_end[-1] == ' ' || value_end[-1] == '\t'))
		value_end--;
	f->name_off = (uint32_t)(p - j->base);
	f->name_len = (uint16_t)(colon - p);
	f->value_off = (uint32_t)(value - j->base);
	f->value_len = (uint32_t)(value_end - value);
	note_field(j, f);
	return cr + 2;
}

static void read_fields(struct http_judged *j, const char *p, const char *end)
{
	struct http_head *h = j->head;

	while (*p != '\r') {
		assert(h->n_fields < HTTP_FIELDS_MAX);
		p = read_field(j, &h->fields[h->n_fields], p, end);
		h->n_fields++;
	}
	assert(p + 2 == end);
}

/* The length of "http://" or "https://" in front, 0 without. */
static size_t scheme_length(struct span target)
{
	static const struct span schemes[] = {{"http://", 7}, {"https://", 8}};

	if (target.n > 0 && target.p[0] == '/')
		return 0;
	for (unsigned i = 0; i < ARRAY_LEN(schemes); i++) {
		if (target.n >= schemes[i].n &&
			span_case_eq(span_make(target.p, schemes[i].n), schemes[i]))
			return schemes[i].n;
	}
	return 0;
}

/* Splits an absolute form into host and what follows it. */
static void read_absolute(struct http_judged *j, struct span target, size_t scheme_len)
{
	struct http_head *h = j->head;
	size_t end = scheme_len;

	while (end < target.n && target.p[end] != '/' && target.p[end] != '?')
		end++;
	j->form = HTTP_TARGET_ABSOLUTE;
	h->is_absolute = true;
	h->host_off = h->target_off + (uint32_t)scheme_len;
	h->host_len = (uint32_t)(end - scheme_len);
	if (end == target.n) { /* no path: a slash of "//" serves as one */
		h->target_off += (uint32_t)scheme_len - 1;
		h->target_len = 1;
	} else {
		h->target_off += (uint32_t)end;
		h->target_len -= (uint32_t)end;
	}
}

static void read_target(struct http_judged *j, struct span target)
{
	struct http_head *h = j->head;
	size_t scheme_len = scheme_length(target);
	const char *query;

	h->target_off = (uint32_t)(target.p - j->base);
	h->target_len = (uint32_t)target.n;
	if (target.p[0] == '/')
		j->form = HTTP_TARGET_ORIGIN;
	else if (target.n == 1 && target.p[0] == '*')
		j->form = HTTP_TARGET_ASTERISK;
	else if (scheme_len > 0)
		read_absolute(j, target, scheme_len);
	target = http_head_target(j->base, h);
	query = memchr(target.p, '?', target.n);
	h->path_len = query != NULL ? (uint32_t)(query - target.p) : h->target_len;
}

/* The digit of "HTTP/1.x". A higher minor version than ours is read as ours (RFC 9110,
 * 2.5). */
static void read_minor(struct http_judged *j, const char *digit)
{
	j->head->minor = (uint8_t)(*digit - '0');
	if (j->head->minor <= 1)
		return;
	j->head->minor = 1;
	j->higher_minor = digit;
}

/* "METHOD target HTTP/1.x": returns the start of the next line. */
static const char *read_request_line(
	struct http_judged *j, const char *p, const char *end)
{
	const char *method_end, *target_end;

	if (*p == '\r')
		p += 2;
	method_end = memchr(p, ' ', (size_t)(end - p));
	target_end = memchr(method_end + 1, ' ', (size_t)(end - method_end - 1));
	j->method = span_make(p, (size_t)(method_end - p));
	read_target(j, span_make(method_end + 1, (size_t)(target_end - method_end - 1)));
	read_minor(j, target_end + 8);
	return target_end + 11;
}

/* "HTTP/1.x NNN[ reason]" */
static const char *read_status_line(struct http_judged *j, const char *p, const char *end)
{
	const char *cr = memchr(p, '\r', (size_t)(end - p));

	read_minor(j, p + 7);
	j->head->status =
		(uint16_t)((p[9] - '0') * 100 + (p[10] - '0') * 10 + (p[11] - '0'));
	return cr + 2;
}

/* The second opinion */

struct opinion {
	llhttp_t parser;  /* first: callbacks get it */
	bool has_no_body; /* we know it, llhttp cannot */
	bool saw_head, is_complete;
	bool would_close;
};

static int on_headers_complete(llhttp_t *parser)
{
	struct opinion *o = container_of(parser, struct opinion, parser);

	parser->upgrade = 0; /* C17: whatever follows is HTTP/1.1 */
	o->saw_head = true;
	o->would_close = !llhttp_should_keep_alive(parser);
	return o->has_no_body ? 1 : 0;
}

static int on_message_complete(llhttp_t *parser)
{
	container_of(parser, struct opinion, parser)->is_complete = true;
	return HPE_PAUSED;
}

static const llhttp_settings_t opinion_settings = {
	.on_headers_complete = on_headers_complete,
	.on_message_complete = on_message_complete,
};

/* higher_minor: the digit that llhttp, which knows 1.0 and 1.1 alone, sees as 1; NULL:
 * none. */
static llhttp_errno_t opinion_read(
	struct opinion *o, const char *p, size_t n, const char *higher_minor)
{
	llhttp_errno_t err = HPE_OK;

	if (LIKELY(higher_minor == NULL))
		return llhttp_execute(&o->parser, p, n);
	err = llhttp_execute(&o->parser, p, (size_t)(higher_minor - p));
	if (err == HPE_OK)
		err = llhttp_execute(&o->parser, "1", 1);
	if (err == HPE_OK)
		err = llhttp_execute(
			&o->parser, higher_minor + 1, n - (size_t)(higher_minor + 1 - p));
	return err;
}

static void opinion_ask(struct opinion *o, llhttp_type_t type, bool has_no_body,
	const char *p, size_t n, const char *higher_minor)
{
	o->saw_head = o->is_complete = o->would_close = false;
	o->has_no_body = has_no_body;
	llhttp_init(&o->parser, type, &opinion_settings);
	if (opinion_read(o, p, n, higher_minor) != HPE_OK && !o->is_complete)
		o->saw_head = false;
}

/* The whole head was one head, and no byte of it was left over. */
static bool opinion_fits_end(const struct opinion *o, const char *end)
{
	return o->saw_head &&
	       (!o->is_complete || llhttp_get_error_pos(&o->parser) == end);
}

static bool opinion_fits_start(const struct opinion *o, const struct http_head *h)
{
	const llhttp_t *parser = &o->parser;

	if (parser->http_major != 1 || parser->http_minor != h->minor)
		return false;
	if (h->is_response)
		return parser->status_code == h->status;
	return strcmp(llhttp_method_name((llhttp_method_t)parser->method),
		       http_method_name(h->method)) == 0;
}

static bool opinion_fits_framing(const struct opinion *o, const struct http_head *h)
{
	const llhttp_t *parser = &o->parser;
	bool is_empty = h->framing == HTTP_BODY_NONE ||
			(h->framing == HTTP_BODY_LENGTH && h->content_length == 0);

	if (o->is_complete != is_empty)
		return false;
	if (o->has_no_body)
		return true;
	return h->framing != HTTP_BODY_LENGTH ||
	       parser->content_length == h->content_length;
}

/* False, and counted: llhttp sees another message than we do. */
static bool opinion_agrees(
	const struct http_judged *j, const char *buf, uint32_t head_len)
{
	struct http_head *h = j->head;
	struct opinion o;
	bool has_no_body = h->is_response && h->framing == HTTP_BODY_NONE;

	opinion_ask(&o, h->is_response ? HTTP_RESPONSE : HTTP_REQUEST, has_no_body, buf,
		head_len, j->higher_minor);
	if (!opinion_fits_end(&o, buf + head_len) || !opinion_fits_start(&o, h) ||
		!opinion_fits_framing(&o, h)) {
		metric_inc(METRIC_FRAMING_DISAGREE);
		return false;
	}
	if (o.would_close) {
		h->wants_close = true;
		h->keep_alive_10 = false;
	}
	return true;
}

static bool loose_takes(llhttp_type_t type, const char *text)
{
	struct opinion o;

	opinion_ask(&o, type, false, text, strlen(text), NULL);
	return o.is_complete;
}

bool http_parse_selftest(void)
{
	static const char *const bad[] = {
		"GET / HTTP/1.1\r\nHost: a\r\nX-A: \rxX-B: c\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n\rX",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\n",
	};

	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		if (loose_takes(HTTP_REQUEST, bad[i]))
			return false;
	}
	return loose_takes(HTTP_REQUEST, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
}

/* Both kinds of head */

static void begin_judged(
	struct http_judged *j, const char *buf, uint32_t head_len, struct http_head *out)
{
	memset(out, 0, offsetof(struct http_head, fields));
	out->head_len = head_len;
	memset(j, 0, sizeof(*j));
	j->base = buf;
	j->head = out;
}

int http_parse_request(
	const char *buf, uint32_t head_len, struct http_head *out, enum fail *why)
{
	struct http_judged j;
	const char *end = buf + head_len;

	begin_judged(&j, buf, head_len, out);
	read_fields(&j, read_request_line(&j, buf, end), end);
	if (http_rules_request(&j, why) < 0)
		return ERR_PARSE;
	if (opinion_agrees(&j, buf, head_len))
		return 0;
	*why = FAIL_BAD_FRAMING;
	return ERR_PARSE;
}

int http_parse_response(const char *buf, uint32_t head_len, enum http_method for_method,
	struct http_head *out, enum fail *why)
{
	struct http_judged j;
	const char *end = buf + head_len;

	begin_judged(&j, buf, head_len, out);
	out->is_response = true;
	j.for_method = for_method;
	read_fields(&j, read_status_line(&j, buf, end), end);
	if (http_rules_response(&j, why) < 0)
		return ERR_PARSE;
	if (opinion_agrees(&j, buf, head_len))
		return 0;
	*why = FAIL_WORKER_PROTOCOL;
	return ERR_PARSE;
}
