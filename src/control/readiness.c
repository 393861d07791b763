/*
 * Readiness and what it says of each pool and role. See readiness.h. Called by local.c
 * and daemon.c.
 */
#include "control/readiness.h"

#include "base/fail.h"
#include "base/text.h"
#include "http/http_query.h"
#include "pool/pool.h"
#include "pool/site.h"
#include "proxy/own_answer.h"

#include <stdlib.h>

#define NAME_ROOM 1024 /* of a pool in a query; longer ones name none */

/* The states of a pool, in order: each is worse than the one before. */
enum state { READY, PARTIAL, NOT_READY };
static const char *const state_names[] = {"ready", "partial", "not_ready"};

struct count {
	unsigned workers, usable;
};

static void count_roles(struct pool *p, struct count out[ROLE_MAX])
{
	for (enum role r = 0; r < ROLE_MAX; r++)
		out[r] = (struct count){pool_workers(p, r), pool_usable(p, r)};
}

/* Partial: it serves, but a role has no usable worker. Prefill workers alone answer
 * nobody, and without them decode workers compute prompts themselves. */
static enum state state_of(struct pool *p, const struct count roles[ROLE_MAX])
{
	if (roles[pool_whole_role(p)].usable == 0)
		return NOT_READY;
	for (enum role r = 0; r < ROLE_MAX; r++) {
		if (roles[r].workers > 0 && roles[r].usable == 0)
			return PARTIAL;
	}
	return READY;
}

static enum state look(struct pool *p)
{
	struct count roles[ROLE_MAX];

	count_roles(p, roles);
	return state_of(p, roles);
}

bool readiness_is_whole(const struct site *site)
{
	for (size_t i = 0; i < site->n_pools; i++) {
		if (look(site->pools[i]) != READY)
			return false;
	}
	return true;
}

/* ---- what is asked ---- */

struct question {
	struct pool *only; /* NULL: all */
	bool is_strict, is_unknown;
};

/* "?strict", "?strict=1"; "?strict=0" is not. */
static bool is_strict(struct span query)
{
	static const char *const no[] = {"0", "off", "no", "false"};
	char value[16];

	if (!http_query_value(query, "strict", value, sizeof(value)))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(no); i++) {
		if (span_is(span_str(value), no[i]))
			return false;
	}
	return true;
}

static struct question read_question(const struct local_asked *a)
{
	struct span query = http_head_query(a->base, a->head), rest = query, pair;
	struct question q = {.is_strict = is_strict(query)};
	char name[NAME_ROOM];

	if (http_query_value(query, "pool", name, sizeof(name))) {
		q.only = site_pool(a->site, span_str(name));
		q.is_unknown = q.only == NULL;
		return q;
	}
	/* A name that could not be read is not the same as none. */
	while (span_next(&rest, '&', &pair))
		q.is_unknown |= span_starts(pair, SPAN_LIT("pool="));
	return q;
}

static bool is_asked_for(const struct question *q, const struct pool *p)
{
	return q->only == NULL || q->only == p;
}

/* Of all that is asked for: strictly the worst, else the best. */
static bool is_ready(const struct site *site, const struct question *q)
{
	bool some = false, all = true;

	for (size_t i = 0; i < site->n_pools; i++) {
		enum state s;

		if (!is_asked_for(q, site->pools[i]))
			continue;
		s = look(site->pools[i]);
		some |= s != NOT_READY;
		all &= s == READY;
	}
	return q->is_strict ? some && all : some;
}

/* ---- the body ---- */

static void add_pool(struct text *out, struct pool *p)
{
	struct count roles[ROLE_MAX];
	const char *comma = "";

	count_roles(p, roles);
	text_add(out, SPAN_LIT("\""));
	text_add_json(out, span_str(pool_name(p)));
	text_printf(out, "\":{\"status\":\"%s\",\"roles\":{",
		state_names[state_of(p, roles)]);
	for (enum role r = 0; r < ROLE_MAX; r++) {
		if (roles[r].workers == 0)
			continue;
		text_printf(out, "%s\"%s\":{\"workers\":%u,\"usable\":%u}", comma,
			role_name(r), roles[r].workers, roles[r].usable);
		comma = ",";
	}
	text_add(out, SPAN_LIT("}}"));
}

static void add_pools(struct text *out, const struct site *site, const struct question *q)
{
	const char *comma = "";

	text_add(out, SPAN_LIT(",\"pools\":{"));
	for (size_t i = 0; i < site->n_pools; i++) {
		if (!is_asked_for(q, site->pools[i]))
			continue;
		text_printf(out, "%s", comma);
		add_pool(out, site->pools[i]);
		comma = ",";
	}
	text_add(out, SPAN_LIT("}}"));
}

/* An error as all others, and more members behind it. */
static void add_failure(struct text *out, enum fail why)
{
	char error[1024];
	size_t n = fail_body(why, error, sizeof(error));

	text_add(out, span_make(error, n - 1));
	text_add(out, SPAN_LIT(",\"status\":\"not_ready\""));
}

static enum fail judge(
	const struct local_asked *a, const struct question *q, bool is_draining)
{
	if (q->is_unknown)
		return FAIL_POOL_NOT_FOUND;
	if (is_draining)
		return FAIL_DRAINING;
	return is_ready(a->site, q) ? FAIL_NONE : FAIL_NO_WORKER;
}

int readiness_answer(
	const struct local_asked *asked, bool is_draining, char **body, size_t *n)
{
	struct question q = read_question(asked);
	enum fail why = judge(asked, &q, is_draining);
	struct text out = {0};

	if (why == FAIL_NONE)
		text_add(&out, SPAN_LIT("{\"status\":\"ready\""));
	else
		add_failure(&out, why);
	if (q.is_unknown)
		text_add(&out, SPAN_LIT("}"));
	else
		add_pools(&out, asked->site, &q);
	if (out.failed) {
		text_free(&out);
		return fail_status(FAIL_OVERLOADED);
	}
	*body = out.p;
	*n = out.n;
	return fail_status(why);
}
