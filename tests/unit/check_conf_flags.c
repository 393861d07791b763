/*
 * The command line: every flag of the vLLM router has a row, realistic command lines
 * start, and what is refused says why.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_flags.h"
#include "conf/conf_table.h"
#include "unit.h"

#include <string.h>

enum { WORDS_MAX = 128 };

static struct conf_errors errors;
static struct conf_flags flags;
static struct conf *conf;
static char *line_copy;

static void set_up(void)
{
	errors = (struct conf_errors){0};
	flags = (struct conf_flags){0};
	conf = NULL;
	line_copy = NULL;
}

static void forget(void)
{
	conf_unref(conf);
	conf_flags_free(&flags);
	conf_errors_free(&errors);
	free(line_copy);
	set_up();
}

static void dump_errors(void)
{
	for (size_t i = 0; i < errors.n; i++) {
		scoped_free char *text = conf_error_text(&errors.items[i]);

		fprintf(stderr, "  %s\n", text);
	}
}

/* The line is cut at blanks; "''" is an empty argument. */
static int parse(const char *line)
{
	char *argv[WORDS_MAX] = {"kvsteerd"}, *rest;
	int argc = 1;

	forget();
	line_copy = xstrdup(line);
	for (char *word = strtok_r(line_copy, " ", &rest); word != NULL;
		word = strtok_r(NULL, " ", &rest)) {
		ck_assert_int_lt(argc, WORDS_MAX);
		argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
	}
	return conf_flags_parse(argc, argv, &errors, &flags);
}

static void parse_good(const char *line)
{
	int rc = parse(line);

	if (rc != 0)
		dump_errors();
	ck_assert_int_eq(rc, 0);
	ck_assert_uint_eq(errors.n_errors, 0);
}

/* By flags alone. */
static void start(const char *line)
{
	int rc;

	parse_good(line);
	ck_assert_ptr_null(flags.conf_file);
	rc = conf_load(NULL, &flags, &errors, &conf);
	if (rc != 0)
		dump_errors();
	ck_assert_int_eq(rc, 0);
	ck_assert(conf->by_flags_alone);
}

#define DEFAULT_ROLE (&conf->pools[0].roles[ROLE_UNIFIED])
#define PREFILL (&conf->pools[0].roles[ROLE_PREFILL])
#define DECODE (&conf->pools[0].roles[ROLE_DECODE])

START_TEST(starts_a_vllm_command_line)
{
	start("--host 0.0.0.0 --port 8080 --worker-urls http://10.0.0.1:8000 "
	      "http://10.0.0.2:8000/ "
	      "http://[::1]:8000 --policy cache_aware --cache-threshold 0.5 "
	      "--balance-abs-threshold 64 --balance-rel-threshold 1.1 "
	      "--eviction-interval-secs 120 "
	      "--max-tree-size 67108864 --max-payload-size 536870912 "
	      "--request-timeout-secs 1800 "
	      "--max-concurrent-requests 256 --queue-size 10 --queue-timeout-secs 30 "
	      "--rate-limit-tokens-per-second 100 --retry-max-retries 5 "
	      "--retry-initial-backoff-ms 50 --retry-max-backoff-ms 30000 "
	      "--retry-backoff-multiplier 1.5 --retry-jitter-factor 0.2 "
	      "--cb-failure-threshold 7 --cb-success-threshold 4 "
	      "--cb-timeout-duration-secs 61 "
	      "--cb-window-duration-secs 121 --health-failure-threshold 5 "
	      "--health-success-threshold 1 --health-check-timeout-secs 9 "
	      "--health-check-interval-secs 60 --health-check-endpoint /healthz "
	      "--prometheus-port 29001 --prometheus-host 0.0.0.0 --log-level warning "
	      "--log-dir /var/log/x --worker-startup-timeout-secs 600 "
	      "--worker-startup-check-interval 30 --request-id-headers x-a x-b "
	      "--cors-allowed-origins * --api-key k-1 --intra-node-data-parallel-size 8 "
	      "--model-path meta-llama/x --backend vllm");
	ck_assert_uint_eq(conf->router.listen.n, 1);
	ck_assert_str_eq(conf->router.listen.items[0], "0.0.0.0:8080");
	ck_assert_str_eq(conf->router.metrics_listen, "0.0.0.0:29001");
	ck_assert_uint_eq(conf->router.max_body_size, 536870912);
	ck_assert_uint_eq(conf->router.max_concurrent_requests, 256);
	ck_assert_uint_eq(conf->router.queue_size, 10);
	ck_assert_uint_eq(conf->router.queue_timeout_ms, 30000);
	ck_assert_uint_eq(conf->router.log_level, LOG_LEVEL_WARN);
	ck_assert_double_eq(DEFAULT_ROLE->policy.cache_threshold, 0.5);
	ck_assert_uint_eq(DEFAULT_ROLE->policy.balance_abs_threshold, 64);
	ck_assert_double_eq(DEFAULT_ROLE->policy.balance_rel_threshold, 1.1);
	ck_assert_uint_eq(conf->n_workers, 3);
	ck_assert_str_eq(conf->workers[0].name, "10.0.0.1:8000");
	ck_assert_str_eq(conf->workers[2].name, "::1:8000");
	ck_assert_str_eq(conf->workers[2].url.host_header, "[::1]:8000");
	for (size_t i = 0; i < conf->n_workers; i++) {
		const struct worker_conf *w = &conf->workers[i];

		ck_assert_uint_eq(w->origin, ORIGIN_FLAG);
		ck_assert_uint_eq(w->role, ROLE_UNIFIED);
		ck_assert_str_eq(w->pool, "default");
		ck_assert_uint_eq(w->dp_size, 8);
		ck_assert_str_eq(w->worker_key, "k-1");
		ck_assert_uint_eq(w->opts.retry_max_retries, 4);
		ck_assert_uint_eq(w->opts.total_timeout_ms, 1800000);
		ck_assert_uint_eq(w->opts.cb_failure_threshold, 7);
		ck_assert_uint_eq(w->opts.cb_success_threshold, 4);
		ck_assert_uint_eq(w->opts.cb_timeout_ms, 61000);
		ck_assert_uint_eq(w->opts.cb_window_ms, 121000);
		ck_assert_uint_eq(w->opts.health_failures, 5);
		ck_assert_uint_eq(w->opts.health_successes, 1);
		ck_assert_uint_eq(w->opts.health_timeout_ms, 9000);
		ck_assert_uint_eq(w->opts.health_interval_ms, 60000);
		ck_assert_str_eq(w->opts.health_path, "/healthz");
	}
	/* 13 flags never have an effect; each says so once */
	ck_assert_uint_eq(errors.n, 13);
	ck_assert(errors.items[0].is_warning);
}
END_TEST

static const struct {
	const char *word;
	enum policy_kind policy;
	unsigned warnings;
} policy_words[] = {
	/* vLLM's router */
	{"cache_aware", POLICY_CACHE_AWARE, 0},
	{"round_robin", POLICY_ROUND_ROBIN, 0},
	{"random", POLICY_RANDOM, 0},
	{"power_of_two", POLICY_POWER_OF_TWO, 0},
	{"consistent_hash", POLICY_CONSISTENT_HASH, 0},
	{"rendezvous_hash", POLICY_RENDEZVOUS_HASH, 0},
	{"sticky_least_loaded", POLICY_STICKY_LEAST_LOADED, 0},
	/* SGLang and its router */
	{"prefix_affinity", POLICY_PREFIX_AFFINITY, 0},
	{"consistent_hashing", POLICY_CONSISTENT_HASH, 1},
	{"least_load", POLICY_LEAST_REQUESTS, 1},
	{"total_requests", POLICY_LEAST_REQUESTS, 1},
	{"shortest_queue", POLICY_LEAST_REQUESTS, 1},
	{"prefix_hash", POLICY_PREFIX_AFFINITY, 1},
	{"manual", POLICY_STICKY_LEAST_LOADED, 1},
};

START_TEST(policies_by_the_names_of_peers)
{
	char line[128];

	snprintf(line, sizeof(line), "--worker-urls http://h:1 --policy %s",
		policy_words[_i].word);
	start(line);
	ck_assert_int_eq(DEFAULT_ROLE->policy.policy, policy_words[_i].policy);
	ck_assert_uint_eq(errors.n, policy_words[_i].warnings);
	if (errors.n > 0)
		ck_assert_ptr_nonnull(strstr(errors.items[0].message, "is treated as"));
}
END_TEST

START_TEST(knobs_of_policies_by_the_names_of_peers)
{
	start("--worker-urls http://h:1 --policy prefix_hash --prefix-token-count 512 "
	      "--prefix-hash-load-factor 1.25 --max-idle-secs 14400");
	ck_assert_uint_eq(DEFAULT_ROLE->policy.affinity_hash_tokens, 512);
	ck_assert_double_eq(DEFAULT_ROLE->policy.max_load_skew, 1.25);
	ck_assert_uint_eq(DEFAULT_ROLE->policy.session_ttl_ms, 14400000);
}
END_TEST

/* origin-systems.md A5, by flags: role thresholds hold where the role inherits --policy.
 */
START_TEST(a5_starts_prefill_and_decode)
{
	start("--vllm-pd-disaggregation --prefill http://p1:1 8998 --prefill http://p2:1 "
	      "none "
	      "--prefill http://p3:1 --decode http://d1:1 --decode http://d2:1 "
	      "http://d3:1 "
	      "--policy cache_aware --balance-abs-threshold 40 "
	      "--prefill-balance-abs-threshold 4 "
	      "--decode-balance-rel-threshold 9 --decode-policy round_robin");
	ck_assert_uint_eq(conf->n_workers, 6);
	ck_assert_uint_eq(conf->workers[0].role, ROLE_PREFILL);
	ck_assert_uint_eq(conf->workers[0].bootstrap_port, 8998);
	ck_assert_uint_eq(conf->workers[1].bootstrap_port, 0);
	ck_assert_uint_eq(conf->workers[2].bootstrap_port, 0);
	ck_assert_uint_eq(conf->workers[5].role, ROLE_DECODE);
	ck_assert_str_eq(conf->workers[5].name, "d3:1");
	ck_assert_int_eq(PREFILL->kv_connector, CONNECTOR_NIXL);
	ck_assert_uint_eq(PREFILL->policy.policy, POLICY_CACHE_AWARE);
	ck_assert_uint_eq(PREFILL->policy.balance_abs_threshold, 4);
	ck_assert_double_eq(PREFILL->policy.balance_rel_threshold, 1.5);
	ck_assert_uint_eq(DECODE->policy.policy, POLICY_ROUND_ROBIN);
	ck_assert_uint_eq(DECODE->policy.balance_abs_threshold, 40);
	ck_assert_double_eq(DECODE->policy.balance_rel_threshold, 9);
	start("--prefill http://p:1 --decode http://d:1 --beta 0.5 --prefill-cost "
	      "relative_load --decode-signal none --prefill-beta 0.25 "
	      "--decode-decode-weight 3");
	ck_assert_uint_eq(DEFAULT_ROLE->policy.cost, COST_OVERLOAD_CHECK);
	ck_assert_uint_eq(PREFILL->policy.cost, COST_RELATIVE_LOAD);
	ck_assert_uint_eq(PREFILL->policy.signal, SIGNAL_LONGEST_PREFIX);
	ck_assert_double_eq(PREFILL->policy.beta, 0.25);
	ck_assert_uint_eq(DECODE->policy.cost, COST_OVERLOAD_CHECK);
	ck_assert_uint_eq(DECODE->policy.signal, SIGNAL_NONE);
	ck_assert_double_eq(DECODE->policy.beta, 0.5);
	ck_assert_double_eq(DECODE->policy.decode_weight, 3);
	ck_assert_double_eq(PREFILL->policy.decode_weight, 1);
	start("--pd-disaggregation --prefill=http://p:1 8998 --decode=http://d:1");
	ck_assert_int_eq(PREFILL->kv_connector, CONNECTOR_SGLANG);
	ck_assert_uint_eq(conf->workers[0].bootstrap_port, 8998);
	start("--kv-connector mooncake --vllm-pd-disaggregation --prefill http://p:1 "
	      "--decode http://d:1");
	ck_assert_int_eq(PREFILL->kv_connector, CONNECTOR_MOONCAKE);
	/* one engine in both roles: two workers, two names */
	start("--vllm-pd-disaggregation --prefill http://p:1 --decode http://p:1");
	ck_assert_str_eq(conf->workers[0].name, "p:1");
	ck_assert_str_eq(conf->workers[1].name, "p:1-2");
}
END_TEST

START_TEST(small_rules)
{
	start("--worker-urls=http://h:1 --port=0");
	ck_assert_str_eq(conf->router.listen.items[0], "127.0.0.1:0");
	start("--worker-urls http://h:1 --host ::");
	ck_assert_str_eq(conf->router.listen.items[0], "[::]:30000");
	start("--worker-urls --port 1"); /* none yet: the admin API adds them */
	ck_assert_uint_eq(conf->n_workers, 0);
	ck_assert_uint_eq(conf->n_pools, 1);
	start("--worker-urls http://h:1 --max-concurrent-requests -1");
	ck_assert_uint_eq(conf->router.max_concurrent_requests, 1000000);
	start("--worker-urls http://h:1 --disable-retries --retry-max-retries 9");
	ck_assert_uint_eq(conf->workers[0].opts.retry_max_retries, 0);
	start("--worker-urls http://h:1 --retry-max-retries 1");
	ck_assert_uint_eq(conf->workers[0].opts.retry_max_retries, 0);
	start("--worker-urls http://h:1 --disable-circuit-breaker --cb-failure-threshold "
	      "2");
	ck_assert_uint_eq(conf->workers[0].opts.cb_failure_threshold, 1000000000);
	start("--worker-urls http://h:1 --policy random --policy round_robin");
	ck_assert_uint_eq(DEFAULT_ROLE->policy.policy, POLICY_ROUND_ROBIN);
	start("--worker-urls http://h:1 --request-timeout-secs 0 "
	      "--pool-idle-timeout-secs 0");
	ck_assert_uint_eq(conf->workers[0].opts.total_timeout_ms, 0);
	ck_assert_uint_eq(conf->workers[0].opts.upstream_idle_ms, 0);
	start("--worker-urls http://h:1 --log-level INFO --log-json --prometheus-port 1");
	ck_assert_uint_eq(conf->router.log_level, LOG_LEVEL_INFO);
	ck_assert_uint_eq(conf->router.log_format, LOG_FORMAT_JSON);
	ck_assert_str_eq(conf->router.metrics_listen, "127.0.0.1:1");
	start("--worker-urls http://h:1 --log-json=false");
	ck_assert_uint_eq(conf->router.log_format, LOG_FORMAT_TEXT);
}
END_TEST

START_TEST(own_keys_are_flags)
{
	start("--worker-urls http://h:1 --admin-socket /tmp/a --threads 2 --listen :1 "
	      "[::1]:2 "
	      "--listen :3 --stall-timeout 9s --index-memory 1m --prefill-prefix-ttl 5s "
	      "--decode-stall-timeout 7s --expose-worker --allow-pin on --access-log off "
	      "--models a* b --admin-key k");
	ck_assert_str_eq(conf->router.admin_socket, "/tmp/a");
	ck_assert_uint_eq(conf->router.threads, 2);
	ck_assert_uint_eq(conf->router.listen.n, 3);
	ck_assert_str_eq(conf->router.listen.items[0], ":1");
	ck_assert(conf->router.expose_worker);
	ck_assert(conf->router.allow_pin);
	ck_assert(!conf->router.access_log);
	ck_assert_str_eq(conf->router.admin_key, "k");
	ck_assert_uint_eq(conf->workers[0].opts.stall_timeout_ms, 9000);
	ck_assert_uint_eq(DEFAULT_ROLE->index_memory, 1u << 20);
	ck_assert_uint_eq(PREFILL->prefix_ttl_ms, 5000);
	ck_assert_uint_eq(DECODE->prefix_ttl_ms, 3600000);
	ck_assert_uint_eq(DECODE->worker.stall_timeout_ms, 7000);
	ck_assert_uint_eq(conf->pools[0].models.n, 2);
}
END_TEST

START_TEST(options_of_the_program)
{
	parse_good("-c /x/y.conf -t");
	ck_assert_str_eq(flags.conf_file, "/x/y.conf");
	ck_assert(flags.test && !flags.print && !flags.is_default_file);
	parse_good("-c/x -T");
	ck_assert_str_eq(flags.conf_file, "/x");
	ck_assert(flags.print);
	parse_good("-tT");
	ck_assert(flags.test && flags.print && flags.is_default_file);
	parse_good("-tc /x/y.conf");
	ck_assert_str_eq(flags.conf_file, "/x/y.conf");
	ck_assert(flags.test && !flags.print);
	parse_good("-Ttc/x --");
	ck_assert_str_eq(flags.conf_file, "/x");
	ck_assert(flags.test && flags.print);
	parse_good("--config=/x --worker-urls http://h:1");
	ck_assert_str_eq(flags.conf_file, "/x");
	parse_good("-V");
	ck_assert(flags.version);
	parse_good("-h");
	ck_assert(flags.help);
	parse_good("");
	ck_assert_str_eq(flags.conf_file, CONF_DEFAULT_FILE);
	ck_assert(flags.is_default_file);
	parse_good("--port 1");
	ck_assert_str_eq(flags.conf_file, CONF_DEFAULT_FILE);
	parse_good("--decode http://h:1");
	ck_assert_ptr_null(flags.conf_file);
}
END_TEST

/* The default file may be absent when flags say what to do; a named one may not. */
START_TEST(default_file_may_be_absent)
{
	parse_good("--port 1");
	flags.conf_file = "/nonexistent/kvsteer.conf";
	ck_assert_int_eq(conf_load(flags.conf_file, &flags, &errors, &conf), 0);
	ck_assert(conf->by_flags_alone);
	ck_assert_uint_eq(errors.n, 2);
	parse_good("-c /nonexistent/kvsteer.conf --port 1");
	ck_assert_int_eq(conf_load(flags.conf_file, &flags, &errors, &conf), ERR_PARSE);
	parse_good("");
	flags.conf_file = "/nonexistent/kvsteer.conf";
	ck_assert_int_eq(conf_load(flags.conf_file, &flags, &errors, &conf), ERR_PARSE);
}
END_TEST

static void write_conf(char *path, const char *text)
{
	int fd = mkstemp(path);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

START_TEST(flags_override_the_file)
{
	char path[] = "/tmp/check_flags.XXXXXX";
	const struct pool_conf *b;
	int rc;

	write_conf(path, "[router]\nlisten = :9 :10\nqueue_size = 7\nthreads = 5\n"
			 "[pool a]\nmodels = x\npolicy = random\nstall_timeout = 1s\n"
			 "[pool default]\nbalance_abs_threshold = 1\n"
			 "[pool default decode]\npolicy = "
			 "least_requests\nbalance_abs_threshold = 2\n"
			 "[worker w]\nurl = http://h:1\nstall_timeout = 2s\n"
			 "[worker v]\nurl = http://h:2\npool = a\n");
	parse_good(
		"--worker-urls http://h:3 --port 1 --queue-size 8 --policy round_robin "
		"--balance-abs-threshold 3 --decode-balance-abs-threshold 4 "
		"--stall-timeout 9s "
		"--api-key k --intra-node-data-parallel-size 2");
	rc = conf_load(path, &flags, &errors, &conf);
	unlink(path);
	if (rc != 0)
		dump_errors();
	ck_assert_int_eq(rc, 0);
	ck_assert(!conf->by_flags_alone);
	ck_assert_uint_eq(conf->router.listen.n, 1);
	ck_assert_str_eq(conf->router.listen.items[0], "127.0.0.1:1");
	ck_assert_uint_eq(conf->router.queue_size, 8);
	ck_assert_uint_eq(conf->router.threads, 5);
	ck_assert_uint_eq(conf->pools[0].roles[0].policy.policy, POLICY_ROUND_ROBIN);
	b = &conf->pools[1];
	ck_assert_uint_eq(b->roles[ROLE_UNIFIED].policy.balance_abs_threshold, 3);
	ck_assert_uint_eq(b->roles[ROLE_PREFILL].policy.policy, POLICY_ROUND_ROBIN);
	/* the role's own section is more particular than --policy */
	ck_assert_uint_eq(b->roles[ROLE_DECODE].policy.policy, POLICY_LEAST_REQUESTS);
	ck_assert_uint_eq(b->roles[ROLE_DECODE].policy.balance_abs_threshold, 4);
	ck_assert_uint_eq(conf->n_workers, 3);
	ck_assert_uint_eq(conf->workers[0].opts.stall_timeout_ms, 2000);
	ck_assert_uint_eq(conf->workers[1].opts.stall_timeout_ms, 9000);
	ck_assert_ptr_null(conf->workers[0].worker_key);
	ck_assert_uint_eq(conf->workers[0].dp_size, 1);
	ck_assert_str_eq(conf->workers[2].worker_key, "k");
	ck_assert_uint_eq(conf->workers[2].dp_size, 2);
}
END_TEST

START_TEST(flag_workers_meet_the_file)
{
	char path[] = "/tmp/check_flags.XXXXXX";

	write_conf(path, "[pool a]\n[worker w]\nurl = http://h:1\npool = a\n");
	parse_good("--worker-urls http://h:2 https://h:3");
	ck_assert_int_eq(conf_load(path, &flags, &errors, &conf), ERR_PARSE);
	unlink(path);
	ck_assert_uint_eq(errors.n_errors, 2);
	ck_assert_str_eq(errors.items[0].key, "--worker-urls");
	ck_assert_str_eq(errors.items[0].value, "http://h:2");
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "no such pool: default"));
	ck_assert_str_eq(errors.items[0].hint, "the pools are: a");
}
END_TEST

static const struct {
	const char *line, *key, *message, *hint;
} broken[] = {
	{"--polcy random", "--polcy", "unknown flag", "did you mean --policy?"},
	{"--worker_urls http://h:1", "--worker_urls", "unknown flag",
		"did you mean --worker-urls?"},
	{"--worker-url http://h:1 http://h:2", "--worker-url", "unknown flag",
		"--worker-urls?"},
	{"--stal-timeout 1s", "--stal-timeout", "unknown flag",
		"did you mean --stall-timeout?"},
	{"--xyzzy", "--xyzzy", "unknown flag", "-h lists"},
	{"--xyzzy=1", "--xyzzy", "unknown flag", "-h lists"},
	{"-- --port", NULL, "unexpected argument --port", "begin with --"},
	{"--url http://h:1", "--url", "unknown flag", ""},
	{"-x", "-x", "unknown flag", "-h lists"},
	{"-tx -T", "-x", "unknown flag", "-h lists"},
	{"-xsecret", "-x", "unknown flag", "-h lists"},
	{"-tTc", "--config", "has no value", "FILE"},
	{"-c", "--config", "has no value", "FILE"},
	{"-c --port 1", "--config", "has no value", "FILE"},
	{"-c ''", "--config", "has no value", "-c FILE"},
	{"http://h:1", NULL, "unexpected argument http://h:1", "--worker-urls"},
	{"kv.conf", NULL, "unexpected argument", "-c"},
	{"--port", "--port", "has no value", "PORT"},
	{"--port x", "--port", "is not a port", "65535"},
	{"--port 65536", "--port", "is not a port", "65535"},
	{"--host a:b", "--host", "IPv6", "127.0.0.1"},
	{"--host ''", "--host", "has no value", "127.0.0.1"},
	{"--worker-urls 8001", "--worker-urls", "no scheme", "http://127.0.0.1:8001"},
	{"--worker-urls http://h:1/v1", "--worker-urls", "/v1/v1", "remove /v1"},
	{"--worker-urls grpc://h:1", "--worker-urls", "gRPC", "HTTP"},
	{"--prefill http://h:1 99999", "--prefill", "bootstrap port", "none"},
	{"--prefill", "--prefill", "has no value", "URL"},
	{"--decode", "--decode", "has no value", "http://"},
	{"--policy kv_aware", "--policy", "not built yet", "cache_aware"},
	{"--decode-policy foo", "--decode-policy", "not known", "cache_aware"},
	{"--cache-threshold 2", "--cache-threshold", "range", "from 0 to 1"},
	{"--balance-rel-threshold 0.9", "--balance-rel-threshold", "range", "from 1"},
	{"--queue-timeout-secs 60s", "--queue-timeout-secs", "number of seconds",
		"digits"},
	{"--queue-timeout-secs 1.5", "--queue-timeout-secs", "number of seconds",
		"digits"},
	{"--retry-max-retries 0", "--retry-max-retries", "attempts", "from 1"},
	{"--max-payload-size -1", "--max-payload-size", "not a size", ""},
	{"--max-concurrent-requests 0", "--max-concurrent-requests", "range", "from 1"},
	{"--log-level loud", "--log-level", "not known", "debug"},
	{"--log-json=maybe", "--log-json", "takes no value", ""},
	{"--backend openai", "--backend", "not a supported backend", "vllm"},
	{"--kv-connector moriio", "--kv-connector", "not built yet", "nixl"},
	{"--service-discovery", "--service-discovery", "is not supported",
		"--worker-urls"},
	{"--enable-igw", "--enable-igw", "is not supported", "[pool NAME]"},
	{"--wasm-middleware x.wasm", "--wasm-middleware", "is not supported", "code"},
	{"--api-key-validation-urls http://a http://b", "--api-key-validation-urls",
		"is not supported", "api_keys"},
	{"--vllm-discovery-address h:1", "--vllm-discovery-address", "is not supported",
		"--prefill"},
	{"--stall-timeout", "--stall-timeout", "has no value", "time"},
	{"--listen 80", "--listen", "port without an address", ":80"},
	{"--stall-timeout 60", "--stall-timeout", "has no unit", "5s"},
};

START_TEST(refuses_broken_lines)
{
	size_t i = (size_t)_i;
	const struct conf_error *e;

	ck_assert_int_eq(parse(broken[i].line), ERR_PARSE);
	if (errors.n_errors != 1)
		dump_errors();
	ck_assert_uint_eq(errors.n_errors, 1);
	e = &errors.items[0];
	ck_assert_ptr_null(e->file);
	if (broken[i].key != NULL)
		ck_assert_str_eq(e->key, broken[i].key);
	else
		ck_assert_ptr_null(e->key);
	ck_assert_msg(strstr(e->message, broken[i].message) != NULL, "%s", e->message);
	ck_assert_msg(strstr(e->hint != NULL ? e->hint : "", broken[i].hint) != NULL,
		"%s", e->hint);
}
END_TEST

/* What only the whole can tell is said of the flag, too. */
START_TEST(unbuilt_features_are_refused)
{
	parse_good("--worker-urls http://h:1 --tls-cert-path /c");
	ck_assert_int_eq(conf_load(NULL, &flags, &errors, &conf), ERR_PARSE);
	ck_assert_uint_eq(errors.n_errors, 1);
	ck_assert_str_eq(errors.items[0].key, "--tls-cert");
	ck_assert_str_eq(errors.items[0].message, "TLS is not built in yet");
	parse_good("--worker-urls http://h:1 http://H:1/");
	ck_assert_int_eq(conf_load(NULL, &flags, &errors, &conf), ERR_PARSE);
	ck_assert_uint_eq(errors.n_errors, 1);
	ck_assert_str_eq(errors.items[0].key, "--worker-urls");
	ck_assert_str_eq(
		errors.items[0].message, "worker h:1 has this URL and role already");
}
END_TEST

START_TEST(reports_all_faults)
{
	scoped_free char *text = NULL;

	ck_assert_int_eq(
		parse("--polcy x --port y --worker-urls 1 2 --enable-igw"), ERR_PARSE);
	ck_assert_uint_eq(errors.n_errors, 5);
	text = conf_error_text(&errors.items[1]);
	ck_assert_str_eq(text,
		"--port y: is not a port; a number from 0 to 65535; 0 lets the "
		"kernel choose");
}
END_TEST

START_TEST(keeps_secrets)
{
	static const char *const lines[] = {"--api-key HUSH\x01",
		"--admin-key HUSH\xc3\xa4", "--admin-kee HUSH",
		"--worker-urls http://u:HUSH@h:1", "http://u:HUSH@h:1",
		"--prefill u:HUSH@h:1"};

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		ck_assert_msg(parse(lines[i]) == ERR_PARSE, "%s", lines[i]);
		for (size_t j = 0; j < errors.n; j++) {
			scoped_free char *text = conf_error_text(&errors.items[j]);

			ck_assert_msg(strstr(text, "HUSH") == NULL, "%s", text);
		}
	}
	start("--worker-urls http://h:1 --api-key HUSH --admin-key HUSH");
	{
		scoped_free char *text = conf_print(conf);

		ck_assert_ptr_null(strstr(text, "HUSH"));
	}
}
END_TEST

/* vllm-router.md section 11, 0.1.17's new ones, and peers.md 2.2: each has a row, so none
 * is "unknown". */
static const char *const peer_flags[] = {"--host", "--port", "--worker-urls", "--policy",
	"--vllm-pd-disaggregation", "--prefill", "--decode", "--prefill-policy",
	"--decode-policy", "--vllm-discovery-address", "--kv-connector",
	"--worker-startup-timeout-secs", "--worker-startup-check-interval",
	"--cache-threshold", "--balance-abs-threshold", "--balance-rel-threshold",
	"--eviction-interval", "--eviction-interval-secs", "--max-tree-size",
	"--max-payload-size", "--intra-node-data-parallel-size", "--api-key",
	"--api-key-validation-urls", "--backend", "--runtime", "--log-dir", "--log-level",
	"--service-discovery", "--selector", "--service-discovery-port",
	"--service-discovery-namespace", "--prefill-selector", "--decode-selector",
	"--prometheus-port", "--prometheus-host", "--request-id-headers",
	"--request-timeout-secs", "--max-concurrent-requests", "--queue-size",
	"--queue-timeout-secs", "--rate-limit-tokens-per-second",
	"--cors-allowed-origins", "--retry-max-retries", "--retry-initial-backoff-ms",
	"--retry-max-backoff-ms", "--retry-backoff-multiplier", "--retry-jitter-factor",
	"--disable-retries", "--cb-failure-threshold", "--cb-success-threshold",
	"--cb-timeout-duration-secs", "--cb-window-duration-secs",
	"--disable-circuit-breaker", "--health-failure-threshold",
	"--health-success-threshold", "--health-check-timeout-secs",
	"--health-check-interval-secs", "--health-check-endpoint", "--enable-igw",
	"--history-backend", "--profile", "--enable-trace", "--otlp-traces-endpoint",
	"--otel-sampling-ratio", "--otel-excluded-paths", "--mini-lb",
	"--wasm-middleware", "--wasm-middleware-sha256", "--wasm-middleware-route",
	"--enable-program-scheduling", "--program-scheduling-config-json",
	"--kv-events-topic-filter", "--kv-events-port", "--kv-index-max-entries",
	"--pd-uncached-token-threshold", "--kv-block-size", "--kv-hash-seed",
	"--kv-speculative-indexing", "--kv-speculative-ttl-ms", "--model-path",
	"--kv-model", "--kv-tokenizer-path", "--kv-hash-algo", "--kv-events-endpoint",
	"--router-temperature", "--kv-penalty-host", "--kv-penalty-external",
	"--kv-penalty-disk", "--kv-aware-session-affinity-ttl-secs", "--kv-event-source",
	"--kv-event-replay-source", "--kv-event-block-size", "--kv-event-model",
	"--pd-kv-events", "--epd-config", "--pool-idle-timeout-secs",
	"--prefill-balance-abs-threshold", "--prefill-balance-rel-threshold",
	"--decode-balance-abs-threshold", "--decode-balance-rel-threshold",
	/* smg */
	"--health-check-port", "--shutdown-grace-period-secs", "--runtime-worker-threads",
	"--balance-token-usage-threshold", "--overload-token-usage-threshold",
	"--block-size", "--prefix-token-count", "--prefix-hash-load-factor",
	"--max-idle-secs", "--assignment-mode", "--routing-key-override",
	"--least-load-kv-pressure-weight", "--least-load-default-throughput",
	"--least-load-mean-prefill-tokens", "--load-monitor-interval", "--dp-aware",
	"--dp-minimum-tokens-scheduler", "--pd-disaggregation", "--epd-disaggregation",
	"--encode-policy", "--worker-startup-delay", "--disable-health-check",
	"--remove-unhealthy-workers", "--drain-settle-secs",
	"--tenant-rate-limit-enabled", "--tenant-rate-limit-config",
	"--priority-scheduler-enabled", "--priority-scheduler-config",
	"--priority-scheduler-default-max-class",
	"--priority-scheduler-tenant-metric-top-n", "--trust-tenant-header",
	"--tenant-header-name", "--encode-selector", "--router-selector",
	"--model-id-from", "--model-alias", "--prometheus-duration-buckets",
	"--engine-metrics", "--log-json", "--tenant-api-keys", "--tls-cert-path",
	"--tls-key-path", "--jwt-issuer", "--jwt-audience", "--jwt-jwks-uri",
	"--jwt-role-claim", "--jwt-role-mapping", "--control-plane-api-keys",
	"--disable-audit-logging", "--enable-mesh", "--mesh-server-name", "--mesh-host",
	"--mesh-advertise-host", "--mesh-port", "--mesh-peer-urls", "--tokenizer-path",
	"--chat-template", "--tokenizer-cache-enable-l0", "--tokenizer-cache-enable-l1",
	"--reasoning-parser", "--tool-call-parser", "--enable-wasm", "--mcp-config-path"};

START_TEST(knows_every_peer_flag)
{
	(void)!parse(peer_flags[_i]);
	for (size_t i = 0; i < errors.n; i++)
		ck_assert_msg(strcmp(errors.items[i].message, "unknown flag") != 0, "%s",
			peer_flags[_i]);
}
END_TEST

/* -h runs through every row, and names every peer flag. */
START_TEST(usage_names_every_flag)
{
	char *text = NULL;
	size_t n = 0;
	FILE *to = open_memstream(&text, &n);

	conf_usage(to);
	fclose(to);
	for (size_t i = 0; i < ARRAY_LEN(peer_flags); i++)
		ck_assert_msg(strstr(text, peer_flags[i]) != NULL, "%s", peer_flags[i]);
	ck_assert_ptr_nonnull(strstr(text, "\n  -c, --config FILE "));
	ck_assert_ptr_nonnull(strstr(text, "\n  --decode-policy NAME "));
	ck_assert_ptr_nonnull(strstr(text, "kvsteer.conf(5)"));
	free(text);
}
END_TEST

static Suite *conf_flags_suite(void)
{
	Suite *suite = suite_create("conf_flags");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, set_up, forget);
	tcase_add_loop_test(
		tc, policies_by_the_names_of_peers, 0, ARRAY_LEN(policy_words));
	tcase_add_test(tc, knobs_of_policies_by_the_names_of_peers);
	tcase_add_test(tc, starts_a_vllm_command_line);
	tcase_add_test(tc, a5_starts_prefill_and_decode);
	tcase_add_test(tc, small_rules);
	tcase_add_test(tc, own_keys_are_flags);
	tcase_add_test(tc, options_of_the_program);
	tcase_add_test(tc, default_file_may_be_absent);
	tcase_add_test(tc, flags_override_the_file);
	tcase_add_test(tc, flag_workers_meet_the_file);
	tcase_add_loop_test(tc, refuses_broken_lines, 0, ARRAY_LEN(broken));
	tcase_add_test(tc, unbuilt_features_are_refused);
	tcase_add_test(tc, reports_all_faults);
	tcase_add_test(tc, keeps_secrets);
	tcase_add_loop_test(tc, knows_every_peer_flag, 0, ARRAY_LEN(peer_flags));
	tcase_add_test(tc, usage_names_every_flag);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(conf_flags_suite())
