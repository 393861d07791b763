/*
 * The chat template of the sim backend; chat.h shows it. Pure. Called by vocab_sim.c.
 */
#include "backend/chat.h"
#include "base/err.h"
#include "base/hash.h"
#include "io/js.h"

#include <inttypes.h>
#include <stdlib.h>

static void add_span(struct text *out, struct span s)
{
	text_add(out, s);
}

/* A value as compact JSON: its hash where it is media, which may be large. */
static void add_json(struct text *out, const struct js *v, bool as_hash)
{
	char *text = js_print(v, false);

	if (text == NULL)
		out->failed = true;
	else if (as_hash)
		text_printf(
			out, "<|media:%016" PRIx64 "|>", hash64(text, strlen(text), 0));
	else
		text_printf(out, "%s", text);
	free(text);
}

static int add_part(struct text *out, const struct js *part, const char **why)
{
	struct span type, text;

	if (js_as_str(part, &text)) {
		add_span(out, text);
		return 0;
	}
	if (!js_as_str(js_get(part, "type"), &type)) {
		*why = "each content part must be a string or an object with a 'type'";
		return ERR_PARSE;
	}
	if (!span_is(type, "text") && !span_is(type, "input_text")) {
		add_json(out, part, true);
		return 0;
	}
	if (!js_as_str(js_get(part, "text"), &text)) {
		*why = "a text part needs a string 'text'";
		return ERR_PARSE;
	}
	add_span(out, text);
	return 0;
}

static int add_content(struct text *out, const struct js *content, const char **why)
{
	struct span text;

	if (content == NULL || js_is_null(content))
		return 0;
	if (js_as_str(content, &text)) {
		add_span(out, text);
		return 0;
	}
	if (!js_is_array(content)) {
		*why = "'content' must be a string, a list of parts or null";
		return ERR_PARSE;
	}
	for (size_t i = 0; i < js_len(content); i++) {
		int err = add_part(out, js_at(content, i), why);

		if (err != 0)
			return err;
	}
	return 0;
}

static int add_role(struct text *out, const struct js *message, const char **why)
{
	struct span role;

	if (!js_as_str(js_get(message, "role"), &role) || role.n == 0) {
		*why = "each message must be an object with a string 'role'";
		return ERR_PARSE;
	}
	text_printf(out, "<|" SPAN_FMT "|>\n", SPAN_ARG(role));
	return 0;
}

/* open_from, if not NULL: it is to be continued, so its end is left open; set to where
 * its content begins. */
static int add_message(
	struct text *out, const struct js *message, size_t *open_from, const char **why)
{
	const struct js *calls = js_get(message, "tool_calls");
	int err = add_role(out, message, why);

	if (err != 0)
		return err;
	if (open_from != NULL)
		*open_from = out->n;
	err = add_content(out, js_get(message, "content"), why);
	if (err != 0)
		return err;
	if (calls != NULL && !js_is_null(calls))
		add_json(out, calls, false);
	if (open_from == NULL)
		text_printf(out, "\n");
	return 0;
}

/* Whether the last message is continued, rather than answered. */
static int read_continues(const struct js *body, bool *continues, const char **why)
{
	const struct js *v = js_get(body, "continue_final_message");
	const struct js *prompts = js_get(body, "add_generation_prompt");
	bool adds_prompt = false;

	*continues = false;
	if (v != NULL && !js_is_null(v) && !js_as_bool(v, continues)) {
		*why = "'continue_final_message' must be true or false";
		return ERR_PARSE;
	}
	if (prompts != NULL && !js_is_null(prompts) &&
		!js_as_bool(prompts, &adds_prompt)) {
		*why = "'add_generation_prompt' must be true or false";
		return ERR_PARSE;
	}
	if (*continues && adds_prompt) {
		*why = "'continue_final_message' and 'add_generation_prompt' cannot both "
		       "be true";
		return ERR_PARSE;
	}
	return 0;
}

int chat_render(
	const struct js *body, struct text *out, size_t *answer_from, const char **why)
{
	bool continues;
	int err = read_continues(body, &continues, why);
	const struct js *messages = js_get(body, "messages"),
			*tools = js_get(body, "tools");

	if (err != 0)
		return err;
	if (!js_is_array(messages) || js_len(messages) == 0) {
		*why = "'messages' must be a list of at least one message";
		return ERR_PARSE;
	}
	if (tools != NULL && !js_is_null(tools) && !js_is_array(tools)) {
		*why = "'tools' must be a list";
		return ERR_PARSE;
	}
	if (js_len(tools) > 0) {
		text_printf(out, "<|tools|>\n");
		add_json(out, tools, false);
		text_printf(out, "\n");
	}
	for (size_t i = 0; i < js_len(messages) && err == 0; i++) {
		bool is_open = continues && i + 1 == js_len(messages);

		err = add_message(
			out, js_at(messages, i), is_open ? answer_from : NULL, why);
	}
	if (err != 0)
		return err;
	if (!continues) {
		text_printf(out, "<|assistant|>\n");
		*answer_from = out->n;
	}
	return out->failed ? ERR_NOMEM : 0;
}
