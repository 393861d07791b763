/*
 * What workers say of themselves: metrics, JSON of load and size, lists of models, answers
 * to probes. The first byte says which. What must hold: numbers are finite, whatever is
 * said; a list of models is published as JSON, with each id once.
 */
#include "fleet/models.h"
#include "fleet/says.h"
#include "fleet/scrape.h"
#include "io/fetch.h"
#include "io/js.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>

#define RANKS 3

static void check_engine(const struct scrape_engine *e)
{
	MUST(!e->has_tokens || isfinite(e->tokens));
	MUST(!e->has_generated || isfinite(e->generated));
}

static void try_scrape(struct span text, bool is_json, unsigned first)
{
	struct scrape_engine ranks[RANKS];
	struct scrape s = {.ranks = ranks, .n_ranks = RANKS, .first_rank = first};

	scrape_begin(&s);
	if (is_json)
		scrape_json(text, &s);
	else
		scrape_read(text, &s);
	check_engine(&s.all);
	for (unsigned i = 0; i < RANKS; i++)
		check_engine(&ranks[i]);
	MUST(isfinite(s.start_seconds));
	MUST(memchr(s.id, '\0', sizeof(s.id)) != NULL);
}

static void check_published(const struct js *list)
{
	for (size_t i = 0; i < js_len(list); i++) {
		struct span id, other;

		MUST(js_as_str(js_get(js_at(list, i), "id"), &id));
		for (size_t j = 0; j < i; j++) {
			MUST(js_as_str(js_get(js_at(list, j), "id"), &other));
			MUST(!span_eq(id, other));
		}
	}
}

/* Two workers' lists: the input, and its first half. */
static void try_models(const char *p, size_t n)
{
	struct js *parts[2] = {NULL, NULL}, *doc;
	struct models *m = models_new();
	struct models_only only = {0};
	const char *why;
	char *text;

	MUST(m != NULL);
	MUST(models_parse(span_make(p, n), &parts[0]) == 0);
	MUST(models_parse(span_make(p, n / 2), &parts[1]) == 0);
	models_only_add(&only, parts[0]);
	models_only_add(&only, parts[1]);
	MUST(models_publish(m, (const struct js *const *)parts, 2) == 0);
	text = models_copy(m, &n);
	MUST(text != NULL);
	doc = js_parse(span_make(text, n), &why);
	MUST(doc != NULL);
	check_published(js_get(doc, "data"));
	js_free(doc);
	free(text);
	js_free(parts[0]);
	js_free(parts[1]);
	models_free(m);
}

/* Answers are NUL-terminated behind their end. */
static void try_says(const char *p, size_t n, int status)
{
	char *body = strndup(p, n);
	struct fetch_answer a = {.result = FETCH_OK, .status = status};
	enum worker_state how;
	const char *why;

	MUST(body != NULL);
	a.body = span_make(body, strlen(body));
	(void)says_why_not(&a, &how, &why);
	(void)says_sleeps(&a);
	(void)says_unready(&a);
	free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	size_t n = size - 1;
	char *p;

	if (size == 0)
		return 0;
	p = fuzz_copy((const char *)bytes + 1, n);
	switch (bytes[0] % 4) {
	case 0:
	case 1:
		try_scrape(span_make(p, n), bytes[0] % 4, bytes[0] / 4 % 4);
		break;
	case 2:
		try_models(p, n);
		break;
	default:
		try_says(p, n, bytes[0] & 4 ? 503 : 200);
	}
	free(p);
	return 0;
}
