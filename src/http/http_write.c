/*
 * Owns the form of outgoing heads. It rebuilds heads from parsed fields instead of
 * copying them, so neither framing nor hop-by-hop fields of one side ever reach the
 * other.
 *
 * All writing goes through one cursor that remembers whether everything fitted. Field
 * values are passed byte by byte as they came, repeated fields stay apart and in order;
 * only Via, and X-Forwarded-For of a trusted proxy, are joined into one line, because ours
 * is appended.
 *
 * Called by the forward and relay steps of the proxy, and by the small server for its own
 * answers.
 */
#include "http/http_write.h"

#include "base/fail.h"

#include <string.h>

struct cursor {
	char *p, *end;
	bool is_full;
};

static bool has_room(struct cursor *c, size_t n)
{
	if (LIKELY((size_t)(c->end - c->p) >= n))
		return true;
	c->is_full = true;
	return false;
}

static char *copy(char *to, struct span s)
{
	if (s.n > 0)
		memcpy(to, s.p, s.n);
	return to + s.n;
}

/* Inlined, so that texts whose length is known are a few stores. */
static inline __attribute__((always_inline)) void put(struct cursor *c, struct span s)
{
	if (has_room(c, s.n))
		c->p = copy(c->p, s);
}

#define PUT_LIT(c, text) put(c, SPAN_LIT(text))

#define U64_DIGITS 20

size_t http_write_u64(uint64_t n, char *out)
{
	uint64_t bound = 10;
	size_t len = 1, i;

	for (; n >= bound && len < U64_DIGITS; bound *= 10)
		len++;
	for (i = len; i > 1; n /= 100) { /* half as many divisions */
		unsigned pair = (unsigned)(n % 100);

		out[--i] = (char)('0' + pair % 10);
		out[--i] = (char)('0' + pair / 10);
	}
	if (i > 0)
		out[0] = (char)('0' + n);
	return len;
}

/* In place where there is room: to copy digits that were just written takes as long as to
 * write them. */
static void put_u64(struct cursor *c, uint64_t n)
{
	char digits[U64_DIGITS];

	if ((size_t)(c->end - c->p) >= U64_DIGITS)
		c->p += http_write_u64(n, c->p);
	else
		put(c, span_make(digits, http_write_u64(n, digits)));
}

static void put_line(struct cursor *c, struct span name, struct span value)
{
	char *p;

	if (!has_room(c, name.n + value.n + 4))
		return;
	p = copy(c->p, name);
	p = copy(p, SPAN_LIT(": "));
	p = copy(p, value);
	c->p = copy(p, SPAN_LIT("\r\n"));
}

static void put_length(struct cursor *c, uint64_t length)
{
	PUT_LIT(c, "Content-Length: ");
	put_u64(c, length);
	PUT_LIT(c, "\r\n");
}

static void put_framing(struct cursor *c, enum http_framing framing, uint64_t length)
{
	if (framing == HTTP_BODY_LENGTH)
		put_length(c, length);
	if (framing == HTTP_BODY_CHUNKED)
		PUT_LIT(c, "Transfer-Encoding: chunked\r\n");
}

static size_t finish(struct cursor *c, const char *begin)
{
	PUT_LIT(c, "\r\n");
	return c->is_full ? 0 : (size_t)(c->p - begin);
}

static void put_value(struct cursor *c, struct span *before, struct span value)
{
	if (value.n == 0)
		return;
	put(c, *before);
	put(c, value);
	*before = SPAN_LIT(", ");
}

/* One line of all fields with this id and then last, parted by ", "; no line when all is
 * empty. begin: "Name: ". */
static void put_joined(struct cursor *c, const char *base, const struct http_head *h,
	enum http_field_id id, struct span begin, struct span last)
{
	unsigned n = http_head_has(h, id) ? h->n_fields : 0;
	struct span before = begin;

	for (unsigned i = 0; i < n; i++) {
		const struct http_field *f = &h->fields[i];

		if (f->id == id && !f->is_hop)
			put_value(c, &before, http_field_value(base, f));
	}
	put_value(c, &before, last);
	if (before.p != begin.p)
		PUT_LIT(c, "\r\n");
}

static bool is_edited(
	const struct http_edit *e, const char *base, const struct http_field *f)
{
	return e != NULL && e->n_dropped > 0 &&
	       http_edit_drops(e, http_field_name(base, f));
}

static void put_edit(struct cursor *c, const struct http_edit *e)
{
	if (e != NULL)
		put(c, span_make(e->lines, e->lines_n));
}

static bool is_named(
	const struct http_request_out *o, const struct http_field *f, struct span name)
{
	return span_case_eq(http_field_name(o->base, f), name);
}

/* For fields that have no id of their own. */
static bool ends_here(const struct http_request_out *o, const struct http_field *f)
{
	return (o->drop_credentials && is_named(o, f, SPAN_LIT("cookie"))) ||
	       (o->accepts_plain && is_named(o, f, SPAN_LIT("accept-encoding")));
}

/* Fields of a request that are never copied; what is written in their place comes
 * afterwards. */
static bool is_replaced(const struct http_request_out *o, const struct http_field *f)
{
	switch (f->id) {
	case FIELD_HOST:
	case FIELD_CONTENT_LENGTH:
	case FIELD_TRANSFER_ENCODING:
	case FIELD_EXPECT:
	case FIELD_VIA:
	case FIELD_X_FORWARDED_FOR:
	case FIELD_X_FORWARDED_PROTO:
	case FIELD_X_REQUEST_ID:
	case FIELD_X_KVSTEER:
	case FIELD_X_KVSTEER_PREFIX:
	case FIELD_X_KVSTEER_WORKER:
	case FIELD_X_KVSTEER_EXPLAIN:
		return true;
	case FIELD_FORWARDED:
	case FIELD_X_FORWARDED:
	case FIELD_X_REAL_IP:
	case FIELD_X_ORIGINAL_URL:
	case FIELD_X_REWRITE_URL:
		return f->is_hop || !o->is_forwarded;
	case FIELD_AUTHORIZATION:
	case FIELD_X_API_KEY:
		return o->drop_credentials || o->authorization.n > 0;
	case FIELD_OTHER:
		return f->is_hop || ends_here(o, f);
	default:
		return f->is_hop;
	}
}

/* With '_' for '-' too: some servers take one for the other. */
static bool is_rank_field(struct span name)
{
	static const char rank[] = "x-data-parallel-rank";

	if (name.n != sizeof(rank) - 1)
		return false;
	for (size_t i = 0; i < name.n; i++) {
		char c = name.p[i] == '_' ? '-' : name.p[i];

		if (c != rank[i] && (c < 'A' || c > 'Z' || (c | 0x20) != rank[i]))
			return false;
	}
	return true;
}

static void put_request_line(struct cursor *c, const struct http_request_out *o)
{
	struct span target = http_head_target(o->base, o->head);
	bool is_asterisk = span_eq(target, SPAN_LIT("*"));

	put(c, span_str(http_method_name(o->head->method)));
	PUT_LIT(c, " ");
	if (!is_asterisk)
		put(c, o->url_base);
	if (o->head->path_len == 0)
		PUT_LIT(c, "/");
	put(c, target);
	PUT_LIT(c, " HTTP/1.1\r\n");
}

size_t http_write_request(const struct http_request_out *o, char *out, size_t cap)
{
	struct cursor c = {out, out + cap, false};
	const struct http_head *h = o->head;

	put_request_line(&c, o);
	put(&c, o->host_line);
	put(&c, o->rank_line);
	for (unsigned i = 0; i < h->n_fields; i++) {
		const struct http_field *f = &h->fields[i];

		if (o->rank_line.n > 0 && is_rank_field(http_field_name(o->base, f)))
			continue;
		if (!f->is_hop && !is_replaced(o, f) && !is_edited(o->edit, o->base, f))
			put_line(&c, http_field_name(o->base, f),
				http_field_value(o->base, f));
	}
	if (o->authorization.n > 0)
		put_line(&c, SPAN_LIT("Authorization"), o->authorization);
	if (o->is_forwarded)
		put_joined(&c, o->base, h, FIELD_X_FORWARDED_FOR,
			SPAN_LIT("X-Forwarded-For: "), o->peer_ip);
	else
		put_line(&c, SPAN_LIT("X-Forwarded-For"), o->peer_ip);
	put_line(&c, SPAN_LIT("X-Forwarded-Proto"), o->proto);
	put_joined(&c, o->base, h, FIELD_VIA, SPAN_LIT("Via: "), SPAN_LIT("1.1 kvsteer"));
	if (o->request_id.n > 0)
		put_line(&c, SPAN_LIT("X-Request-Id"), o->request_id);
	put_framing(&c, o->framing, o->content_length);
	put_edit(&c, o->edit);
	put(&c, o->extra);
	return finish(&c, out);
}

static void put_status_line(struct cursor *c, int status)
{
	PUT_LIT(c, "HTTP/1.1 ");
	put_u64(c, (uint64_t)status);
	PUT_LIT(c, " ");
	put(c, span_str(fail_reason_phrase(status)));
	PUT_LIT(c, "\r\n");
}

static void put_persistence(struct cursor *c, const struct http_response_out *o)
{
	if (o->close || o->framing == HTTP_BODY_UNTIL_CLOSE) {
		PUT_LIT(c, "Connection: close\r\n");
		return;
	}
	/* A Keep-Alive field is hop-by-hop: the Connection field must name it. */
	if (o->keep_alive_10 || o->keepalive_secs > 0)
		PUT_LIT(c, "Connection: keep-alive\r\n");
	if (o->keepalive_secs > 0) {
		PUT_LIT(c, "Keep-Alive: timeout=");
		put_u64(c, o->keepalive_secs);
		PUT_LIT(c, "\r\n");
	}
}

static bool is_reframed(const struct http_field *f)
{
	return f->is_hop || f->id == FIELD_CONTENT_LENGTH ||
	       f->id == FIELD_TRANSFER_ENCODING;
}

static bool is_cors(struct span name)
{
	struct span beginning = SPAN_LIT("access-control-");

	return name.n > beginning.n &&
	       span_case_eq(span_make(name.p, beginning.n), beginning);
}

size_t http_write_response(const struct http_response_out *o, char *out, size_t cap)
{
	struct cursor c = {out, out + cap, false};
	const struct http_head *h = o->head;
	bool has_id = false;

	put_status_line(&c, h->status);
	for (unsigned i = 0; i < h->n_fields; i++) {
		const struct http_field *f = &h->fields[i];

		if (is_reframed(f) || is_edited(o->edit, o->base, f) ||
			(o->drop_cors && is_cors(http_field_name(o->base, f))))
			continue;
		has_id |= f->id == FIELD_X_REQUEST_ID;
		put_line(&c, http_field_name(o->base, f), http_field_value(o->base, f));
	}
	if (o->request_id.n > 0 && !has_id)
		put_line(&c, SPAN_LIT("X-Request-Id"), o->request_id);
	if (o->framing == HTTP_BODY_NONE && h->has_length)
		put_length(&c, h->content_length);
	put_framing(&c, o->framing, o->content_length);
	put_persistence(&c, o);
	put_edit(&c, o->edit);
	put(&c, o->extra);
	return finish(&c, out);
}

size_t http_write_own(int status, struct span content_type, uint64_t content_length,
	bool close, struct span extra, char *out, size_t cap)
{
	struct cursor c = {out, out + cap, false};

	put_status_line(&c, status);
	if (content_type.n > 0)
		put_line(&c, SPAN_LIT("Content-Type"), content_type);
	if (status >= 200 && status != 204)
		put_length(&c, content_length);
	if (close)
		PUT_LIT(&c, "Connection: close\r\n");
	put(&c, extra);
	return finish(&c, out);
}
