/*
 * The table of faults: one row for each key, which reads and prints it.
 * Called by fault_socket.c (telling), serve.c, completion.c and health.c (having).
 */
#include "lab/fault.h"
#include "base/err.h"
#include "io/js.h"

#include <inttypes.h>
#include <stdio.h>

enum fault_type {
	FAULT_BOOL,
	FAULT_COUNT,  /* int64_t; null is -1 */
	FAULT_NUMBER, /* int64_t */
	FAULT_FACTOR, /* double */
	FAULT_ANSWER, /* a status, "reset", "head" or null */
	FAULT_HOW,    /* bool; the second word of hows[min] */
	FAULT_HEALTH, /* enum fault_health */
};

struct fault_row {
	const char *key;
	enum fault_type type;
	size_t offset;
	int64_t min, max;
	const char *want;
};

enum { HOW_CUT, HOW_DIES };
static const char *const hows[][2] = {
	[HOW_CUT] = {"rst", "fin"}, [HOW_DIES] = {"kill", "core"}};

#define FIELD(f) offsetof(struct faults, f)

/* clang-format off */
static const struct fault_row rows[] = {
	{ "wedge", FAULT_BOOL, FIELD(is_wedged), 0, 0, "true or false" },
	{ "die_core", FAULT_BOOL, FIELD(is_core_dead), 0, 0, "true or false" },
	{ "die_after_ms", FAULT_COUNT, FIELD(die_after_ms), 0, 3600000, "milliseconds up to 3600000 or null" },
	{ "die_how", FAULT_HOW, FIELD(dies_in_core), HOW_DIES, 0, "\"kill\" or \"core\"" },
	{ "slow", FAULT_FACTOR, FIELD(slow), 1, 10000, "a factor from 1 to 10000" },
	{ "cut_after", FAULT_COUNT, FIELD(cut_after), 0, INT32_MAX, "a number of events or null" },
	{ "cut_how", FAULT_HOW, FIELD(cuts_by_fin), HOW_CUT, 0, "\"rst\" or \"fin\"" },
	{ "cut_left", FAULT_COUNT, FIELD(cut_left), 0, INT32_MAX, "a number of streams or null" },
	{ "hold_after", FAULT_COUNT, FIELD(hold_after), 0, INT32_MAX, "a number of events or null" },
	{ "answer", FAULT_ANSWER, FIELD(answer), 400, 599, "a status from 400 to 599, \"reset\", \"head\" or null" },
	{ "answer_left", FAULT_COUNT, FIELD(answer_left), 0, INT32_MAX, "a number of requests or null" },
	{ "retry_after", FAULT_COUNT, FIELD(retry_after_s), 0, INT32_MAX, "seconds or null" },
	{ "hang_connect", FAULT_BOOL, FIELD(hangs_connect), 0, 0, "true or false" },
	{ "health", FAULT_HEALTH, FIELD(health), 0, 0, "\"ok\", \"fail\" or \"silent\"" },
	{ "health_delay_ms", FAULT_NUMBER, FIELD(health_delay_ms), 0, 3600000, "milliseconds up to 3600000" },
};
/* clang-format on */

static const char *const healths[] = {
	[FAULT_HEALTH_OK] = "ok",
	[FAULT_HEALTH_FAIL] = "fail",
	[FAULT_HEALTH_SILENT] = "silent",
};

void faults_clear(struct faults *f)
{
	*f = (struct faults){
		.slow = 1,
		.cut_after = FAULT_NONE,
		.cut_left = FAULT_ALL,
		.hold_after = FAULT_NONE,
		.die_after_ms = FAULT_NONE,
		.answer = FAULT_NONE,
		.answer_left = FAULT_ALL,
		.retry_after_s = FAULT_NONE,
		.n_cut = f->n_cut,
		.n_answered = f->n_answered,
		.n_restarts = f->n_restarts,
	};
}

static bool read_count(const struct fault_row *row, const struct js *v, int64_t *out)
{
	int64_t n;

	if (js_is_null(v) && row->type != FAULT_NUMBER)
		n = FAULT_NONE;
	else if (!js_as_int(v, &n) || n < row->min || n > row->max)
		return false;
	*out = n;
	return true;
}

static bool read_answer(const struct fault_row *row, const struct js *v, int64_t *out)
{
	struct span text;

	if (!js_as_str(v, &text))
		return read_count(row, v, out);
	*out = span_is(text, "head") ? FAULT_HEAD : FAULT_RESET;
	return span_is(text, "reset") || span_is(text, "head");
}

static bool read_factor(const struct fault_row *row, const struct js *v, double *out)
{
	double d;

	if (!js_as_real(v, &d) || !(d >= (double)row->min && d <= (double)row->max))
		return false;
	*out = d;
	return true;
}

static bool read_how(const struct fault_row *row, const struct js *v, bool *out)
{
	struct span text;

	if (!js_as_str(v, &text))
		return false;
	*out = span_is(text, hows[row->min][1]);
	return *out || span_is(text, hows[row->min][0]);
}

static bool read_health(const struct js *v, enum fault_health *out)
{
	struct span text;

	if (!js_as_str(v, &text))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(healths); i++) {
		if (span_is(text, healths[i])) {
			*out = (enum fault_health)i;
			return true;
		}
	}
	return false;
}

static bool read_row(const struct fault_row *row, const struct js *v, struct faults *f)
{
	void *field = (char *)f + row->offset;

	switch (row->type) {
	case FAULT_BOOL:
		return js_as_bool(v, field);
	case FAULT_COUNT:
	case FAULT_NUMBER:
		return read_count(row, v, field);
	case FAULT_FACTOR:
		return read_factor(row, v, field);
	case FAULT_ANSWER:
		return read_answer(row, v, field);
	case FAULT_HOW:
		return read_how(row, v, field);
	case FAULT_HEALTH:
		return read_health(v, field);
	}
	return false;
}

static const struct fault_row *find_row(const char *key)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (strcmp(rows[i].key, key) == 0)
			return &rows[i];
	}
	return NULL;
}

int faults_read(struct faults *f, const struct js *object, char *message, size_t n)
{
	struct faults next = *f;
	const char *key;
	struct js *v;
	void *at = NULL;

	if (!js_is_object(object)) {
		(void)snprintf(message, n, "The faults must be a JSON object.");
		return ERR_PARSE;
	}
	if (js_get(object, "cut_after") != NULL)
		next.cut_left = FAULT_ALL;
	if (js_get(object, "answer") != NULL)
		next.answer_left = FAULT_ALL;
	while (js_each(object, &at, &key, &v)) {
		const struct fault_row *row = find_row(key);

		if (row == NULL) {
			(void)snprintf(message, n, "There is no fault '%.64s'.", key);
			return ERR_PARSE;
		}
		if (!read_row(row, v, &next)) {
			(void)snprintf(message, n, "'%s' must be %s.", key, row->want);
			return ERR_PARSE;
		}
	}
	*f = next;
	return 0;
}

static struct js *count_json(int64_t n)
{
	return n >= 0 ? js_int(n) : js_null();
}

static struct js *row_json(const struct fault_row *row, const struct faults *f)
{
	const void *field = (const char *)f + row->offset;

	switch (row->type) {
	case FAULT_BOOL:
		return js_boolean(*(const bool *)field);
	case FAULT_FACTOR:
		return js_real(*(const double *)field);
	case FAULT_ANSWER:
		if (*(const int64_t *)field == FAULT_RESET)
			return js_string(SPAN_LIT("reset"));
		if (*(const int64_t *)field == FAULT_HEAD)
			return js_string(SPAN_LIT("head"));
		return count_json(*(const int64_t *)field);
	case FAULT_HOW:
		return js_string(span_str(hows[row->min][*(const bool *)field]));
	case FAULT_HEALTH:
		return js_string(span_str(healths[*(const enum fault_health *)field]));
	default:
		return count_json(*(const int64_t *)field);
	}
}

struct js *faults_json(const struct faults *f)
{
	struct js *root = js_object(), *count = js_object();

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		js_set(root, rows[i].key, row_json(&rows[i], f));
	js_set_int(count, "cut", (int64_t)f->n_cut);
	js_set_int(count, "answered", (int64_t)f->n_answered);
	js_set_int(count, "restarts", (int64_t)f->n_restarts);
	js_set(root, "count", count);
	return root;
}

/* One of those that are left; false: there is none. */
static bool take_one(int64_t *left)
{
	if (*left == 0)
		return false;
	if (*left != FAULT_ALL)
		--*left;
	return true;
}

int64_t faults_take_answer(struct faults *f)
{
	if (f->answer == FAULT_NONE || !take_one(&f->answer_left))
		return FAULT_NONE;
	f->n_answered++;
	return f->answer;
}

bool faults_take_cut(struct faults *f, uint64_t n_events)
{
	if (f->cut_after == FAULT_NONE || n_events < (uint64_t)f->cut_after ||
		!take_one(&f->cut_left))
		return false;
	f->n_cut++;
	return true;
}
