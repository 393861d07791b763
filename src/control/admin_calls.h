/*
 * The handlers of the admin API, one file for each group, and what they share: rows of
 * the dispatch tables in admin.c. Each answers its call before it returns.
 */
#ifndef CONTROL_ADMIN_CALLS_H
#define CONTROL_ADMIN_CALLS_H

#include "base/span.h"
#include "control/control.h"
#include "io/loop.h"
#include "io/wheel.h"

struct http_call;
struct js;
struct text;
struct worker;

struct admin_pool_calls;
struct removal;

struct admin {
	struct control *control;
	struct http_server *api, *metrics;
	/* Workers that are removed when their last request ends (admin_workers.c). */
	struct removal *removals;
	struct wheel_timer removal_timer;
	struct admin_pool_calls *pool_calls; /* under way (admin_pools.c) */
};

typedef void admin_call_fn(void *admin, struct http_call *call);

/* admin_workers.c */
admin_call_fn admin_list_workers, admin_show_worker, admin_add_worker,
	admin_delete_worker, admin_post_worker;
struct js *admin_workers_array(const struct site *site);
struct js *admin_hit_share(const struct site *site); /* of all workers' recent prompts */
void admin_removals_start(struct admin *a);
void admin_removals_stop(struct admin *a);

/* admin_sessions.c */
admin_call_fn admin_finish_session;

/* admin_tenants.c */
admin_call_fn admin_list_tenants;
struct js *admin_tenants_summary(const struct site *site);

/* admin_explain.c */
admin_call_fn admin_explain;

/* admin_status.c */
admin_call_fn admin_status, admin_reload, admin_log_level, admin_config;
/* A body that is empty (NULL) or a JSON object; false: the call is answered. */
bool admin_read_body(struct http_call *call, struct js **body);

/* admin_pools.c */
admin_call_fn admin_post_pool;
bool admin_pool_calls_start(
	struct admin *a); /* false: out of memory; stop it all the same */
void admin_pool_calls_stop(struct admin *a);

/* admin_upgrade.c */
admin_call_fn admin_upgrade;

/* admin_metrics.c */
admin_call_fn admin_metrics;
void admin_metrics_print(const struct control *c, struct text *out);

/* The path behind prefix, up to the next '/', and the rest. */
struct span admin_path_word(
	const struct http_call *call, const char *prefix, struct span *rest);

#endif
