# The router. One line per module: to add src/base/span.c and its header, add
#   libbase_a_SOURCES += src/base/span.c src/base/span.h
# to the lines of its room. tests/lint/check-lists fails for a file that is in no list.

# libbase.a: words. libprefix.a: the prefix index, on words alone. libkvsteer.a: the router.
# libctl.a: kvsteerctl.
noinst_LIBRARIES += libbase.a libprefix.a libkvsteer.a libctl.a
libbase_a_SOURCES =
libprefix_a_SOURCES =
libkvsteer_a_SOURCES =
libctl_a_SOURCES =

# base: words
libbase_a_SOURCES += src/base/args.c src/base/args.h
libbase_a_SOURCES += src/base/base.h
libbase_a_SOURCES += src/base/cleanup.h
libbase_a_SOURCES += src/base/clock.c src/base/clock.h
libbase_a_SOURCES += src/base/conf_lex.c src/base/conf_lex.h
libbase_a_SOURCES += src/base/crc32c.c src/base/crc32c.h
libbase_a_SOURCES += src/base/digest.c src/base/digest.h
libbase_a_SOURCES += src/base/dump.c src/base/dump.h
libbase_a_SOURCES += src/base/err.c src/base/err.h
libbase_a_SOURCES += src/base/fail.c src/base/fail.h
libbase_a_SOURCES += src/base/fail_table.h
libbase_a_SOURCES += src/base/file.c src/base/file.h
libbase_a_SOURCES += src/base/flag.c src/base/flag.h
libbase_a_SOURCES += src/base/flag_file.c
libbase_a_SOURCES += src/base/hash.c src/base/hash.h
libbase_a_SOURCES += src/base/header_rule.c src/base/header_rule.h
libbase_a_SOURCES += src/base/http_method.h
libbase_a_SOURCES += src/base/ip.c src/base/ip.h
libbase_a_SOURCES += src/base/limit.c src/base/limit.h
libbase_a_SOURCES += src/base/list.h
libbase_a_SOURCES += src/base/log.c src/base/log.h
libbase_a_SOURCES += src/base/log_out.c src/base/log_out.h
libbase_a_SOURCES += src/base/lru_map.c src/base/lru_map.h
libbase_a_SOURCES += src/base/mem.c src/base/mem.h
libbase_a_SOURCES += src/base/metric.c src/base/metric.h
libbase_a_SOURCES += src/base/metric_table.h
libbase_a_SOURCES += src/base/poison.h
libbase_a_SOURCES += src/base/ring.c src/base/ring.h
libbase_a_SOURCES += src/base/rng.c src/base/rng.h
libbase_a_SOURCES += src/base/span.c src/base/span.h
libbase_a_SOURCES += src/base/text.c src/base/text.h
libbase_a_SOURCES += src/base/word.c src/base/word.h

# io: one foreign library or system interface each
libkvsteer_a_SOURCES += src/io/fetch.c src/io/fetch.h
libkvsteer_a_SOURCES += src/io/js.c src/io/js.h
libkvsteer_a_SOURCES += src/io/loop.c src/io/loop.h
libkvsteer_a_SOURCES += src/io/mailbox.c src/io/mailbox.h
libkvsteer_a_SOURCES += src/io/notify.c src/io/notify.h
libkvsteer_a_SOURCES += src/io/resolve.c src/io/resolve.h
libkvsteer_a_SOURCES += src/io/sock.c src/io/sock.h
libkvsteer_a_SOURCES += src/io/accepter.c src/io/accepter.h
libkvsteer_a_SOURCES += src/io/stream.c src/io/stream.h
libkvsteer_a_SOURCES += src/io/wheel.c src/io/wheel.h

# http: HTTP/1.1 as bytes
libkvsteer_a_SOURCES += src/http/http_call.c
libkvsteer_a_SOURCES += src/http/http_chunk.c src/http/http_chunk.h
libkvsteer_a_SOURCES += src/http/http_conn.h
libkvsteer_a_SOURCES += src/http/http_edit.c src/http/http_edit.h
libkvsteer_a_SOURCES += src/http/http_forwarded.c src/http/http_forwarded.h
libkvsteer_a_SOURCES += src/http/http_head.h
libkvsteer_a_SOURCES += src/http/http_parse.c src/http/http_parse.h
libkvsteer_a_SOURCES += src/http/http_proxy.c src/http/http_proxy.h
libkvsteer_a_SOURCES += src/http/http_query.c src/http/http_query.h
libkvsteer_a_SOURCES += src/http/http_rules.c src/http/http_rules.h
libkvsteer_a_SOURCES += src/http/http_scan.c src/http/http_scan.h
libkvsteer_a_SOURCES += src/http/http_server.c src/http/http_server.h
libkvsteer_a_SOURCES += src/http/http_write.c src/http/http_write.h
libkvsteer_a_SOURCES += src/http/llhttp_mode.h
libkvsteer_a_SOURCES += src/http/llhttp_names.h

# conf: the configuration and its tables
libkvsteer_a_SOURCES += src/conf/conf.c src/conf/conf.h
libkvsteer_a_SOURCES += src/conf/conf_alias.c
libkvsteer_a_SOURCES += src/conf/conf_check.c src/conf/conf_check.h
libkvsteer_a_SOURCES += src/conf/conf_client_keys.c src/conf/conf_client_keys.h
libkvsteer_a_SOURCES += src/conf/conf_error.c
libkvsteer_a_SOURCES += src/conf/conf_file.c
libkvsteer_a_SOURCES += src/conf/conf_flag_help.c
libkvsteer_a_SOURCES += src/conf/conf_flag_row.h
libkvsteer_a_SOURCES += src/conf/conf_flag_table.h
libkvsteer_a_SOURCES += src/conf/conf_flag_take.c
libkvsteer_a_SOURCES += src/conf/conf_flags.c src/conf/conf_flags.h
libkvsteer_a_SOURCES += src/conf/conf_keys.h
libkvsteer_a_SOURCES += src/conf/conf_place.c
libkvsteer_a_SOURCES += src/conf/conf_header.c
libkvsteer_a_SOURCES += src/conf/conf_print.c
libkvsteer_a_SOURCES += src/conf/conf_roles.c
libkvsteer_a_SOURCES += src/conf/conf_secret.c src/conf/conf_secret.h
libkvsteer_a_SOURCES += src/conf/conf_source.h
libkvsteer_a_SOURCES += src/conf/conf_table.c src/conf/conf_table.h
libkvsteer_a_SOURCES += src/conf/conf_type.c
libkvsteer_a_SOURCES += src/conf/conf_url.c

# route: what is read from requests: JSON, prompts, keys, paths
libkvsteer_a_SOURCES += src/route/form_scan.c src/route/form_scan.h
libkvsteer_a_SOURCES += src/route/json_member.c src/route/json_member.h
libkvsteer_a_SOURCES += src/route/json_scan.c src/route/json_scan.h
libkvsteer_a_SOURCES += src/route/json_walk.c src/route/json_walk.h
libkvsteer_a_SOURCES += src/route/path_rows.h src/route/path_table.c src/route/path_table.h
libkvsteer_a_SOURCES += src/route/route_hash.c src/route/route_hash.h
libkvsteer_a_SOURCES += src/route/route_key.c src/route/route_key.h
libkvsteer_a_SOURCES += src/route/route_prompt.c src/route/route_prompt.h
libkvsteer_a_SOURCES += src/route/route_scan.c src/route/route_scan.h

# prefix: the prefix index: the radix tree of who holds what
libprefix_a_SOURCES += src/prefix/prefix_arena.c src/prefix/prefix_arena.h
libprefix_a_SOURCES += src/prefix/prefix_check.c
libprefix_a_SOURCES += src/prefix/prefix_fold.c
libprefix_a_SOURCES += src/prefix/prefix_index.c src/prefix/prefix_index.h
libprefix_a_SOURCES += src/prefix/prefix_keys.c src/prefix/prefix_keys.h
libprefix_a_SOURCES += src/prefix/prefix_lru.c
libprefix_a_SOURCES += src/prefix/prefix_shrink.c
libprefix_a_SOURCES += src/prefix/prefix_tree.c src/prefix/prefix_tree.h

# worker: a worker: guard, breaker, progress
libkvsteer_a_SOURCES += src/worker/adapters.c src/worker/adapters.h
libkvsteer_a_SOURCES += src/worker/breaker.c src/worker/breaker.h
libkvsteer_a_SOURCES += src/worker/decay.c src/worker/decay.h
libkvsteer_a_SOURCES += src/worker/guard.c src/worker/guard.h
libkvsteer_a_SOURCES += src/worker/latency.c src/worker/latency.h
libkvsteer_a_SOURCES += src/worker/model_set.c src/worker/model_set.h
libkvsteer_a_SOURCES += src/worker/outlier.c src/worker/outlier.h
libkvsteer_a_SOURCES += src/worker/pace.c src/worker/pace.h
libkvsteer_a_SOURCES += src/worker/progress.c src/worker/progress.h
libkvsteer_a_SOURCES += src/worker/registry.c src/worker/registry.h
libkvsteer_a_SOURCES += src/worker/reach.c src/worker/reach.h
libkvsteer_a_SOURCES += src/worker/worker.c src/worker/worker.h

# rewrite: bodies that are made anew
libkvsteer_a_SOURCES += src/rewrite/kv_place.h
libkvsteer_a_SOURCES += src/rewrite/kv_splice.c
libkvsteer_a_SOURCES += src/rewrite/kv_split.c
libkvsteer_a_SOURCES += src/rewrite/kv_transfer.c src/rewrite/kv_transfer.h
libkvsteer_a_SOURCES += src/rewrite/kv_usage.c
libkvsteer_a_SOURCES += src/rewrite/kv_veil.c src/rewrite/kv_veil.h
libkvsteer_a_SOURCES += src/rewrite/resume_body.c src/rewrite/resume_body.h
libkvsteer_a_SOURCES += src/rewrite/resume_stream.c src/rewrite/resume_stream.h
libkvsteer_a_SOURCES += src/rewrite/stream_watch.c src/rewrite/stream_watch.h

# policy: which worker
libkvsteer_a_SOURCES += src/policy/policy.c src/policy/policy.h
libkvsteer_a_SOURCES += src/policy/policy_cache_aware.c
libkvsteer_a_SOURCES += src/policy/policy_consistent_hash.c
libkvsteer_a_SOURCES += src/policy/policy_cost.c src/policy/policy_cost.h
libkvsteer_a_SOURCES += src/policy/policy_cost_overload.c
libkvsteer_a_SOURCES += src/policy/policy_least_load.c
libkvsteer_a_SOURCES += src/policy/policy_power_of_two.c
libkvsteer_a_SOURCES += src/policy/policy_prefix_affinity.c
libkvsteer_a_SOURCES += src/policy/policy_random.c
libkvsteer_a_SOURCES += src/policy/policy_rendezvous.c
libkvsteer_a_SOURCES += src/policy/policy_round_robin.c
libkvsteer_a_SOURCES += src/policy/policy_state.c src/policy/policy_state.h
libkvsteer_a_SOURCES += src/policy/policy_sticky.c
libkvsteer_a_SOURCES += src/policy/routing_key.c src/policy/routing_key.h
libkvsteer_a_SOURCES += src/policy/session_map.c src/policy/session_map.h

# pool: pools and all that one configuration builds
libkvsteer_a_SOURCES += src/pool/adapter_cost.c src/pool/adapter_cost.h
libkvsteer_a_SOURCES += src/pool/pool.c src/pool/pool.h
libkvsteer_a_SOURCES += src/pool/pool_key.c
libkvsteer_a_SOURCES += src/pool/pool_outliers.c
libkvsteer_a_SOURCES += src/pool/pool_pick.c
libkvsteer_a_SOURCES += src/pool/pool_policy.c
libkvsteer_a_SOURCES += src/pool/pool_read.c
libkvsteer_a_SOURCES += src/pool/pool_state.h
libkvsteer_a_SOURCES += src/pool/pool_wait.c
libkvsteer_a_SOURCES += src/pool/priority.c src/pool/priority.h
libkvsteer_a_SOURCES += src/pool/queue.c src/pool/queue.h
libkvsteer_a_SOURCES += src/pool/request_key.c src/pool/request_key.h
libkvsteer_a_SOURCES += src/pool/response_map.c src/pool/response_map.h
libkvsteer_a_SOURCES += src/pool/retry.c src/pool/retry.h
libkvsteer_a_SOURCES += src/pool/site.c src/pool/site.h
libkvsteer_a_SOURCES += src/pool/slow_start.c src/pool/slow_start.h
libkvsteer_a_SOURCES += src/pool/tenant.c src/pool/tenant.h

# proxy: the data path
libkvsteer_a_SOURCES += src/proxy/access_log.c src/proxy/access_log.h
libkvsteer_a_SOURCES += src/proxy/admission.c src/proxy/admission.h
libkvsteer_a_SOURCES += src/proxy/answer.c src/proxy/answer.h
libkvsteer_a_SOURCES += src/proxy/attempt.c src/proxy/attempt.h
libkvsteer_a_SOURCES += src/proxy/body.c src/proxy/body.h
libkvsteer_a_SOURCES += src/proxy/budget.c src/proxy/budget.h
libkvsteer_a_SOURCES += src/proxy/cache_drop.c src/proxy/cache_drop.h
libkvsteer_a_SOURCES += src/proxy/caller.c src/proxy/caller.h
libkvsteer_a_SOURCES += src/proxy/cors.c src/proxy/cors.h
libkvsteer_a_SOURCES += src/proxy/cleanup.c src/proxy/cleanup.h
libkvsteer_a_SOURCES += src/proxy/client.c src/proxy/client.h
libkvsteer_a_SOURCES += src/proxy/conn.c src/proxy/conn.h
libkvsteer_a_SOURCES += src/proxy/decide.c src/proxy/decide.h
libkvsteer_a_SOURCES += src/proxy/decision.h
libkvsteer_a_SOURCES += src/proxy/dial_line.c src/proxy/dial_line.h
libkvsteer_a_SOURCES += src/proxy/dispatch.c src/proxy/dispatch.h
libkvsteer_a_SOURCES += src/proxy/fan_out.c src/proxy/fan_out.h
libkvsteer_a_SOURCES += src/proxy/intake.c src/proxy/intake.h
libkvsteer_a_SOURCES += src/proxy/introduction.c src/proxy/introduction.h
libkvsteer_a_SOURCES += src/proxy/io_thread.c src/proxy/io_thread.h
libkvsteer_a_SOURCES += src/proxy/io_thread_life.c
libkvsteer_a_SOURCES += src/proxy/listener.c src/proxy/listener.h
libkvsteer_a_SOURCES += src/proxy/outcome.c src/proxy/outcome.h
libkvsteer_a_SOURCES += src/proxy/own_answer.c src/proxy/own_answer.h
libkvsteer_a_SOURCES += src/proxy/pick.c src/proxy/pick.h
libkvsteer_a_SOURCES += src/proxy/pin.c src/proxy/pin.h
libkvsteer_a_SOURCES += src/proxy/placement.c src/proxy/placement.h
libkvsteer_a_SOURCES += src/proxy/prefill_decode.c src/proxy/prefill_decode.h
libkvsteer_a_SOURCES += src/proxy/prefill_decode_body.c
libkvsteer_a_SOURCES += src/proxy/prefill_decode_parallel.c
libkvsteer_a_SOURCES += src/proxy/prefill_decode_state.h
libkvsteer_a_SOURCES += src/proxy/relay.c src/proxy/relay.h
libkvsteer_a_SOURCES += src/proxy/request.c src/proxy/request.h
libkvsteer_a_SOURCES += src/proxy/request_leave.c src/proxy/request_leave.h
libkvsteer_a_SOURCES += src/proxy/request_life.c
libkvsteer_a_SOURCES += src/proxy/request_log.c src/proxy/request_log.h
libkvsteer_a_SOURCES += src/proxy/request_state.h
libkvsteer_a_SOURCES += src/proxy/response.c src/proxy/response.h
libkvsteer_a_SOURCES += src/proxy/resume.c src/proxy/resume.h
libkvsteer_a_SOURCES += src/proxy/stored_response.c src/proxy/stored_response.h
libkvsteer_a_SOURCES += src/proxy/upload.c src/proxy/upload.h
libkvsteer_a_SOURCES += src/proxy/upstream.c src/proxy/upstream.h
libkvsteer_a_SOURCES += src/proxy/upstream_read.c
libkvsteer_a_SOURCES += src/proxy/upstream_state.h

# fleet: the workers' health, reports and names
libkvsteer_a_SOURCES += src/fleet/address.c src/fleet/address.h
libkvsteer_a_SOURCES += src/fleet/fleet_call.c src/fleet/fleet_call.h
libkvsteer_a_SOURCES += src/fleet/health.c src/fleet/health.h
libkvsteer_a_SOURCES += src/fleet/host.c src/fleet/host.h
libkvsteer_a_SOURCES += src/fleet/models.c src/fleet/models.h
libkvsteer_a_SOURCES += src/fleet/numbering.c src/fleet/numbering.h
libkvsteer_a_SOURCES += src/fleet/questions.c src/fleet/questions.h
libkvsteer_a_SOURCES += src/fleet/report.c src/fleet/report.h
libkvsteer_a_SOURCES += src/fleet/says.c src/fleet/says.h
libkvsteer_a_SOURCES += src/fleet/scrape.c src/fleet/scrape.h
libkvsteer_a_SOURCES += src/fleet/scrape_json.c
libkvsteer_a_SOURCES += src/fleet/watch.c src/fleet/watch.h

# control: the daemon, and what operators call
libkvsteer_a_SOURCES += src/control/admin.c src/control/admin.h
libkvsteer_a_SOURCES += src/control/admin_calls.h
libkvsteer_a_SOURCES += src/control/admin_explain.c
libkvsteer_a_SOURCES += src/control/admin_gate.c src/control/admin_gate.h
libkvsteer_a_SOURCES += src/control/admin_metrics.c
libkvsteer_a_SOURCES += src/control/admin_pools.c
libkvsteer_a_SOURCES += src/control/admin_reply.c src/control/admin_reply.h
libkvsteer_a_SOURCES += src/control/admin_sessions.c
libkvsteer_a_SOURCES += src/control/admin_status.c
libkvsteer_a_SOURCES += src/control/admin_tenants.c
libkvsteer_a_SOURCES += src/control/admin_upgrade.c
libkvsteer_a_SOURCES += src/control/admin_workers.c
libkvsteer_a_SOURCES += src/control/boot.c src/control/boot.h
libkvsteer_a_SOURCES += src/control/conf_log.c src/control/conf_log.h
libkvsteer_a_SOURCES += src/control/conf_watch.c src/control/conf_watch.h
libkvsteer_a_SOURCES += src/control/control.h
libkvsteer_a_SOURCES += src/control/daemon.c src/control/daemon.h
libkvsteer_a_SOURCES += src/control/dump_tables.c src/control/dump_tables.h
libkvsteer_a_SOURCES += src/control/fleet_calls.c src/control/fleet_calls.h
libkvsteer_a_SOURCES += src/control/inherit.c src/control/inherit.h
libkvsteer_a_SOURCES += src/control/launch.c src/control/launch.h
libkvsteer_a_SOURCES += src/control/listen.c src/control/listen.h
libkvsteer_a_SOURCES += src/control/listen_unix.c src/control/listen_unix.h
libkvsteer_a_SOURCES += src/control/local.c src/control/local.h
libkvsteer_a_SOURCES += src/control/log_file.c src/control/log_file.h
libkvsteer_a_SOURCES += src/control/preflight.c src/control/preflight.h
libkvsteer_a_SOURCES += src/control/readiness.c src/control/readiness.h
libkvsteer_a_SOURCES += src/control/reload.c src/control/reload.h
libkvsteer_a_SOURCES += src/control/roster.c src/control/roster.h
libkvsteer_a_SOURCES += src/control/router_calls.c src/control/router_calls.h
libkvsteer_a_SOURCES += src/control/service.c src/control/service.h
libkvsteer_a_SOURCES += src/control/successor.c src/control/successor.h
libkvsteer_a_SOURCES += src/control/threads.c src/control/threads.h
libkvsteer_a_SOURCES += src/control/upgrade.c src/control/upgrade.h
libkvsteer_a_SOURCES += src/control/upgrade_state.c src/control/upgrade_state.h
libkvsteer_a_SOURCES += src/control/worker_change.c src/control/worker_change.h

# ctl: kvsteerctl
libctl_a_SOURCES += src/ctl/ctl.c src/ctl/ctl.h
libctl_a_SOURCES += src/ctl/ctl_call.c src/ctl/ctl_call.h
libctl_a_SOURCES += src/ctl/ctl_metrics.c src/ctl/ctl_metrics.h
libctl_a_SOURCES += src/ctl/ctl_print.c src/ctl/ctl_print.h
libctl_a_SOURCES += src/ctl/ctl_screen.c src/ctl/ctl_screen.h
libctl_a_SOURCES += src/ctl/ctl_top.c src/ctl/ctl_top.h
libctl_a_SOURCES += src/ctl/ctl_view.c src/ctl/ctl_view.h

# What a program or a test links with libkvsteer.a, in this order. XXH3 is compiled in (hash.c).
PREFIX_LIBS = libprefix.a libbase.a $(OPENSSL_LIBS) -lm
KVSTEER_LIBS = libkvsteer.a libprefix.a libbase.a $(LLHTTP_LIB) $(LLHTTP_LIBS) $(EVENT_LIBS) $(OPENSSL_LIBS) \
	$(JANSSON_LIBS) $(CURL_LIBS) -lm

# llhttp from the system's C sources, without our warnings. Absolute file names in _SOURCES
# would put objects beside them, so three files include them.
EXTRA_DIST += src/http/llhttp_api.c src/http/llhttp_http.c src/http/llhttp_llhttp.c
if LLHTTP_SOURCES
LLHTTP_LIB = libllhttp.a
noinst_LIBRARIES += libllhttp.a
libllhttp_a_SOURCES = src/http/llhttp_api.c src/http/llhttp_http.c src/http/llhttp_llhttp.c
libllhttp_a_CPPFLAGS = $(AM_CPPFLAGS) $(LLHTTP_SRC_CPPFLAGS)
libllhttp_a_CFLAGS = $(BASE_CFLAGS) -w
endif

# Programs. Their mains are in no library.
sbin_PROGRAMS += kvsteerd
kvsteerd_SOURCES = src/kvsteerd.c
kvsteerd_LDADD = $(KVSTEER_LIBS)
bin_PROGRAMS += kvsteerctl
kvsteerctl_SOURCES = src/kvsteerctl.c
kvsteerctl_LDADD = libctl.a $(KVSTEER_LIBS)

# The bench: beside the router, over base, io and http; in a library of its own
noinst_LIBRARIES += libbench.a
libbench_a_SOURCES =
libbench_a_SOURCES += src/bench/arrival.c src/bench/arrival.h
libbench_a_SOURCES += src/bench/bench.c src/bench/bench.h
libbench_a_SOURCES += src/bench/corpus.c src/bench/corpus.h
libbench_a_SOURCES += src/bench/flags.c src/bench/flags.h
libbench_a_SOURCES += src/bench/hashes.c src/bench/hashes.h
libbench_a_SOURCES += src/bench/histogram.c src/bench/histogram.h
libbench_a_SOURCES += src/bench/outcome.c src/bench/outcome.h
libbench_a_SOURCES += src/bench/reply.c src/bench/reply.h
libbench_a_SOURCES += src/bench/report.c src/bench/report.h
libbench_a_SOURCES += src/bench/run.c src/bench/run.h
libbench_a_SOURCES += src/bench/sse.c src/bench/sse.h
libbench_a_SOURCES += src/bench/tally.c src/bench/tally.h
libbench_a_SOURCES += src/bench/trace.c src/bench/trace.h
libbench_a_SOURCES += src/bench/url.c src/bench/url.h
libbench_a_SOURCES += src/bench/wire.c src/bench/wire.h
libbench_a_SOURCES += src/bench/words.c src/bench/words.h
# Its simulator: over the pools, too
libbench_a_SOURCES += src/sim/sim.c src/sim/sim.h
libbench_a_SOURCES += src/sim/sim_event.c src/sim/sim_event.h
libbench_a_SOURCES += src/sim/sim_flags.c src/sim/sim_flags.h
libbench_a_SOURCES += src/sim/sim_input.c src/sim/sim_input.h
libbench_a_SOURCES += src/sim/sim_kv.c src/sim/sim_kv.h
libbench_a_SOURCES += src/sim/sim_plot.c src/sim/sim_plot.h
libbench_a_SOURCES += src/sim/sim_report.c src/sim/sim_report.h
libbench_a_SOURCES += src/sim/sim_router.c src/sim/sim_router.h
libbench_a_SOURCES += src/sim/sim_worker.c src/sim/sim_worker.h
libbench_a_SOURCES += src/sim/simulate.c src/sim/simulate.h
BENCH_LIBS = libbench.a $(KVSTEER_LIBS)
bin_PROGRAMS += kvsteer-bench
kvsteer_bench_SOURCES = src/kvsteer_bench.c
kvsteer_bench_LDADD = $(BENCH_LIBS)
