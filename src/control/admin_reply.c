/*
 * How the admin API answers. See admin_reply.h.
 */
#include "control/admin_reply.h"

#include "base/cleanup.h"
#include "conf/conf.h"
#include "http/http_server.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
	int status;
	const char *code;
} fails[] = {
#define X(name, status, code) {status, code},
	ADMIN_FAIL_TABLE(X)
#undef X
};

static const char json_type[] = "application/json";

static const char no_memory[] =
	"{\"error\":{\"message\":\"out of memory\",\"code\":\"out_of_memory\"}}";
static const char done[] = "{\"message\":\"done; there is no memory to show what\"}";

static void reply(struct http_call *call, int status, const char *text)
{
	http_call_reply(call, status, json_type, span_str(text), span_make(NULL, 0));
}

/* Takes the document. NULL: memory ran out, also while the document was made. */
static char *print(struct js *document)
{
	char *text = document != NULL ? js_print(document, false) : NULL;

	js_free(document);
	if (!js_ran_out())
		return text;
	free(text);
	return NULL;
}

void admin_reply(struct http_call *call, int status, struct js *document)
{
	scoped_free char *text = print(document);

	if (text != NULL)
		reply(call, status, text);
	else
		reply(call, fails[ADMIN_MEMORY].status, no_memory);
}

void admin_reply_done(struct http_call *call, int status, struct js *document)
{
	scoped_free char *text = print(document);

	reply(call, status, text != NULL ? text : done);
}

static struct js *error_document(const char *message, const char *code)
{
	struct js *document = js_object(), *error = js_object();

	js_set_str(error, "message", message);
	js_set_str(error, "code", code);
	js_set(document, "error", error);
	return document;
}

void admin_fail(struct http_call *call, enum admin_fail why, const char *fmt, ...)
{
	char message[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	admin_reply(call, fails[why].status, error_document(message, fails[why].code));
}

struct js *admin_conf_errors(const struct conf_errors *errors, bool warnings)
{
	struct js *list = js_array();
	const struct conf_error *e;
	size_t i;

	for (i = 0; (e = conf_errors_at(errors, i)) != NULL; i++) {
		struct js *item;

		if (e->is_warning != warnings)
			continue;
		item = js_object();
		js_set_str(item, "file", e->file);
		if (e->line > 0)
			js_set_int(item, "line", e->line);
		else
			js_set(item, "line", js_null());
		js_set_str(item, "key", e->key);
		js_set_str(item, "value", e->value);
		js_set_str(item, "message", e->message);
		js_set_str(item, "hint", e->hint);
		js_push(list, item);
	}
	return list;
}

void admin_fail_conf(
	struct http_call *call, enum admin_fail why, const struct conf_errors *errors)
{
	char text[CONF_ERROR_TEXT_MAX];
	struct js *document;

	conf_error_print(conf_errors_first(errors), text, sizeof(text));
	document = error_document(text, fails[why].code);
	js_set(document, "errors", admin_conf_errors(errors, false));
	js_set(document, "warnings", admin_conf_errors(errors, true));
	admin_reply(call, fails[why].status, document);
}

void admin_on_fail(void *arg, struct http_call *call, enum fail why)
{
	(void)arg;
	if (why == FAIL_METHOD_NOT_ALLOWED) {
		/* The server names what the path does take. */
		http_call_fail(call, why);
		return;
	}
	admin_reply(
		call, fail_status(why), error_document(fail_text(why), fail_code(why)));
}
