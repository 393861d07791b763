/*
 * Builds struct route_key from the results of the two phases or from the client's own
 * hashes, and computes the secret that separates name spaces.
 */
#include "route/route_key.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "route/route_prompt.h"
#include "route/route_scan.h"

#include <endian.h>
#include <stdlib.h>

/* A key keeps this much memory from one request to the next: 2 KiB of hashes, 1 KiB of
 * text. */
#define KEPT_BLOCKS 256
#define KEPT_TEXT 1024

/* A span of route_key and the value it is decoded from. */
struct text_field {
	struct span *span;
	struct json_value value;
};

/* The texts of a key, in the order in which they lie in its memory. */
enum {
	TEXT_MODEL,
	TEXT_LORA,
	TEXT_CACHE_SALT,
	TEXT_OBJECT,
	TEXT_SESSION, /* and its SESSION_MAX kinds, which may be numbers */
	TEXT_FIELDS = TEXT_SESSION + SESSION_MAX
};

void route_key_init(struct route_key *k)
{
	*k = (struct route_key){.unit = 'b'};
}

void route_key_reset(struct route_key *k)
{
	if (k->cap_blocks > KEPT_BLOCKS) {
		free(take_ptr(k->hashes));
		k->cap_blocks = 0;
	}
	if (k->text_cap > KEPT_TEXT) {
		free(take_ptr(k->text));
		k->text_cap = 0;
	}
	*k = (struct route_key){
		.unit = 'b',
		.hashes = k->hashes,
		.cap_blocks = k->cap_blocks,
		.text = k->text,
		.text_cap = k->text_cap,
	};
}

void route_key_free(struct route_key *k)
{
	free(k->hashes);
	free(k->text);
	route_key_init(k);
}

static bool is_text(struct json_value v)
{
	return v.kind == JSON_IS_STRING;
}

/* The first text of a list (SGLang's lora_path), else the value itself. */
static struct json_value first_text(const struct json_text *t, struct json_value v)
{
	struct json_cursor c = json_enter(v);
	struct json_value item = {0};

	if (v.kind != JSON_IS_ARRAY)
		return v;
	return json_next_item(t, &c, &item) ? item : (struct json_value){0};
}

static const struct span session_id_name = {"session_id", sizeof("session_id") - 1};

static struct json_value session_params_id(
	const struct json_text *t, struct json_value params)
{
	struct json_value id;

	json_members(t, params, &session_id_name, 1, &id);
	return id;
}

/* Anthropic's metadata has a user_id, others put a session_id there. */
static void list_metadata(const struct json_text *t, struct json_value metadata,
	struct text_field session[SESSION_MAX])
{
	static const struct span names[] = {{"session_id", sizeof("session_id") - 1},
		{"user_id", sizeof("user_id") - 1}};
	struct json_value found[ARRAY_LEN(names)];

	json_members(t, metadata, names, ARRAY_LEN(names), found);
	session[SESSION_METADATA_ID].value = found[0];
	session[SESSION_METADATA_USER].value = found[1];
}

/* Session ids may be numbers, which count as spelled. */
static bool is_session(struct json_value v)
{
	return is_text(v) || v.kind == JSON_IS_NUMBER;
}

/* Claude Code's metadata.user_id holds its session: as JSON {"session_id": ...}, or at its
 * end as user_..._session_ID. Empty: none. */
static struct span session_in(struct span user)
{
	static const char mark[] = "_session_";
	const struct json_text text = {user.p, user.n, NULL, 0};
	const struct json_value object = {
		.end = (uint32_t)user.n, .kind = JSON_IS_OBJECT};
	struct json_value id;
	const char *at;

	if (user.n == 0)
		return user;
	if (user.p[0] == '{') {
		json_members(&text, object, &session_id_name, 1, &id);
		return is_session(id) ? json_raw(&text, id) : span_make(NULL, 0);
	}
	at = memmem(user.p, user.n, mark, sizeof(mark) - 1);
	if (at == NULL)
		return span_make(NULL, 0);
	at += sizeof(mark) - 1;
	return span_make(at, (size_t)(user.p + user.n - at));
}

/* A user_id that holds a session stands for that session, not for a person. */
static void find_session_in_user(struct route_key *k)
{
	struct span *user = &k->session[SESSION_METADATA_USER];
	struct span session = session_in(*user);

	if (session.n == 0)
		return;
	if (k->session[SESSION_METADATA_ID].n == 0)
		k->session[SESSION_METADATA_ID] = session;
	*user = span_make(NULL, 0);
}

/* The value itself, or the object's member. */
static struct json_value text_or_id(const struct json_text *t, struct json_value v)
{
	static const struct span name = {"id", sizeof("id") - 1};
	struct json_value id;

	if (v.kind != JSON_IS_OBJECT)
		return v;
	json_members(t, v, &name, 1, &id);
	return id;
}

/* The id of an object that one worker keeps, as the endpoint calls it. */
static struct json_value object_id(const struct route_scan *s, const struct json_text *t)
{
	const struct json_value *fields = s->fields;

	switch (s->endpoint) {
	case ENDPOINT_RESPONSES:
		return text_or_id(
			t, fields[is_text(fields[FIELD_PREVIOUS]) ? FIELD_PREVIOUS
								  : FIELD_CONVERSATION]);
	case ENDPOINT_GENERATE:
		return text_or_id(t, fields[FIELD_SESSION_PARAMS]);
	case ENDPOINT_PLAIN:
		return fields[is_text(fields[FIELD_INPUT_FILE]) ? FIELD_INPUT_FILE
								: FIELD_SESSION_ID];
	default:
		return (struct json_value){0};
	}
}

/* Returns those that are there, a bit each. */
static unsigned list_texts(const struct route_scan *s, const struct json_text *t,
	struct route_key *k, struct text_field list[TEXT_FIELDS])
{
	const struct json_value *fields = s->fields;
	struct text_field *session = list + TEXT_SESSION;
	unsigned there = 0;

	list[TEXT_MODEL] = (struct text_field){&k->model, fields[FIELD_MODEL]};
	list[TEXT_LORA] =
		(struct text_field){&k->lora, first_text(t, fields[FIELD_LORA_PATH])};
	list[TEXT_CACHE_SALT] =
		(struct text_field){&k->cache_salt, fields[FIELD_CACHE_SALT]};
	list[TEXT_OBJECT] = (struct text_field){&k->object, object_id(s, t)};
	session[SESSION_PARAMS_ID].value =
		session_params_id(t, fields[FIELD_SESSION_PARAMS]);
	session[SESSION_ID].value = fields[FIELD_SESSION_ID];
	session[SESSION_CACHE_KEY].value = fields[FIELD_CACHE_KEY];
	list_metadata(t, fields[FIELD_METADATA], session);
	session[SESSION_SAFETY].value = fields[FIELD_SAFETY];
	session[SESSION_USER].value = fields[FIELD_USER];
	session[SESSION_USER_ID].value = fields[FIELD_USER_ID];
	for (unsigned i = 0; i < SESSION_MAX; i++)
		session[i].span = &k->session[i];
	for (unsigned i = 0; i < TEXT_FIELDS; i++) {
		bool is_good = i < TEXT_SESSION ? is_text(list[i].value)
						: is_session(list[i].value);

		there |= (unsigned)is_good << i;
	}
	return there;
}

/* Decodes all of *raw to out, which has room for it and the slack. */
static size_t decode_all(struct span raw, char *out)
{
	size_t used = 0;

	/* Decoded is never longer than spelled, so the room is enough for each turn. */
	while (raw.n > 0)
		used += json_decode(&raw, out + used, raw.n + JSON_DECODE_SLACK + 1);
	return used;
}

/* Of those that are there; the others are empty already. */
static int decode_texts(const struct json_text *t, struct route_key *k,
	const struct text_field list[TEXT_FIELDS], unsigned there)
{
	size_t total = 0, used = 0;
	int err;

	for (unsigned left = there; left != 0; left &= left - 1) {
		const struct text_field *f = &list[__builtin_ctz(left)];

		total += f->value.end - f->value.start;
	}
	err = mem_grow(&k->text, &k->text_cap, total + JSON_DECODE_SLACK + 1, 1);
	if (err < 0)
		return err;
	for (unsigned left = there; left != 0; left &= left - 1) {
		const struct text_field *f = &list[__builtin_ctz(left)];
		char *out = k->text + used;

		used += decode_all(json_raw(t, f->value), out);
		*f->span = span_make(out, (size_t)(k->text + used - out));
	}
	find_session_in_user(k);
	return 0;
}

static void forget_body(struct route_key *k, const struct route_key_opts *opts)
{
	k->readable = k->stream = false;
	k->model = k->lora = k->cache_salt = k->object = span_make(NULL, 0);
	for (unsigned i = 0; i < SESSION_MAX; i++)
		k->session[i] = span_make(NULL, 0);
	if (k->hashes_sent)
		return;
	k->unit = 'b';
	k->block = opts->block_bytes;
	k->n_blocks = 0;
	k->prompt_units = 0;
}

/* All of a form that routing reads. */
static int take_form(const struct route_scan *s, const char *base, struct route_key *k)
{
	int err = route_key_say(k, span_make(base + s->model, s->model_end - s->model),
		span_make(NULL, 0), span_make(NULL, 0));

	k->readable = err == 0;
	return err;
}

int route_key_build(struct route_scan *s, const char *base, size_t len,
	const struct route_key_opts *opts, struct route_key *k)
{
	struct json_text text = {base, len, s->skips, s->n_skips};
	struct text_field list[TEXT_FIELDS];
	int err;

	forget_body(k, opts);
	k->endpoint = s->endpoint;
	if (s->is_form)
		return take_form(s, base, k);
	if (s->has_failed || !s->is_object || s->json.at != len ||
		!json_scan_is_done(&s->json))
		return 0;
	err = decode_texts(&text, k, list, list_texts(s, &text, k, list));
	if (err == 0 && !k->hashes_sent && !opts->skip_prompt)
		err = route_prompt_hash(s, &text, opts, k);
	if (err < 0) {
		forget_body(k, opts);
		return err;
	}
	k->stream = s->fields[FIELD_STREAM].kind == JSON_IS_TRUE;
	k->readable = true;
	return 0;
}

/* Cuts "128b;" off *rest. */
static int read_unit(struct span *rest, char *unit, uint32_t *block)
{
	struct span word;
	uint64_t value;

	if (memchr(rest->p, ';', rest->n) == NULL || !span_next(rest, ';', &word) ||
		word.n < 2)
		return ERR_PARSE;
	*unit = word.p[word.n - 1];
	if ((*unit != 'b' && *unit != 't') ||
		span_to_u64(span_make(word.p, word.n - 1), &value) < 0)
		return ERR_PARSE;
	if (value == 0 || value > UINT32_MAX)
		return ERR_PARSE;
	*block = (uint32_t)value;
	return 0;
}

static bool next_hash(struct span *rest, uint64_t *hash)
{
	struct span word;

	return span_next(rest, ',', &word) && span_hex_u64(span_trim(word), hash) == 0;
}

/* Counts the hashes, which must all be well formed. */
static int count_hashes(struct span list, size_t *count)
{
	size_t n = 0;
	uint64_t hash;

	if (list.n > 0 && list.p[list.n - 1] == ',')
		return ERR_PARSE;
	for (; list.n > 0; n++) {
		if (!next_hash(&list, &hash))
			return ERR_PARSE;
	}
	*count = n;
	return 0;
}

int route_key_from_header(struct span value, size_t max_blocks, struct route_key *k)
{
	struct span list = span_trim(value);
	uint32_t block;
	size_t n;
	char unit;
	int err;

	if (list.n == 0)
		return ERR_PARSE;
	err = read_unit(&list, &unit, &block);
	if (err < 0)
		return err;
	list = span_trim(list);
	err = count_hashes(list, &n);
	if (err < 0)
		return err;
	if (max_blocks > 0 && n > max_blocks)
		return ERR_LIMIT;
	err = mem_grow(&k->hashes, &k->cap_blocks, n, sizeof(*k->hashes));
	if (err < 0)
		return err;
	for (size_t i = 0; i < n; i++) {
		bool is_read = next_hash(&list, &k->hashes[i]);

		assert(is_read);
		(void)is_read;
	}
	k->hashes_sent = true;
	k->unit = unit;
	k->block = block;
	k->n_blocks = n;
	k->prompt_units = (uint64_t)n * block;
	return 0;
}

int route_key_say(
	struct route_key *k, struct span model, struct span lora, struct span cache_salt)
{
	const struct span said[3] = {model, lora, cache_salt};
	struct span *const to[3] = {&k->model, &k->lora, &k->cache_salt};
	size_t used = 0;
	int err =
		mem_grow(&k->text, &k->text_cap, model.n + lora.n + cache_salt.n + 1, 1);

	if (err < 0)
		return err;
	for (unsigned i = 0; i < ARRAY_LEN(said); i++) {
		if (said[i].n > 0)
			memcpy(k->text + used, said[i].p, said[i].n);
		*to[i] = span_make(k->text + used, said[i].n);
		used += said[i].n;
	}
	return 0;
}

static void move_span(struct span *s, const char *from, const char *to)
{
	if (s->n > 0)
		s->p = to + (s->p - from);
}

int route_key_say_model(struct route_key *k, struct span model)
{
	size_t used = k->text_cap;
	char *text = malloc(used + model.n);

	if (text == NULL)
		return ERR_NOMEM;
	if (used > 0)
		memcpy(text, k->text, used);
	memcpy(text + used, model.p, model.n);
	move_span(&k->lora, k->text, text);
	move_span(&k->cache_salt, k->text, text);
	move_span(&k->object, k->text, text);
	for (unsigned i = 0; i < SESSION_MAX; i++)
		move_span(&k->session[i], k->text, text);
	free(k->text);
	k->text = text;
	k->text_cap = used + model.n;
	k->model = span_make(text + used, model.n);
	return 0;
}

static void add_u64(struct hash_stream *h, uint64_t value)
{
	value = htole64(value);
	hash_stream_add(h, &value, sizeof(value));
}

static void add_field(struct hash_stream *h, struct span field)
{
	add_u64(h, field.n);
	hash_stream_add(h, field.p, field.n);
}

uint64_t route_key_secret(const struct route_salt *salt)
{
	struct hash_stream h;
	uint64_t outer[2];

	hash_stream_init(&h, salt->boot_secret[0]);
	add_field(&h, salt->model);
	add_field(&h, salt->lora);
	add_field(&h, salt->cache_salt);
	add_field(&h, salt->tenant);
	add_u64(&h, salt->generation);
	add_u64(&h, (unsigned char)salt->unit);
	add_u64(&h, salt->block);
	outer[0] = htole64(hash_stream_end(&h));
	outer[1] = htole64(salt->boot_secret[0]);
	return hash64(outer, sizeof(outer), salt->boot_secret[1]);
}
