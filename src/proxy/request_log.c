/*
 * The access line and the counts of a request that has ended. See request_log.h.
 */
#include "proxy/request_log.h"

#include "base/metric.h"
#include "proxy/access_log.h"
#include "proxy/prefill_decode.h"
#include "proxy/request_state.h"

#define MODEL_LOG_MAX 128

void request_log_line(struct request *r, uint64_t now_us)
{
	struct access_line line = {
		.request_id = request_id(r),
		.client = http_who_text(r->who),
		.tenant = r->caller.tenant != NULL ? r->caller.tenant->conf->name : NULL,
		.model = span_make(
			r->key.model.p, MIN(r->key.model.n, (size_t)MODEL_LOG_MAX)),
		.route = path_route_name(
			r->has_head ? r->verdict.route : path_route_none()),
		.worker = r->worker_name[0] != '\0' ? r->worker_name : NULL,
		.reason = pick_reason_name(r->place.pick.reason),
		.status = r->status,
		.why = r->why,
		.bytes_in = r->body.total,
		.bytes_out = r->relay.bytes,
		.queue_us = r->picked_us > 0 ? r->picked_us - r->began_us : 0,
		.ttft_us = r->first_byte_us > 0 ? r->first_byte_us - r->began_us : 0,
		.total_us = now_us - r->began_us,
		.retries = r->attempts.n,
	};

	pd_matched(r->pd, &r->place.pick, &line.matched, &line.blocks);
	pd_tell(r->pd, &line);
	if (r->has_head) {
		line.method = span_str(http_method_name(r->head.method));
		line.path = http_head_path(r->c->buf, &r->head);
	}
	access_log_line(r->t->log, opts(r)->log_format, &line);
}

void request_count(struct request *r, uint64_t now_us)
{
	metric_request(
		r->has_head ? r->verdict.route : path_route_none(), r->status, r->why);
	metric_observe(METRIC_REQUEST_SECONDS, now_us - r->began_us);
	if (r->picked_us == 0)
		return;
	if (r->first_byte_us > 0)
		metric_observe(METRIC_TTFT_SECONDS, r->first_byte_us - r->began_us);
	metric_observe(METRIC_QUEUE_SECONDS, r->picked_us - r->began_us);
}

bool request_is_worth_a_line(const struct request *r)
{
	return r->has_head || r->status != 0;
}
