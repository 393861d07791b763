/*
 * What an engine says of its own state. See says.h.
 */
#include "fleet/says.h"

#include "fleet/host.h"
#include "io/fetch.h"
#include "io/js.h"

#include <string.h>

/* In any case of letters. */
static const struct {
	const char *words;
	enum worker_state how;
	const char *why;
} refusals[] = {
	/* llama.cpp: {"error":{"message":"Loading model"...}}; others: loading. */
	{"loading", WORKER_LOADING, "it says that it loads its model"},
	/* vLLM, while its data-parallel ranks change. */
	{"currently scaling", WORKER_LOADING, "it says that it scales"},
	{"draining", WORKER_DRAINING, "it says that it drains"},
	{"shutting down", WORKER_DRAINING, "it says that it shuts down"},
	{"shutdown", WORKER_DRAINING, "it says that it shuts down"},
};

bool says_why_not(const struct fetch_answer *a, enum worker_state *how, const char **why)
{
	size_t i;

	if (a->result != FETCH_OK || a->status != 503 || a->body.n == 0)
		return false;
	for (i = 0; i < ARRAY_LEN(refusals); i++) {
		if (strcasestr(a->body.p, refusals[i].words) == NULL)
			continue;
		*how = refusals[i].how;
		*why = refusals[i].why;
		return true;
	}
	return false;
}

enum says says_sleeps(const struct fetch_answer *a)
{
	const char *why;
	struct js *root = host_said_yes(a) ? js_parse(a->body, &why) : NULL;
	enum says said = SAYS_NOTHING;
	bool is_sleeping;

	if (root != NULL && js_is_object(root) &&
		js_as_bool(js_get(root, "is_sleeping"), &is_sleeping))
		said = is_sleeping ? SAYS_YES : SAYS_NO;
	js_free(root);
	return said;
}

enum says says_unready(const struct fetch_answer *a)
{
	if (host_said_yes(a))
		return SAYS_NO;
	return a->result == FETCH_OK && a->status == 503 ? SAYS_YES : SAYS_NOTHING;
}
