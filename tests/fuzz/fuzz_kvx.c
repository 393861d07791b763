/*
 * Fuzz target of the frames of KVX/1. What must hold: no reader looks beyond its payload;
 * what a reader takes is written again as the same bytes; a header that is taken is the
 * header of what was written. The first byte says what the rest is: a header, or the
 * payload of a type.
 */
#include "kvx/kvx_frame.h"

#include <stdlib.h>

/* Also where assert() would say too little. */
#define MUST(fact)               \
	do {                     \
		if (!(fact))     \
			abort(); \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static unsigned char room[1 << 17];

static void same(const struct kvx_out *o, struct span payload)
{
	MUST(!o->is_full && o->n == payload.n && memcmp(o->p, payload.p, o->n) == 0);
}

static void try_header(struct span p)
{
	unsigned char again[KVX_HEADER_BYTES];
	struct kvx_header h;

	if (p.n < KVX_HEADER_BYTES ||
		kvx_header_read((const unsigned char *)p.p, 1 << 20, &h) != 0)
		return;
	kvx_header_write(&h, again);
	MUST(memcmp(again, p.p, sizeof(again)) == 0);
	(void)kvx_payload_fits(
		&h, span_make(p.p + KVX_HEADER_BYTES, p.n - KVX_HEADER_BYTES));
}

static void try_heartbeat(struct span p, struct kvx_out *o)
{
	struct kvx_beat beats[KVX_HEARTBEAT_MAX];
	size_t n;

	if (kvx_get_heartbeat(p, beats, &n) != 0)
		return;
	kvx_put_u16(o, (uint16_t)n);
	for (size_t i = 0; i < n; i++)
		kvx_put_beat(o, &beats[i]);
	same(o, p);
}

static void try_heartbeat_ok(struct span p, struct kvx_out *o)
{
	uint32_t left[KVX_HEARTBEAT_MAX];
	size_t n;

	if (kvx_get_heartbeat_ok(p, left, &n) != 0)
		return;
	kvx_put_u16(o, (uint16_t)n);
	for (size_t i = 0; i < n; i++)
		kvx_put_u32(o, left[i]);
	same(o, p);
}

static void try_block(struct span p, struct kvx_out *o)
{
	struct kvx_block_head head;
	struct span block;

	if (kvx_get_block(p, &head, &block) != 0)
		return;
	kvx_put_block_head(o, &head);
	same(o, span_make(p.p, KVX_BLOCK_HEAD));
	MUST(block.p + block.n == p.p + p.n);
}

/* Those whose every byte means something. */
static void try_others(unsigned type, struct span p, struct kvx_out *o)
{
	struct kvx_pull_frame pull;
	struct kvx_pull_ok ok;
	struct kvx_end end;
	struct kvx_release release;
	struct kvx_hello hello;
	enum kvx_code code;
	struct span text;
	uint32_t n;

	if (type == KVX_PULL && kvx_get_pull(p, &pull) == 0)
		kvx_put_pull(o, &pull);
	else if (type == KVX_PULL_OK && kvx_get_pull_ok(p, &ok) == 0)
		kvx_put_pull_ok(o, &ok);
	else if (type == KVX_CREDIT && kvx_get_credit(p, &n) == 0)
		kvx_put_credit(o, n);
	else if (type == KVX_END && kvx_get_end(p, &end) == 0)
		kvx_put_end(o, &end);
	else if (type == KVX_RELEASE && kvx_get_release(p, &release) == 0)
		kvx_put_release(o, &release);
	else if (type == KVX_HELLO && kvx_get_hello(p, &hello) == 0)
		MUST(strlen(hello.engine_id) <= KVX_ENGINE_ID_BYTES);
	else if (type == KVX_ERR && kvx_get_err(p, &code, &text) == 0)
		MUST(kvx_code_text(code) != NULL && text.n == p.n - 4);
	if (o->n > 0)
		same(o, p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct kvx_out o = {room, 0, sizeof(room), false};
	struct span p;

	if (size == 0 || size > sizeof(room) / 2)
		return 0;
	p = span_make((const char *)bytes + 1, size - 1);
	switch (bytes[0] % 16) {
	case 0:
		try_header(p);
		break;
	case KVX_HEARTBEAT:
		try_heartbeat(p, &o);
		break;
	case KVX_HEARTBEAT_OK:
		try_heartbeat_ok(p, &o);
		break;
	case KVX_BLOCK:
		try_block(p, &o);
		break;
	default:
		try_others(bytes[0] % 16, p, &o);
	}
	return 0;
}
