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
	X(ACCEPT_PAUSED, COUNTER, "kvsteer_accept_paused_total", "Times accepting paused for want of files")  \
	X(BODY_MEMORY, GAUGE, "kvsteer_body_memory_bytes", "Bytes of request bodies held")                    \
	X(QUEUE_DEPTH, GAUGE, "kvsteer_queue_depth", "Requests waiting for a worker")                         \
	X(FRAMING_DISAGREE, COUNTER, "kvsteer_framing_disagreements_total", "Heads refused by the second parser only")
/* clang-format on */

#endif
