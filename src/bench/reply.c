/*
 * Answers in OpenAI's shape, as different servers write them. See reply.h. Called by
 * run.c.
 */
#include "bench/reply.h"

#include "base/err.h"
#include "io/js.h"

void reply_copy(struct span in, char *out, size_t n)
{
	size_t len = MIN(in.n, n - 1);

	for (size_t i = 0; i < len; i++)
		out[i] = in.p[i] >= 0x20 && in.p[i] < 0x7f ? in.p[i] : '?';
	out[len] = '\0';
}

void reply_clear(struct reply *r)
{
	struct text text = r->text;
	bool keeps_text = r->keeps_text;

	text_clear(&text);
	*r = (struct reply){.keeps_text = keeps_text, .text = text};
}

void reply_free(struct reply *r)
{
	text_free(&r->text);
}

static bool read_count(const struct js *object, const char *key, uint64_t *out)
{
	int64_t n;

	if (!js_as_int(js_get(object, key), &n) || n < 0)
		return false;
	*out = (uint64_t)n;
	return true;
}

static void read_usage(struct reply *r, const struct js *usage)
{
	if (!js_is_object(usage) ||
		!read_count(usage, "prompt_tokens", &r->prompt_tokens))
		return;
	r->has_usage = true;
	(void)read_count(usage, "completion_tokens", &r->new_tokens);
	if (read_count(js_get(usage, "prompt_tokens_details"), "cached_tokens",
		    &r->cached_tokens))
		r->has_cached = true;
}

static void read_worker(struct reply *r, const struct js *root)
{
	struct span name;

	if (r->worker[0] != '\0')
		return;
	if (js_as_str(js_get(root, "worker"), &name) ||
		js_as_str(js_get(root, "system_fingerprint"), &name))
		reply_copy(name, r->worker, sizeof(r->worker));
}

/* {"error":{"message"}}, {"error":"..."}, {"object":"error","message"}, {"detail":"..."}
 */
static void read_error(struct reply *r, const struct js *root)
{
	const struct js *error = js_get(root, "error");
	struct span text = {NULL, 0}, kind;

	if (js_as_str(js_get(root, "object"), &kind) && span_is(kind, "error")) {
		r->has_error = true;
		(void)js_as_str(js_get(root, "message"), &text);
	} else if (error != NULL && !js_is_null(error)) {
		r->has_error = true;
		if (!js_as_str(js_get(error, "message"), &text))
			(void)js_as_str(error, &text);
	} else {
		(void)js_as_str(js_get(root, "detail"), &text);
	}
	if (text.n > 0)
		reply_copy(text, r->message, sizeof(r->message));
}

/* True when a key of these holds text; content is gathered. */
static bool read_part(struct reply *r, const struct js *part)
{
	static const char *const others[] = {"reasoning_content", "reasoning"};
	bool found = js_len(js_get(part, "tool_calls")) > 0;
	struct span text;

	if ((js_as_str(js_get(part, "content"), &text) ||
		    js_as_str(js_get(part, "text"), &text)) &&
		text.n > 0) {
		found = true;
		if (r->keeps_text)
			text_add(&r->text, text);
	}
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		found = found ||
			(js_as_str(js_get(part, others[i]), &text) && text.n > 0);
	return found;
}

static bool read_choices(struct reply *r, const struct js *choices)
{
	struct span reason;
	bool found = false;

	for (size_t i = 0; js_is_array(choices) && i < js_len(choices); i++) {
		const struct js *choice = js_at(choices, i), *part;

		part = js_get(choice, "message");
		if (part == NULL)
			part = js_get(choice, "delta");
		found = read_part(r, part != NULL ? part : choice) || found;
		if (js_as_str(js_get(choice, "finish_reason"), &reason))
			r->has_finish = true;
	}
	return found;
}

static int read_document(struct reply *r, struct span text, bool *has_text)
{
	const char *why;
	struct js *root = js_parse(text, &why);

	if (!js_is_object(root)) {
		js_free(root);
		return ERR_PARSE;
	}
	*has_text = read_choices(r, js_get(root, "choices"));
	read_usage(r, js_get(root, "usage"));
	read_worker(r, root);
	read_error(r, root);
	js_free(root);
	return r->text.failed ? ERR_NOMEM : 0;
}

int reply_read(struct reply *r, struct span body)
{
	bool has_text;

	return read_document(r, body, &has_text);
}

int reply_event(struct reply *r, struct span data, bool *has_text)
{
	*has_text = false;
	if (span_is(data, "[DONE]")) {
		r->is_done = true;
		return 0;
	}
	return read_document(r, data, has_text);
}
