# Tests. To add one, append to the list of its kind, in its own lines:
#   unit test    tests/unit/check_span.c (Check; its main returns the failures):
#	check_PROGRAMS += tests/unit/check_span
#   unit test of the engine, which links more:
#	check_PROGRAMS += tests/unit/check_token
#	tests_unit_check_token_LDADD = $(ENGINE_TEST_LIBS)
#   fuzz target  tests/fuzz/fuzz_conf.c (LLVMFuzzerTestOneInput), with its seeds in
#   tests/fuzz/corpus/conf/ and crashes once found in tests/fuzz/regression/conf/:
#	check_PROGRAMS += tests/fuzz/fuzz_conf
#	tests_fuzz_fuzz_conf_LDADD = $(FUZZ_LIBS)
#	tests_fuzz_fuzz_conf_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_http
tests_fuzz_fuzz_http_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_http_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_proxy_header
tests_fuzz_fuzz_proxy_header_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_proxy_header_LDFLAGS = $(FUZZ_LINK)
# Sources need no line. tests/lint/check-lists fails for a test that is in no list.

LDADD = $(KVSTEER_LIBS) $(CHECK_LIBS)
ENGINE_TEST_LIBS = $(ENGINE_LIBS) $(CHECK_LIBS)
BENCH_TEST_LIBS = $(BENCH_LIBS) $(CHECK_LIBS)

# A fuzz target brings its own main only with libFuzzer; otherwise replay.c's.
check_LIBRARIES += tests/fuzz/libreplay.a
tests_fuzz_libreplay_a_SOURCES = tests/fuzz/replay.c
if FUZZER
FUZZ_LINK = $(AM_LDFLAGS) -fsanitize=fuzzer
FUZZ_LIBS = $(KVSTEER_LIBS)
else
FUZZ_LINK = $(AM_LDFLAGS)
FUZZ_LIBS = tests/fuzz/libreplay.a $(KVSTEER_LIBS)
FUZZ_PREFIX_LIBS = tests/fuzz/libreplay.a
endif

# Unit tests, and what they share
noinst_HEADERS += tests/unit/unit.h
noinst_HEADERS += tests/unit/unit_model.h
noinst_HEADERS += tests/unit/route_oracle.h
noinst_HEADERS += tests/unit/unit_loop.h
check_PROGRAMS += tests/unit/check_args
check_PROGRAMS += tests/unit/check_clock
check_PROGRAMS += tests/unit/check_conf
check_PROGRAMS += tests/unit/check_conf_flags
check_PROGRAMS += tests/unit/check_conf_roles
check_PROGRAMS += tests/unit/check_conf_lex
check_PROGRAMS += tests/unit/check_conf_place
check_PROGRAMS += tests/unit/check_conf_secret
check_PROGRAMS += tests/unit/check_conf_url
check_PROGRAMS += tests/unit/check_dump
check_PROGRAMS += tests/unit/check_fail
check_PROGRAMS += tests/unit/check_ctl_view
tests_unit_check_ctl_view_LDADD = libctl.a $(LDADD)
check_PROGRAMS += tests/unit/check_flag
check_PROGRAMS += tests/unit/check_file
check_PROGRAMS += tests/unit/check_word
check_PROGRAMS += tests/unit/check_hash
check_PROGRAMS += tests/unit/check_ip
check_PROGRAMS += tests/unit/check_log
check_PROGRAMS += tests/unit/check_log_out
check_PROGRAMS += tests/unit/check_lru_map
check_PROGRAMS += tests/unit/check_mem
check_PROGRAMS += tests/unit/check_metric
check_PROGRAMS += tests/unit/check_rng
check_PROGRAMS += tests/unit/check_span
check_PROGRAMS += tests/unit/check_text
check_PROGRAMS += tests/unit/check_fetch
check_PROGRAMS += tests/unit/check_js
check_PROGRAMS += tests/unit/check_notify
check_PROGRAMS += tests/unit/check_resolve
check_PROGRAMS += tests/unit/check_sock
check_PROGRAMS += tests/unit/check_accepter
check_PROGRAMS += tests/unit/check_wheel
noinst_HEADERS += tests/unit/http_feed.h
check_PROGRAMS += tests/unit/check_http_parse
check_PROGRAMS += tests/unit/check_http_rules
check_PROGRAMS += tests/unit/check_http_scan
check_PROGRAMS += tests/unit/check_http_chunk
check_PROGRAMS += tests/unit/check_http_edit
check_PROGRAMS += tests/unit/check_http_forwarded
check_PROGRAMS += tests/unit/check_http_proxy
check_PROGRAMS += tests/unit/check_http_write
check_PROGRAMS += tests/unit/check_json_scan
check_PROGRAMS += tests/unit/check_loop
check_PROGRAMS += tests/unit/check_mailbox
check_PROGRAMS += tests/unit/check_stream
noinst_HEADERS += tests/unit/http_server_rig.h
check_PROGRAMS += tests/unit/check_http_server
check_PROGRAMS += tests/unit/check_http_server_life
noinst_HEADERS += tests/unit/route_rig.h
check_PROGRAMS += tests/unit/check_form_scan
check_PROGRAMS += tests/unit/check_route_key
noinst_HEADERS += tests/unit/prefix_rig.h
check_PROGRAMS += tests/unit/check_prefix_index
tests_unit_check_prefix_index_LDADD = $(PREFIX_LIBS) $(CHECK_LIBS)
check_PROGRAMS += tests/unit/check_prefix_memory
tests_unit_check_prefix_memory_LDADD = $(PREFIX_LIBS) $(CHECK_LIBS)
check_PROGRAMS += tests/unit/check_prefix_oracle
tests_unit_check_prefix_oracle_LDADD = $(PREFIX_LIBS) $(CHECK_LIBS)
check_PROGRAMS += tests/unit/check_route_prompt
check_PROGRAMS += tests/unit/check_address
check_PROGRAMS += tests/unit/check_models
check_PROGRAMS += tests/unit/check_ranks
check_PROGRAMS += tests/unit/check_scrape
check_PROGRAMS += tests/unit/check_client_body
check_PROGRAMS += tests/unit/check_cleanup
tests_unit_check_cleanup_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=calloc
check_PROGRAMS += tests/unit/check_intake
tests_unit_check_intake_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=stream_write,--wrap=metric_request
check_PROGRAMS += tests/unit/check_relay
check_PROGRAMS += tests/unit/check_upstream
check_PROGRAMS += tests/unit/check_response_map
check_PROGRAMS += tests/unit/check_pool_retry
check_PROGRAMS += tests/unit/check_retry_fleet
check_PROGRAMS += tests/unit/check_resume_body
check_PROGRAMS += tests/unit/check_kv_transfer
check_PROGRAMS += tests/unit/check_kv_veil
check_PROGRAMS += tests/unit/check_kv_split
tests_unit_check_kv_split_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc,--wrap=realloc
check_PROGRAMS += tests/unit/check_resume_stream
check_PROGRAMS += tests/unit/check_stream_watch
check_PROGRAMS += tests/unit/check_access_log
check_PROGRAMS += tests/unit/check_answer
noinst_HEADERS += tests/unit/site_rig.h
check_PROGRAMS += tests/unit/check_site
check_PROGRAMS += tests/unit/check_digest
check_PROGRAMS += tests/unit/check_limit
check_PROGRAMS += tests/unit/check_tenant
noinst_HEADERS += tests/unit/pool_rig.h
check_PROGRAMS += tests/unit/check_pool
check_PROGRAMS += tests/unit/check_pool_index
check_PROGRAMS += tests/unit/check_pool_day
check_PROGRAMS += tests/unit/check_pool_update
check_PROGRAMS += tests/unit/check_pool_health
check_PROGRAMS += tests/unit/check_registry
check_PROGRAMS += tests/unit/check_reload_memory
noinst_HEADERS += tests/unit/alloc_rig.h
ALLOC_WRAP = -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc \
	-Wl,--wrap=strdup,--wrap=mmap,--wrap=open_memstream,--wrap=scandir,--wrap=getaddrinfo \
	-Wl,--wrap=asprintf,--wrap=__asprintf_chk,--wrap=vasprintf,--wrap=__vasprintf_chk
tests_unit_check_reload_memory_LDFLAGS = $(AM_LDFLAGS) $(ALLOC_WRAP)
noinst_HEADERS += tests/unit/control_rig.h
check_PROGRAMS += tests/unit/check_roster
check_PROGRAMS += tests/unit/check_control_memory
tests_unit_check_control_memory_LDFLAGS = $(AM_LDFLAGS) $(ALLOC_WRAP)
check_PROGRAMS += tests/unit/check_threads
check_PROGRAMS += tests/unit/check_path_table
check_PROGRAMS += tests/unit/check_policy
check_PROGRAMS += tests/unit/check_routing_key
check_PROGRAMS += tests/unit/check_ring
check_PROGRAMS += tests/unit/check_session_map
check_PROGRAMS += tests/unit/check_pool_policy
check_PROGRAMS += tests/unit/check_breaker
check_PROGRAMS += tests/unit/check_progress
check_PROGRAMS += tests/unit/check_reach
check_PROGRAMS += tests/unit/check_outlier
check_PROGRAMS += tests/unit/check_latency
check_PROGRAMS += tests/unit/check_dial_line
check_PROGRAMS += tests/unit/check_policy_cost
check_PROGRAMS += tests/unit/check_pool_cost
check_PROGRAMS += tests/unit/check_queue
check_PROGRAMS += tests/unit/check_pool_pair
check_PROGRAMS += tests/unit/check_pool_wait
tests_unit_check_pool_wait_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=breaker_admits
check_PROGRAMS += tests/unit/check_guard
check_PROGRAMS += tests/unit/check_adapters
check_PROGRAMS += tests/unit/check_pace
check_PROGRAMS += tests/unit/check_worker

# Unit tests of the engine
check_PROGRAMS += tests/unit/check_engine_token
tests_unit_check_engine_token_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_kv_cache
tests_unit_check_kv_cache_LDADD = $(ENGINE_TEST_LIBS)
noinst_HEADERS += tests/unit/sched_rig.h
check_PROGRAMS += tests/unit/check_backend_sim
tests_unit_check_backend_sim_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_engine
tests_unit_check_engine_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_engine_api
tests_unit_check_engine_api_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_hit_rate
tests_unit_check_hit_rate_LDADD = $(ENGINE_TEST_LIBS)
noinst_HEADERS += tests/unit/sched_requests.h
noinst_HEADERS += tests/unit/slow_backend.h
check_PROGRAMS += tests/unit/check_sched_fair
tests_unit_check_sched_fair_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_sched_load
tests_unit_check_sched_load_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_kvx_frame
tests_unit_check_kvx_frame_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_kvx_client
tests_unit_check_kvx_client_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_lease
tests_unit_check_lease_LDADD = $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/fuzz/fuzz_kvx
tests_fuzz_fuzz_kvx_LDADD = libengine.a $(FUZZ_LIBS)
tests_fuzz_fuzz_kvx_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/unit/check_sched
tests_unit_check_sched_LDADD = $(ENGINE_TEST_LIBS)

# Unit tests of the bench
check_PROGRAMS += tests/unit/check_bench_arrival
tests_unit_check_bench_arrival_LDADD = $(BENCH_TEST_LIBS)
check_PROGRAMS += tests/unit/check_bench_histogram
tests_unit_check_bench_histogram_LDADD = $(BENCH_TEST_LIBS)
check_PROGRAMS += tests/unit/check_bench_reply
tests_unit_check_bench_reply_LDADD = $(BENCH_TEST_LIBS)
check_PROGRAMS += tests/unit/check_bench_sse
tests_unit_check_bench_sse_LDADD = $(BENCH_TEST_LIBS)
check_PROGRAMS += tests/unit/check_bench_tally
tests_unit_check_bench_tally_LDADD = $(BENCH_TEST_LIBS)
check_PROGRAMS += tests/unit/check_bench_trace
tests_unit_check_bench_trace_LDADD = $(BENCH_TEST_LIBS)
check_PROGRAMS += tests/unit/check_bench_url
tests_unit_check_bench_url_LDADD = $(BENCH_TEST_LIBS)
check_PROGRAMS += tests/unit/check_bench_corpus
tests_unit_check_bench_corpus_LDADD = libbench.a $(ENGINE_TEST_LIBS)
check_PROGRAMS += tests/unit/check_sim
tests_unit_check_sim_LDADD = libbench.a $(ENGINE_TEST_LIBS)

# Programs and libraries of the end-to-end tests. They are the tests' side, in no sanitizer:
# what they say is not of the product, and shims are loaded before everything else.
E2E_CFLAGS = -std=gnu11 $(WARN_CFLAGS) $(WERROR_CFLAGS)
noinst_PROGRAMS += tests/e2e/storm
tests_e2e_storm_CFLAGS = $(E2E_CFLAGS)
tests_e2e_storm_LDFLAGS =
tests_e2e_storm_LDADD =
noinst_PROGRAMS += tests/e2e/slow_name.so
tests_e2e_slow_name_so_SOURCES = tests/e2e/slow_name.c
tests_e2e_slow_name_so_CFLAGS = $(E2E_CFLAGS) -fPIC
tests_e2e_slow_name_so_LDFLAGS = -shared
tests_e2e_slow_name_so_LDADD =
# What a user's C99 compiler makes of the client's function.
noinst_PROGRAMS += tests/e2e/kvsteer_prefix.so
tests_e2e_kvsteer_prefix_so_SOURCES = etc/clients/kvsteer_prefix.c
tests_e2e_kvsteer_prefix_so_CPPFLAGS = $(XXHASH_CFLAGS)
tests_e2e_kvsteer_prefix_so_CFLAGS = -std=c99 -Wall -Wextra -Wpedantic $(WERROR_CFLAGS) -fPIC
tests_e2e_kvsteer_prefix_so_LDFLAGS = -shared
tests_e2e_kvsteer_prefix_so_LDADD = $(XXHASH_LIBS)

# Benches: built by name, "make tests/bench/bench_pool"; nothing runs them
EXTRA_PROGRAMS = tests/bench/bench_pool tests/bench/bench_prefix_index tests/bench/bench_route_key
# The scripts of tests/bench make these for themselves.
noinst_HEADERS += tests/bench/mock_net.h
EXTRA_PROGRAMS += tests/bench/mock_worker tests/bench/stream_delay
tests_bench_mock_worker_LDADD =
tests_bench_stream_delay_LDADD =
tests_bench_bench_prefix_index_LDADD = $(PREFIX_LIBS)

# Fuzz targets
check_PROGRAMS += tests/fuzz/fuzz_conf
tests_fuzz_fuzz_conf_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_conf_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_conf_load
tests_fuzz_fuzz_conf_load_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_conf_load_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_route_key
tests_fuzz_fuzz_route_key_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_route_key_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_kv_transfer
tests_fuzz_fuzz_kv_transfer_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_kv_transfer_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_kv_veil
tests_fuzz_fuzz_kv_veil_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_kv_veil_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_prefix_index
tests_fuzz_fuzz_prefix_index_LDADD = $(FUZZ_PREFIX_LIBS) $(PREFIX_LIBS)
tests_fuzz_fuzz_prefix_index_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_conn
noinst_HEADERS += tests/fuzz/conn_world.h tests/fuzz/conn_conf.h
noinst_HEADERS += tests/fuzz/conn_says.h
check_LIBRARIES += tests/fuzz/libconn_world.a
tests_fuzz_libconn_world_a_SOURCES = tests/fuzz/conn_world.c
tests_fuzz_fuzz_conn_LDADD = tests/fuzz/libconn_world.a $(FUZZ_LIBS)
tests_fuzz_fuzz_conn_LDFLAGS = $(FUZZ_LINK) -Wl,--wrap=sock_connect \
	-Wl,--wrap=sock_connect_result,--wrap=sock_abort_on_close,--wrap=rng_secret \
	-Wl,--wrap=stream_write
noinst_HEADERS += tests/fuzz/fuzz.h
check_PROGRAMS += tests/fuzz/fuzz_stream
tests_fuzz_fuzz_stream_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_stream_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_report
tests_fuzz_fuzz_report_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_report_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_client_keys
tests_fuzz_fuzz_client_keys_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_client_keys_LDFLAGS = $(FUZZ_LINK)
check_PROGRAMS += tests/fuzz/fuzz_admin
tests_fuzz_fuzz_admin_LDADD = $(FUZZ_LIBS)
tests_fuzz_fuzz_admin_LDFLAGS = $(FUZZ_LINK) -Wl,--wrap=fetch_start
check_PROGRAMS += tests/fuzz/fuzz_kvx_pair
tests_fuzz_fuzz_kvx_pair_LDADD = libengine.a $(FUZZ_LIBS)
tests_fuzz_fuzz_kvx_pair_LDFLAGS = $(FUZZ_LINK) -Wl,--wrap=sock_connect \
	-Wl,--wrap=sock_accept,--wrap=rng_secret

# Lint
LINT = tests/lint/check-docs tests/lint/check-manual tests/lint/check-includes \
	tests/lint/check-lists tests/lint/check-man tests/lint/check-scripts tests/lint/check-units \
	tests/lint/check-completion tests/lint/check-format tests/lint/check-memory \
	tests/lint/check-names tests/lint/check-prose tests/lint/check-routes

dist_check_SCRIPTS += tests/run tests/build-deps $(LINT)
EXTRA_DIST += tests/lint/layers tests/lint/includes.awk
TESTS += $(check_PROGRAMS) $(LINT)
LOG_COMPILER = $(SHELL) $(srcdir)/tests/run
# Check runs each test in a process of its own, with time for the sanitizers.
AM_TESTS_ENVIRONMENT = \
	CK_FORK="$${CK_FORK-yes}"; export CK_FORK; \
	CK_DEFAULT_TIMEOUT="$${CK_DEFAULT_TIMEOUT-300}"; export CK_DEFAULT_TIMEOUT; \
	srcdir='$(abs_top_srcdir)'; export srcdir; \
	KVSTEER_BUILDDIR='$(abs_top_builddir)'; export KVSTEER_BUILDDIR; \
	KVSTEER_SHARED="$${KVSTEER_SHARED-$(abs_top_srcdir)/../shared}"; export KVSTEER_SHARED;

# Preloaded by tests/e2e/test_memory.py. Sanitizers have an allocator of their own.
if !SANITIZERS
check_DATA += tests/e2e/alloc_fault.so
endif
tests/e2e/alloc_fault.so: tests/e2e/alloc_fault.c
	$(AM_V_CCLD)$(MKDIR_P) $(@D) && $(CC) $(AM_CFLAGS) $(CFLAGS) -D_GNU_SOURCE -fPIC -shared \
		-o $@ $(srcdir)/tests/e2e/alloc_fault.c
CLEANFILES += tests/e2e/alloc_fault.so
