/*
 * The bodies of the two legs, out of the client's. See kv_transfer.h; kv_split.c has
 * found the places.
 *
 * A body is made twice by the same walk: first only counted, then written.
 */
#include "base/err.h"
#include "rewrite/kv_place.h"
#include "rewrite/kv_transfer.h"
#include "route/json_member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One body in the making. */
struct writer {
	const struct kv_request *k;
	struct span body;
	const struct kv_pair *pair; /* NULL: for a worker that does all of it */
	struct span params;         /* of the decode leg, where it copies any */
	bool is_prefill;
	bool is_capped;    /* one token, and not as a stream */
	bool has_minimum;  /* and that token, whatever it is */
	bool has_transfer; /* kv_transfer_params */
	bool has_bootstrap;
	/* How far the members of an object are written, by its level. */
	struct {
		uint32_t dropped; /* of its members */
		uint32_t lead;    /* behind those dropped with none kept before them */
	} object[KV_LEVELS];
	bool needs_comma; /* of what is added at an object's end */
	size_t at;        /* in the body: what comes next */
	char *out;        /* NULL: it is counted */
	size_t n;
};

/* ---- bytes ---- */

static void put(struct writer *w, struct span s)
{
	if (w->out != NULL && s.n > 0)
		memcpy(w->out + w->n, s.p, s.n);
	w->n += s.n;
}

static void put_text(struct writer *w, const char *text)
{
	put(w, span_str(text));
}

static void put_number(struct writer *w, uint64_t n)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
	put_text(w, digits);
}

static void copy_to(struct writer *w, uint32_t to)
{
	assert(to >= w->at);
	put(w, span_make(w->body.p + w->at, to - w->at));
	w->at = to;
}

static void replace(struct writer *w, const struct kv_place *p, const char *with)
{
	copy_to(w, p->value);
	put_text(w, with);
	w->at = p->end;
}

/* With the comma before it; of the first that are kept with the one behind. */
static void drop(struct writer *w, const struct kv_place *p)
{
	uint32_t *lead = &w->object[p->level].lead;

	w->object[p->level].dropped++;
	if (p->is_first || (*lead > 0 && *lead == p->before)) {
		copy_to(w, p->start);
		w->at = p->after;
		*lead = p->end;
		return;
	}
	copy_to(w, p->before);
	w->at = p->end;
}

/* ---- what is added ---- */

static void put_name(struct writer *w, const char *name)
{
	put_text(w, w->needs_comma ? ",\"" : "\"");
	put_text(w, name);
	put_text(w, "\":");
	w->needs_comma = true;
}

static void put_host(struct writer *w)
{
	struct span host = w->pair->prefill_host;
	bool is_v6 = memchr(host.p, ':', host.n) != NULL;

	put_text(w, is_v6 ? "[" : "");
	put(w, host);
	put_text(w, is_v6 ? "]" : "");
}

static void put_quoted_host(struct writer *w, unsigned i UNUSED)
{
	put_text(w, "\"");
	put_host(w);
	put_text(w, "\"");
}

static void put_port(struct writer *w, unsigned i UNUSED)
{
	put_number(w, kv_bootstrap_port(w->pair->bootstrap_port));
}

/* Each transfer has a room of its own, of the same rank. */
static void put_room(struct writer *w, unsigned i)
{
	unsigned step = w->pair->ranks > 1 ? w->pair->ranks : 1;

	put_number(w, w->pair->room + (uint64_t)i * step);
}

static void put_listed(struct writer *w, const char *name,
	void (*put_item)(struct writer *w, unsigned i))
{
	unsigned i;

	put_name(w, name);
	if (!w->k->is_batch) {
		put_item(w, 0);
		return;
	}
	for (i = 0; i < w->k->batch; i++) {
		put_text(w, i == 0 ? "[" : ",");
		put_item(w, i);
	}
	put_text(w, "]");
}

static void put_bootstrap(struct writer *w)
{
	put_listed(w, "bootstrap_host", put_quoted_host);
	put_listed(w, "bootstrap_port", put_port);
	put_listed(w, "bootstrap_room", put_room);
	if (!w->is_prefill && w->pair->ranks > 1) {
		put_name(w, "disagg_prefill_dp_rank");
		put_number(w, w->pair->rank);
	}
}

static void put_mooncake(struct writer *w)
{
	put_text(w, w->is_prefill
			    ? "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
			      "\"transfer_id\":\""
			    : "{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
			      "\"transfer_id\":\"");
	put(w, w->pair->transfer_id);
	if (!w->is_prefill) {
		put_text(w, "\",\"remote_bootstrap_addr\":\"http://");
		put_host(w);
		put_text(w, ":");
		put_number(w, kv_bootstrap_port(w->pair->bootstrap_port));
		put_text(w, "\",\"remote_engine_id\":\"");
		put(w, w->pair->engine_id);
	}
	put_text(w, "\"}");
}

static void put_nixl_prefill(struct writer *w)
{
	put_text(w, "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
		    "\"remote_engine_id\":null,\"remote_block_ids\":null,"
		    "\"remote_host\":null,\"remote_port\":null");
	if (kv_form(w->k->connector)->has_transfer_id) {
		put_text(w, ",\"transfer_id\":\"");
		put(w, w->pair->transfer_id);
		put_text(w, "\"");
	}
	put_text(w, "}");
}

/* Prefill's parameters lack the transfer id. */
static bool lacks_transfer_id(struct span params, bool *is_empty)
{
	char buffer[JSON_NAME_ROOM];
	struct json_members it;
	struct json_member m;

	*is_empty = true;
	if (json_members_begin(&it, params) != SCAN_OPEN_OBJECT)
		return false;
	while (json_members_next(&it, &m) == SCAN_KEY) {
		*is_empty = false;
		if (span_is(json_member_name(&m, buffer), "transfer_id"))
			return false;
	}
	return true;
}

static void put_params(struct writer *w)
{
	bool is_empty;

	if (!kv_form(w->k->connector)->has_transfer_id ||
		!lacks_transfer_id(w->params, &is_empty)) {
		put(w, w->params);
		return;
	}
	put_text(w, "{\"transfer_id\":\"");
	put(w, w->pair->transfer_id);
	put_text(w, is_empty ? "\"" : "\",");
	put(w, span_make(w->params.p + 1, w->params.n - 1));
}

static void put_transfer(struct writer *w)
{
	if (w->k->connector == CONNECTOR_MOONCAKE)
		put_mooncake(w);
	else if (w->is_prefill)
		put_nixl_prefill(w);
	else
		put_params(w);
}

static bool is_seen(const struct writer *w, enum kv_level level, enum kv_what what)
{
	return (w->k->seen[level] & 1u << what) != 0;
}

static bool is_inference(const struct writer *w)
{
	return w->k->endpoint == ENDPOINT_INFERENCE_GENERATE;
}

static void put_extra(struct writer *w)
{
	put_text(w, "{\"kv_transfer_params\":");
	put_transfer(w);
	put_text(w, "}");
}

/* Where the client sent none. */
static void put_sampling(struct writer *w)
{
	put_text(w, w->is_capped ? "{\"max_tokens\":1,\"min_tokens\":1" : "{");
	if (w->has_transfer) {
		put_text(w, w->is_capped ? ",\"extra_args\":" : "\"extra_args\":");
		put_extra(w);
	}
	put_text(w, "}");
}

/* The one limit that every request of the endpoint may have. */
static void add_limit(struct writer *w, enum kv_level level)
{
	bool is_output = w->k->endpoint == ENDPOINT_RESPONSES;

	if (!w->is_capped ||
		is_seen(w, level, is_output ? KV_IS_OUTPUT_TOKENS : KV_IS_MAX_TOKENS))
		return;
	put_name(w, is_output ? "max_output_tokens" : "max_tokens");
	put_text(w, "1");
}

/* Where the engine hands over only what the limit has cut: a first token that ends the
 * text must not. */
static void add_minimum(struct writer *w, enum kv_level level)
{
	if (!w->has_minimum || is_seen(w, level, KV_IS_MIN_TOKENS))
		return;
	put_name(w, "min_tokens");
	put_text(w, "1");
}

static void add_transfer(struct writer *w)
{
	if (!w->has_transfer)
		return;
	put_name(w, "kv_transfer_params");
	put_transfer(w);
}

static void add_at_top(struct writer *w)
{
	if (!is_inference(w)) {
		add_limit(w, KV_AT_TOP);
		add_minimum(w, KV_AT_TOP);
	} else if (!is_seen(w, KV_AT_TOP, KV_IS_SAMPLING) &&
		   (w->is_capped || w->has_transfer)) {
		put_name(w, "sampling_params");
		put_sampling(w);
	}
	if (w->is_capped && !is_seen(w, KV_AT_TOP, KV_IS_STREAM)) {
		put_name(w, "stream");
		put_text(w, "false");
	}
	if (w->has_bootstrap)
		put_bootstrap(w);
	add_transfer(w);
}

static void add_to_sampling(struct writer *w)
{
	if (!is_inference(w))
		return;
	add_limit(w, KV_AT_SAMPLING);
	add_minimum(w, KV_AT_SAMPLING);
	if (w->has_transfer && !is_seen(w, KV_AT_SAMPLING, KV_IS_EXTRA)) {
		put_name(w, "extra_args");
		put_extra(w);
	}
}

static void end_object(struct writer *w, const struct kv_place *p)
{
	copy_to(w, p->start);
	w->needs_comma = p->members > w->object[p->level].dropped;
	w->object[p->level].dropped = w->object[p->level].lead = 0;
	if (w->pair == NULL || !p->is_own)
		return;
	if (p->level == KV_AT_TOP)
		add_at_top(w);
	else if (p->level == KV_AT_SAMPLING)
		add_to_sampling(w);
	else
		add_transfer(w);
}

/* ---- what is changed ---- */

/* True if at least two tokens are asked for. Values that an engine refuses stay as they
 * are. */
static bool is_above_one(const struct writer *w, const struct kv_place *p)
{
	struct span value = span_make(w->body.p + p->value, p->end - p->value);

	if (p->kind == SCAN_NUMBER)
		return value.p[0] != '-' && !span_is(value, "0") && !span_is(value, "1");
	return p->kind == SCAN_STRING;
}

static void cap(struct writer *w, const struct kv_place *p)
{
	switch ((enum kv_what)p->what) {
	case KV_IS_STREAM:
		replace(w, p, "false");
		break;
	case KV_IS_STREAM_OPTIONS:
		drop(w, p);
		break;
	case KV_IS_MAX_TOKENS:
	case KV_IS_OUTPUT_TOKENS:
	case KV_IS_LIMIT:
		replace(w, p, "1");
		break;
	case KV_IS_MIN_TOKENS:
		if (w->has_minimum || is_above_one(w, p))
			replace(w, p, "1");
		break;
	case KV_IS_MINIMUM:
		if (is_above_one(w, p))
			replace(w, p, "1");
		break;
	default:
		break;
	}
}

/* A null where the transfer, or the limit, stands. */
static void fill_null(struct writer *w, const struct kv_place *p)
{
	bool is_place = p->what == KV_IS_SAMPLING || p->level == KV_AT_SAMPLING;

	if (!is_inference(w) || !is_place || p->kind != SCAN_NULL ||
		(!w->has_transfer && !w->is_capped))
		return;
	copy_to(w, p->value);
	if (p->what == KV_IS_SAMPLING)
		put_sampling(w);
	else if (w->has_transfer)
		put_extra(w);
	else
		return;
	w->at = p->end;
}

static void walk(struct writer *w)
{
	size_t i;

	for (i = 0; i < w->k->n_places; i++) {
		const struct kv_place *p = &w->k->places[i];

		if (p->what == KV_IS_END)
			end_object(w, p);
		else if (p->what == KV_IS_TRANSFER)
			drop(w, p);
		else if (p->what == KV_IS_SAMPLING || p->what == KV_IS_EXTRA)
			fill_null(w, p);
		else if (w->is_capped && p->is_own)
			cap(w, p);
	}
	copy_to(w, (uint32_t)w->body.n);
}

static int make(struct writer *w, char **out, size_t *n)
{
	struct writer counted = *w;

	walk(&counted);
	w->out = malloc(counted.n);
	if (w->out == NULL)
		return ERR_NOMEM;
	walk(w);
	assert(w->n == counted.n);
	*out = w->out;
	*n = w->n;
	return 0;
}

/* vLLM's APIs that know min_tokens. */
static bool knows_minimum(const struct kv_request *k)
{
	return k->endpoint == ENDPOINT_CHAT || k->endpoint == ENDPOINT_COMPLETIONS ||
	       k->endpoint == ENDPOINT_INFERENCE_GENERATE;
}

int kv_request_prefill(const struct kv_request *k, struct span body,
	const struct kv_pair *pair, char **out, size_t *n)
{
	struct writer w = {.k = k,
		.body = body,
		.pair = pair,
		.is_prefill = true,
		.is_capped = !kv_form(k->connector)->is_concurrent,
		.has_minimum = kv_form(k->connector)->needs_cut && knows_minimum(k),
		.has_transfer = k->connector != CONNECTOR_SGLANG,
		.has_bootstrap = k->connector == CONNECTOR_SGLANG};

	assert(k->verdict == KV_SPLIT);
	return make(&w, out, n);
}

/* Without what it needs to find the KV, decode computes the prompt itself. */
static bool can_transfer(
	const struct kv_request *k, const struct kv_pair *pair, struct span params)
{
	const struct kv_form *form = kv_form(k->connector);

	if (form->needs_engine)
		return pair->engine_id.n > 0;
	return form->has_params && params.n > 0;
}

int kv_request_decode(const struct kv_request *k, struct span body,
	const struct kv_pair *pair, struct span params, char **out, size_t *n)
{
	struct writer w = {.k = k,
		.body = body,
		.pair = pair,
		.params = params,
		.has_transfer = can_transfer(k, pair, params),
		.has_bootstrap = k->connector == CONNECTOR_SGLANG};

	assert(k->verdict == KV_SPLIT);
	return make(&w, out, n);
}

int kv_request_whole(const struct kv_request *k, struct span body, char **out, size_t *n)
{
	struct writer w = {.k = k, .body = body};

	assert(k->verdict != KV_UNSAFE);
	*out = NULL;
	*n = 0;
	return k->has_fields ? make(&w, out, n) : 0;
}

void kv_request_blank(const struct kv_request *k, char *body)
{
	uint32_t lead[KV_LEVELS] = {0}; /* as of drop() */
	size_t i;

	for (i = 0; i < k->n_places; i++) {
		const struct kv_place *p = &k->places[i];
		uint32_t *l = &lead[p->level], from = p->before, to = p->end;

		if (p->what == KV_IS_END)
			*l = 0;
		if (p->what != KV_IS_TRANSFER)
			continue;
		if (p->is_first || (*l > 0 && *l == p->before)) {
			from = p->start;
			to = p->after;
			*l = p->end;
		}
		memset(body + from, ' ', to - from);
	}
}
