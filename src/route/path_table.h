/*
 * The table of methods and exact raw paths: which are forwarded, answered here, or
 * refused; and the row's name, the `route` label of metrics and logs. The table is
 * explicit because engines leave dangerous routes open (a prefix "/v1/" would open
 * /v1/load_lora_adapter). Pure and immutable.
 */
#ifndef ROUTE_PATH_TABLE_H
#define ROUTE_PATH_TABLE_H

#include "base/base.h"
#include "base/fail.h"
#include "base/http_method.h"
#include "base/span.h"
#include "conf/conf.h"
#include "route/route_key.h"

enum path_action {
	PATH_FORWARD,        /* to a worker */
	PATH_HEALTH,         /* answered here: the process is up */
	PATH_READINESS,      /* every pool has a usable worker for each role */
	PATH_MODELS,         /* merged over healthy workers */
	PATH_FINISH_SESSION, /* for clients with the admin key */
	PATH_REFUSE,         /* fail says why */
};

struct path_row {
	const char *path; /* exact, but for "{id}", which stands for one segment of
			     plain bytes; "/v1/models/" also stands for what follows it
			     (is_prefix), dot segments apart */
	const char *name; /* route label */
	uint16_t methods; /* bit i: enum http_method i */
	bool is_prefix;
	enum path_action action;
	enum route_endpoint endpoint;
};

struct path_verdict {
	enum path_action action;
	enum fail fail; /* PATH_REFUSE */
	unsigned route; /* row number: metric_request() */
	enum route_endpoint endpoint;
	/* PATH_FORWARD: what stands for {id}, in the path, which may move; n is 0: nothing.
	 * path_id() */
	uint32_t id_off, id_n;
	uint16_t allowed; /* METHOD_NOT_ALLOWED: what the Allow field says */
	/* A passed call that, answered with 2xx, leaves the engine's prefix cache empty,
	 * or full of what other weights made. */
	bool drops_caches;
	/* A passed call that makes an engine abort requests. */
	bool stops_requests;
};

/* path is the raw target without its query ("*" too). */
void path_lookup(const struct router_opts *o, enum http_method method, struct span path,
	struct path_verdict *out);

/* path: that of the lookup, where it is now. Empty: no {id} is in it. */
static inline struct span path_id(const struct path_verdict *v, struct span path)
{
	return v->id_n > 0 ? span_make(path.p + v->id_off, v->id_n) : span_make(NULL, 0);
}

/* Names of all rows, for metric_set_routes(); the last two are "pass" (pass_paths) and
 * "none". */
const char *const *path_route_names(unsigned *n);
const char *path_route_name(unsigned route);
unsigned path_route_none(void); /* for requests without a readable head */

#endif
