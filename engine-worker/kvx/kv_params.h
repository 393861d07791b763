/*
 * The wishes in a request's kv_transfer_params, in the form of vLLM's NIXL connector with
 * the keys of KVX/1: compute a prompt for another worker, or take one that another has
 * computed. Pure.
 */
#ifndef ENGINE_KVX_KV_PARAMS_H
#define ENGINE_KVX_KV_PARAMS_H

#include "io/sock.h"
#include "kvx/kvx_frame.h"

struct js;

enum kv_ask {
	KV_ASK_NOTHING,
	KV_ASK_KEEP, /* do_remote_decode: keep the prompt's blocks for another worker */
	KV_ASK_TAKE, /* do_remote_prefill: take them from one */
};

struct kv_params {
	enum kv_ask ask;
	const char *unusable; /* what is wrong with what was to be taken, which is
				 computed here then; else NULL. Static */
	/* For KV_ASK_TAKE */
	union sock_addr addr;
	char request[KVX_REQUEST_MAX + 1], engine_id[KVX_ENGINE_ID_BYTES + 1];
	unsigned char token[KVX_TOKEN_BYTES];
	uint64_t lease_ms; /* 0: it did not say */
	/* Tokens that the other worker had not to compute; UINT64_MAX: it did not say */
	uint64_t cached_tokens;
};

/* Reads a body, or another object that has kv_transfer_params. False: they are no object.
 */
bool kv_params_read(const struct js *body, struct kv_params *out);
/* 64 hex digits. */
bool kv_token_read(const struct js *v, unsigned char out[KVX_TOKEN_BYTES]);
void kv_token_text(
	const unsigned char token[KVX_TOKEN_BYTES], char out[2 * KVX_TOKEN_BYTES + 1]);

#endif
