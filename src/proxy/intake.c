/*
 * The client's side of a request. See intake.h.
 */
#include "proxy/intake.h"

#include "base/clock.h"
#include "base/err.h"
#include "http/http_parse.h"
#include "http/http_query.h"
#include "policy/routing_key.h"
#include "pool/request_key.h"
#include "proxy/cors.h"
#include "proxy/fan_out.h"
#include "proxy/own_answer.h"
#include "proxy/pin.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"
#include "rewrite/kv_transfer.h"
#include "route/path_table.h"

/* ---- the header ---- */

/* Websockets are refused at once: without its Upgrade such a request would only confuse a
 * worker. */
static bool wants_websocket(const struct request *r)
{
	return r->head.has_upgrade &&
	       span_case_eq(field(r, FIELD_UPGRADE), SPAN_LIT("websocket"));
}

static enum fail read_prefix_header(struct request *r)
{
	const struct http_field *f = http_head_find(&r->head, FIELD_X_KVSTEER_PREFIX);

	if (f == NULL)
		return FAIL_NONE;
	if (route_key_from_header(http_field_value(r->c->buf, f), 0, &r->key) != 0)
		return FAIL_BAD_PREFIX;
	return FAIL_NONE;
}

/* Health needs no key; those that end sessions present the admin key. */
static enum fail check_caller(struct request *r)
{
	if (r->site->tenants == NULL ||
		(r->verdict.action != PATH_FORWARD && r->verdict.action != PATH_MODELS))
		return FAIL_NONE;
	return caller_check(&r->caller, r->site->tenants, r->t->digester,
		field(r, FIELD_AUTHORIZATION), field(r, FIELD_X_API_KEY));
}

/* Whose request it is: a trusted proxy's word counts. */
static enum fail find_client(struct request *r)
{
	r->is_forwarded = ip_set_has(&r->site->trusted, &r->c->peer.ip);
	if (!r->is_forwarded)
		return FAIL_NONE;
	r->who = &r->forwarded;
	return http_forwarded_read(
		&r->site->trusted, &r->c->peer, r->c->buf, &r->head, &r->forwarded);
}

/* No worker knows the name. */
static bool asks_for_alias(const struct request *r)
{
	char name[MODEL_NAME_MAX];

	return r->verdict.action == PATH_FORWARD && request_path_model(r, name) &&
	       site_alias(r->site, span_str(name)) != NULL;
}

/* Balancers may ask for health from wherever they are. */
static bool is_denied(const struct request *r)
{
	return r->verdict.action != PATH_HEALTH && r->verdict.action != PATH_READINESS &&
	       !site_serves_address(r->site, &r->who->ip);
}

/* Whether the header alone refuses the request; its body is then skipped. */
static enum fail judge(struct request *r)
{
	struct span path = http_head_path(r->c->buf, &r->head);
	enum fail why = find_client(r);

	if (why != FAIL_NONE)
		return why;
	path_lookup(opts(r), r->head.method, path, &r->verdict);
	if (is_denied(r))
		return FAIL_ADDRESS_DENIED;
	if (r->verdict.action == PATH_REFUSE)
		return r->verdict.fail;
	if (cors_is_on(opts(r)) && cors_is_preflight(r->c->buf, &r->head))
		r->verdict.action = PATH_OPTIONS;
	if (wants_websocket(r))
		return FAIL_NOT_IMPLEMENTED;
	if (r->c->is_late && r->verdict.action == PATH_FORWARD)
		return FAIL_DRAINING;
	why = check_caller(r);
	if (r->site->n_aliases > 0 && asks_for_alias(r))
		r->verdict.action = PATH_MODEL;
	if (why == FAIL_NONE)
		why = read_prefix_header(r);
	if (why == FAIL_NONE && r->verdict.action == PATH_FORWARD)
		why = caller_enter(&r->caller);
	return why;
}

/* "X-Kvsteer-..." as it is spelled, in any case. */
static struct span own_field(const struct request *r, struct span name)
{
	const struct http_field *f = http_head_find(&r->head, FIELD_X_KVSTEER);

	if (f != NULL)
		f = http_head_named(r->c->buf, &r->head, name);
	return f != NULL ? http_field_value(r->c->buf, f) : span_make(NULL, 0);
}

static bool is_pinned(const struct request *r)
{
	return opts(r)->allow_pin && field(r, FIELD_X_KVSTEER_WORKER).n > 0;
}

/* A generation may belong to a session, if any was opened. */
static bool body_names_object(const struct request *r)
{
	return r->verdict.finds_object &&
	       (r->verdict.endpoint != ENDPOINT_GENERATE ||
		       response_map_is_used(r->t->process->responses));
}

/* Its pool, which is not known yet, may have several workers to ask. */
static bool may_be_for_many(const struct request *r)
{
	return r->site->n_pools > 1 ||
	       (r->site->n_pools == 1 && pool_has_hosts(r->site->pools[0]));
}

/* Known before the body has come, so its client need not send it. */
static bool is_too_long_for_all(const struct request *r)
{
	return r->verdict.is_for_all && !is_pinned(r) && r->site->n_pools == 1 &&
	       may_be_for_many(r) && r->body.expected > FAN_OUT_BODY_MAX;
}

static void start_scan(struct request *r)
{
	struct site_head h = {
		.endpoint = r->verdict.endpoint,
		.is_pinned = is_pinned(r),
		.model = own_field(r, SPAN_LIT("x-kvsteer-model")),
		.finds_object = body_names_object(r),
	};
	struct request_key_body use;

	if (r->verdict.action != PATH_FORWARD)
		return;
	r->reads_body = r->verdict.is_for_all && may_be_for_many(r);
	h.said.hashes_sent = r->key.hashes_sent;
	routing_look(r->site->wants, &opts(r)->routing_key_headers, r->c->buf, &r->head,
		&h.said);
	use = request_key_body(r->site, &h);
	r->reads_body |= use.is_awaited;
	if (!use.is_scanned)
		return;
	if (r->json == NULL)
		r->json = route_scan_new();
	r->is_scanning = r->json != NULL; /* without memory: routed by load */
	if (r->is_scanning && r->verdict.endpoint == ENDPOINT_PLAIN)
		(void)route_scan_begin_form(
			r->json, r->verdict.endpoint, field(r, FIELD_CONTENT_TYPE));
	else if (r->is_scanning)
		route_scan_begin(r->json, r->verdict.endpoint);
}

static struct decision header_is_complete(struct request *r)
{
	enum fail why;

	r->has_head = r->reads_body = true;
	r->progress_ms = clock_now_ms();
	own_answer_make_id(r);
	why = body_start(&r->body, &r->head, opts(r)->max_body_size);
	r->refused = judge(r);
	if (why == FAIL_NONE && is_too_long_for_all(r))
		why = FAIL_BODY_TOO_LARGE;
	if (why == FAIL_NONE || r->refused != FAIL_NONE)
		why = r->refused;
	if (why == FAIL_NONE) {
		start_scan(r);
		return next_is(NEXT_STEP);
	}
	/* The client has not sent the body yet, or too much of it: say so now. */
	if (r->head.expect_100 || r->body.expected > BODY_DISCARD_MAX)
		return next_fail(why);
	r->refused = why;
	body_discard(&r->body);
	return next_is(NEXT_STEP);
}

static struct decision header_failed(ssize_t got)
{
	return next_fail(got == ERR_CLOSED  ? FAIL_CLIENT_GONE
			 : got == ERR_LIMIT ? FAIL_HEAD_TOO_LARGE
					    : FAIL_OVERLOADED);
}

struct decision intake_read_header(struct request *r)
{
	enum fail why;
	uint32_t head_len;
	int err;

	for (;;) {
		ssize_t got;

		err = http_scan_run(&r->scan, r->c->buf, r->c->len, &head_len, &why);
		if (err == 0)
			break;
		if (err != ERR_AGAIN)
			return next_fail(why);
		if (r->c->len == r->c->cap && r->c->cap < HTTP_REQUEST_HEAD_MAX + 16 &&
			client_reserve(r->c, HTTP_REQUEST_HEAD_MAX + 16) != 0)
			return next_fail(FAIL_OVERLOADED);
		got = client_fill(r->c);
		if (got == ERR_AGAIN)
			return next_is(NEXT_WAIT);
		if (got <= 0)
			return header_failed(got);
	}
	if (http_parse_request(r->c->buf, head_len, &r->head, &why) != 0)
		return next_fail(why);
	return header_is_complete(r);
}

/* ---- the body ---- */

/* 100 Continue: only after limits and route are right, and only if the client still
 * holds its body back. FAIL_NONE; or why the request ends. */
static enum fail send_continue(struct request *r)
{
	static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
	struct iovec iov = {(void *)text, sizeof(text) - 1};
	int err;

	if (!r->head.expect_100 || r->sent_continue || r->c->len > r->head.head_len ||
		r->body.total > 0 || r->body.is_complete)
		return FAIL_NONE;
	r->sent_continue = true;
	err = stream_write(&r->c->stream, &iov, 1);
	if (err == 0 || err == ERR_LIMIT)
		return FAIL_NONE;
	/* A part of it may have gone: no answer can follow. */
	r->was_cut = true;
	return err == ERR_NOMEM ? FAIL_OVERLOADED : FAIL_CLIENT_GONE;
}

static void scan_body(struct request *r)
{
	struct span b = request_body(r);

	if (!r->is_scanning || b.n == r->scanned)
		return;
	if (route_scan_feed(r->json, b.p, r->scanned, b.n) != 0)
		r->is_scanning = false;
	r->scanned = b.n;
}

/* The bytes that are not here yet go to the worker as they come. */
static struct decision hand_on_later(struct request *r)
{
	r->is_scanning = false;
	upload_start(&r->upload, &r->body);
	return next_is(NEXT_STEP);
}

struct decision intake_read_body(struct request *r)
{
	enum fail why = FAIL_NONE;
	size_t before = r->body.len;
	int err;

	if (!r->reads_body && !r->body.is_inline)
		return hand_on_later(r);
	if (r->reads_body)
		why = send_continue(r);
	if (why != FAIL_NONE)
		return next_fail(why);
	err = body_read(&r->body, r->c, &r->budget, &why);
	if (r->body.len != before)
		r->progress_ms = clock_now_ms();
	if (err == ERR_PARSE)
		return next_fail(why);
	if (err == ERR_CLOSED)
		return next_fail(r->refused != FAIL_NONE && !r->c->saw_eof
					 ? r->refused
					 : FAIL_CLIENT_GONE);
	if (err == ERR_AGAIN && !r->reads_body)
		return hand_on_later(r);
	scan_body(r);
	if (err == ERR_AGAIN)
		return next_is(NEXT_WAIT);
	return r->refused != FAIL_NONE ? next_fail(r->refused) : next_is(NEXT_STEP);
}

struct decision intake_hand_on(struct request *r)
{
	bool was_awaited = r->upload.awaits_client;
	uint64_t before = r->body.total;
	enum fail why;
	int err;

	if (r->upload.is_ended)
		return next_is(NEXT_STEP);
	why = send_continue(r);
	if (why != FAIL_NONE)
		return next_fail(why);
	err = upload_run(&r->upload, &r->body, r->c, r->place.ex, &r->budget, &why);
	if (r->body.total != before || (r->upload.awaits_client && !was_awaited))
		r->progress_ms = clock_now_ms();
	if (err == 0)
		return next_is(NEXT_STEP);
	r->was_cut |= r->head_sent;
	return next_fail(err == ERR_PARSE ? why : FAIL_CLIENT_GONE);
}

/* ---- the route key ---- */

/* path: room for the model that the path names. */
static struct span said_model(const struct request *r, char path[MODEL_NAME_MAX])
{
	struct span model = own_field(r, SPAN_LIT("x-kvsteer-model"));

	return model.n == 0 && request_path_model(r, path) ? span_str(path) : model;
}

static struct request_key_source key_source(
	const struct request *r, char path[MODEL_NAME_MAX])
{
	return (struct request_key_source){
		.site = r->site,
		.scan = r->is_scanning ? r->json : NULL,
		.body = request_body(r),
		.is_body_awaited = r->reads_body,
		.model = said_model(r, path),
		.lora = own_field(r, SPAN_LIT("x-kvsteer-lora-path")),
		.cache_salt = own_field(r, SPAN_LIT("x-kvsteer-cache-salt")),
	};
}

/* Where the pool is split: what the request needs for two legs. */
static enum fail begin_legs(struct request *r, const struct request_key_source *src)
{
	struct pd_opts o = {
		.site = r->site,
		.pool = r->pool,
		.endpoint = r->verdict.endpoint,
		.body = src->body,
		.is_stored = r->stored.is_asked_for,
		.budget = &r->budget,
	};
	struct pool_ask pins = {0};
	enum fail why;

	if (kv_id_names_peers(request_id(r)))
		own_answer_new_id(r);
	/* No split pool was there when its header came, so its body was not read. */
	if (r->upload.is_on)
		return FAIL_NO_WORKER;
	if (r->body.total == 0)
		return FAIL_NONE;
	if (opts(r)->allow_pin)
		pin_read_head(r->c->buf, &r->head, &pins);
	o.pinned = pins.pinned;
	r->pd = pd_new(&o, &why);
	if (why == FAIL_NONE && request_key_decode(src, r->pool, caller_salt(&r->caller),
					&r->key, pd_decode_key(r->pd)) != 0)
		why = FAIL_OVERLOADED;
	return why;
}

/* By its path, its query (llama.cpp's streams) or its body. */
static void look_up_object(struct request *r)
{
	struct stored_named named = {
		.endpoint = r->verdict.endpoint,
		.id = path_id(&r->verdict, http_head_path(r->c->buf, &r->head)),
		.object = r->key.object,
		.has_model = r->key.model.n > 0,
	};
	char name[RESPONSE_ID_MAX + 1];

	if (named.id.n == 0 && http_query_value(http_head_query(r->c->buf, &r->head),
				       "conv_id", name, sizeof(name)))
		named.id = span_str(name);
	stored_look_up(&r->stored, &named, &r->pool);
}

/* In a pool of unified workers: no field by which its engine would be told where KV lies
 * or goes to reaches it. The pass that routing makes through the body has told whether it
 * needs another one. */
static enum fail strip_transfers(struct request *r)
{
	struct kv_request kv = {0};
	struct span body = request_body(r);
	bool is_searched = pool_searches_bodies(r->pool);
	enum fail why = FAIL_NONE;

	if (pool_passes_transfers(r->pool))
		return FAIL_NONE;
	if (http_head_has(&r->head, FIELD_X_REQUEST_ID) &&
		kv_id_names_peers(request_id(r)))
		own_answer_new_id(r);
	/* No connector was set when its header came, so its body was not read. */
	if (r->upload.is_on)
		return is_searched ? FAIL_NO_WORKER : FAIL_NONE;
	if (body.n == 0 ||
		(r->is_scanning ? !route_scan_may_transfer(r->json) : !is_searched))
		return FAIL_NONE;
	if (kv_request_read(&kv, CONNECTOR_NONE, r->verdict.endpoint, body) != 0)
		return FAIL_OVERLOADED;
	/* Junk is the worker's to judge where it has no connector, as far as is known. */
	if (kv.verdict == KV_UNSAFE && (is_searched || kv_body_may_name(body)))
		why = FAIL_BAD_TRANSFER;
	else if (kv.has_fields)
		kv_request_blank(&kv, body_memory(&r->body, r->c));
	kv_request_free(&kv);
	return why;
}

/* No pool serves the model, or it is not clear which is meant. What has no body, or one
 * that is not read, has no place for a model: it goes to the first pool. */
static enum fail choose_pool(struct request *r)
{
	if (r->key.model.n > 0)
		return FAIL_MODEL_NOT_FOUND;
	if (r->verdict.is_for_all ||
		(r->verdict.endpoint != ENDPOINT_OTHER && r->body.total > 0))
		return FAIL_MODEL_REQUIRED;
	r->pool = r->site->pools[0];
	return FAIL_NONE;
}

/* The worker knows its model by the alias's target. Where a header says the model, the
 * body may name none. */
static enum fail replace_alias(
	struct request *r, const struct site_alias *alias, struct request_key_source *src)
{
	struct route_scan_name name = {0, 0};
	enum fail why = FAIL_NONE;

	if (r->is_scanning && r->key.readable)
		name = route_scan_model(r->json);
	if (name.n == 0)
		return FAIL_NONE;
	/* Its offsets have 32 bits. */
	if (src->body.n + alias->target.n > UINT32_MAX)
		return FAIL_MAX_BODY_SIZE;
	if (body_replace(&r->body, r->c, &r->budget, name.at, name.n, alias->target,
		    &why) == 0)
		route_scan_replaced(r->json, name, alias->target.n);
	src->body = request_body(r);
	return why;
}

enum fail intake_route_key(struct request *r)
{
	char path[MODEL_NAME_MAX];
	struct request_key_source src = key_source(r, path);
	const struct site_alias *alias;
	enum fail why = FAIL_NONE;

	if (request_key_read(&src, &r->key, &r->pool, &alias) != 0)
		return FAIL_OVERLOADED;
	if (alias != NULL)
		why = replace_alias(r, alias, &src);
	if (why != FAIL_NONE)
		return why;
	r->stored.map = r->t->process->responses;
	r->stored.site = r->site;
	if (r->verdict.finds_object)
		look_up_object(r);
	why = r->pool == NULL ? choose_pool(r) : FAIL_NONE;
	if (why != FAIL_NONE)
		return why;
	if (request_key_hash(&src, r->pool, caller_salt(&r->caller), &r->key) != 0)
		return FAIL_OVERLOADED;
	r->is_keyed = r->key.is_sealed;
	return pool_is_split(r->pool) ? begin_legs(r, &src) : strip_transfers(r);
}
