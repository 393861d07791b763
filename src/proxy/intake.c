/*
 * What the client's head and body say of its request. See intake.h.
 */
#include "proxy/intake.h"

#include "policy/routing_key.h"
#include "pool/request_key.h"
#include "proxy/body.h"
#include "proxy/client.h"
#include "proxy/client_key.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"
#include "proxy/stored_response.h"
#include "route/path_table.h"

/* ---- the head ---- */

/* Websockets end here, at once: without its Upgrade such a request would only confuse a
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

enum fail intake_judge(struct request *r)
{
	struct span path = http_head_path(r->c->buf, &r->head);
	enum fail why;

	path_lookup(opts(r), r->head.method, path, &r->verdict);
	if (r->verdict.action == PATH_REFUSE)
		return r->verdict.fail;
	if (wants_websocket(r))
		return FAIL_NOT_IMPLEMENTED;
	if (r->c->is_late && r->verdict.action == PATH_FORWARD)
		return FAIL_DRAINING;
	why = client_key_check(r);
	if (why == FAIL_NONE)
		why = read_prefix_header(r);
	return why == FAIL_NONE ? client_key_enter(r) : why;
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

void intake_start_scan(struct request *r)
{
	struct site_head h = {
		.endpoint = r->verdict.endpoint,
		.is_pinned = is_pinned(r),
		.model = own_field(r, SPAN_LIT("x-kvsteer-model")),
	};
	struct request_key_body use;

	if (r->verdict.action != PATH_FORWARD)
		return;
	h.said.hashes_sent = r->key.hashes_sent;
	routing_look(r->site->wants, &opts(r)->routing_key_headers, r->c->buf, &r->head,
		&h.said);
	use = request_key_body(r->site, &h);
	r->reads_body = use.is_awaited;
	if (!use.is_scanned)
		return;
	if (r->json == NULL)
		r->json = route_scan_new();
	r->is_scanning = r->json != NULL; /* without memory: routed by load */
	if (r->is_scanning)
		route_scan_begin(r->json, r->verdict.endpoint);
}

/* ---- the body ---- */

void intake_scan_body(struct request *r)
{
	struct span b = body_bytes(&r->body, r->c);

	if (!r->is_scanning || b.n == r->scanned)
		return;
	if (route_scan_feed(r->json, b.p, r->scanned, b.n) != 0)
		r->is_scanning = false;
	r->scanned = b.n;
}

/* ---- the route key ---- */

static struct request_key_source key_source(const struct request *r)
{
	return (struct request_key_source){
		.site = r->site,
		.scan = r->is_scanning ? r->json : NULL,
		.body = body_bytes(&r->body, r->c),
		.is_body_awaited = r->reads_body,
		.model = own_field(r, SPAN_LIT("x-kvsteer-model")),
		.lora = own_field(r, SPAN_LIT("x-kvsteer-lora-path")),
		.cache_salt = own_field(r, SPAN_LIT("x-kvsteer-cache-salt")),
	};
}

enum fail intake_route_key(struct request *r)
{
	struct request_key_source src = key_source(r);

	if (request_key_read(&src, &r->key, &r->pool) != 0)
		return FAIL_OVERLOADED;
	stored_look_up(r);
	if (r->pool == NULL)
		return FAIL_MODEL_NOT_FOUND;
	if (request_key_hash(&src, r->pool, client_key_salt(r), &r->key) != 0)
		return FAIL_OVERLOADED;
	r->is_keyed = r->key.is_sealed;
	return pd_begin(r, &src);
}
