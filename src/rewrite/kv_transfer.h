/*
 * The wire forms of prefill and decode apart: what a client's body becomes for each leg,
 * for every connector and endpoint; what a prefill worker's answer says; ids, rooms and
 * the small calls beside them. Pure; called by proxy/ (the two legs) and control/.
 *
 * A request of such a pool goes like this (kv_form() says which steps a connector needs):
 *
 *	kv_request_read()   once, when the body is whole: KV_SPLIT, KV_WHOLE or KV_UNSAFE
 *	kv_request_prefill() the body of the prefill leg
 *	kv_answer_read()    its answer, where the form says has_params
 *	kv_request_decode() the body of the decode leg
 *	kv_request_whole()  in place of all three: one worker is to compute all of it
 *	kv_request_free()
 *
 * Always true: bodies are spliced, never written anew; what is not told here stays byte
 * for byte, blanks included. Members by which engines are told where KV lies
 * (kv_transfer_params, bootstrap_* and kin), sent by a client, are in none of the three
 * bodies: at the top, in sampling_params, extra_args and vllm_xargs, however their names
 * are spelled and however often they are there. Time and memory are linear in the body.
 */
#ifndef REWRITE_KV_TRANSFER_H
#define REWRITE_KV_TRANSFER_H

#include "base/base.h"
#include "base/span.h"
#include "conf/conf.h"
#include "route/route_key.h"

/* ---- what a connector needs ---- */

/* Where an engine's bootstrap server listens unless bootstrap_port says otherwise. */
#define KV_BOOTSTRAP_PORT 8998

static inline unsigned kv_bootstrap_port(unsigned configured)
{
	return configured > 0 ? configured : KV_BOOTSTRAP_PORT;
}

struct kv_form {
	/* Both legs at once; else prefill is answered first. */
	bool is_concurrent;
	/* Both workers are picked before the first byte: they go at once, or the id names
	 * both. */
	bool needs_both;
	/* Prefill's answer is read for its kv_transfer_params. */
	bool has_params;
	/* The decode body names prefill's engine: its bootstrap server must have answered
	 * GET /query (kv_engine_id()). */
	bool needs_engine;
	/* Prefill hands over only a text that its limit has cut (vLLM's MooncakeConnector
	 * forgets the transfer of one that ended by itself, and decode would wait): its
	 * answer is read for that, too (kv_answer_was_cut()). */
	bool needs_cut;
	/* Prefill's blocks wait for whoever names them: any decode worker may take them, as
	 * long as none has. */
	bool waits_for_any;
	/* Both legs carry the pair's kv_make_transfer_id(). */
	bool has_transfer_id;
	/* Prefill workers have a bootstrap port. */
	bool needs_port;
	/* Both legs carry kv_make_id() as X-Request-Id; else the request's own. */
	bool needs_id;
	/* A decode worker computes a whole request (KV_WHOLE, and below pd_min_prefill).
	 * Else its engine waits for a prefill: what generates always takes both legs, and
	 * fails where there is no prefill worker. */
	bool decodes_alone;
};
/* The form of the connector in force; CONNECTOR_NONE counts as CONNECTOR_NIXL
 * (conf.h). */
const struct kv_form *kv_form(enum kv_connector connector);

/* ---- the client's request ---- */

enum kv_verdict {
	KV_SPLIT, /* two legs can serve it */
	KV_WHOLE, /* one decode worker gets it, as kv_request_whole() makes it */
	/*
	 * 400 malformed_request. For these alone: it cannot be read as JSON, while a
	 * laxer engine might, and may hold what must not reach one; it cannot be read, or
	 * has no place for the transfer, and a decode worker would wait for a prefill
	 * that nobody can ask for; forbidden or repeated names a thousand times.
	 */
	KV_UNSAFE
};

struct kv_place; /* kv_place.h: something in the body that a leg may change */
#define KV_PLACES 24

/* Made by kv_request_read(); holds offsets into the body, not the body: that must be the
 * same bytes (they may have moved) in the calls below. */
struct kv_request {
	enum kv_verdict verdict;
	enum kv_connector connector; /* never CONNECTOR_NONE */
	enum route_endpoint endpoint;
	unsigned batch;   /* sglang: KV transfers it takes (prompts × samples) */
	bool is_batch;    /* they are listed: arrays */
	bool has_fields;  /* the client sent what must not be there (worth a count) */
	unsigned seen[2]; /* what is at the top, and in sampling_params */
	struct kv_place *places; /* owned; NULL: none */
	size_t n_places, room_places;
};

/*
 * Looks the body over once. Any body is allowed, the empty one too. KV_SPLIT: the
 * endpoint generates and the body is a JSON object that the connector can carry in two
 * legs. Whole are, with nixl and mooncake: n or best_of above 1, beam search, lists of
 * prompts, echo and log probabilities of the prompt (the prefill leg alone would know
 * them), prompts as embeddings. sglang and p2p_nccl carry all of these. Two
 * sampling_params or extra_args of which only one can count, or of the wrong kind, make
 * /inference/v1/generate whole, since the transfer has no place to stand. ERR_NOMEM: *k
 * is as after kv_request_free().
 */
int kv_request_read(struct kv_request *k, enum kv_connector connector,
	enum route_endpoint endpoint, struct span body) MUST_CHECK;
void kv_request_free(struct kv_request *k); /* of a zeroed one: nothing happens */

/* The values that both legs of one attempt share. Spans are borrowed for the call.
 * Another attempt (another pair) takes another room and another transfer id. */
struct kv_pair {
	struct span prefill_host; /* of prefill's URL, as conf_url has it (no brackets) */
	unsigned bootstrap_port;  /* of prefill, as kv_bootstrap_port() takes it */
	unsigned rank, ranks;     /* prefill's, of how many; ranks 0 or 1: it has none */
	uint64_t room;            /* kv_make_room(); sglang */
	struct span transfer_id;  /* kv_make_transfer_id(); as the form says */
	struct span engine_id;    /* of prefill, as spelled (kv_engine_id()); mooncake */
};

/*
 * The bodies, new memory in *out (free()) of *n bytes, without a NUL. The verdict is
 * KV_SPLIT. ERR_NOMEM.
 * params: the object that kv_answer_read() found, copied as it is; empty: none came, and
 * decode computes the prompt itself. Ignored but where the form says has_params.
 */
int kv_request_prefill(const struct kv_request *k, struct span body,
	const struct kv_pair *pair, char **out, size_t *n) MUST_CHECK;
int kv_request_decode(const struct kv_request *k, struct span body,
	const struct kv_pair *pair, struct span params, char **out, size_t *n) MUST_CHECK;
/*
 * For one worker that computes all of it; KV_SPLIT or KV_WHOLE. *out is NULL, *n 0, where
 * the body can go as it came. ERR_NOMEM.
 */
int kv_request_whole(
	const struct kv_request *k, struct span body, char **out, size_t *n) MUST_CHECK;

/* The same in place, for a pool where no leg adds anything: what must not be there is
 * blanks from then on. body: that of kv_request_read(). */
void kv_request_blank(const struct kv_request *k, char *body);

/* Of a body that cannot be read: it has such a name in bytes that are text, or a letter as
 * an escape. */
bool kv_body_may_name(struct span body);

/* ---- prefill's answer ---- */

enum kv_answer {
	KV_ANSWER_PARAMS, /* *params: the object, bytes of the answer */
	KV_ANSWER_NONE,   /* JSON without (or with null): decode runs without */
	KV_ANSWER_ERROR,  /* an error object under a good status: a failed prefill */
	KV_ANSWER_BROKEN, /* no JSON object, or params that are no object: likewise */
};
/* answer: the body of a 2xx answer, whole. *params is empty but for KV_ANSWER_PARAMS. */
enum kv_answer kv_answer_read(struct span answer, struct span *params);
/* Whether its text was cut by the limit of one token, as far as the answer says; true
 * where it says nothing. For forms that need it. */
bool kv_answer_was_cut(struct span answer, enum route_endpoint endpoint);

/*
 * What it says of its own cache: usage of any API, SGLang's meta_info, or vLLM's
 * remote_prefill_cached_tokens. answer: JSON, or an event stream. has_...: it says so.
 */
struct kv_usage {
	bool has_cached, has_prompt;
	uint64_t cached, prompt; /* tokens */
	uint64_t apart;          /* used while it is read */
};
void kv_answer_usage(struct span answer, struct kv_usage *u);

/*
 * The body of POST /v1/kv/release, which gives back what a prefill worker holds for a
 * hand-off that will not come: {"remote_request_id":...,"token":...} as the params spell
 * them (remote_request_id, kvx_token). *out is NULL, *n 0, where they have not both
 * (vLLM: its lease ends by itself). ERR_NOMEM.
 */
int kv_release_body(struct span params, char **out, size_t *n) MUST_CHECK;

/*
 * From the answer to a Mooncake bootstrap server's GET /query: the engine id of that
 * rank, else of the first; bytes of the answer, between their quotes, as spelled. False:
 * none.
 */
bool kv_engine_id(struct span answer, unsigned rank, struct span *id);

/* ---- ids ---- */

#define KV_ID_ROOM 600
/*
 * p2p_nccl: "___prefill_addr_<A>___decode_addr_<B>_<32 hex>", NUL-terminated, and its
 * length; 0 where that does not fit. A and B: host:port as the workers know each other,
 * which is kv_address(). secret: 16 bytes of rng_secret().
 */
size_t kv_make_id(struct span prefill, struct span decode, const uint8_t secret[16],
	char out[KV_ID_ROOM]);
/* "host:port", "[v6]:port"; port: the worker's bootstrap_port where it has one (p2p_nccl:
 * of its transfer socket), else its URL's. NUL-terminated; the length, 0: does not fit.
 */
#define KV_ADDRESS_ROOM 280
size_t kv_address(const struct worker_conf *w, char out[KV_ADDRESS_ROOM]);
/* A client's X-Request-Id that a P2P NCCL engine would read addresses from: it must not
 * reach any worker of a pool with prefill and decode apart. */
bool kv_id_names_peers(struct span id);

/* "xfer-" and a random UUID, NUL-terminated. */
#define KV_TRANSFER_ID_ROOM 48
void kv_make_transfer_id(const uint8_t secret[16], char out[KV_TRANSFER_ID_ROOM]);

/* A room of 63 bits out of 64 random ones; congruent to rank modulo ranks (engines with
 * ranks find theirs by it). */
uint64_t kv_make_room(uint64_t random, unsigned rank, unsigned ranks);

#endif
