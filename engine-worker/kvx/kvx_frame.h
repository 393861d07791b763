/*
 * KVX/1, by which a decode worker pulls KV blocks from a prefill worker: its frames as
 * bytes. Pure. Integers are little-endian; a text is u16 bytes, then these.
 *
 * The header, 32 bytes:
 *	"KVX1" | u8 type | u8 0 | u16 0 | u32 stream | u32 payload bytes
 *	| u32 crc32c(payload) | u64 aux | u32 crc32c(the 28 bytes before)
 * Payloads:
 *	HELLO, HELLO_OK
 *		u16 version | u8 role | u8 0 | engine_id[36] | compat[32]
 *		| u64 block_bytes | u16 block_tokens | u8 dtype | u8 layout
 *		| u32 max_frame | u32 caps
 *	PULL	text request | token[32] | u32 skip | u32 credit
 *	PULL_OK	u32 blocks | u32 tokens | u32 lease ms left | u64 revision
 *	BLOCK	u32 index | u16 tokens valid | u16 0 | the block's bytes
 *	CREDIT	u32 blocks
 *	END	u32 blocks | u64 digest
 *	RELEASE	text request | token[32] | u8 reason
 *	HEARTBEAT	u16 n | n times: text request | token[32]
 *	HEARTBEAT_OK	u16 n | n u32, ms left; 0: it is gone
 *	CANCEL, PING, PONG	nothing; a PONG has the aux of its PING
 *	ERR	u16 code | text
 *
 * D connects, says HELLO, and nothing else before HELLO_OK. A PULL opens a stream, whose
 * number is D's choice and not used again on the connection. P answers PULL_OK, then
 * blocks skip, skip + 1 ... in order, as many as there is credit for, and END, whose
 * digest is the chain h = XXH3-64(block, seed h) from 0. ERR ends the stream that it
 * names, or with stream 0 the connection. RELEASE, HEARTBEAT and PING are of stream 0.
 */
#ifndef ENGINE_KVX_KVX_FRAME_H
#define ENGINE_KVX_KVX_FRAME_H

#include "base/base.h"
#include "base/span.h"

enum {
	KVX_HEADER_BYTES = 32,
	KVX_VERSION = 1,
	KVX_TOKEN_BYTES = 32,
	KVX_COMPAT_BYTES = 32,
	KVX_ENGINE_ID_BYTES = 36,
	KVX_REQUEST_MAX = 128,   /* bytes of a request's id */
	KVX_HEARTBEAT_MAX = 256, /* leases of one */
	KVX_BLOCK_HEAD = 8,      /* of a BLOCK's payload, before the block */
	KVX_SMALL_MAX = 65536,   /* of every payload but a BLOCK's */
};

enum kvx_type {
	KVX_HELLO = 1,
	KVX_HELLO_OK,
	KVX_PULL,
	KVX_PULL_OK,
	KVX_BLOCK,
	KVX_CREDIT,
	KVX_END,
	KVX_RELEASE,
	KVX_HEARTBEAT,
	KVX_HEARTBEAT_OK,
	KVX_CANCEL,
	KVX_PING,
	KVX_PONG,
	KVX_TYPE_MAX,
	KVX_ERR = 15
};

enum kvx_code {
	KVX_E_PROTOCOL = 1,
	KVX_E_COMPAT,
	KVX_E_WRONG_ENGINE,
	KVX_E_LEASE_GONE,
	KVX_E_LIMIT,
	KVX_E_INTERNAL,
	KVX_E_MAX
};
enum kvx_reason { KVX_DONE = 1, KVX_ABORTED, KVX_LOCAL_HIT, KVX_FAILED };
enum { KVX_CAP_TCP = 1 };

struct kvx_header {
	uint8_t type;
	uint32_t stream, len, crc; /* of the payload */
	uint64_t aux;
};

struct kvx_hello {
	uint16_t version;
	uint8_t role; /* 0 unified, 1 prefill, 2 decode */
	char engine_id[KVX_ENGINE_ID_BYTES + 1];
	unsigned char compat[KVX_COMPAT_BYTES];
	uint64_t block_bytes;
	uint16_t block_tokens;
	uint8_t dtype, layout;
	uint32_t max_frame, caps;
};

struct kvx_pull_frame {
	struct span request; /* into the payload */
	unsigned char token[KVX_TOKEN_BYTES];
	uint32_t skip, credit;
};

/* The sign of life for a lease. */
struct kvx_beat {
	struct span request; /* into the payload */
	unsigned char token[KVX_TOKEN_BYTES];
};

struct kvx_pull_ok {
	uint32_t blocks, tokens, lease_ms;
	uint64_t revision;
};

struct kvx_block_head {
	uint32_t index;
	uint16_t tokens;
};

struct kvx_end {
	uint32_t blocks;
	uint64_t digest;
};

struct kvx_release {
	struct span request; /* into the payload */
	unsigned char token[KVX_TOKEN_BYTES];
	uint8_t reason;
};

/* A payload being written: the caller's room; is_full once something did not fit. */
struct kvx_out {
	unsigned char *p;
	size_t n, cap;
	bool is_full;
};

void kvx_header_write(const struct kvx_header *h, unsigned char out[KVX_HEADER_BYTES]);
/* ERR_PARSE: no header of this protocol, or a damaged one; ERR_LIMIT: a payload above
 * max_len, or a small one above KVX_SMALL_MAX. */
int kvx_header_read(const unsigned char in[KVX_HEADER_BYTES], uint32_t max_len,
	struct kvx_header *out) MUST_CHECK;
/* Whether the payload is the one that the header was written for. */
bool kvx_payload_fits(const struct kvx_header *h, struct span payload);

/* Payloads: each is appended; */
void kvx_put_hello(struct kvx_out *o, const struct kvx_hello *h);
void kvx_put_pull(struct kvx_out *o, const struct kvx_pull_frame *p);
void kvx_put_pull_ok(struct kvx_out *o, const struct kvx_pull_ok *p);
void kvx_put_block_head(struct kvx_out *o, const struct kvx_block_head *b);
void kvx_put_credit(struct kvx_out *o, uint32_t n);
void kvx_put_end(struct kvx_out *o, const struct kvx_end *e);
void kvx_put_release(struct kvx_out *o, const struct kvx_release *r);
void kvx_put_u16(struct kvx_out *o, uint16_t n); /* the counts of heartbeats */
void kvx_put_beat(struct kvx_out *o, const struct kvx_beat *b);
void kvx_put_u32(struct kvx_out *o, uint32_t n);
void kvx_put_err(struct kvx_out *o, enum kvx_code code, const char *text);

/* and read whole; ERR_PARSE: too short, too long, or not what it may be; *out is as it
 * was. */
int kvx_get_hello(struct span payload, struct kvx_hello *out) MUST_CHECK;
int kvx_get_pull(struct span payload, struct kvx_pull_frame *out) MUST_CHECK;
int kvx_get_pull_ok(struct span payload, struct kvx_pull_ok *out) MUST_CHECK;
int kvx_get_block(
	struct span payload, struct kvx_block_head *out, struct span *block) MUST_CHECK;
int kvx_get_credit(struct span payload, uint32_t *out) MUST_CHECK;
int kvx_get_end(struct span payload, struct kvx_end *out) MUST_CHECK;
int kvx_get_release(struct span payload, struct kvx_release *out) MUST_CHECK;
/* beats and ms_left have room for KVX_HEARTBEAT_MAX. */
int kvx_get_heartbeat(struct span payload, struct kvx_beat *beats, size_t *n) MUST_CHECK;
int kvx_get_heartbeat_ok(struct span payload, uint32_t *ms_left, size_t *n) MUST_CHECK;
int kvx_get_err(struct span payload, enum kvx_code *code, struct span *text) MUST_CHECK;

const char *kvx_code_text(enum kvx_code code);

#endif
