/*
 * The admin API and the metrics listener as dispatch tables. See admin.h.
 */
#include "control/admin.h"

#include "base/log.h"
#include "base/mem.h"
#include "control/admin_calls.h"
#include "control/admin_reply.h"
#include "http/http_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define V1 "/admin/v1/"
#define BODY_MAX_BYTES (64u << 20) /* explain takes whole requests */
#define METRICS_KEEPALIVE_MS 5000
#define AUDIT_PATH_MAX 256

/* The first row that fits is taken: exact paths before prefixes. */
static const struct http_route api_routes[] = {
	{"GET", V1 "status", admin_status},
	{"GET", V1 "workers", admin_list_workers},
	{"POST", V1 "workers", admin_add_worker},
	{"GET", V1 "workers/*", admin_show_worker},
	{"DELETE", V1 "workers/*", admin_delete_worker},
	{"POST", V1 "workers/*", admin_post_worker},
	{"GET", V1 "tenants", admin_list_tenants},
	{"POST", V1 "explain", admin_explain},
	{"POST", V1 "finish_session", admin_finish_session},
	{"POST", V1 "reload", admin_reload},
	{"POST", V1 "upgrade", admin_upgrade},
	{"POST", V1 "pools/*", admin_post_pool},
	{"POST", V1 "log_level", admin_log_level},
	{"GET", V1 "config", admin_config},
	{"GET", V1 "metrics", admin_metrics},
};

static const struct http_route metrics_routes[] = {
	{"GET", "/metrics", admin_metrics},
};

struct span admin_path_word(
	const struct http_call *call, const char *prefix, struct span *rest)
{
	struct span path = http_call_path(call), word = {0};
	size_t skip = strlen(prefix);

	*rest = span_make(path.p + skip, path.n - skip);
	if (!span_next(rest, '/', &word))
		word = span_make(NULL, 0);
	return word;
}

static bool changes_something(const struct http_call *call)
{
	enum http_method m = http_call_head(call)->method;

	return m != HTTP_GET && m != HTTP_HEAD && m != HTTP_OPTIONS &&
	       !span_is(http_call_path(call), V1 "explain");
}

/* One line for each call that changes something, or was to: who, what and how it ended.
 * Nothing of its body, nor of its query, which may name a session. */
static void audit(void *arg UNUSED, const struct http_call *call, int status)
{
	struct http_peer peer = http_call_peer(call);
	struct span path = http_call_path(call);
	char who[64] = "uid=- pid=-";

	if (!changes_something(call))
		return;
	if (peer.is_known)
		snprintf(who, sizeof(who), "uid=%u pid=%ld", peer.uid, peer.pid);
	path.n = MIN(path.n, (size_t)AUDIT_PATH_MAX);
	log_notice("audit: %s " SPAN_FMT " status=%d %s",
		http_method_name(http_call_head(call)->method), SPAN_ARG(path), status,
		who);
}

static struct http_server *serve(
	struct admin *a, int fd, const struct http_server_opts *opts)
{
	struct http_server *s;

	if (fd < 0)
		return NULL;
	s = http_server_new(a->control->loop, fd, opts);
	if (s == NULL)
		close(fd);
	return s;
}

struct admin *admin_new(struct control *c, int admin_fd, int metrics_fd)
{
	struct admin *a = xcalloc(1, sizeof(*a));
	struct http_server_opts api = {
		.routes = api_routes,
		.n_routes = ARRAY_LEN(api_routes),
		.arg = a,
		.max_body = BODY_MAX_BYTES,
		.on_fail = admin_on_fail,
		.on_answer = audit,
	};
	struct http_server_opts metrics = {
		.routes = metrics_routes,
		.n_routes = ARRAY_LEN(metrics_routes),
		.arg = a,
		/* Nobody who keeps connections locks the others out. */
		.max_connections = 64,
		.gives_way = true,
		.keepalive_timeout_ms = METRICS_KEEPALIVE_MS,
	};

	a->control = c;
	admin_removals_start(a);
	a->api = serve(a, admin_fd, &api);
	a->metrics = serve(a, metrics_fd, &metrics);
	if (!admin_pool_calls_start(a) || (admin_fd >= 0 && a->api == NULL) ||
		(metrics_fd >= 0 && a->metrics == NULL)) {
		admin_free(a);
		return NULL;
	}
	return a;
}

void admin_drain(struct admin *a)
{
	if (a->api != NULL)
		http_server_drain(a->api);
	if (a->metrics != NULL)
		http_server_drain(a->metrics);
	a->control->admin_fd = a->control->metrics_fd = -1;
}

void admin_free(struct admin *a)
{
	if (a == NULL)
		return;
	http_server_free(a->api);
	http_server_free(a->metrics);
	admin_removals_stop(a);
	admin_pool_calls_stop(a);
	free(a);
}
