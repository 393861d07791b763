/*
 * The table of methods and exact raw paths: which are forwarded, answered here, or
 * refused; and the row's label, the `route` of metrics and logs. The rows stand in
 * path_rows.h. They are explicit because engines leave dangerous routes open (a prefix
 * "/v1/" would open /v1/load_lora_adapter). Pure; immutable after its first use.
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
	PATH_READINESS,      /* some pool can serve */
	PATH_MODELS,         /* merged over healthy workers */
	PATH_MODEL,          /* one of that list, where workers do not answer it */
	PATH_FINISH_SESSION, /* for clients with the admin key */
	PATH_ROUTER,         /* likewise: the vLLM router's API */
	PATH_OPTIONS,        /* answered here: the methods of a path, or a preflight */
	PATH_REFUSE,         /* fail says why */
	/* of rows alone, no verdict */
	PATH_FLEET,     /* concerns every worker of a pool */
	PATH_CLOSED,    /* concerns one engine process, or is dangerous */
	PATH_WEBSOCKET, /* no Upgrade is forwarded */
};

/* The API whose clients read the errors that the router makes. */
enum path_shape {
	SHAPE_OPENAI,
	SHAPE_ANTHROPIC,
	SHAPE_OLLAMA,
	SHAPE_LLAMA,
	SHAPE_COHERE,
};

struct path_verdict {
	enum path_action action;
	enum fail fail; /* PATH_REFUSE */
	unsigned route; /* number of its label: metric_request() */
	enum route_endpoint endpoint;
	enum path_shape shape;
	/* What stands for {id}, in the path, which may move; n is 0: nothing.
	 * path_id() */
	uint32_t id_off, id_n;
	uint16_t allowed; /* METHOD_NOT_ALLOWED: what the Allow field says */
	/* A passed call that, answered with 2xx, leaves the engine's prefix cache empty,
	 * or full of what other weights made. */
	bool drops_caches;
	/* A passed call that makes an engine abort requests. */
	bool stops_requests;
	/* A passed call that concerns every worker of its pool. */
	bool is_for_all;
	/* The response's id names an object that lives on its worker. */
	bool makes_object;
	/* The path ends with a model's name, as spelled, for path_id(). */
	bool names_model;
	/* It is about such an object, which the path, the query or the body names. */
	bool finds_object;
};

/* path is the raw target without its query ("*" too). */
void path_lookup(const struct router_opts *o, enum http_method method, struct span path,
	struct path_verdict *out);

/* path: that of the lookup, where it is now. Empty: no {id} is in it. */
static inline struct span path_id(const struct path_verdict *v, struct span path)
{
	return v->id_n > 0 ? span_make(path.p + v->id_off, v->id_n) : span_make(NULL, 0);
}

/* What a call of an engine's path leaves behind, by the path without its query. */
struct path_effects {
	bool drops_caches, stops_requests; /* as in a verdict */
};
void path_find_effects(const char *method, struct span target, struct path_effects *out);

/* All labels, for metric_set_routes(); the last two are "pass" (pass_paths) and
 * "none". */
const char *const *path_route_names(unsigned *n);
const char *path_route_name(unsigned route);
unsigned path_route_none(void); /* for requests without a readable head */
void path_dump_rows(void);      /* for --dump-tables */

#endif
