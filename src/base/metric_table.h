/*
 * The metrics whose labels are few and fixed at compile time: one row each. X(NAME, kind,
 * name, help) They are counted per thread and summed when scraped. Metrics labelled by
 * worker, policy, route or reason keep their own arrays (see metric.h) or are read from
 * the objects at scrape time (control/admin_metrics.c).
 */
#ifndef BASE_METRIC_TABLE_H
#define BASE_METRIC_TABLE_H

/* clang-format off */
#define METRIC_TABLE(X)                                                                                       \
	X(GUARDS_TAKEN, COUNTER, "kvsteer_guards_taken_total", "Load guards taken")                           \
	X(GUARDS_DROPPED, COUNTER, "kvsteer_guards_dropped_total", "Load guards dropped")                     \
	X(CONN_CLIENT, GAUGE, "kvsteer_connections{side=\"client\"}", "Open connections by side")             \
	X(CONN_WORKER, GAUGE, "kvsteer_connections{side=\"worker\"}", "Open connections by side")             \
	X(CONN_ACCEPTED, COUNTER, "kvsteer_connections_accepted_total", "Client connections accepted")        \
	X(PROXY_MALFORMED, COUNTER, "kvsteer_proxy_protocol_refused_total{reason=\"malformed\"}", "Connections closed at the PROXY protocol: no valid header, none in time, or not from trusted_proxies") \
	X(PROXY_TIMEOUT, COUNTER, "kvsteer_proxy_protocol_refused_total{reason=\"timeout\"}", "")            \
	X(PROXY_STRANGER, COUNTER, "kvsteer_proxy_protocol_refused_total{reason=\"stranger\"}", "")          \
	X(ACCEPT_PAUSED, COUNTER, "kvsteer_accept_paused_total", "Times accepting paused for want of files")  \
	X(BODY_MEMORY, GAUGE, "kvsteer_body_memory_bytes", "Bytes of request bodies held")                    \
	X(REQUESTS, GAUGE, "kvsteer_requests_in_flight", "Requests begun and not ended")                      \
	X(QUEUE_DEPTH, GAUGE, "kvsteer_queue_depth", "Requests waiting for a worker")                         \
	X(RETRIES_UNREACHABLE, COUNTER, "kvsteer_retries_total{reason=\"worker_unreachable\"}", "Further attempts on another worker, by what the one before said") \
	X(RETRIES_RESET, COUNTER, "kvsteer_retries_total{reason=\"worker_reset\"}", "") \
	X(RETRIES_TIMEOUT, COUNTER, "kvsteer_retries_total{reason=\"worker_timeout\"}", "")                  \
	X(RETRIES_BROKE, COUNTER, "kvsteer_retries_total{reason=\"worker_broke\"}", "")                      \
	X(RETRIES_ERROR, COUNTER, "kvsteer_retries_total{reason=\"worker_error\"}", "")                      \
	X(RETRIES_REFUSED, COUNTER, "kvsteer_retries_refused_total", "Retries that retry_budget did not allow") \
	X(RESUMES_RESUMED, COUNTER, "kvsteer_resumes_total{result=\"resumed\"}", "Streams whose worker broke, with resume_streams: went on on another, ended by the router, found none, could not") \
	X(RESUMES_ENDED, COUNTER, "kvsteer_resumes_total{result=\"ended\"}", "")                              \
	X(RESUMES_FAILED, COUNTER, "kvsteer_resumes_total{result=\"failed\"}", "")                            \
	X(RESUMES_UNFIT, COUNTER, "kvsteer_resumes_total{result=\"unfit\"}", "")                              \
	X(PD_SPLIT, COUNTER, "kvsteer_pd_requests_total{way=\"split\"}", "Requests of pools with prefill and decode workers, by their way: over both; over both, but prefill named no blocks; to a decode worker alone, since they were short, could not be split, or found no prefill worker") \
	X(PD_RECOMPUTED, COUNTER, "kvsteer_pd_requests_total{way=\"recomputed\"}", "") \
	X(PD_SHORT, COUNTER, "kvsteer_pd_requests_total{way=\"short\"}", "")                                  \
	X(PD_WHOLE, COUNTER, "kvsteer_pd_requests_total{way=\"whole\"}", "")                                  \
	X(PD_NO_PREFILL, COUNTER, "kvsteer_pd_requests_total{way=\"no_prefill\"}", "")                        \
	X(KV_RELEASES_DONE, COUNTER, "kvsteer_kv_releases_total{result=\"done\"}", "Prefilled blocks given back to their worker, since no decode worker took them") \
	X(KV_RELEASES_FAILED, COUNTER, "kvsteer_kv_releases_total{result=\"failed\"}", "")                    \
	X(LOG_LINES_LOST, COUNTER, "kvsteer_log_lines_lost_total", "Lines of the log that were lost: its reader did not keep up, or they could not be written") \
	X(FRAMING_DISAGREE, COUNTER, "kvsteer_framing_disagreements_total", "Heads refused by the second parser only")
/* clang-format on */

#endif
