/*
 * The flags that peers have: one row each, supported, accepted without effect, or refused
 * with a hint. Grouped as -h prints them. Keys of [router] and [pool NAME] need no row:
 * conf_flags.c finds --key-with-dashes by itself. Included by conf_flag_take.c alone.
 *
 *   GROUP(title)
 *   SET(flag, arity, argument, scope, key)       the value is the key's
 *   SECS(flag, scope, key)                       a bare number of seconds
 *   FIXED(flag, scope, key, value, text)         no argument
 *   CALL(flag, arity, argument, function, text)
 *   IGNORED(flag, arity, argument, why)
 *   REFUSED(flag, arity, argument, hint)
 */
#ifndef CONF_CONF_FLAG_TABLE_H
#define CONF_CONF_FLAG_TABLE_H

/* clang-format off */

#define CONF_FLAG_TABLE \
	GROUP("Program") \
	CALL("--config", ONE, "FILE", take_config, "default " CONF_DEFAULT_FILE ", unless workers are given") \
	CALL("--test", NONE, NULL, take_test, "test the configuration and exit") \
	CALL("--print", NONE, NULL, take_print, "print the effective configuration and exit") \
	CALL("--version", NONE, NULL, take_version, "print the version and exit") \
	CALL("--help", NONE, NULL, take_help, "print this and exit") \
	GROUP("Listening") \
	CALL("--host", ONE, "ADDRESS", take_host, "address to listen on (127.0.0.1)") \
	CALL("--port", ONE, "PORT", take_port, "port to listen on (30000)") \
	CALL("--prometheus-host", ONE, "ADDRESS", take_metrics_host, "address of /metrics (127.0.0.1)") \
	CALL("--prometheus-port", ONE, "PORT", take_metrics_port, "port of /metrics (29000)") \
	CALL("--max-payload-size", ONE, "BYTES", take_bytes, "largest request body accepted") \
	GROUP("Workers") \
	CALL("--worker-urls", MANY, "URL...", take_worker_urls, "workers that serve whole requests") \
	CALL("--prefill", PAIR, "URL [PORT|none]", take_prefill, "a prefill worker and its bootstrap port; repeat for more") \
	CALL("--decode", MANY, "URL...", take_decode, "a decode worker; repeat for more") \
	CALL("--vllm-pd-disaggregation", NONE, NULL, take_vllm_pd, "split prefill and decode as vLLM does (nixl, unless --kv-connector is given)") \
	CALL("--pd-disaggregation", NONE, NULL, take_sglang_pd, "split prefill and decode as SGLang does") \
	SET("--kv-connector", ONE, "NAME", POOL, "kv_connector") \
	SET("--intra-node-data-parallel-size", ONE, "N", WORKERS, "dp_size") \
	SET("--api-key", ONE, "KEY", WORKERS, "worker_key") \
	CALL("--backend", ONE, "NAME", take_backend, "vllm, sglang or trtllm; has no effect") \
	CALL("--runtime", ONE, "NAME", take_backend, "same as --backend") \
	GROUP("Policy") \
	SET("--policy", ONE, "NAME", POOL, "policy") \
	SET("--prefill-policy", ONE, "NAME", PREFILL, "policy") \
	SET("--decode-policy", ONE, "NAME", DECODE, "policy") \
	SET("--cache-threshold", ONE, "FRACTION", POOL, "cache_threshold") \
	SET("--balance-abs-threshold", ONE, "N", POOL, "balance_abs_threshold") \
	SET("--balance-rel-threshold", ONE, "RATIO", POOL, "balance_rel_threshold") \
	SET("--prefill-balance-abs-threshold", ONE, "N", PREFILL, "balance_abs_threshold") \
	SET("--prefill-balance-rel-threshold", ONE, "RATIO", PREFILL, "balance_rel_threshold") \
	SET("--decode-balance-abs-threshold", ONE, "N", DECODE, "balance_abs_threshold") \
	SET("--decode-balance-rel-threshold", ONE, "RATIO", DECODE, "balance_rel_threshold") \
	SET("--prefix-token-count", ONE, "N", POOL, "affinity_hash_tokens") \
	SET("--prefix-hash-load-factor", ONE, "RATIO", POOL, "max_load_skew") \
	CALL("--static-aliases", ONE, "NAME:TARGET,...", take_aliases, "other names for models, as the key alias of a pool") \
	SECS("--max-idle-secs", POOL, "session_ttl") \
	SET("--pd-uncached-token-threshold", ONE, "N", POOL, "pd_min_prefill") \
	GROUP("Health, breaker, retries, limits") \
	SET("--health-failure-threshold", ONE, "N", POOL, "health_failures") \
	SET("--health-success-threshold", ONE, "N", POOL, "health_successes") \
	SECS("--health-check-timeout-secs", POOL, "health_timeout") \
	SECS("--health-check-interval-secs", POOL, "health_interval") \
	SET("--health-check-endpoint", ONE, "PATH", POOL, "health_path") \
	SET("--cb-failure-threshold", ONE, "N", POOL, "cb_failure_threshold") \
	SET("--cb-success-threshold", ONE, "N", POOL, "cb_success_threshold") \
	SECS("--cb-timeout-duration-secs", POOL, "cb_timeout") \
	SECS("--cb-window-duration-secs", POOL, "cb_window") \
	CALL("--disable-circuit-breaker", NONE, NULL, take_no_breaker, "the circuit breakers never open") \
	CALL("--retry-max-retries", ONE, "N", take_retries, "attempts in all, including the first (so N-1 retries)") \
	CALL("--disable-retries", NONE, NULL, take_no_retries, "one attempt only") \
	CALL("--max-concurrent-requests", ONE, "N", take_concurrent, "requests in flight; -1: no limit") \
	SET("--queue-size", ONE, "N", ROUTER, "queue_size") \
	SECS("--queue-timeout-secs", ROUTER, "queue_timeout") \
	SECS("--request-timeout-secs", POOL, "total_timeout") \
	SECS("--pool-idle-timeout-secs", POOL, "upstream_idle") \
	SECS("--shutdown-grace-period-secs", ROUTER, "drain_timeout") \
	GROUP("Logs and threads") \
	CALL("--log-level", ONE, "LEVEL", take_log_level, "error, warn, notice, info or debug") \
	FIXED("--log-json", ROUTER, "log_format", "json", "access log in JSON") \
	SET("--runtime-worker-threads", ONE, "N", ROUTER, "threads") \
	SET("--tls-cert-path", ONE, "FILE", ROUTER, "tls_cert") \
	SET("--tls-key-path", ONE, "FILE", ROUTER, "tls_key") \
	GROUP(NULL) \
	IGNORED("--worker-startup-timeout-secs", ONE, "N", "the router serves while workers start") \
	IGNORED("--worker-startup-check-interval", ONE, "N", "a starting worker is probed every 250 ms") \
	IGNORED("--worker-startup-check-interval-secs", ONE, "N", "a starting worker is probed every 250 ms") \
	IGNORED("--worker-startup-delay", ONE, "N", "the router serves while workers start") \
	IGNORED("--eviction-interval", ONE, "N", "the index evicts continuously; prefix_ttl sets the age") \
	IGNORED("--eviction-interval-secs", ONE, "N", "the index evicts continuously; prefix_ttl sets the age") \
	IGNORED("--max-tree-size", ONE, "N", "index_memory limits the index, in bytes") \
	IGNORED("--block-size", ONE, "N", "prefix_block sets the block of the index, in bytes") \
	IGNORED("--log-dir", ONE, "DIR", "the log goes to stderr, which systemd sends to the journal") \
	IGNORED("--rate-limit-tokens-per-second", ONE, "N", "max_concurrent_requests limits requests in flight and needs no refill") \
	IGNORED("--request-id-headers", MANY, "NAME...", "X-Request-Id is kept and returned") \
	IGNORED("--cors-allowed-origins", MANY, "ORIGIN...", "no CORS headers are sent") \
	IGNORED("--retry-initial-backoff-ms", ONE, "N", "retries wait a short time with jitter, or as long as Retry-After says") \
	IGNORED("--retry-max-backoff-ms", ONE, "N", "retries wait a short time with jitter, or as long as Retry-After says") \
	IGNORED("--retry-backoff-multiplier", ONE, "X", "retries wait a short time with jitter, or as long as Retry-After says") \
	IGNORED("--retry-jitter-factor", ONE, "X", "retries wait a short time with jitter, or as long as Retry-After says") \
	IGNORED("--history-backend", ONE, "NAME", "responses are stored by the engine") \
	IGNORED("--profile", NONE, NULL, "perf(1) works on the running daemon") \
	IGNORED("--enable-trace", NONE, NULL, "trace headers are forwarded, but no spans are made") \
	IGNORED("--otlp-traces-endpoint", ONE, "ADDRESS", "trace headers are forwarded, but no spans are made") \
	IGNORED("--otel-sampling-ratio", ONE, "X", "trace headers are forwarded, but no spans are made") \
	IGNORED("--otel-excluded-paths", MANY, "PATH...", "trace headers are forwarded, but no spans are made") \
	IGNORED("--mini-lb", NONE, NULL, "there is only one balancer") \
	IGNORED("--model-path", ONE, "PATH", "prompts are matched without a tokenizer") \
	IGNORED("--tokenizer-path", ONE, "PATH", "prompts are matched without a tokenizer") \
	IGNORED("--chat-template", ONE, "PATH", "prompts are matched without a template") \
	IGNORED("--tokenizer-cache-enable-l0", NONE, NULL, "prompts are matched without a tokenizer") \
	IGNORED("--tokenizer-cache-enable-l1", NONE, NULL, "prompts are matched without a tokenizer") \
	IGNORED("--tokenizer-cache-l0-max-entries", ONE, "N", "prompts are matched without a tokenizer") \
	IGNORED("--tokenizer-cache-l1-max-memory", ONE, "N", "prompts are matched without a tokenizer") \
	IGNORED("--reasoning-parser", ONE, "NAME", "responses are relayed unchanged") \
	IGNORED("--tool-call-parser", ONE, "NAME", "responses are relayed unchanged") \
	IGNORED("--balance-token-usage-threshold", ONE, "X", "load is requests in flight") \
	IGNORED("--overload-token-usage-threshold", ONE, "X", "load is requests in flight") \
	IGNORED("--load-monitor-interval", ONE, "N", "the router counts load itself") \
	IGNORED("--least-load-kv-pressure-weight", ONE, "X", "load is requests in flight") \
	IGNORED("--least-load-default-throughput", ONE, "X", "load is requests in flight") \
	IGNORED("--least-load-mean-prefill-tokens", ONE, "N", "load is requests in flight") \
	IGNORED("--assignment-mode", ONE, "NAME", "a new session goes to the worker with the fewest") \
	IGNORED("--router-temperature", ONE, "X", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--kv-penalty-host", ONE, "X", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--kv-penalty-external", ONE, "X", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--kv-penalty-disk", ONE, "X", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--kv-index-max-entries", ONE, "N", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--kv-speculative-indexing", ONE, "BOOL", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--kv-speculative-ttl-ms", ONE, "N", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--kv-aware-session-affinity-ttl-secs", ONE, "N", "it belongs to policy kv_aware, which does not exist here") \
	IGNORED("--drain-settle-secs", ONE, "N", "a draining worker finishes its requests") \
	IGNORED("--disable-health-check", NONE, NULL, "workers are still probed; one that sends responses counts as healthy") \
	IGNORED("--remove-unhealthy-workers", NONE, NULL, "an unhealthy worker gets no requests and returns by itself") \
	IGNORED("--prometheus-duration-buckets", MANY, "X...", "the buckets are fixed") \
	IGNORED("--engine-metrics", NONE, NULL, "scrape the engines themselves") \
	IGNORED("--disable-audit-logging", NONE, NULL, "admin calls are logged") \
	REFUSED("--service-discovery", NONE, NULL, "name the workers by --worker-urls, a file, or kvsteerctl add") \
	REFUSED("--selector", MANY, "K=V...", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--prefill-selector", MANY, "K=V...", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--decode-selector", MANY, "K=V...", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--encode-selector", MANY, "K=V...", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--router-selector", MANY, "K=V...", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--service-discovery-port", ONE, "PORT", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--service-discovery-namespace", ONE, "NAME", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--model-id-from", ONE, "NAME", "it belongs to --service-discovery, which does not exist here") \
	REFUSED("--model-alias", MANY, "A=B...", "use --alias NAME=TARGET, or the key alias of a pool") \
	REFUSED("--vllm-discovery-address", ONE, "ADDRESS", "name the workers by --prefill and --decode") \
	REFUSED("--enable-igw", NONE, NULL, "give each model a [pool NAME] section with the key models") \
	REFUSED("--api-key-validation-urls", MANY, "URL...", "keys are checked against the file that api_keys names") \
	REFUSED("--control-plane-api-keys", MANY, "KEY...", "use admin_key for the admin paths, and the mode of the admin socket") \
	REFUSED("--tenant-api-keys", MANY, "KEY...", "use api_keys, which names a file of keys and tenants") \
	REFUSED("--tenant-rate-limit-enabled", NONE, NULL, "the file that api_keys names gives each tenant its rate") \
	REFUSED("--tenant-rate-limit-config", ONE, "FILE", "the file that api_keys names gives each tenant its rate") \
	REFUSED("--trust-tenant-header", NONE, NULL, "a tenant is known by its key (api_keys)") \
	REFUSED("--tenant-header-name", ONE, "NAME", "a tenant is known by its key (api_keys)") \
	REFUSED("--priority-scheduler-enabled", NONE, NULL, "use priority_headers, or priority= in the file that api_keys names") \
	REFUSED("--priority-scheduler-config", ONE, "FILE", "use priority_headers, or priority= in the file that api_keys names") \
	REFUSED("--priority-scheduler-default-max-class", ONE, "NAME", "use priority_headers, or priority= in the file that api_keys names") \
	REFUSED("--priority-scheduler-tenant-metric-top-n", ONE, "N", "use priority_headers, or priority= in the file that api_keys names") \
	REFUSED("--jwt-issuer", ONE, "URL", "tokens are not checked here; use api_keys, or a proxy in front") \
	REFUSED("--jwt-audience", ONE, "NAME", "tokens are not checked here; use api_keys, or a proxy in front") \
	REFUSED("--jwt-jwks-uri", ONE, "URL", "tokens are not checked here; use api_keys, or a proxy in front") \
	REFUSED("--jwt-role-claim", ONE, "NAME", "tokens are not checked here; use api_keys, or a proxy in front") \
	REFUSED("--jwt-role-mapping", MANY, "A=B...", "tokens are not checked here; use api_keys, or a proxy in front") \
	REFUSED("--client-cert-path", ONE, "FILE", "TLS to workers is not built in yet") \
	REFUSED("--client-key-path", ONE, "FILE", "TLS to workers is not built in yet") \
	REFUSED("--ca-cert-path", MANY, "FILE...", "TLS to workers is not built in yet") \
	REFUSED("--health-check-port", ONE, "PORT", "/health and /readiness are served on every listen address") \
	REFUSED("--routing-key-override", ONE, "NAME", "routing_key_headers lists the headers that hold a routing key") \
	REFUSED("--dp-aware", NONE, NULL, "--intra-node-data-parallel-size N gives the number of ranks") \
	REFUSED("--dp-minimum-tokens-scheduler", NONE, NULL, "load is requests in flight") \
	REFUSED("--epd-disaggregation", NONE, NULL, "only prefill and decode can be split") \
	REFUSED("--epd-config", ONE, "JSON", "only prefill and decode can be split") \
	REFUSED("--encode-policy", ONE, "NAME", "only prefill and decode can be split") \
	REFUSED("--encode", PAIR, "URL [PORT]", "only prefill and decode can be split") \
	REFUSED("--enable-mesh", NONE, NULL, "routers share no state; hash_secret lets them agree on keys") \
	REFUSED("--mesh-server-name", ONE, "NAME", "routers share no state; hash_secret lets them agree on keys") \
	REFUSED("--mesh-host", ONE, "ADDRESS", "routers share no state; hash_secret lets them agree on keys") \
	REFUSED("--mesh-advertise-host", ONE, "ADDRESS", "routers share no state; hash_secret lets them agree on keys") \
	REFUSED("--mesh-port", ONE, "PORT", "routers share no state; hash_secret lets them agree on keys") \
	REFUSED("--mesh-peer-urls", MANY, "URL...", "routers share no state; hash_secret lets them agree on keys") \
	REFUSED("--enable-wasm", NONE, NULL, "the router loads no code") \
	REFUSED("--wasm-middleware", ONE, "FILE", "the router loads no code") \
	REFUSED("--wasm-middleware-sha256", ONE, "HEX", "the router loads no code") \
	REFUSED("--wasm-middleware-route", ONE, "PATH", "the router loads no code") \
	REFUSED("--mcp-config-path", ONE, "FILE", "clients and engines call tools, not the router") \
	REFUSED("--enable-program-scheduling", NONE, NULL, "policy cache_aware keeps conversations on their worker") \
	REFUSED("--program-scheduling-config-json", ONE, "JSON", "policy cache_aware keeps conversations on their worker") \
	REFUSED("--kv-events-topic-filter", ONE, "NAME", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-events-port", ONE, "PORT", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-events-endpoint", MANY, "URL=ADDRESS...", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-event-source", MANY, "URL=ADDRESS...", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-event-replay-source", MANY, "URL=ADDRESS...", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-event-block-size", ONE, "N", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-event-model", ONE, "NAME", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--pd-kv-events", MANY, "URL=ADDRESS...", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-block-size", ONE, "N", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-hash-seed", ONE, "N", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-hash-algo", ONE, "NAME", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-model", ONE, "NAME", "KV events are not read; policy cache_aware works without them") \
	REFUSED("--kv-tokenizer-path", ONE, "PATH", "KV events are not read; policy cache_aware works without them")

/* clang-format on */

#endif
