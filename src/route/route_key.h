/*
 * Request head + body -> struct route_key: model, stream flag, session fields, block
 * hashes of the prompt. Pure; copies nothing that is not needed.
 *
 * Two phases. (1) route_scan_feed() runs while the body arrives: one resumable pass
 * (json_scan) that records the spans of the fields that matter. (2) route_key_build()
 * hashes those spans in prompt order (tools, system or instructions, messages, whatever
 * order the client sent them in). The body is one contiguous buffer that may move between
 * feeds; spans are offsets.
 *
 * The public chain (kvsteer-prefix(7)): h_i = XXH3-64(block_i, seed h_(i-1)), h_(-1) = 0;
 * a final partial block is not hashed. The index key is mix64(h_i, S), S =
 * route_key_secret(). Owned by one request, used by its thread only.
 */
#ifndef ROUTE_ROUTE_KEY_H
#define ROUTE_ROUTE_KEY_H

#include "base/base.h"
#include "base/span.h"

/* The kind of prompt that a path carries. The path table gives each route one. */
enum route_endpoint {
	ENDPOINT_OTHER, /* not read: proxied by load */
	ENDPOINT_CHAT,
	ENDPOINT_COMPLETIONS,
	ENDPOINT_RESPONSES,
	ENDPOINT_MESSAGES, /* Anthropic */
	ENDPOINT_EMBEDDINGS,
	ENDPOINT_RERANK,
	ENDPOINT_SCORE,
	ENDPOINT_GENERATE,           /* SGLang native: text, input_ids */
	ENDPOINT_INFERENCE_GENERATE, /* /inference/v1/generate: token_ids */
	ENDPOINT_TOKENIZE,
	ENDPOINT_TEXT,  /* messages, a prompt, an input ...: whichever the body has */
	ENDPOINT_PLAIN, /* no prompt: the body is read for its model alone */
	ENDPOINT_MAX
};

/* Whether a model answers with text of its own. */
static inline bool route_generates(enum route_endpoint endpoint)
{
	switch (endpoint) {
	case ENDPOINT_CHAT:
	case ENDPOINT_COMPLETIONS:
	case ENDPOINT_RESPONSES:
	case ENDPOINT_MESSAGES:
	case ENDPOINT_GENERATE:
	case ENDPOINT_INFERENCE_GENERATE:
		return true;
	default:
		return false;
	}
}

/* Whether a model computes the prompt: a worker's time for it says how fast that is. */
static inline bool route_computes(enum route_endpoint endpoint)
{
	return route_generates(endpoint) || endpoint == ENDPOINT_EMBEDDINGS ||
	       endpoint == ENDPOINT_RERANK || endpoint == ENDPOINT_SCORE;
}

/* Fields of bodies that name a session, in their order of precedence; a person comes after
 * all conversations. */
enum route_session {
	SESSION_PARAMS_ID,
	SESSION_ID,
	SESSION_CACHE_KEY,   /* prompt_cache_key */
	SESSION_METADATA_ID, /* session_id of metadata, or within metadata.user_id */
	SESSION_SAFETY,      /* safety_identifier */
	SESSION_METADATA_USER,
	SESSION_USER_ID,
	SESSION_USER,
	SESSION_MAX
};

struct route_scan; /* opaque, reusable */

/* NULL when out of memory. */
struct route_scan *route_scan_new(void);
void route_scan_free(struct route_scan *s);
/* Starts a new body (forgets the last, keeps memory up to a small bound). */
void route_scan_begin(struct route_scan *s, enum route_endpoint endpoint);
/* The same where the body may be a form, by its Content-Type; false: it is none, and is
 * read as JSON. */
bool route_scan_begin_form(
	struct route_scan *s, enum route_endpoint endpoint, struct span content_type);
/*
 * Takes body bytes [from, to); base is the body's start now. Consecutive calls are
 * contiguous. Broken JSON is no error: the scan just ends and the key stays unreadable.
 * ERR_NOMEM only.
 */
int route_scan_feed(
	struct route_scan *s, const char *base, size_t from, size_t to) MUST_CHECK;

/* After the whole body: it may hold a member by which engines are told where KV lies
 * (rewrite/kv_transfer.h), or was not understood. False: it holds none. */
bool route_scan_may_transfer(const struct route_scan *s);

/* After the whole body: where the model's name stands in it, as it is spelled. n is 0: it
 * names none. */
struct route_scan_name {
	size_t at, n;
};
struct route_scan_name route_scan_model(const struct route_scan *s);
/* The name was replaced by one of n bytes, and what came after it moved. */
void route_scan_replaced(struct route_scan *s, struct route_scan_name was, size_t n);

struct route_key_opts {
	unsigned block_bytes;  /* pool's prefix_block (default 128) */
	unsigned block_tokens; /* 32 */
	size_t max_blocks;     /* hashing stops there; 0: no limit */
	bool keeps_short;      /* what is shorter than a block is one */
	bool skip_prompt;      /* no policy needs the hashes: only the fields are read */
};

#define ROUTE_ROLES_MAX 3
#define TOKEN_BYTES 4 /* a token is about four bytes of text */

struct route_key {
	enum route_endpoint endpoint;
	bool readable;    /* a JSON object was read to its end, or a form */
	bool stream;      /* "stream": true */
	bool hashes_sent; /* X-Kvsteer-Prefix gave the hashes */
	char unit;        /* 'b' bytes, 't' tokens */
	uint32_t block;   /* block size in units; part of the name space */
	uint64_t *hashes; /* the public chain, owned */
	size_t n_blocks, cap_blocks;
	/* Bytes or tokens of the prompt stream, partial block included. */
	uint64_t prompt_units;
	/* Decoded text; points into `text` (owned) or is empty when absent. Last
	 * duplicate wins, as in Python workers. */
	struct span model, lora, cache_salt;
	struct span
		object; /* id of what is kept on one worker: previous_response_id ... */
	struct span session[SESSION_MAX];
	char *text;
	size_t text_cap;
	/* pool_seal_key() turned `hashes` into index keys of this generation, and kept
	 * the key of prefix_affinity for each role (routing_prefix()). */
	bool is_sealed;
	struct {
		bool is_known;
		uint64_t hash;
	} beginning[ROUTE_ROLES_MAX];
	uint64_t sealed_generation;
};

void route_key_init(struct route_key *k);
/* Ready for the next request; keeps small memory. */
void route_key_reset(struct route_key *k);
void route_key_free(struct route_key *k);

/*
 * After the whole body [0, len) was fed. Fills k (reset before); where the client sent
 * the hashes (route_key_from_header() came first), those stay. ERR_NOMEM only.
 */
int route_key_build(struct route_scan *s, const char *base, size_t len,
	const struct route_key_opts *opts, struct route_key *k) MUST_CHECK;

/*
 * The value of X-Kvsteer-Prefix: "<block><b|t>;<hash>,<hash>..." (hex, 1-16 digits;
 * blanks after commas allowed; empty list: hashed, nothing to match). Sets unit, block,
 * hashes, hashes_sent, prompt_units (blocks × block). ERR_PARSE when malformed, ERR_LIMIT
 * above max_blocks (0: none).
 */
int route_key_from_header(
	struct span value, size_t max_blocks, struct route_key *k) MUST_CHECK;

/*
 * For a body that is not read: sets the values that the headers give in place of its
 * members `model`, `lora_path` and `cache_salt` (copied; empty: absent). ERR_NOMEM.
 */
int route_key_say(struct route_key *k, struct span model, struct span lora,
	struct span cache_salt) MUST_CHECK;
/* For a body that was read and names no model: the header's (copied). ERR_NOMEM. */
int route_key_say_model(struct route_key *k, struct span model) MUST_CHECK;

/* The values that separate name spaces of equal prompts. */
struct route_salt {
	uint64_t boot_secret[2];
	struct span model, lora, cache_salt, tenant;
	uint64_t generation; /* the pool's weights; 0 equals unsalted */
	char unit;
	uint32_t block;
};
/* S of mix64(h, S): length-prefixed fields hashed twice over the boot secret. */
uint64_t route_key_secret(const struct route_salt *salt);

#endif
