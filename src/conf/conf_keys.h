/*
 * The key tables of kvsteer.conf(5): one row per key and place where its value lives.
 * Everything that knows keys walks these rows: parser, defaults, ranges, -T, conf_diff,
 * the flags, and --dump-tables, by which tests/lint/check-docs compares the manual. Rows
 * stand in the order of the manual. Included by conf_table.c alone.
 *
 * K(key, field, type, default, min, max, reload, exposure, doc)
 *
 * field:    member of the table's struct
 * type:     row of conf_type.c
 * default:  as it would stand in the file; NULL: not set
 * min, max: of numbers (times in ms, sizes in bytes, text in characters); 0, 0: any
 * reload:   live: SIGHUP applies it; restart: needs a new process
 * exposure: open, or secret: never quoted in an error, a print or a diff
 */
#ifndef CONF_CONF_KEYS_H
#define CONF_CONF_KEYS_H

/* clang-format off */

#define CONF_DAY_MS 86400000.0
#define CONF_YEAR_MS (365 * CONF_DAY_MS)
#define CONF_MANY 1000000000.0
#define CONF_TERA (1024.0 * 1024 * 1024 * 1024)

/* [router]: struct router_opts */
#define CONF_ROUTER_KEYS(K) \
	K(threads, threads, COUNT, "0", 0, 1024, restart, open, \
	  "I/O threads; 0: one for each core") \
	K(metrics_listen, metrics_listen, ADDRESS, "127.0.0.1:29000", 0, 0, restart, open, \
	  "where /metrics is served; none: nowhere") \
	K(admin_socket, admin_socket, PATH, "/run/kvsteer/admin.sock", 0, 107, restart, open, \
	  "unix socket of the admin API; none: no admin API") \
	K(admin_socket_mode, admin_socket_mode, MODE, "0660", 0, 0777, restart, open, \
	  "permissions of the admin socket, octal") \
	K(admin_key, admin_key, TOKEN, NULL, 0, 4096, live, secret, \
	  "bearer key that opens the admin paths on the client side") \
	K(log_level, log_level, LOG_LEVEL, "info", 0, 0, live, open, \
	  "least severe level that is logged: error, warn, notice, info or debug") \
	K(log_format, log_format, LOG_FORMAT, "text", 0, 0, live, open, \
	  "format of the access log: text or json") \
	K(access_log, access_log, SWITCH, "on", 0, 0, live, open, \
	  "log one line for each request") \
	K(watch_config, watch_config, SWITCH, "off", 0, 0, live, open, \
	  "reload when the configuration's files change") \
	K(drain_timeout, drain_timeout_ms, TIME, "300s", 0, CONF_YEAR_MS, live, open, \
	  "how long a stop waits for requests in flight; 0: for ever") \
	K(drain_grace, drain_grace_ms, TIME, "1s", 0, CONF_DAY_MS, live, open, \
	  "how long, at least, a stopping daemon accepts connections and answers 503") \
	K(body_memory, body_memory, SIZE, "1g", 65536, CONF_TERA, live, open, \
	  "memory for request bodies in the whole process; more is answered 503") \
	K(max_connections, max_connections, COUNT, "0", 0, CONF_MANY, restart, open, \
	  "client connections at a time; 0: derived from the limit of open files") \
	K(hash_secret, hash_secret, TEXT, NULL, 0, 4096, restart, secret, \
	  "secret of the index keys, for routers that share state; unset: new at each start") \
	K(listen, listen, ADDRESSES, "127.0.0.1:30000", 0, 0, live, open, \
	  "addresses that clients connect to: host:port, [v6]:port, :port or unix:/path, with proxy_protocol behind it if a balancer speaks it") \
	K(tls_cert, tls_cert, PATH, NULL, 0, 0, live, open, \
	  "certificate chain (PEM) for every listen address") \
	K(tls_key, tls_key, PATH, NULL, 0, 0, live, open, \
	  "private key (PEM) of tls_cert") \
	K(client_ca, client_ca, PATH, NULL, 0, 0, live, open, \
	  "authorities (PEM) that must have signed a client's certificate") \
	K(api_keys, api_keys, PATH, NULL, 0, 0, live, open, \
	  "file of client keys (SHA-256), tenants and limits") \
	K(pass_paths, pass_paths, PATHS, NULL, 0, 0, live, open, \
	  "further paths to forward, matched exactly; * forwards every path") \
	K(max_body_size, max_body_size, SIZE, "512m", 0, CONF_TERA, live, open, \
	  "largest request body; more is answered 413") \
	K(head_timeout, head_timeout_ms, TIME, "10s", 1, CONF_DAY_MS, live, open, \
	  "a request's header must be complete within this time") \
	K(body_timeout, body_timeout_ms, TIME, "30s", 1, CONF_DAY_MS, live, open, \
	  "longest silence inside a request body") \
	K(keepalive_timeout, keepalive_timeout_ms, TIME, "75s", 0, CONF_DAY_MS, live, open, \
	  "how long an idle client connection is kept; 0: for ever") \
	K(write_timeout, write_timeout_ms, TIME, "60s", 1, CONF_DAY_MS, live, open, \
	  "a client that takes no byte for this long is disconnected") \
	K(tls_handshake_timeout, tls_handshake_timeout_ms, TIME, "10s", 1, CONF_DAY_MS, live, open, \
	  "a TLS handshake must be complete within this time") \
	K(half_close, half_close, HALF_CLOSE, "auto", 0, 0, live, open, \
	  "the meaning of a client's FIN before its response: abort, allow, or auto") \
	K(queue_size, queue_size, COUNT, "100", 0, 1000000, live, open, \
	  "requests that may wait for a worker; more are answered 429") \
	K(queue_timeout, queue_timeout_ms, TIME, "60s", 0, CONF_DAY_MS, live, open, \
	  "longest wait in the queue for a worker that is not full; then 408; 0: no limit") \
	K(max_concurrent_requests, max_concurrent_requests, COUNT, "32768", 1, 1000000, live, open, \
	  "requests in flight in the whole process; more wait in the queue") \
	K(expose_worker, expose_worker, SWITCH, "off", 0, 0, live, open, \
	  "responses carry X-Kvsteer-Worker and X-Kvsteer-Cached") \
	K(allow_pin, allow_pin, SWITCH, "off", 0, 0, live, open, \
	  "clients may choose a worker with X-Kvsteer-Worker") \
	K(routing_key_headers, routing_key_headers, HEADERS, "X-Smg-Routing-Key X-Session-Id X-Claude-Code-Session-Id Session-Id Session_id X-Session-Affinity X-Opencode-Session Conversation_id X-Conversation-Id X-OpenWebUI-Chat-Id X-Litellm-Session-Id X-Task-Id X-User-Id X-Tenant-Id X-Correlation-Id X-Request-Id X-Trace-Id", 0, 0, live, open, \
	  "headers that may hold a routing key; the first one found wins") \
	K(priority_headers, priority_headers, HEADERS, NULL, 0, 0, live, open, \
	  "headers that give a request's place in the queue: high, normal or low") \
	K(trusted_proxies, trusted_proxies, PEERS, NULL, 0, 0, live, open, \
	  "networks whose X-Forwarded-For is believed; unix: for unix sockets") \
	K(allow, allow, PEERS, NULL, 0, 0, live, open, \
	  "networks whose clients are served, unix: for unix sockets; none: all") \
	K(deny, deny, PEERS, NULL, 0, 0, live, open, \
	  "networks whose clients are not served, also within those of allow") \
	K(request_header, request_headers, REQUEST_RULES, NULL, 0, 0, live, open, \
	  "change of the headers that workers get: set NAME VALUE, add NAME VALUE or remove NAME; repeatable") \
	K(response_header, response_headers, RESPONSE_RULES, NULL, 0, 0, live, open, \
	  "change of the headers that clients get, of the router's own responses too") \
	K(cors_origins, cors_origins, ORIGINS, NULL, 0, 0, live, open, \
	  "origins of web pages that may read responses, with *. for any subdomain; * for all")

/* [pool NAME] only: struct pool_conf */
#define CONF_POOL_KEYS(K) \
	K(models, models, GLOBS, NULL, 0, 0, live, open, \
	  "models that the pool serves, with * and ?; none: all") \
	K(alias, aliases, ALIASES, NULL, 0, 0, live, open, \
	  "alias NAME = TARGET: a request for NAME becomes one for the model TARGET")

/* [pool NAME] and [pool NAME prefill|decode]: struct role_opts */
#define CONF_ROLE_KEYS(K) \
	K(policy, policy.policy, POLICY, "cache_aware", 0, 0, live, open, \
	  "how a worker is chosen") \
	K(signal, policy.signal, SIGNAL, "longest_prefix", 0, 0, live, open, \
	  "cache_aware: what counts as cached") \
	K(cost, policy.cost, COST, "overload_check", 0, 0, live, open, \
	  "cache_aware: how load is weighed against the cache") \
	K(cache_threshold, policy.cache_threshold, REAL, "0.3", 0, 1, live, open, \
	  "cache_aware: a worker must hold more than this fraction of the prompt to be preferred") \
	K(balance_abs_threshold, policy.balance_abs_threshold, COUNT, "32", 0, CONF_MANY, live, open, \
	  "overload_check: requests above the least loaded worker that a worker may have") \
	K(balance_rel_threshold, policy.balance_rel_threshold, REAL, "1.5", 1, 1000, live, open, \
	  "overload_check: times the load of the least loaded worker that a worker may have") \
	K(beta, policy.beta, REAL, "1", 0, 1000, live, open, \
	  "relative_load: weight of the load") \
	K(alpha, policy.alpha, REAL, "0.5", 0, 1, live, open, \
	  "free_capacity: weight of the cache; free slots weigh the rest") \
	K(decode_weight, policy.decode_weight, REAL, "1", 0, 1000, live, open, \
	  "prefill_cost: blocks that an active stream counts for") \
	K(max_load_skew, policy.max_load_skew, REAL, "1.5", 1, 1000, live, open, \
	  "prefix_affinity: a worker takes up to this many times the mean load") \
	K(affinity_fallback, policy.affinity_fallback, FALLBACK, "least_requests", 0, 0, live, open, \
	  "prefix_affinity: policy for a request without a routing key") \
	K(affinity_hash_tokens, policy.affinity_hash_tokens, COUNT, "4096", 0, CONF_MANY, live, open, \
	  "prefix_affinity: tokens to hash if there is no routing key; 0: none") \
	K(session_ttl, policy.session_ttl_ms, TIME, "7200s", 0, CONF_YEAR_MS, live, open, \
	  "sticky_least_loaded: a session not used for this long is forgotten; 0: never") \
	K(prefix_block, prefix_block, SIZE32, "128", 16, 65536, live, open, \
	  "bytes of prompt in a block of the prefix index") \
	K(short_prompts, short_prompts, SWITCH, "off", 0, 0, live, open, \
	  "a prompt shorter than a block is a block of its own, and comes home") \
	K(index_memory, index_memory, SIZE, "256m", 65536, CONF_TERA, live, open, \
	  "memory of the prefix index") \
	K(prefix_ttl, prefix_ttl_ms, TIME, "3600s", 0, CONF_YEAR_MS, live, open, \
	  "a prefix not used for this long is forgotten where a worker's capacity is unknown; 0: never") \
	K(load_source, load_source, LOAD_SOURCE, "own", 0, 0, live, open, \
	  "requests that count as load: own, or reported, which adds those of other clients") \
	K(kv_connector, kv_connector, CONNECTOR, NULL, 0, 0, live, open, \
	  "how prefill hands its KV cache to decode: nixl (also none), nixl_push, mooncake, p2p_nccl or sglang") \
	K(kv_params, kv_params, KV_PARAMS, "strip", 0, 0, live, open, \
	  "KV transfer fields of clients, and those in responses: strip, or pass them") \
	K(pd_min_prefill, pd_min_prefill, COUNT, "256", 0, CONF_MANY, live, open, \
	  "with fewer uncached tokens than this, the decode worker computes the prompt itself") \
	K(max_prefill_response, max_prefill_response, SIZE, "1m", 4096, CONF_TERA, live, open, \
	  "largest response of a prefill worker that is read for its transfer parameters")

/* [pool NAME], [pool NAME prefill|decode] and [worker NAME]: struct worker_opts */
#define CONF_OPTS_KEYS(K) \
	K(health_path, health_path, TARGET, "/health", 0, 0, live, open, \
	  "path of the health probe") \
	K(health_interval, health_interval_ms, TIME, "5s", 10, CONF_DAY_MS, live, open, \
	  "time between two probes") \
	K(health_timeout, health_timeout_ms, TIME, "2s", 1, CONF_DAY_MS, live, open, \
	  "a probe must be answered within this time") \
	K(health_failures, health_failures, COUNT, "3", 1, 1000000, live, open, \
	  "failed probes in a row that make a worker unhealthy") \
	K(health_successes, health_successes, COUNT, "2", 1, 1000000, live, open, \
	  "successful probes in a row that make it healthy again") \
	K(stall_timeout, stall_timeout_ms, TIME, "60s", 0, CONF_DAY_MS, live, open, \
	  "a worker whose requests make no progress for this long is stalled; 0: never") \
	K(degraded_ratio, degraded_ratio, REAL, "0.2", 0, 1, live, open, \
	  "a worker below this fraction of its peers' median rate is degraded; 0: never") \
	K(degraded_window, degraded_window_ms, TIME, "30s", 1000, CONF_DAY_MS, live, open, \
	  "how long a worker must be that slow") \
	K(slow_start, slow_start_ms, TIME, "0", 0, CONF_DAY_MS, live, open, \
	  "a new worker's share of requests grows over this time; 0: full at once") \
	K(connect_timeout, connect_timeout_ms, TIME, "2s", 1, CONF_DAY_MS, live, open, \
	  "connecting to a worker takes no longer than this") \
	K(first_byte_timeout, first_byte_timeout_ms, TIME, "600s", 0, CONF_YEAR_MS, live, open, \
	  "longest time from the request's last byte to the response's first; 0: no limit") \
	K(stream_idle_timeout, stream_idle_timeout_ms, TIME, "300s", 0, CONF_YEAR_MS, live, open, \
	  "longest silence inside a response; 0: no limit") \
	K(total_timeout, total_timeout_ms, TIME, "0", 0, CONF_YEAR_MS, live, open, \
	  "from the first byte to a worker to the response's last; 0: no limit") \
	K(upstream_idle, upstream_idle_ms, TIME, "4s", 0, CONF_DAY_MS, live, open, \
	  "how long an idle connection to a worker is kept; engines close at 5s") \
	K(retry_max_retries, retry_max_retries, COUNT, "4", 0, 1000, live, open, \
	  "further attempts on other workers before the client has a byte") \
	K(retry_on, retry_on, STATUSES, "408 429 500 502 503 504", 0, 0, live, open, \
	  "statuses of a worker's response after which another worker is asked; none: no status") \
	K(retry_budget, retry_budget, PERCENT, "20%", 0, 100, live, open, \
	  "share of recent requests that may be retries") \
	K(retry_same, retry_same, SWITCH, "off", 0, 0, live, open, \
	  "where no other worker is left, those that failed are asked again") \
	K(hold_headers, hold_headers, SWITCH, "on", 0, 0, live, open, \
	  "the headers of a stream are sent with its first content; a worker that fails before is replaced") \
	K(resume_streams, resume_streams, SWITCH, "off", 0, 0, live, open, \
	  "a stream of plain text whose worker fails continues on another worker") \
	K(no_worker_wait, no_worker_wait_ms, TIME, "5s", 0, CONF_DAY_MS, live, open, \
	  "how long a request waits while every worker is out, before the least bad one is tried") \
	K(last_resort, last_resort, SWITCH, "on", 0, 0, live, open, \
	  "where every worker is out, the least bad one is tried") \
	K(cb_failure_threshold, cb_failure_threshold, COUNT, "10", 1, CONF_MANY, live, open, \
	  "failures in the window that open the breaker") \
	K(cb_failure_ratio, cb_failure_ratio, PERCENT, "20%", 0, 100, live, open, \
	  "share of failures in the window that opens it; a whole 5xx counts a quarter") \
	K(cb_full_5xx, cb_full_5xx, SWITCH, "off", 0, 0, live, open, \
	  "a whole 5xx counts in full, and keeps out any number of workers") \
	K(cb_success_threshold, cb_success_threshold, COUNT, "3", 1, CONF_MANY, live, open, \
	  "successes that close it again") \
	K(cb_timeout, cb_timeout_ms, TIME, "60s", 1, CONF_DAY_MS, live, open, \
	  "how long an open breaker waits before it tries one request") \
	K(cb_window, cb_window_ms, TIME, "120s", 1000, CONF_DAY_MS, live, open, \
	  "how far back failures count") \
	K(worker_cidrs, worker_cidrs, CIDRS, NULL, 0, 0, live, open, \
	  "networks in which a worker's address must lie; none: anywhere") \
	K(tls_ca, tls_ca, PATH, NULL, 0, 0, live, open, \
	  "authorities (PEM) that sign the workers' certificates; unset: the system's") \
	K(tls_verify, tls_verify, SWITCH, "on", 0, 0, live, open, \
	  "check the workers' certificates")

/* [worker NAME] only: struct worker_conf */
#define CONF_WORKER_KEYS(K) \
	K(url, url, URL, NULL, 0, 0, live, open, \
	  "the engine's address, http://host:port with its base path if any, or unix:/path; required") \
	K(pool, pool, NAME, "default", 0, 0, live, open, \
	  "the pool that the worker belongs to") \
	K(role, role, ROLE, "unified", 0, 0, live, open, \
	  "the worker's part: unified, prefill or decode") \
	K(models, models, GLOBS, NULL, 0, 0, live, open, \
	  "models that the worker serves, with * and ?; none: whatever the pool serves") \
	K(max_requests, max_requests, COUNT, "0", 0, CONF_MANY, live, open, \
	  "requests in flight at a time; 0: no limit") \
	K(dp_size, dp_size, COUNT, "1", 1, 1024, live, open, \
	  "data-parallel ranks behind this URL; each counts as a worker") \
	K(dp_start_rank, dp_start_rank, COUNT, "0", 0, 65535, live, open, \
	  "number of the first of these ranks, where the engine numbers them across nodes") \
	K(capacity, capacity, COUNT64, "0", 0, CONF_TERA, live, open, \
	  "KV cache in tokens; 0: learn it from the worker") \
	K(worker_key, worker_key, TOKEN, NULL, 0, 4096, live, secret, \
	  "bearer key that the router sends to the worker") \
	K(bootstrap_port, bootstrap_port, COUNT, "0", 0, 65535, live, open, \
	  "port of a prefill worker's bootstrap server (sglang, mooncake) or of the KV transfer (p2p_nccl); 0: the usual") \
	K(kv_group, kv_group, NAME, NULL, 0, 0, live, open, \
	  "prefill and decode workers are paired only if this is the same, or set for neither")

/* clang-format on */

#endif
