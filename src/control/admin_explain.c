/*
 * POST explain: how a request would be routed now, without routing it. The body is what a
 * client would send; the same path table, scan, key (pool/request_key.h) and pick as for
 * a request. For a split request both choices are in the answer.
 */
#include "control/admin_calls.h"

#include "base/clock.h"
#include "base/err.h"
#include "control/admin_reply.h"
#include "http/http_server.h"
#include "pool/request_key.h"
#include "proxy/pin.h"
#include "proxy/prefill_decode.h"
#include "route/path_table.h"

#include <stdlib.h>

#define PATH_MAX_BYTES 1024
#define TENANT_NAME_BYTES 256

struct question {
	struct http_call *call;
	const struct site *site;
	char path[PATH_MAX_BYTES];
	struct path_verdict verdict;
	struct route_key key;
	struct route_key decode_key;   /* sealed: decode cuts prompts otherwise */
	const struct routing *routing; /* NULL: the policy goes by no routing key */
	struct routing routing_space;
	struct pool *pool;
	enum role role;
	struct span pinned;
	bool is_prefill_pinned;
	uint64_t kv_group;           /* of the pair; 0: any */
	const struct tenant *tenant; /* NULL: not said; its prompts are nobody's */
};

static bool read_target(struct question *q)
{
	struct span path, rest;

	if (!http_call_query_value(q->call, "path", q->path, sizeof(q->path)))
		memcpy(q->path, "/v1/chat/completions", sizeof("/v1/chat/completions"));
	rest = span_str(q->path);
	if (!span_next(&rest, '?', &path))
		path = rest;
	path_lookup(&q->site->conf->router, HTTP_POST, path, &q->verdict);
	if (q->verdict.action == PATH_FORWARD)
		return true;
	admin_fail(q->call, ADMIN_INVALID,
		"POST " SPAN_FMT " is not forwarded to workers: %s", SPAN_ARG(path),
		q->verdict.action == PATH_REFUSE ? fail_text(q->verdict.fail)
						 : "it is answered by the router");
	return false;
}

/* False: the call is answered. Nobody who asks here has a key to show. */
static bool read_tenant(struct question *q)
{
	char name[TENANT_NAME_BYTES];

	if (!http_call_query_value(q->call, "tenant", name, sizeof(name)))
		return true;
	if (q->site->tenants != NULL)
		q->tenant = tenants_named(q->site->tenants, span_str(name));
	if (q->tenant == NULL)
		admin_fail(q->call, ADMIN_NO_TENANT, "there is no tenant %s", name);
	return q->tenant != NULL;
}

/* Hashes that the client sent stand. */
static int read_hashes(struct question *q)
{
	const struct http_head *head = http_call_head(q->call);

	if (http_head_find(head, FIELD_X_KVSTEER_PREFIX) == NULL)
		return 0;
	return route_key_from_header(
		http_call_field(q->call, "X-Kvsteer-Prefix"), 0, &q->key);
}

/* As the head of a request would say it. Admin may pin whatever allow_pin says. */
static struct site_head site_head_of(const struct question *q)
{
	struct site_head h = {
		.endpoint = q->verdict.endpoint,
		.is_pinned = q->pinned.n > 0,
		.said.hashes_sent = q->key.hashes_sent,
		.model = http_call_field(q->call, "X-Kvsteer-Model"),
	};

	routing_look(q->site->wants, &q->site->conf->router.routing_key_headers,
		http_call_base(q->call), http_call_head(q->call), &h.said);
	return h;
}

static int scan_body(const struct question *q, const struct request_key_body *use,
	struct route_scan **out)
{
	struct span body = http_call_body(q->call);

	if (!use->is_scanned)
		return 0;
	*out = route_scan_new();
	if (*out == NULL)
		return ERR_NOMEM;
	if (q->verdict.endpoint == ENDPOINT_PLAIN)
		(void)route_scan_begin_form(*out, q->verdict.endpoint,
			http_call_field(q->call, "Content-Type"));
	else
		route_scan_begin(*out, q->verdict.endpoint);
	return route_scan_feed(*out, body.p, 0, body.n);
}

static int build_keys(struct question *q, const struct request_key_source *src)
{
	struct span salt =
		q->tenant != NULL ? span_str(q->tenant->salt) : span_make(NULL, 0);
	const struct site_alias *alias;
	int err = request_key_read(src, &q->key, &q->pool, &alias);

	if (err == 0 && q->pool != NULL)
		err = request_key_hash(src, q->pool, salt, &q->key);
	if (err == 0 && q->pool != NULL)
		err = request_key_decode(src, q->pool, salt, &q->key, &q->decode_key);
	return err;
}

/* As routing does it, once the body is whole. */
static int find_keys(struct question *q)
{
	struct site_head h = site_head_of(q);
	struct request_key_body use = request_key_body(q->site, &h);
	struct request_key_source src = {
		.site = q->site,
		.body = http_call_body(q->call),
		.is_body_awaited = use.is_awaited,
		.model = h.model,
		.lora = http_call_field(q->call, "X-Kvsteer-Lora-Path"),
		.cache_salt = http_call_field(q->call, "X-Kvsteer-Cache-Salt"),
	};
	int err = scan_body(q, &use, &src.scan);

	if (err == 0)
		err = build_keys(q, &src);
	route_scan_free(src.scan);
	return err;
}

/* False: the call is answered. */
static bool read_keys(struct question *q)
{
	int err = read_hashes(q);

	if (err == 0)
		err = find_keys(q);
	if (err == ERR_NOMEM) {
		admin_fail(q->call, ADMIN_MEMORY, "out of memory");
		return false;
	}
	if (err != 0) {
		admin_fail(q->call, ADMIN_INVALID, "%s", fail_text(FAIL_BAD_PREFIX));
		return false;
	}
	if (q->pool == NULL) {
		admin_fail(q->call, ADMIN_NO_POOL,
			q->key.model.n > 0 ? "no pool serves the model"
					   : "the body names no model, and there are "
					     "several pools");
		return false;
	}
	return true;
}

/* The key that workers of this role are asked by. */
static struct route_key *key_of(struct question *q)
{
	return q->role != ROLE_PREFILL && q->decode_key.is_sealed ? &q->decode_key
								  : &q->key;
}

static void find_routing(struct question *q)
{
	q->routing = routing_find(pool_wants(q->pool, q->role),
		&q->site->conf->router.routing_key_headers, http_call_base(q->call),
		http_call_head(q->call), &q->key, &q->routing_space);
}

/* Where the key that decides was found; the key itself is the client's own affair. */
static struct js *routing_object(const struct routing *routing)
{
	const struct routing_key *k;
	struct js *out;

	if (routing == NULL)
		return js_null();
	k = routing->session.from != ROUTING_NONE ? &routing->session : &routing->any;
	if (k->from == ROUTING_NONE)
		return js_null();
	out = js_object();
	js_set_str(out, "from", k->from == ROUTING_HEADER ? "header" : "body");
	js_set(out, "name", js_string(k->name));
	return out;
}

static struct js *key_object(const struct route_key *key, const struct routing *routing)
{
	struct js *out = js_object();
	char unit[2] = {key->unit, '\0'};

	js_set(out, "model", key->model.n > 0 ? js_string(key->model) : js_null());
	js_set_bool(out, "readable", key->readable || key->hashes_sent);
	js_set_bool(out, "stream", key->stream);
	js_set_bool(out, "hashes_sent", key->hashes_sent);
	js_set_int(out, "block", key->block);
	js_set_str(out, "unit", unit);
	js_set_int(out, "blocks", (int64_t)key->n_blocks);
	js_set_int(out, "prompt_units", (int64_t)key->prompt_units);
	js_set(out, "routing_key", routing_object(routing));
	return out;
}

/* The terms of the policy's score. */
static struct js *terms_object(const struct explain_candidate *c)
{
	struct js *terms = js_object();
	int t;

	for (t = 0; t < TERM_MAX; t++) {
		if (c->has_terms & 1u << t)
			js_set_real(
				terms, pick_term_name((enum pick_term)t), c->terms[t]);
	}
	return terms;
}

static struct js *candidates_array(const struct explain *e)
{
	struct js *list = js_array();
	size_t i;

	for (i = 0; i < e->n; i++) {
		const struct explain_candidate *c = &e->candidates[i];
		struct js *item = js_object();

		js_set_str(item, "worker", c->worker);
		js_set_str(item, "state", c->state);
		js_set_str(item, "out_of_play", c->out_of_play);
		js_set_int(item, "depth", c->depth);
		js_set_int(item, "blocks", e->blocks);
		js_set_real(item, "fraction", c->fraction);
		js_set_int(item, "load", c->load);
		js_set_bool(item, "is_overloaded", c->is_overloaded);
		js_set(item, "terms", terms_object(c));
		js_set_real(item, "score", c->score);
		js_push(list, item);
	}
	return list;
}

/* Adds the choice among the workers of one role. */
static void put_choice(struct js *out, struct question *q, const struct explain *e)
{
	js_set_str(out, "role", role_name(q->role));
	js_set_str(out, "policy", e->policy);
	js_set(out, "key", key_object(key_of(q), q->routing));
	js_set_int(out, "blocks", e->blocks);
	js_set(out, "candidates", candidates_array(e));
	js_set_str(
		out, "chosen", e->chosen >= 0 ? e->candidates[e->chosen].worker : NULL);
	js_set_str(out, "reason",
		e->chosen >= 0 ? pick_reason_name(e->reason) : "no_worker");
}

static struct pool_ask ask_of(struct question *q)
{
	struct pool_ask ask = {
		.role = q->role,
		.key = q->key.is_sealed ? key_of(q) : NULL,
		.routing = q->routing,
		.model = q->key.model,
		.lora = q->key.lora,
		.kv_group = q->kv_group,
		.body_bytes = http_call_body(q->call).n,
		.now_ms = clock_now_ms(),
	};

	if (q->role == ROLE_PREFILL && !q->is_prefill_pinned)
		return ask;
	if (q->role == ROLE_DECODE && q->is_prefill_pinned)
		return ask;
	pin_read(q->pinned, http_call_field(q->call, "X-data-parallel-rank"), &ask);
	if (q->role == ROLE_PREFILL)
		ask.is_rank_pinned = false;
	return ask;
}

/* False: the call is answered. */
static bool choose(struct question *q, struct js *out)
{
	struct explain e = {0};
	struct pool_ask ask;
	int err;

	find_routing(q);
	ask = ask_of(q);
	err = pool_explain(q->pool, &ask, &e);
	if (err == ERR_PARSE)
		admin_fail(q->call, ADMIN_NO_WORKER, "there is no worker " SPAN_FMT "%s",
			SPAN_ARG(ask.pinned), ask.is_rank_pinned ? " of that rank" : "");
	else if (err != 0)
		admin_fail(q->call, ADMIN_MEMORY, "out of memory");
	else
		put_choice(out, q, &e);
	free(e.candidates);
	return err == 0;
}

/* Puts why a request would do without prefill, null where it would not. False: the call
 * is answered. */
static bool put_skipped(struct js *out, struct question *q, const struct pool_look *seen)
{
	const char *why = NULL;
	enum pd_skip skip;
	int err = pd_would_skip(q->site, q->pool, q->verdict.endpoint,
		http_call_body(q->call), seen->uncached_tokens, &skip);

	if (err != 0) {
		admin_fail(q->call, ADMIN_MEMORY, "out of memory");
		return false;
	}
	if (skip == PD_SKIP_WHOLE)
		why = "whole";
	else if (skip == PD_SKIP_SHORT && !q->is_prefill_pinned)
		why = "short";
	js_set_str(out, "skipped", why);
	return true;
}

/* Explains a split pool: decode is asked first, as for a request. */
static bool explain_split(struct question *q, struct js *out)
{
	struct pool_look seen = {0};
	struct js *prefill;
	struct pool_ask ask;
	enum role role;
	bool is_told;

	q->is_prefill_pinned = q->pinned.n > 0 &&
			       pool_find_role(q->pool, q->pinned, &role, &q->kv_group) &&
			       role == ROLE_PREFILL;
	q->role = ROLE_DECODE;
	if (!choose(q, out))
		return false;
	ask = ask_of(q);
	if (pool_look(q->pool, &ask, &seen) == 0)
		q->kv_group = seen.kv_group;
	prefill = js_object();
	is_told = put_skipped(prefill, q, &seen);
	js_set_int(prefill, "uncached_tokens", (int64_t)seen.uncached_tokens);
	q->role = ROLE_PREFILL;
	if (!is_told || !choose(q, prefill)) {
		js_free(prefill);
		return false;
	}
	js_set(out, "prefill", prefill);
	return true;
}

static void explain(struct question *q)
{
	struct js *out = js_object();
	bool is_told;

	js_set_str(out, "path", q->path);
	js_set_str(out, "route", path_route_name(q->verdict.route));
	js_set_str(out, "tenant", q->tenant != NULL ? q->tenant->conf->name : NULL);
	js_set_str(out, "pool", pool_name(q->pool));
	is_told = pool_is_split(q->pool) ? explain_split(q, out) : choose(q, out);
	if (is_told)
		admin_reply(q->call, 200, out);
	else
		js_free(out);
}

void admin_explain(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct question q = {
		.call = call, .site = a->control->site, .role = ROLE_UNIFIED};

	route_key_init(&q.key);
	route_key_init(&q.decode_key);
	q.pinned = http_call_field(call, "X-Kvsteer-Worker");
	if (read_target(&q) && read_tenant(&q) && read_keys(&q))
		explain(&q);
	route_key_free(&q.key);
	route_key_free(&q.decode_key);
}
