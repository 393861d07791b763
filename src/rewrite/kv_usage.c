/*
 * How much of a prompt a prefill worker held already, in its own words. See kv_transfer.h.
 */
#include "rewrite/kv_transfer.h"
#include "route/json_member.h"

/* The objects, by their names, that counts stand in. */
struct place {
	struct span name;
	void (*read)(struct kv_usage *u, struct span object);
};

static void read_number(struct span value, uint64_t *n, bool *has)
{
	uint64_t number;

	if (span_to_u64(value, &number) != 0 || number > INT64_MAX / 4)
		return;
	*n = number;
	*has = true;
}

static void read_places(
	struct kv_usage *u, struct span object, const struct place *places, size_t n)
{
	char buffer[JSON_NAME_ROOM];
	struct json_members it;
	struct json_member m;

	if (json_members_begin(&it, object) != SCAN_OPEN_OBJECT)
		return;
	while (json_members_next(&it, &m) == SCAN_KEY) {
		struct span name = json_member_name(&m, buffer);
		size_t i;

		for (i = 0; i < n; i++)
			if (span_eq(name, places[i].name))
				places[i].read(u, json_member_value(&m, object));
	}
}

/* ---- the counts ---- */

static void read_cached(struct kv_usage *u, struct span value)
{
	read_number(value, &u->cached, &u->has_cached);
}

static void read_prompt(struct kv_usage *u, struct span value)
{
	read_number(value, &u->prompt, &u->has_prompt);
}

/* Messages: what was cached, and what was written to the cache, is no part of its
 * input_tokens. */
static void read_apart(struct kv_usage *u, struct span value)
{
	bool has = false;
	uint64_t n;

	read_number(value, &n, &has);
	if (has)
		u->apart += n;
}

static void read_cache_read(struct kv_usage *u, struct span value)
{
	read_cached(u, value);
	read_apart(u, value);
}

static void read_details(struct kv_usage *u, struct span object)
{
	static const struct place places[] = {{SPAN_LIT("cached_tokens"), read_cached}};

	read_places(u, object, places, ARRAY_LEN(places));
}

static void read_usage(struct kv_usage *u, struct span object)
{
	static const struct place places[] = {
		{SPAN_LIT("prompt_tokens"), read_prompt},
		{SPAN_LIT("input_tokens"), read_prompt},
		{SPAN_LIT("prompt_tokens_details"), read_details},
		{SPAN_LIT("input_tokens_details"), read_details},
		{SPAN_LIT("cache_read_input_tokens"), read_cache_read},
		{SPAN_LIT("cache_creation_input_tokens"), read_apart},
	};

	*u = (struct kv_usage){.has_cached = false};
	read_places(u, object, places, ARRAY_LEN(places));
}

/* SGLang's /generate. */
static void read_meta_info(struct kv_usage *u, struct span object)
{
	static const struct place places[] = {
		{SPAN_LIT("prompt_tokens"), read_prompt},
		{SPAN_LIT("cached_tokens"), read_cached},
	};

	*u = (struct kv_usage){.has_cached = false};
	read_places(u, object, places, ARRAY_LEN(places));
}

/* ---- where they stand ---- */

static void read_params(struct kv_usage *u, struct span object)
{
	static const struct place places[] = {
		{SPAN_LIT("remote_prefill_cached_tokens"), read_cached}};

	read_places(u, object, places, ARRAY_LEN(places));
}

static void read_answer(struct kv_usage *u, struct span answer)
{
	static const struct place counts[] = {
		{SPAN_LIT("usage"), read_usage}, {SPAN_LIT("meta_info"), read_meta_info}};
	static const struct place params[] = {
		{SPAN_LIT("kv_transfer_params"), read_params}};

	read_places(u, answer, counts, ARRAY_LEN(counts));
	/* What is told for this purpose holds. */
	read_places(u, answer, params, ARRAY_LEN(params));
}

/* A batch: SGLang's /generate answers with a list. */
static void read_list(struct kv_usage *u, struct span list)
{
	struct json_members it;
	struct json_member m;

	if (json_members_begin(&it, list) != SCAN_OPEN_ARRAY)
		return;
	while (json_items_next(&it, &m) == SCAN_STRING) {
		struct kv_usage one = {.has_cached = false};

		read_answer(&one, json_member_value(&m, list));
		u->cached += one.cached;
		u->prompt += one.prompt + one.apart;
		u->has_cached |= one.has_cached;
		u->has_prompt |= one.has_prompt;
	}
}

void kv_answer_usage(struct span answer, struct kv_usage *u)
{
	struct span rest = answer, line;

	*u = (struct kv_usage){.has_cached = false};
	answer = span_trim_all(answer);
	if (answer.n > 0 && answer.p[0] == '[') {
		read_list(u, answer);
		return;
	}
	if (answer.n > 0 && answer.p[0] == '{')
		read_answer(u, answer);
	else
		while (span_next(&rest, '\n', &line))
			if (span_starts(line, SPAN_LIT("data:")))
				read_answer(
					u, span_trim(span_make(line.p + 5, line.n - 5)));
	u->prompt += u->apart;
	u->apart = 0;
}
