/*
 * Whether a client's request can be served by two legs, and what of its body differs in
 * them. See kv_transfer.h; kv_splice.c makes the bodies.
 */
#include "base/err.h"
#include "rewrite/kv_place.h"
#include "rewrite/kv_transfer.h"
#include "route/json_member.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/*
 * By these engines are told where KV lies or goes to. Some are prefixes: what engines add
 * to their kind is caught, too.
 */
static const struct {
	struct span name;
	bool is_prefix;
} transfers[] = {
	{SPAN_LIT("kv_transfer_params"), false}, /* vLLM */
	{SPAN_LIT("ec_transfer_params"), false}, /* vLLM: the encoder's */
	{SPAN_LIT("bootstrap_"), true}, /* SGLang: _host, _port, _room, _pair_key */
	{SPAN_LIT("disagg"),
		true}, /* SGLang, TensorRT-LLM, AIBrix: disagg_prefill_dp_rank,
			  disaggregated_params, disagg_prefill_resp */
	{SPAN_LIT("decode_tp_size"), false}, /* SGLang */
};

#define TRANSFER_MIN (sizeof("disagg") - 1) /* the shortest of them */

#define IN_ALL 0xffffu
#define IN(endpoint) (1u << (endpoint))
#define IN_PROMPTS (IN(ENDPOINT_COMPLETIONS) | IN(ENDPOINT_GENERATE))

/* clang-format off */
static const struct known {
	struct span name;
	enum kv_what what;
	unsigned endpoints;
} known[] = {
	{SPAN_LIT("stream"), KV_IS_STREAM, IN_ALL},
	{SPAN_LIT("stream_options"), KV_IS_STREAM_OPTIONS, IN_ALL},
	{SPAN_LIT("max_tokens"), KV_IS_MAX_TOKENS, IN_ALL},
	{SPAN_LIT("max_completion_tokens"), KV_IS_LIMIT, IN_ALL},
	{SPAN_LIT("max_output_tokens"), KV_IS_OUTPUT_TOKENS, IN_ALL},
	{SPAN_LIT("max_new_tokens"), KV_IS_LIMIT, IN_ALL},
	{SPAN_LIT("min_tokens"), KV_IS_MIN_TOKENS, IN_ALL},
	{SPAN_LIT("min_completion_tokens"), KV_IS_MINIMUM, IN_ALL},
	{SPAN_LIT("min_new_tokens"), KV_IS_MINIMUM, IN_ALL},
	{SPAN_LIT("sampling_params"), KV_IS_SAMPLING, IN_ALL},
	{SPAN_LIT("extra_args"), KV_IS_EXTRA, IN_ALL},
	{SPAN_LIT("vllm_xargs"), KV_IS_XARGS, IN_ALL},
	/* Several texts, of which each would need a transfer of its own. */
	{SPAN_LIT("n"), KV_IS_SAMPLES, IN_ALL},
	{SPAN_LIT("best_of"), KV_IS_BEST_OF, IN_ALL},
	{SPAN_LIT("use_beam_search"), KV_IS_WHOLE, IN_ALL},
	{SPAN_LIT("prompt"), KV_IS_PROMPT, IN_PROMPTS},
	{SPAN_LIT("text"), KV_IS_PROMPT, IN(ENDPOINT_GENERATE)},
	{SPAN_LIT("input_ids"), KV_IS_PROMPT, IN(ENDPOINT_GENERATE)},
	{SPAN_LIT("input_embeds"), KV_IS_EMBEDDINGS, IN(ENDPOINT_GENERATE)},
	{SPAN_LIT("prompt_embeds"), KV_IS_WHOLE, IN_ALL},
	/* Whose answer has what only the leg knows that computes the prompt. */
	{SPAN_LIT("echo"), KV_IS_WHOLE, IN_ALL},
	{SPAN_LIT("prompt_logprobs"), KV_IS_WHOLE, IN_ALL},
	{SPAN_LIT("return_logprob"), KV_IS_WHOLE, IN(ENDPOINT_GENERATE)},
	/* State on one worker, which the other does not have. */
	{SPAN_LIT("previous_response_id"), KV_IS_WHOLE, IN(ENDPOINT_RESPONSES)},
	{SPAN_LIT("conversation"), KV_IS_WHOLE, IN(ENDPOINT_RESPONSES)},
	{SPAN_LIT("background"), KV_IS_WHOLE, IN(ENDPOINT_RESPONSES)},
	{SPAN_LIT("session_params"), KV_IS_WHOLE, IN_ALL},
};
/* clang-format on */

static bool is_transfer(struct span name)
{
	size_t i;

	if (name.n < TRANSFER_MIN)
		return false;
	for (i = 0; i < ARRAY_LEN(transfers); i++) {
		if (transfers[i].is_prefix ? span_starts(name, transfers[i].name)
					   : span_eq(name, transfers[i].name))
			return true;
	}
	return false;
}

/* The endpoint takes its limits from sampling_params, or from there, too. */
static bool has_sampling(enum route_endpoint endpoint)
{
	return endpoint == ENDPOINT_GENERATE || endpoint == ENDPOINT_INFERENCE_GENERATE;
}

static enum kv_what what_is(
	enum route_endpoint endpoint, enum kv_level level, const struct json_member *m)
{
	char buffer[JSON_NAME_ROOM];
	struct span name = json_member_name(m, buffer);
	size_t i;

	if (is_transfer(name))
		return KV_IS_TRANSFER;
	if (level == KV_AT_EXTRA)
		return KV_IS_OTHER;
	/* A body may be nothing but short members: they are told apart at once. */
	for (i = 0; i < ARRAY_LEN(known); i++) {
		if (known[i].name.n == name.n && name.n > 0 &&
			known[i].name.p[0] == name.p[0] &&
			memcmp(known[i].name.p, name.p, name.n) == 0)
			break;
	}
	if (i == ARRAY_LEN(known) || (known[i].endpoints & IN(endpoint)) == 0)
		return KV_IS_OTHER;
	if (level == KV_AT_SAMPLING && known[i].what != KV_IS_EXTRA &&
		(!has_sampling(endpoint) || known[i].what == KV_IS_SAMPLING))
		return KV_IS_OTHER;
	return known[i].what;
}

/* ---- places ---- */

/* The results of a walk through the body's objects. */
struct reading {
	struct kv_request *k;
	struct span body;
	bool is_whole; /* not in two legs, where a decode worker can do it alone */
	bool is_lost;  /* the transfer has no place to stand */
	uint64_t prompts, samples;
};

static bool is_off(const struct json_member *m, struct span text)
{
	struct span value = json_member_value(m, text);

	return m->kind == SCAN_NULL || m->kind == SCAN_FALSE || span_is(value, "\"\"");
}

/* Room for one more: 0, ERR_LIMIT, ERR_NOMEM. */
static int grow(struct kv_request *k)
{
	size_t room = k->room_places > 0 ? 2 * k->room_places : KV_PLACES;
	struct kv_place *places;

	if (k->n_places < k->room_places)
		return 0;
	if (k->n_places >= KV_PLACES_MAX)
		return ERR_LIMIT;
	places = realloc(k->places, room * sizeof(*places));
	if (places == NULL)
		return ERR_NOMEM;
	k->places = places;
	k->room_places = room;
	return 0;
}

static int add_place(struct kv_request *k, const struct kv_place *place)
{
	int err = grow(k);

	if (err == 0)
		k->places[k->n_places++] = *place;
	return err;
}

/* ---- what forbids two legs, and how many transfers it takes ---- */

static enum json_event first_kind(struct span array)
{
	struct json_members it;
	struct json_member m;

	if (json_members_begin(&it, array) != SCAN_OPEN_ARRAY ||
		json_items_next(&it, &m) != SCAN_STRING)
		return SCAN_NULL;
	return m.kind;
}

/* How many items; *first of them, as it stands there. */
static uint64_t count_items(struct span array, struct span *first)
{
	struct json_members it;
	struct json_member m;
	uint64_t n = 0;

	if (json_members_begin(&it, array) != SCAN_OPEN_ARRAY)
		return 0;
	while (json_items_next(&it, &m) == SCAN_STRING) {
		if (n++ == 0)
			*first = json_member_value(&m, array);
	}
	return n;
}

/* A list of token ids is one prompt; any other list is as many as it has items. */
static void read_prompt(struct reading *r, const struct json_member *m, struct span text)
{
	struct span value = json_member_value(m, text), first = {NULL, 0};

	if (m->kind == SCAN_NULL)
		return;
	r->k->is_batch = m->kind == SCAN_OPEN_ARRAY && first_kind(value) != SCAN_NUMBER;
	r->prompts = r->k->is_batch ? count_items(value, &first) : 1;
	if (r->prompts != 1)
		r->is_whole = true;
}

/* The same, one list deeper: a prompt is a list of vectors. */
static void read_embeddings(
	struct reading *r, const struct json_member *m, struct span text)
{
	struct span value = json_member_value(m, text), first = {NULL, 0};
	uint64_t n;

	if (m->kind == SCAN_NULL)
		return;
	r->is_whole = true;
	if (m->kind != SCAN_OPEN_ARRAY)
		return;
	n = count_items(value, &first);
	r->k->is_batch = n > 0 && first_kind(first) == SCAN_OPEN_ARRAY;
	r->prompts = r->k->is_batch ? n : 1;
}

static void read_samples(struct reading *r, const struct json_member *m, struct span text)
{
	uint64_t n;

	r->samples = 1;
	if (m->kind == SCAN_NULL)
		return;
	if (span_to_u64(json_member_value(m, text), &n) != 0)
		n = 0;
	if (n > 0)
		r->samples = n;
	if (n != 1)
		r->is_whole = true;
}

/* It is not changed, but it says what can be done with the request. */
static void look_at(struct reading *r, enum kv_what what, const struct json_member *m,
	struct span text)
{
	switch (what) {
	case KV_IS_SAMPLES:
		read_samples(r, m, text);
		break;
	case KV_IS_BEST_OF:
		if (m->kind != SCAN_NULL && !span_is(json_member_value(m, text), "1"))
			r->is_whole = true;
		break;
	case KV_IS_PROMPT:
		read_prompt(r, m, text);
		break;
	case KV_IS_EMBEDDINGS:
		read_embeddings(r, m, text);
		break;
	case KV_IS_WHOLE:
		if (!is_off(m, text))
			r->is_whole = true;
		break;
	default:
		break;
	}
}

/* ---- the walk ---- */

static bool is_container(enum kv_what what)
{
	return what == KV_IS_SAMPLING || what == KV_IS_EXTRA || what == KV_IS_XARGS;
}

/* Where a transfer stands in /inference/v1/generate: in the one extra_args of the one
 * sampling_params. Either may be absent, or null. */
static bool is_on_path(const struct reading *r, enum kv_what what, enum kv_level level)
{
	return r->k->endpoint == ENDPOINT_INFERENCE_GENERATE &&
	       ((what == KV_IS_SAMPLING && level == KV_AT_TOP) ||
		       (what == KV_IS_EXTRA && level == KV_AT_SAMPLING));
}

static void judge_path(struct reading *r, enum kv_what what, enum kv_level level,
	const struct json_member *m)
{
	unsigned bit = 1u << what;

	if (is_on_path(r, what, level) &&
		((r->k->seen[level] & bit) != 0 ||
			(m->kind != SCAN_OPEN_OBJECT && m->kind != SCAN_NULL)))
		r->is_lost = true;
	/* SGLang's list of them, one for each prompt. */
	if (what == KV_IS_SAMPLING && has_sampling(r->k->endpoint) &&
		m->kind == SCAN_OPEN_ARRAY)
		r->is_whole = true;
}

static int read_object(struct reading *r, uint32_t start, uint32_t end,
	enum kv_level level, bool is_own);

/* At most as deep as the body, its sampling_params, and their extra_args. */
static int read_container(struct reading *r, const struct kv_place *p)
{
	bool is_sampling = p->what == KV_IS_SAMPLING;
	bool is_own = is_on_path(r, p->what, p->level) ||
		      (is_sampling && has_sampling(r->k->endpoint));

	if (p->kind != SCAN_OPEN_OBJECT)
		return 0;
	return read_object(
		r, p->value, p->end, is_sampling ? KV_AT_SAMPLING : KV_AT_EXTRA, is_own);
}

/* One member, its offsets those of the body. m is as the walk gave it. */
static int take_member(struct reading *r, struct kv_place *p, const struct json_member *m,
	struct span text)
{
	bool is_seen;
	int err;

	if (p->what == KV_IS_OTHER)
		return 0;
	if (p->is_own) {
		look_at(r, p->what, m, text);
		judge_path(r, p->what, p->level, m);
	}
	is_seen = p->is_own && p->what != KV_IS_TRANSFER;
	if (p->what == KV_IS_TRANSFER)
		r->k->has_fields = true;
	if (is_seen)
		r->k->seen[p->level] |= 1u << p->what;
	err = p->what <= KV_IS_END ? add_place(r->k, p) : 0;
	return err == 0 && is_container(p->what) ? read_container(r, p) : err;
}

static int end_object(struct reading *r, const struct kv_place *last, uint32_t bracket,
	uint32_t members)
{
	struct kv_place end = *last;

	end.what = KV_IS_END;
	end.start = end.value = end.end = bracket;
	end.members = members;
	return add_place(r->k, &end);
}

/* The object at [start, end) of the body: 0, ERR_PARSE, ERR_LIMIT, ERR_NOMEM. */
static int read_object(
	struct reading *r, uint32_t start, uint32_t end, enum kv_level level, bool is_own)
{
	struct span text = span_make(r->body.p + start, end - start);
	struct kv_place p = {.level = (uint8_t)level, .is_own = is_own, .is_first = true};
	size_t last = SIZE_MAX; /* the place of the member before, where it has one */
	uint32_t members = 0;
	struct json_members it;
	struct json_member m;
	enum json_event e;
	int err;

	if (json_members_begin(&it, text) != SCAN_OPEN_OBJECT)
		return ERR_PARSE;
	while ((e = json_members_next(&it, &m)) == SCAN_KEY) {
		if (last != SIZE_MAX)
			r->k->places[last].after = start + m.start;
		p.before = p.end;
		p.what = (uint8_t)what_is(r->k->endpoint, level, &m);
		p.kind = (uint8_t)m.kind;
		p.start = start + m.start;
		p.value = start + m.value;
		p.after = p.end = start + m.end;
		last = p.what != KV_IS_OTHER && p.what <= KV_IS_END ? r->k->n_places
								    : SIZE_MAX;
		err = take_member(r, &p, &m, text);
		if (err != 0)
			return err;
		p.is_first = false;
		members++;
	}
	if (e != SCAN_CLOSE || !json_members_done(&it))
		return ERR_PARSE;
	return end_object(r, &p, start + m.start, members);
}

/* ---- the verdict ---- */

bool kv_body_may_name(struct span body)
{
	static const char escape[] = "\\u00";
	const char *at = body.p, *end = body.p + body.n;
	size_t i;

	for (i = 0; i < ARRAY_LEN(transfers); i++) {
		struct span name = transfers[i].name;

		if (memmem(body.p, body.n, name.p, name.n) != NULL)
			return true;
	}
	/* A letter as an escape: nobody needs that. */
	while ((at = memmem(at, (size_t)(end - at), escape, 4)) != NULL) {
		at += 4;
		if (at < end && *at >= '4' && *at <= '7')
			return true;
	}
	return false;
}

/*
 * A text that is no JSON here may be some to an engine (NaN, a byte order mark, UTF-16):
 * whether it may hold a name of the transfers then. Rather once too often.
 */
static bool may_hide(struct span body)
{
	return memchr(body.p, '\0', body.n) != NULL || kv_body_may_name(body);
}

static enum kv_verdict judge_unread(const struct kv_request *k, struct span body)
{
	if (!route_generates(k->endpoint) || body.n == 0)
		return KV_WHOLE;
	if (!kv_form(k->connector)->decodes_alone)
		return KV_UNSAFE;
	return may_hide(body) ? KV_UNSAFE : KV_WHOLE;
}

static enum kv_verdict judge_read(const struct reading *r)
{
	const struct kv_form *form = kv_form(r->k->connector);

	if (!route_generates(r->k->endpoint))
		return KV_WHOLE;
	if (r->is_lost && r->k->connector != CONNECTOR_SGLANG)
		return form->decodes_alone ? KV_WHOLE : KV_UNSAFE;
	return r->is_whole && form->decodes_alone ? KV_WHOLE : KV_SPLIT;
}

/* More than that are one room, from which the engine counts on by itself. */
#define BATCH_MAX 4096

static void count_batch(const struct reading *r)
{
	struct kv_request *k = r->k;

	k->batch = 1;
	if (r->samples > 1)
		k->is_batch = true;
	if (r->prompts == 0 || r->prompts > BATCH_MAX || r->samples > BATCH_MAX ||
		r->prompts * r->samples > BATCH_MAX)
		k->is_batch = false;
	if (k->is_batch)
		k->batch = (unsigned)(r->prompts * r->samples);
}

int kv_request_read(struct kv_request *k, enum kv_connector connector,
	enum route_endpoint endpoint, struct span body)
{
	struct reading r = {.k = k, .body = body, .prompts = 1, .samples = 1};
	int err;

	*k = (struct kv_request){.endpoint = endpoint,
		.connector = connector == CONNECTOR_NONE ? CONNECTOR_NIXL : connector};
	err = body.n > 0 && body.n <= UINT32_MAX
		      ? read_object(&r, 0, (uint32_t)body.n, KV_AT_TOP, true)
		      : ERR_PARSE;
	if (err == ERR_NOMEM) {
		kv_request_free(k);
		return err;
	}
	if (err == 0) {
		k->verdict = judge_read(&r);
		count_batch(&r);
		return 0;
	}
	kv_request_free(k);
	k->endpoint = endpoint;
	k->connector = connector == CONNECTOR_NONE ? CONNECTOR_NIXL : connector;
	k->verdict = err == ERR_LIMIT ? KV_UNSAFE : judge_unread(k, body);
	return 0;
}

void kv_request_free(struct kv_request *k)
{
	free(k->places);
	*k = (struct kv_request){.verdict = KV_SPLIT};
}
