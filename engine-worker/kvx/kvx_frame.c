/*
 * The frames of KVX/1, written and read; kvx_frame.h says what they are. A reader never
 * looks beyond its payload, and takes all of it. Called by kvx_link.c (headers),
 * kvx_server.c and kvx_client.c (payloads), and the fuzz target.
 */
#include "kvx/kvx_frame.h"
#include "base/crc32c.h"
#include "base/err.h"

static const unsigned char magic[4] = {'K', 'V', 'X', '1'};

/* Bytes */

static void put(struct kvx_out *o, const void *bytes, size_t n)
{
	if (o->is_full || n > o->cap - o->n) {
		o->is_full = true;
		return;
	}
	if (n > 0)
		memcpy(o->p + o->n, bytes, n);
	o->n += n;
}

static void put_number(struct kvx_out *o, uint64_t value, size_t n)
{
	unsigned char bytes[8];

	for (size_t i = 0; i < n; i++)
		bytes[i] = (unsigned char)(value >> 8 * i);
	put(o, bytes, n);
}

void kvx_put_u16(struct kvx_out *o, uint16_t n)
{
	put_number(o, n, 2);
}

void kvx_put_u32(struct kvx_out *o, uint32_t n)
{
	put_number(o, n, 4);
}

static void put_text(struct kvx_out *o, struct span text)
{
	put_number(o, text.n, 2);
	put(o, text.p, text.n);
	o->is_full |= text.n > UINT16_MAX;
}

/* A payload being read; is_bad once it was too short. */
struct in {
	struct span rest;
	bool is_bad;
};

static const char *get(struct in *in, size_t n)
{
	const char *at = in->rest.p;

	if (in->is_bad || n > in->rest.n) {
		in->is_bad = true;
		return NULL;
	}
	in->rest = span_make(at + n, in->rest.n - n);
	return at;
}

static void get_bytes(struct in *in, void *out, size_t n)
{
	const char *at = get(in, n);

	if (at != NULL)
		memcpy(out, at, n);
}

static uint64_t get_number(struct in *in, size_t n)
{
	const char *at = get(in, n);
	uint64_t value = 0;

	for (size_t i = 0; at != NULL && i < n; i++)
		value |= (uint64_t)(unsigned char)at[i] << 8 * i;
	return value;
}

static struct span get_text(struct in *in, size_t max)
{
	size_t n = get_number(in, 2);
	const char *at = n <= max ? get(in, n) : NULL;

	in->is_bad |= n > max;
	return at != NULL ? span_make(at, n) : span_make(NULL, 0);
}

/* 0 when all was there, and no more. */
static int end_of(const struct in *in)
{
	return in->is_bad || in->rest.n > 0 ? ERR_PARSE : 0;
}

/* Headers */

void kvx_header_write(const struct kvx_header *h, unsigned char out[KVX_HEADER_BYTES])
{
	struct kvx_out o = {out, 0, KVX_HEADER_BYTES, false};

	put(&o, magic, sizeof(magic));
	put_number(&o, h->type, 1);
	put_number(&o, 0, 3);
	put_number(&o, h->stream, 4);
	put_number(&o, h->len, 4);
	put_number(&o, h->crc, 4);
	put_number(&o, h->aux, 8);
	put_number(&o, crc32c(0, out, o.n), 4);
	assert(!o.is_full && o.n == KVX_HEADER_BYTES);
}

static bool is_type(uint8_t type)
{
	return (type >= KVX_HELLO && type < KVX_TYPE_MAX) || type == KVX_ERR;
}

int kvx_header_read(const unsigned char bytes[KVX_HEADER_BYTES], uint32_t max_len,
	struct kvx_header *out)
{
	struct in in = {
		span_make((const char *)bytes + sizeof(magic), KVX_HEADER_BYTES - 4),
		false};
	struct kvx_header h;
	uint64_t reserved;

	if (memcmp(bytes, magic, sizeof(magic)) != 0)
		return ERR_PARSE;
	h.type = (uint8_t)get_number(&in, 1);
	reserved = get_number(&in, 3);
	h.stream = (uint32_t)get_number(&in, 4);
	h.len = (uint32_t)get_number(&in, 4);
	h.crc = (uint32_t)get_number(&in, 4);
	h.aux = get_number(&in, 8);
	if (get_number(&in, 4) != crc32c(0, bytes, KVX_HEADER_BYTES - 4) ||
		end_of(&in) != 0 || reserved != 0 || !is_type(h.type))
		return ERR_PARSE;
	if (h.len > max_len || (h.type != KVX_BLOCK && h.len > KVX_SMALL_MAX))
		return ERR_LIMIT;
	*out = h;
	return 0;
}

bool kvx_payload_fits(const struct kvx_header *h, struct span payload)
{
	return payload.n == h->len && crc32c(0, payload.p, payload.n) == h->crc;
}

/* Payloads */

void kvx_put_hello(struct kvx_out *o, const struct kvx_hello *h)
{
	char id[KVX_ENGINE_ID_BYTES] = {0};

	memcpy(id, h->engine_id, strnlen(h->engine_id, sizeof(id)));
	put_number(o, h->version, 2);
	put_number(o, h->role, 1);
	put_number(o, 0, 1);
	put(o, id, sizeof(id));
	put(o, h->compat, sizeof(h->compat));
	put_number(o, h->block_bytes, 8);
	put_number(o, h->block_tokens, 2);
	put_number(o, h->dtype, 1);
	put_number(o, h->layout, 1);
	put_number(o, h->max_frame, 4);
	put_number(o, h->caps, 4);
}

int kvx_get_hello(struct span payload, struct kvx_hello *out)
{
	struct in in = {payload, false};
	struct kvx_hello h = {0};

	h.version = (uint16_t)get_number(&in, 2);
	h.role = (uint8_t)get_number(&in, 1);
	(void)get_number(&in, 1);
	get_bytes(&in, h.engine_id, KVX_ENGINE_ID_BYTES);
	get_bytes(&in, h.compat, sizeof(h.compat));
	h.block_bytes = get_number(&in, 8);
	h.block_tokens = (uint16_t)get_number(&in, 2);
	h.dtype = (uint8_t)get_number(&in, 1);
	h.layout = (uint8_t)get_number(&in, 1);
	h.max_frame = (uint32_t)get_number(&in, 4);
	h.caps = (uint32_t)get_number(&in, 4);
	if (end_of(&in) != 0)
		return ERR_PARSE;
	*out = h;
	return 0;
}

void kvx_put_pull(struct kvx_out *o, const struct kvx_pull_frame *p)
{
	put_text(o, p->request);
	put(o, p->token, sizeof(p->token));
	kvx_put_u32(o, p->skip);
	kvx_put_u32(o, p->credit);
}

int kvx_get_pull(struct span payload, struct kvx_pull_frame *out)
{
	struct in in = {payload, false};
	struct kvx_pull_frame p = {.request = get_text(&in, KVX_REQUEST_MAX)};

	get_bytes(&in, p.token, sizeof(p.token));
	p.skip = (uint32_t)get_number(&in, 4);
	p.credit = (uint32_t)get_number(&in, 4);
	if (end_of(&in) != 0)
		return ERR_PARSE;
	*out = p;
	return 0;
}

void kvx_put_pull_ok(struct kvx_out *o, const struct kvx_pull_ok *p)
{
	kvx_put_u32(o, p->blocks);
	kvx_put_u32(o, p->tokens);
	kvx_put_u32(o, p->lease_ms);
	put_number(o, p->revision, 8);
}

int kvx_get_pull_ok(struct span payload, struct kvx_pull_ok *out)
{
	struct in in = {payload, false};
	struct kvx_pull_ok p;

	p.blocks = (uint32_t)get_number(&in, 4);
	p.tokens = (uint32_t)get_number(&in, 4);
	p.lease_ms = (uint32_t)get_number(&in, 4);
	p.revision = get_number(&in, 8);
	if (end_of(&in) != 0)
		return ERR_PARSE;
	*out = p;
	return 0;
}

void kvx_put_block_head(struct kvx_out *o, const struct kvx_block_head *b)
{
	kvx_put_u32(o, b->index);
	kvx_put_u16(o, b->tokens);
	kvx_put_u16(o, 0);
}

int kvx_get_block(struct span payload, struct kvx_block_head *out, struct span *block)
{
	struct in in = {payload, false};
	struct kvx_block_head b;

	b.index = (uint32_t)get_number(&in, 4);
	b.tokens = (uint16_t)get_number(&in, 2);
	if (get_number(&in, 2) != 0 || in.is_bad)
		return ERR_PARSE;
	*out = b;
	*block = in.rest;
	return 0;
}

void kvx_put_credit(struct kvx_out *o, uint32_t n)
{
	kvx_put_u32(o, n);
}

int kvx_get_credit(struct span payload, uint32_t *out)
{
	struct in in = {payload, false};
	uint32_t n = (uint32_t)get_number(&in, 4);

	if (end_of(&in) != 0)
		return ERR_PARSE;
	*out = n;
	return 0;
}

void kvx_put_end(struct kvx_out *o, const struct kvx_end *e)
{
	kvx_put_u32(o, e->blocks);
	put_number(o, e->digest, 8);
}

int kvx_get_end(struct span payload, struct kvx_end *out)
{
	struct in in = {payload, false};
	struct kvx_end e;

	e.blocks = (uint32_t)get_number(&in, 4);
	e.digest = get_number(&in, 8);
	if (end_of(&in) != 0)
		return ERR_PARSE;
	*out = e;
	return 0;
}

void kvx_put_release(struct kvx_out *o, const struct kvx_release *r)
{
	put_text(o, r->request);
	put(o, r->token, sizeof(r->token));
	put_number(o, r->reason, 1);
}

int kvx_get_release(struct span payload, struct kvx_release *out)
{
	struct in in = {payload, false};
	struct kvx_release r = {.request = get_text(&in, KVX_REQUEST_MAX)};

	get_bytes(&in, r.token, sizeof(r.token));
	r.reason = (uint8_t)get_number(&in, 1);
	if (end_of(&in) != 0)
		return ERR_PARSE;
	*out = r;
	return 0;
}

void kvx_put_beat(struct kvx_out *o, const struct kvx_beat *b)
{
	put_text(o, b->request);
	put(o, b->token, sizeof(b->token));
}

int kvx_get_heartbeat(struct span payload, struct kvx_beat *beats, size_t *n)
{
	struct in in = {payload, false};
	size_t count = get_number(&in, 2);

	if (count > KVX_HEARTBEAT_MAX)
		return ERR_PARSE;
	for (size_t i = 0; i < count; i++) {
		beats[i].request = get_text(&in, KVX_REQUEST_MAX);
		get_bytes(&in, beats[i].token, sizeof(beats[i].token));
	}
	if (end_of(&in) != 0)
		return ERR_PARSE;
	*n = count;
	return 0;
}

int kvx_get_heartbeat_ok(struct span payload, uint32_t *ms_left, size_t *n)
{
	struct in in = {payload, false};
	size_t count = get_number(&in, 2);

	if (count > KVX_HEARTBEAT_MAX)
		return ERR_PARSE;
	for (size_t i = 0; i < count; i++)
		ms_left[i] = (uint32_t)get_number(&in, 4);
	if (end_of(&in) != 0)
		return ERR_PARSE;
	*n = count;
	return 0;
}

void kvx_put_err(struct kvx_out *o, enum kvx_code code, const char *text)
{
	kvx_put_u16(o, (uint16_t)code);
	put_text(o, span_str(text));
}

int kvx_get_err(struct span payload, enum kvx_code *code, struct span *text)
{
	struct in in = {payload, false};
	uint64_t n = get_number(&in, 2);
	struct span said = get_text(&in, KVX_SMALL_MAX);

	if (end_of(&in) != 0 || n == 0 || n >= KVX_E_MAX)
		return ERR_PARSE;
	*code = (enum kvx_code)n;
	*text = said;
	return 0;
}

const char *kvx_code_text(enum kvx_code code)
{
	static const char *const texts[KVX_E_MAX] = {
		[KVX_E_PROTOCOL] = "the frame is not expected",
		[KVX_E_COMPAT] = "the engines do not fit together",
		[KVX_E_WRONG_ENGINE] = "the token is not of this engine",
		[KVX_E_LEASE_GONE] = "the lease is gone",
		[KVX_E_LIMIT] = "too much at once",
		[KVX_E_INTERNAL] = "the engine failed",
	};

	return texts[code] != NULL ? texts[code] : "unknown";
}
