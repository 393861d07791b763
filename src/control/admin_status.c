/*
 * The daemon as a whole by the admin API: status, reload, log level,
 * configuration.
 */
#include "control/admin_calls.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "control/admin_reply.h"
#include "control/listen.h"
#include "control/reload.h"
#include "control/threads.h"
#include "http/http_server.h"
#include "io/sock.h"

#include <stdlib.h>

/* ---- status ---- */

static struct js *index_object(struct pool *p)
{
	struct js *out = js_object();
	uint64_t blocks = 0, distinct = 0, bytes = 0;
	enum role r;

	for (r = 0; r < ROLE_MAX; r++) {
		struct prefix_index_stats s;

		pool_index_stats(p, r, &s);
		blocks += s.blocks;
		distinct += s.distinct_blocks;
		bytes += s.bytes;
	}
	js_set_int(out, "blocks", (int64_t)blocks);
	js_set_int(out, "distinct_blocks", (int64_t)distinct);
	js_set_int(out, "bytes", (int64_t)bytes);
	return out;
}

static struct js *pools_array(const struct site *site)
{
	struct js *list = js_array();
	size_t i;

	for (i = 0; i < site->n_pools; i++) {
		struct pool *p = site->pools[i];
		struct js *item = js_object();

		js_set_str(item, "name", pool_name(p));
		js_set_str(item, "policy", pool_policy_name(p, pool_whole_role(p)));
		if (pool_is_split(p))
			js_set_str(item, "prefill_policy",
				pool_policy_name(p, ROLE_PREFILL));
		js_set_int(item, "generation", (int64_t)pool_generation(p));
		js_set(item, "index", index_object(p));
		js_push(list, item);
	}
	return list;
}

static struct js *listen_array(const struct listen_set *set)
{
	struct js *list = js_array();
	char text[LISTEN_TEXT_MAX];
	unsigned i;

	for (i = 0; i < listen_count(set); i++) {
		listen_text(set, i, text, sizeof(text));
		js_push(list, js_string(span_str(text)));
	}
	return list;
}

static struct js *queue_object(void)
{
	struct js *out = js_object();

	js_set_int(out, "depth", metric_total(METRIC_QUEUE_DEPTH));
	return out;
}

static struct js *guards_object(void)
{
	struct js *out = js_object();
	/* Drops first: a guard taken in between must not look dropped before it was
	 * taken. */
	int64_t dropped = metric_total(METRIC_GUARDS_DROPPED);

	js_set_int(out, "taken", metric_total(METRIC_GUARDS_TAKEN));
	js_set_int(out, "dropped", dropped);
	return out;
}

static struct js *counters_object(struct control *c)
{
	struct js *out = js_object();
	uint64_t all, errors;

	metric_request_sum(&all, &errors);
	js_set_int(out, "requests_ended", (int64_t)all);
	js_set_int(out, "requests_errors", (int64_t)errors);
	js_set_int(out, "requests_in_flight", metric_total(METRIC_REQUESTS));
	js_set_int(out, "connections", (int64_t)atomic_load(&c->process.connections));
	js_set_int(out, "connections_accepted", metric_total(METRIC_CONN_ACCEPTED));
	js_set_int(out, "worker_connections", metric_total(METRIC_CONN_WORKER));
	js_set_int(
		out, "body_memory_bytes", (int64_t)atomic_load(&c->process.body_memory));
	js_set_int(out, "reloads", (int64_t)c->reloads[RELOAD_OK]);
	js_set_int(out, "reloads_failed", (int64_t)c->reloads[RELOAD_FAILED]);
	return out;
}

void admin_status(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct control *c = a->control;
	struct js *out = js_object();

	js_set_str(out, "version", KVSTEER_VERSION);
	js_set_int(out, "pid", getpid());
	js_set_int(out, "uptime_ms", (int64_t)(clock_now_ms() - c->started_ms));
	js_set_str(out, "state", c->is_draining ? "draining" : "running");
	js_set_int(out, "threads", threads_count(c->threads));
	js_set_int(out, "max_connections", c->process.max_connections);
	js_set(out, "listen", listen_array(c->listening));
	if (c->site->conf->router.metrics_listen != NULL)
		js_set_str(out, "metrics_listen", c->site->conf->router.metrics_listen);
	js_set_str(out, "log_level",
		log_level_name((enum log_level)atomic_load(&log_level_now)));
	js_set(out, "pools", pools_array(c->site));
	js_set(out, "workers", admin_workers_array(c->site));
	js_set(out, "hit_share", admin_hit_share(c->site));
	js_set(out, "api_keys", admin_tenants_summary(c->site));
	js_set(out, "queue", queue_object());
	js_set(out, "guards", guards_object());
	js_set(out, "counters", counters_object(c));
	admin_reply(call, 200, out);
}

/* ---- reload ---- */

static struct js *changes_array(const struct reload_report *report)
{
	struct js *list = js_array();
	size_t i;

	for (i = 0; i < report->n; i++) {
		struct js *item = js_object();

		js_set_str(item, "section", report->changes[i].section);
		js_set_str(item, "key", report->changes[i].key);
		js_set_str(item, "was", report->changes[i].was);
		js_set_str(item, "now", report->changes[i].now);
		js_push(list, item);
	}
	return list;
}

static struct js *refusal(const struct reload_report *report)
{
	struct js *out = js_object(), *error = js_object();

	js_set_str(error, "message", "the configuration has errors; nothing changed");
	js_set_str(error, "code", "reload_failed");
	js_set(out, "error", error);
	js_set(out, "errors", admin_conf_errors(&report->errors, false));
	js_set(out, "warnings", admin_conf_errors(&report->errors, true));
	return out;
}

void admin_reload(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	struct reload_report report;
	struct js *out;
	int err = reload_run(a->control, &report);

	if (err == ERR_NOMEM) {
		admin_fail(call, ADMIN_MEMORY, "out of memory; nothing changed");
	} else if (err != 0) {
		admin_reply(call, 422, refusal(&report));
	} else {
		out = js_object();
		js_set(out, "changes", changes_array(&report));
		js_set(out, "warnings", admin_conf_errors(&report.errors, true));
		admin_reply_done(call, 200, out);
	}
	reload_report_free(&report);
}

/* ---- small ones ---- */

bool admin_read_body(struct http_call *call, struct js **body)
{
	const char *why = "";

	*body = NULL;
	if (span_trim_all(http_call_body(call)).n == 0)
		return true;
	*body = js_parse(http_call_body(call), &why);
	if (*body != NULL && js_is_object(*body))
		return true;
	js_free(*body);
	admin_fail(call, ADMIN_INVALID, "a JSON object is needed");
	return false;
}

void admin_log_level(void *arg, struct http_call *call)
{
	enum log_level level;
	struct span name;
	struct js *body, *out;

	(void)arg;
	if (!admin_read_body(call, &body))
		return;
	if (body == NULL || !js_as_str(js_get(body, "level"), &name) ||
		log_level_parse(name, &level) != 0) {
		admin_fail(call, ADMIN_INVALID,
			"level: error, warn, notice, info or debug is needed");
	} else {
		log_set_level(level);
		log_notice("log level %s", log_level_name(level));
		out = js_object();
		js_set_str(out, "level", log_level_name(level));
		admin_reply(call, 200, out);
	}
	js_free(body);
}

void admin_config(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	scoped_free char *text = conf_print(a->control->site->conf);
	struct js *out;

	if (text == NULL) {
		admin_fail(call, ADMIN_MEMORY, "out of memory");
		return;
	}
	out = js_object();
	js_set_str(out, "config", text);
	admin_reply(call, 200, out);
}
