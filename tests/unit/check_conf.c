/*
 * Configuration files: everything that is refused, with its line, key and hint;
 * inheritance; what is printed reads back; differences; several files; secrets stay
 * unseen.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_flags.h"
#include "conf/conf_table.h"
#include "unit.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

static char folder[64];
static char main_file[96];
static struct conf_errors errors;
static struct conf *conf;

static void write_file(const char *name, const char *text, size_t n)
{
	char path[160];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(text, 1, n, f), n);
	ck_assert_int_eq(fclose(f), 0);
}

static void write_text(const char *name, const char *text)
{
	write_file(name, text, strlen(text));
}

static void make_folder(const char *name)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void set_up(void)
{
	snprintf(folder, sizeof(folder), "/tmp/check_conf.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(main_file, sizeof(main_file), "%s/kvsteer.conf", folder);
	errors = (struct conf_errors){0};
	conf = NULL;
}

static void remove_all(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		char inner[512];

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name);
		if (unlink(inner) != 0)
			remove_all(inner);
	}
	if (dir != NULL)
		closedir(dir);
	rmdir(path);
}

static void tear_down(void)
{
	conf_unref(conf);
	conf_errors_free(&errors);
	remove_all(folder);
}

static void dump_errors(void)
{
	for (size_t i = 0; i < errors.n; i++) {
		scoped_free char *text = conf_error_text(&errors.items[i]);

		fprintf(stderr, "  %s\n", text);
	}
}

static int load_n(const char *text, size_t n)
{
	write_file("kvsteer.conf", text, n);
	conf_unref(conf);
	conf = NULL;
	conf_errors_free(&errors);
	return conf_load(main_file, NULL, &errors, &conf);
}

static int load(const char *text)
{
	return load_n(text, strlen(text));
}

static void load_good(const char *text)
{
	int rc = load(text);

	if (rc != 0)
		dump_errors();
	ck_assert_int_eq(rc, 0);
	ck_assert_ptr_nonnull(conf);
	ck_assert_uint_eq(errors.n_errors, 0);
}

#define W "[worker a]\nurl = http://h:1\n"

/* Each is one error (n when there are more) at that line, with that key, and these words.
 */
static const struct {
	const char *text;
	unsigned line;
	const char *key; /* NULL: none */
	const char *message, *hint;
	unsigned n; /* 0: 1 */
} broken[] = {
	/* sections */
	{"[rooter]\n" W, 1, NULL, "no such section", "[router]", 0},
	{"[router x]\n" W, 1, NULL, "no such section", "[router]", 0},
	{"[pool]\n" W, 1, NULL, "no such section", "[pool NAME]", 0},
	{"[pool a b]\n" W, 1, NULL, "no such section", "prefill|decode", 0},
	{"[pool a unified]\n" W, 1, NULL, "no such section", "prefill|decode", 0},
	{"[worker]\n", 1, NULL, "no such section", "[worker NAME]", 0},
	{"[worker a/b]\nurl = http://h:1\n", 1, NULL, "is not a name", "letters", 0},
	{"[]\n" W, 1, NULL, "without a name", "[router]", 0},
	{"[router\n" W, 1, NULL, "closing bracket", "", 0},
	{"[router] # main\n" W, 1, NULL, "after the section", "", 0},
	{"[router]\nthreads = 1\n[router]\nthreads = 2\n" W, 3, NULL, "duplicate section",
		"first", 0},
	{W "[pool default]\n[pool default]\n", 4, NULL, "the first is in line 3", "", 0},
	{W "[worker a]\nurl = http://h:2\n", 3, NULL, "the first is in line 1", "", 0},
	{W "[pool default decode]\n[pool default decode]\n", 4, NULL, "duplicate section",
		"", 0},
	{W "[pool default]\n[pool defualt decode]\n", 4, NULL,
		"[pool defualt decode]: no such pool", "[pool NAME]", 0},
	/* keys */
	{"threads = 1\n" W, 1, NULL, "before any section", "[router]", 0},
	{"[router]\nlisen = :1\n" W, 2, "lisen", "unknown key", "did you mean listen?",
		0},
	{"[router]\nthread = 1\n" W, 2, "thread", "unknown key", "did you mean threads?",
		0},
	{"[router]\npolicy = random\n" W, 2, "policy", "unknown key",
		"belongs in [pool NAME]", 0},
	{"[pool default]\nlisten = :1\n" W, 2, "listen", "unknown key",
		"belongs in [router]", 0},
	{"[pool default decode]\nmodels = x\n" W, 2, "models", "unknown key",
		"belongs in [pool NAME]", 0},
	{W "policy = random\n", 3, "policy", "unknown key", "belongs in [pool NAME]", 0},
	{"[router]\nxyzzy = 1\n" W, 2, "xyzzy", "unknown key", "kvsteer.conf(5)", 0},
	{"[router]\nlisten\n" W, 2, NULL, "neither a section nor", "key = value", 0},
	{"[router]\n= 1\n" W, 2, NULL, "no key", "", 0},
	{"[router]\nListen = :1\n" W, 2, NULL, "bad character in the key", "a-z", 0},
	{"[router]\nadmin_key = \"x\n" W, 2, NULL, "closing quote", "", 0},
	{"[router]\nthreads = 1\n\nthreads = 1\n" W, 4, "threads",
		"the first is in line 2", "leave one", 0},
	{W "url = http://h:2\n", 3, "url", "the first is in line 2", "leave one", 0},
	{"[router]\nthreads =\n" W, 2, "threads", "has no value", "", 0},
	{"[router]\nadmin_key =\n" W, 2, "admin_key", "has no value", "none", 0},
	{"[router]\nlisten = \"\"\n" W, 2, "listen", "has no value", "", 0},
	/* numbers */
	{"[router]\nthreads = two\n" W, 2, "threads", "not a whole number", "digits", 0},
	{"[router]\nthreads = -1\n" W, 2, "threads", "not a whole number", "digits", 0},
	{"[router]\nthreads = 1.5\n" W, 2, "threads", "not a whole number", "digits", 0},
	{"[router]\nthreads = 1025\n" W, 2, "threads", "out of range", "from 0 to 1024",
		0},
	{"[router]\nthreads = 99999999999999999999999\n" W, 2, "threads", "out of range",
		"1024", 0},
	{"[router]\nadmin_socket_mode = 0980\n" W, 2, "admin_socket_mode",
		"not a file mode", "0660", 0},
	{"[router]\nadmin_socket_mode = 1777\n" W, 2, "admin_socket_mode", "range",
		"0777", 0},
	{"[pool default]\nretry_budget = 101%\n" W, 2, "retry_budget", "not a percentage",
		"20%", 0},
	{"[pool default]\ncache_threshold = 1.01\n" W, 2, "cache_threshold", "range",
		"from 0 to 1", 0},
	{"[pool default]\ncache_threshold = 30%\n" W, 2, "cache_threshold",
		"not a number", "0.3", 0},
	{"[pool default]\ncache_threshold = nan\n" W, 2, "cache_threshold",
		"not a number", "", 0},
	{"[pool default]\ncache_threshold = 0x1\n" W, 2, "cache_threshold",
		"not a number", "", 0},
	{"[pool default]\nbalance_rel_threshold = 0.5\n" W, 2, "balance_rel_threshold",
		"range", "from 1", 0},
	{"[pool default]\nbalance_rel_threshold = 1e9\n" W, 2, "balance_rel_threshold",
		"range", "1000", 0},
	/* times and sizes */
	{"[router]\nhead_timeout = 10\n" W, 2, "head_timeout", "has no unit", "5s", 0},
	{"[router]\nhead_timeout = 10 s\n" W, 2, "head_timeout", "not a time", "5s", 0},
	{"[router]\nhead_timeout = 10sec\n" W, 2, "head_timeout", "not a time", "5s", 0},
	{"[router]\nhead_timeout = 0\n" W, 2, "head_timeout", "range", "from 1ms to 24h",
		0},
	{"[router]\nhead_timeout = 25h\n" W, 2, "head_timeout", "range",
		"from 1ms to 24h", 0},
	{"[router]\nhead_timeout = 99999999999999999h\n" W, 2, "head_timeout", "range",
		"24h", 0},
	{"[router]\nmax_body_size = 10mb\n" W, 2, "max_body_size", "not a size", "16m",
		0},
	{"[router]\nmax_body_size = 2048g\n" W, 2, "max_body_size", "range", "1024g", 0},
	{"[pool default]\nprefix_block = 8\n" W, 2, "prefix_block", "range",
		"from 16 to 64k", 0},
	{"[router]\nmax_body_size = 99999999999999999999g\n" W, 2, "max_body_size",
		"range", "1024g", 0},
	/* words */
	{"[router]\naccess_log = maybe\n" W, 2, "access_log", "neither on nor off",
		"on or off", 0},
	{"[router]\nlog_level = trace\n" W, 2, "log_level", "not known", "error, warn",
		0},
	{"[router]\nlog_format = xml\n" W, 2, "log_format", "not known", "text, json", 0},
	{"[router]\nhalf_close = on\n" W, 2, "half_close", "not known",
		"auto, abort, allow", 0},
	{"[pool default]\npolicy = cache-aware\n" W, 2, "policy", "not known",
		"cache_aware,", 0},
	{"[pool default]\npolicy = kv_aware\n" W, 2, "policy", "not built yet",
		"cache_aware, least_requests, round_robin, random, prefix_affinity, "
		"power_of_two, consistent_hash, rendezvous_hash, sticky_least_loaded",
		0},
	{"[pool default]\naffinity_fallback = prefix_affinity\n" W, 2,
		"affinity_fallback", "not known", "least_requests", 0},
	{"[pool default]\nmax_load_skew = 0.9\n" W, 2, "max_load_skew", "range",
		"from 1 to", 0},
	{"[pool default]\nsignal = last_block\n" W, 2, "signal", "not known",
		"longest_prefix, first_block, none", 0},
	{"[pool default]\ncost = prefill-cost\n" W, 2, "cost", "not known",
		"overload_check, relative_load, free_capacity, prefill_cost", 0},
	{"[pool default]\nkv_connector = moriio\n" W, 2, "kv_connector", "not built yet",
		"nixl", 0},
	{"[pool default]\nload_source = engine\n" W, 2, "load_source", "not known",
		"own, reported", 0},
	{W "role = encode\n", 3, "role", "not known", "unified, prefill, decode", 0},
	/* addresses and lists */
	{"[router]\nlisten = 30000\n" W, 2, "listen", "port without an address", ":30000",
		0},
	{"[router]\nlisten = :1 h:99999\n" W, 2, "listen", "out of range", "65535", 0},
	{"[router]\nlisten = none\n" W, 2, "listen", "nothing to listen on",
		"127.0.0.1:30000", 0},
	{"[router]\nlisten = :1\nlisten = :2 :1\n" W, 3, "listen", "twice", "leave one",
		0},
	{"[router]\nlisten = :1\nlisten = h:2\nmetrics_listen = h:2\n" W, 3, "listen",
		"metrics_listen uses this address", "another port", 0},
	{"[router]\nlisten = :2\nmetrics_listen = h:2\n" W, 2, "listen",
		"metrics_listen uses this address", "another port", 0},
	{"[router]\nmetrics_listen = ::1:80\n" W, 2, "metrics_listen", "colon",
		"brackets", 0},
	{"[router]\ntrusted_proxies = 10.0.0.1/8\n" W, 2, "trusted_proxies",
		"beyond its prefix", "/32", 0},
	{"[router]\nrouting_key_headers = a,b\n" W, 2, "routing_key_headers",
		"header name", "blanks", 0},
	{"[router]\npass_paths = v1/x\n" W, 2, "pass_paths", "not an exact path", "/v1/",
		0},
	{"[router]\npass_paths = /v1/*\n" W, 2, "pass_paths", "not an exact path",
		"wildcard", 0},
	{"[pool default]\nmodels = a, b\n" W, 2, "models", "not a model pattern",
		"blanks", 0},
	{"[pool default]\nhealth_path = health\n" W, 2, "health_path", "not a path",
		"begin with /", 0},
	{"[pool default]\nworker_cidrs = localhost\n" W, 2, "worker_cidrs",
		"not a network", "10.", 0},
	{"[pool default]\nretry_on = 503 200\n" W, 2, "retry_on",
		"not a list of error statuses", "from 400 to 599", 0},
	{"[pool default]\nretry_on = 5xx\n" W, 2, "retry_on",
		"not a list of error statuses", "502 503", 0},
	{W "retry_on = 502,503\n", 3, "retry_on", "not a list of error statuses",
		"blanks", 0},
	{W "retry_on = 503 none\n", 3, "retry_on", "not a list of error statuses",
		"or none", 0},
	{W "retry_on = off\n", 3, "retry_on", "not a list of error statuses", "or none",
		0},
	{W "retry_on = 600\n", 3, "retry_on", "not a list of error statuses", "599", 0},
	/* workers */
	{"[worker a]\nrole = decode\n", 1, "url", "has no url", "http://", 0},
	{"[worker a]\nurl = http://::1:8001\n", 2, "url", "more than one colon",
		"[::1]:8000", 0},
	{"[worker a]\nurl = 8001\n", 2, "url", "no scheme", "http://127.0.0.1:8001", 0},
	{"[worker a]\nurl = http://h:99999\n", 2, "url", "out of range", "65535", 0},
	{"[worker a]\nurl = http://h:8000/v1\n", 2, "url", "/v1/v1", "remove /v1", 0},
	{"[worker a]\nurl = https://h:1\n", 2, "url", "TLS is not built in yet",
		"http://", 0},
	{W "\n[worker b]\nurl = http://H:1/\n", 5, "url", "worker a has this URL",
		"leave one", 0},
	{W "pool = x\n[pool y]\n[pool z decode]\n", 3, "pool", "no such pool", "y z", 2},
	{"[pool y]\n" W, 2, "pool", "no such pool", "y", 0},
	{W "bootstrap_port = 65536\n", 3, "bootstrap_port", "range", "65535", 0},
	{W "dp_size = 0\n", 3, "dp_size", "range", "from 1", 0},
	{W "dp_start_rank = 65536\n", 3, "dp_start_rank", "range", "65535", 0},
	{"[worker a]\nurl = http://h:1\ndp_size = 2\ndp_start_rank = 4\n[worker a@5]\n"
	 "url = http://h:2\n",
		6, "url", "that of a rank", "another name", 0},
	{W "worker_key = a b\n", 3, "worker_key", "cannot be sent", "ASCII", 0},
	{W "worker_key = (set)\n", 3, "worker_key",
		"the placeholder that kvsteerd -T prints", "the secret", 0},
	/* what does not exist yet */
	{"[router]\ntls_cert = /c\n" W, 2, "tls_cert", "TLS is not built in yet",
		"leave it out", 0},
	{"[router]\nclient_ca = /c\n" W, 2, "client_ca", "TLS is not built in yet",
		"leave it out", 0},
	/* bytes */
	{"[router]\n" W "x\xff = 1\n", 4, NULL, "UTF-8", "UTF-8", 0},
	{"[router]\nadmin_key = a\x01\x62\n" W, 2, NULL, "control character", "", 0},
	/* all of them are reported */
	{"[router]\nthreads = x\nlisen = :1\n[foo]\nbar = 1\n[worker a]\nurl = 8001\n", 2,
		"threads", "not a whole number", "", 4},
};

static bool has_words(const struct conf_error *e, size_t i)
{
	return (broken[i].key == NULL
			       ? e->key == NULL
			       : e->key != NULL && strcmp(e->key, broken[i].key) == 0) &&
	       e->line == broken[i].line &&
	       strstr(e->message, broken[i].message) != NULL &&
	       strstr(e->hint != NULL ? e->hint : "", broken[i].hint) != NULL;
}

START_TEST(refuses_broken_files)
{
	size_t i = (size_t)_i;
	unsigned want = broken[i].n > 0 ? broken[i].n : 1;
	scoped_free char *place = xasprintf("%s:%u: ", main_file, broken[i].line);
	scoped_free char *text = NULL;

	ck_assert_int_eq(load(broken[i].text), ERR_PARSE);
	ck_assert_ptr_null(conf);
	if (errors.n_errors != want || !has_words(&errors.items[0], i)) {
		fprintf(stderr, "%s", broken[i].text);
		dump_errors();
	}
	ck_assert_uint_eq(errors.n_errors, want);
	ck_assert(has_words(&errors.items[0], i));
	ck_assert_str_eq(errors.items[0].file, main_file);
	text = conf_error_text(&errors.items[0]);
	ck_assert_msg(strncmp(text, place, strlen(place)) == 0, "%s", text);
	ck_assert_ptr_nonnull(strstr(text, errors.items[0].message));
}
END_TEST

START_TEST(says_everything_in_one_line)
{
	scoped_free char *text = NULL;
	scoped_free char *want = xasprintf("%s:2: cache_threshold = 7: is out of range; "
					   "from 0 to 1",
		main_file);

	ck_assert_int_eq(load("[pool default]\ncache_threshold = 7\n" W), ERR_PARSE);
	ck_assert_str_eq(errors.items[0].value, "7");
	text = conf_error_text(&errors.items[0]);
	ck_assert_str_eq(text, want);
}
END_TEST

START_TEST(cuts_long_values_in_errors)
{
	char text[9000] = "[router]\nlog_level = ";
	size_t at = strlen(text), value_at = at;

	while (at < 8000) {
		memcpy(text + at, "\xc3\xa4", 2);
		at += 2;
	}
	memcpy(text + at, "\n" W, sizeof("\n" W));
	ck_assert_int_eq(load(text), ERR_PARSE);
	ck_assert_uint_lt(strlen(errors.items[0].value), 130);
	/* one byte on, the cut would fall inside a character */
	text[value_at] = 'x';
	memmove(text + value_at + 1, text + value_at + 2, strlen(text + value_at + 1));
	ck_assert_int_eq(load(text), ERR_PARSE);
	ck_assert_uint_eq(errors.n_errors, 1);
	ck_assert_uint_lt(strlen(errors.items[0].value), 130);
	ck_assert_ptr_nonnull(strstr(errors.items[0].value, "\xc3\xa4..."));
	ck_assert_ptr_nonnull(strstr(errors.items[0].value, "\xc3\xa4..."));
}
END_TEST

START_TEST(reports_unreadable_files)
{
	size_t too_large = (16 << 20) + 1;
	scoped_free char *text = NULL, *line = NULL;

	ck_assert_int_eq(
		conf_load("/nonexistent/kvsteer.conf", NULL, &errors, &conf), ERR_PARSE);
	ck_assert_str_eq(errors.items[0].file, "/nonexistent/kvsteer.conf");
	ck_assert_ptr_nonnull(
		strstr(errors.items[0].message, "cannot be read: No such file"));
	conf_errors_free(&errors);
	ck_assert_int_eq(conf_load(folder, NULL, &errors, &conf), ERR_PARSE);
	ck_assert_ptr_nonnull(
		strstr(errors.items[0].message, "cannot be read: Is a directory"));
	conf_errors_free(&errors);
	text = xcalloc(1, too_large);
	memset(text, '\n', too_large);
	ck_assert_int_eq(load_n(text, too_large), ERR_PARSE);
	ck_assert_str_eq(errors.items[0].message, "the file is too large");
	line = conf_error_text(&errors.items[0]);
	ck_assert_ptr_nonnull(
		strstr(line, "/kvsteer.conf: the file is too large; up to 16m"));
}
END_TEST

/* Defaults */

START_TEST(defaults_are_those_of_the_contract)
{
	const struct role_opts *o;

	load_good(W);
	ck_assert_uint_eq(errors.n, 0);
	ck_assert_uint_eq(conf->router.listen.n, 1);
	ck_assert_str_eq(conf->router.listen.items[0], "127.0.0.1:30000");
	ck_assert_str_eq(conf->router.metrics_listen, "127.0.0.1:29000");
	ck_assert_str_eq(conf->router.admin_socket, "/run/kvsteer/admin.sock");
	ck_assert_uint_eq(conf->router.admin_socket_mode, 0660);
	ck_assert_ptr_null(conf->router.admin_key);
	ck_assert_uint_eq(conf->router.log_level, LOG_LEVEL_INFO);
	ck_assert(conf->router.access_log);
	ck_assert(!conf->router.expose_worker);
	ck_assert(!conf->router.pass_all);
	ck_assert_uint_eq(conf->router.drain_timeout_ms, 300000);
	ck_assert_uint_eq(conf->router.drain_grace_ms, 1000);
	ck_assert_uint_eq(conf->router.body_memory, 1u << 30);
	ck_assert_uint_eq(conf->router.max_body_size, 512u << 20);
	ck_assert_uint_eq(conf->router.queue_size, 100);
	ck_assert_uint_eq(conf->router.queue_timeout_ms, 60000);
	ck_assert_uint_eq(conf->router.max_concurrent_requests, 32768);
	ck_assert_uint_eq(conf->router.routing_key_headers.n, 17);
	ck_assert(!conf->by_flags_alone);
	ck_assert_uint_eq(conf->n_pools, 1);
	ck_assert_str_eq(conf->pools[0].name, "default");
	ck_assert(!conf->pools[0].is_explicit);
	for (int r = 0; r < ROLE_MAX; r++) {
		o = &conf->pools[0].roles[r];
		ck_assert_uint_eq(o->policy.policy, POLICY_CACHE_AWARE);
		ck_assert_uint_eq(o->policy.signal, SIGNAL_LONGEST_PREFIX);
		ck_assert_uint_eq(o->policy.cost, COST_OVERLOAD_CHECK);
		ck_assert_double_eq(o->policy.cache_threshold, 0.3);
		ck_assert_uint_eq(o->policy.balance_abs_threshold, 32);
		ck_assert_double_eq(o->policy.balance_rel_threshold, 1.5);
		ck_assert_uint_eq(o->policy.affinity_fallback, POLICY_LEAST_REQUESTS);
		ck_assert_uint_eq(o->policy.affinity_hash_tokens, 4096);
		ck_assert_uint_eq(o->prefix_block, 128);
		ck_assert_uint_eq(o->index_memory, 256u << 20);
		ck_assert_uint_eq(o->prefix_ttl_ms, 3600000);
		ck_assert_uint_eq(o->pd_min_prefill, 256);
		ck_assert_int_eq(o->kv_connector, CONNECTOR_NONE);
		ck_assert_int_eq(o->load_source, LOAD_SOURCE_OWN);
	}
	ck_assert_uint_eq(conf->n_workers, 1);
	ck_assert_str_eq(conf->workers[0].name, "a");
	ck_assert_str_eq(conf->workers[0].pool, "default");
	ck_assert_uint_eq(conf->workers[0].role, ROLE_UNIFIED);
	ck_assert_uint_eq(conf->workers[0].origin, ORIGIN_FILE);
	ck_assert_str_eq(conf->workers[0].opts.health_path, "/health");
	ck_assert_uint_eq(conf->workers[0].opts.health_interval_ms, 5000);
	ck_assert_uint_eq(conf->workers[0].opts.first_byte_timeout_ms, 600000);
	ck_assert_uint_eq(conf->workers[0].opts.total_timeout_ms, 0);
	ck_assert_uint_eq(conf->workers[0].opts.upstream_idle_ms, 4000);
	ck_assert_uint_eq(conf->workers[0].opts.retry_max_retries, 4);
	ck_assert_uint_eq(conf->workers[0].opts.retry_budget, 20);
	ck_assert(conf->workers[0].opts.tls_verify);
}
END_TEST

START_TEST(every_default_is_readable_and_prints_as_written)
{
	for (size_t i = 0; i < conf_keys_n; i++) {
		const struct conf_key *key = &conf_keys[i];
		struct conf_fault fault;
		union {
			struct router_opts router;
			struct pool_conf pool;
			struct role_opts role;
			struct worker_opts opts;
			struct worker_conf worker;
		} at;
		scoped_free char *text = NULL;

		memset(&at, 0, sizeof(at));
		if (key->def != NULL)
			ck_assert_int_eq(
				conf_value_set(key, &at, span_str(key->def), &fault), 0);
		text = conf_value_text(key, &at);
		if (key->def != NULL || conf_key_is_list(key))
			ck_assert_str_eq(text, key->def != NULL ? key->def : "none");
		conf_value_clear(key, &at);
		ck_assert_msg(strlen(key->doc) > 8, "%s", key->name);
	}
}
END_TEST

/* Values */

START_TEST(reads_units)
{
	load_good("[router]\nhead_timeout = 250ms\nbody_timeout = 2m\nkeepalive_timeout "
		  "= 0\n"
		  "drain_timeout = 1h\nmax_body_size = 0\nbody_memory = "
		  "64k\nqueue_timeout = 7s\n"
		  "[pool default]\nindex_memory = 2g\nretry_budget = 5 %\nprefix_block = "
		  "2k\n"
		  "no_worker_wait = 1500ms\n" W);
	ck_assert_uint_eq(conf->router.head_timeout_ms, 250);
	ck_assert_uint_eq(conf->router.body_timeout_ms, 120000);
	ck_assert_uint_eq(conf->router.keepalive_timeout_ms, 0);
	ck_assert_uint_eq(conf->router.drain_timeout_ms, 3600000);
	ck_assert_uint_eq(conf->router.max_body_size, 0);
	ck_assert_uint_eq(conf->router.body_memory, 65536);
	ck_assert_uint_eq(conf->router.queue_timeout_ms, 7000);
	ck_assert_uint_eq(conf->pools[0].roles[0].index_memory, 2ull << 30);
	ck_assert_uint_eq(conf->pools[0].roles[0].prefix_block, 2048);
	ck_assert_uint_eq(conf->workers[0].opts.retry_budget, 5);
	ck_assert_uint_eq(conf->workers[0].opts.no_worker_wait_ms, 1500);
}
END_TEST

START_TEST(reads_lists_and_none)
{
	load_good(
		"[router]\nlisten = :1 \t [::1]:2\nlisten = h:3\npass_paths = /a *\n"
		"metrics_listen = none\nadmin_socket = none\nrouting_key_headers = none\n"
		"trusted_proxies = 10.0.0.0/8\n[pool default]\nmodels = a* b\n" W
		"models = c\n");
	ck_assert_uint_eq(conf->router.listen.n, 3);
	ck_assert_str_eq(conf->router.listen.items[1], "[::1]:2");
	ck_assert_str_eq(conf->router.listen.items[2], "h:3");
	ck_assert(conf->router.pass_all);
	ck_assert_ptr_null(conf->router.metrics_listen);
	ck_assert_ptr_null(conf->router.admin_socket);
	ck_assert_uint_eq(conf->router.routing_key_headers.n, 0);
	ck_assert_uint_eq(conf->pools[0].models.n, 2);
	ck_assert_uint_eq(conf->workers[0].models.n, 1);
	ck_assert_str_eq(conf->workers[0].models.items[0], "c");
}
END_TEST

static void retries_on(size_t worker, const char *expected)
{
	const struct conf_key *key = conf_key_find(SECTION_WORKER, SPAN_LIT("retry_on"));
	scoped_free char *text = conf_value_text(key, &conf->workers[worker].opts);

	ck_assert_str_eq(text, expected);
}

START_TEST(reads_lists_of_statuses)
{
	const struct status_set *set;

	load_good("[pool a]\nmodels = a\nretry_on = 503 599\nretry_on = 400 503\n"
		  "[pool b]\nmodels = b\nretry_on = none\n[pool default]\n"
		  "[worker d]\nurl = http://h:1\n"
		  "[worker a]\nurl = http://h:2\npool = a\n"
		  "[worker b]\nurl = http://h:3\npool = b\n"
		  "[worker c]\nurl = http://h:4\npool = a\nretry_on = 529\n");
	retries_on(0, "408 429 500 502 503 504");
	retries_on(1, "400 503 599");
	retries_on(2, "none");
	retries_on(3, "529");
	set = &conf->workers[1].opts.retry_on;
	ck_assert(status_set_has(set, 400) && status_set_has(set, 503) &&
		  status_set_has(set, 599));
	ck_assert(!status_set_has(set, 0) && !status_set_has(set, 399) &&
		  !status_set_has(set, 401) && !status_set_has(set, 600) &&
		  !status_set_has(set, -1));
}
END_TEST

START_TEST(reads_crlf_bom_utf8_and_quotes)
{
	load_good("\xef\xbb\xbf# d\xc3\xa9"
		  "but\r\n[router]\r\nhash_secret = \"gr\xc3\xbc\xc3\x9f "
		  "\\\"x\\\\ \"\r\n; c\r\nadmin_socket = /run/\xc3\xa4\r\n[worker "
		  "a]\r\nurl = "
		  "\"http://h:1\"\r\n");
	ck_assert_str_eq(conf->router.hash_secret, "gr\xc3\xbc\xc3\x9f \"x\\ ");
	ck_assert_str_eq(conf->router.admin_socket, "/run/\xc3\xa4");
	ck_assert_str_eq(conf->workers[0].url.text, "http://h:1");
	ck_assert_int_eq(load("[router]\r\n\r\nthreads = x\r\n" W), ERR_PARSE);
	ck_assert_uint_eq(errors.items[0].line, 3);
	ck_assert_int_eq(
		load_n("[router]\nthreads = 1\0\n" W, 23 + sizeof(W) - 1), ERR_PARSE);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "NUL"));
}
END_TEST

START_TEST(takes_lines_of_64_kib)
{
	size_t room = 70000, at;
	scoped_free char *text = xcalloc(1, room);

	at = (size_t)snprintf(text, room, "[pool default]\nmodels =");
	while (at < 66000)
		at += (size_t)snprintf(text + at, room - at, " model-%zu*", at);
	snprintf(text + at, room - at, "\n" W);
	load_good(text);
	ck_assert_uint_gt(conf->pools[0].models.n, 4000);
}
END_TEST

/* Inheritance */

/* origin-systems.md A5: a role-specific threshold holds also where the role inherits its
 * policy. */
START_TEST(a5_role_keys_hold_with_an_inherited_policy)
{
	const struct role_opts *roles;

	load_good(
		"[pool default]\npolicy = cache_aware\nbalance_abs_threshold = 40\n"
		"cache_threshold = 0.4\n"
		"[pool default prefill]\nbalance_abs_threshold = 4\n"
		"[pool default decode]\nbalance_rel_threshold = 9\npolicy = round_robin\n"
		"index_memory = 1m\n" W);
	roles = conf->pools[0].roles;
	ck_assert_uint_eq(roles[ROLE_PREFILL].policy.policy, POLICY_CACHE_AWARE);
	ck_assert_uint_eq(roles[ROLE_PREFILL].policy.balance_abs_threshold, 4);
	ck_assert_double_eq(roles[ROLE_PREFILL].policy.balance_rel_threshold, 1.5);
	ck_assert_double_eq(roles[ROLE_PREFILL].policy.cache_threshold, 0.4);
	ck_assert_uint_eq(roles[ROLE_DECODE].policy.policy, POLICY_ROUND_ROBIN);
	ck_assert_uint_eq(roles[ROLE_DECODE].policy.balance_abs_threshold, 40);
	ck_assert_double_eq(roles[ROLE_DECODE].policy.balance_rel_threshold, 9);
	ck_assert_uint_eq(roles[ROLE_DECODE].index_memory, 1u << 20);
	ck_assert_uint_eq(roles[ROLE_UNIFIED].policy.policy, POLICY_CACHE_AWARE);
	ck_assert_uint_eq(roles[ROLE_UNIFIED].policy.balance_abs_threshold, 40);
	ck_assert_uint_eq(roles[ROLE_UNIFIED].index_memory, 256u << 20);
}
END_TEST

/* The order of sections in the file does not matter. */
START_TEST(role_section_may_stand_before_its_pool)
{
	load_good("[pool p prefill]\nbalance_abs_threshold = 4\n[worker a]\npool = p\n"
		  "url = http://h:1\n[pool p]\nbalance_abs_threshold = 40\n");
	ck_assert_uint_eq(conf->n_pools, 1);
	ck_assert(conf->pools[0].is_explicit);
	ck_assert_uint_eq(
		conf->pools[0].roles[ROLE_PREFILL].policy.balance_abs_threshold, 4);
	ck_assert_uint_eq(
		conf->pools[0].roles[ROLE_DECODE].policy.balance_abs_threshold, 40);
}
END_TEST

START_TEST(workers_inherit_from_pool_then_role)
{
	load_good(
		"[pool default]\nstall_timeout = 1m\nhealth_interval = 1s\n"
		"worker_cidrs = 10.0.0.0/8 ::1\nkv_connector = nixl\n"
		"[pool default decode]\nstall_timeout = 2m\nworker_cidrs = 127.0.0.0/8\n"
		"[worker u]\nurl = http://h:1\nhealth_interval = 3s\n"
		"[worker p]\nurl = http://h:2\nrole = prefill\nworker_cidrs = none\n"
		"[worker d]\nurl = http://h:3\nrole = decode\nhealth_path = /ping\n");
	ck_assert_uint_eq(conf->workers[0].opts.stall_timeout_ms, 60000);
	ck_assert_uint_eq(conf->workers[0].opts.health_interval_ms, 3000);
	ck_assert_uint_eq(conf->workers[0].opts.worker_cidrs.n, 2);
	ck_assert_uint_eq(conf->workers[1].opts.stall_timeout_ms, 60000);
	ck_assert_uint_eq(conf->workers[1].opts.health_interval_ms, 1000);
	ck_assert_uint_eq(conf->workers[1].opts.worker_cidrs.n, 0);
	ck_assert_uint_eq(conf->workers[2].opts.stall_timeout_ms, 120000);
	ck_assert_uint_eq(conf->workers[2].opts.worker_cidrs.n, 1);
	ck_assert_str_eq(conf->workers[2].opts.health_path, "/ping");
	ck_assert_str_eq(conf->workers[1].opts.health_path, "/health");
}
END_TEST

START_TEST(pools_are_made_for_workers_that_name_them)
{
	load_good(
		"[worker a]\nurl = http://h:1\npool = x\n[worker b]\nurl = http://h:2\n");
	ck_assert_uint_eq(conf->n_pools, 2);
	ck_assert_str_eq(conf->pools[0].name, "x");
	ck_assert(!conf->pools[0].is_explicit);
	ck_assert_str_eq(conf->pools[1].name, "default");
	/* and the second can never be reached */
	ck_assert_uint_eq(errors.n, 1);
	ck_assert(errors.items[0].is_warning);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "never reached"));
}
END_TEST

START_TEST(warns_but_starts)
{
	scoped_free char *text = NULL;

	load_good("[router]\n");
	ck_assert_uint_eq(errors.n, 1);
	ck_assert(errors.items[0].is_warning);
	text = conf_error_text(&errors.items[0]);
	ck_assert_ptr_nonnull(strstr(text, "warning: no worker is configured"));
	load_good("[pool default]\n[worker a]\nurl = http://h:1\nrole = prefill\n");
	ck_assert_uint_eq(errors.n, 1);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "none for decode"));
	load_good("[pool default]\n[worker a]\nurl = http://h:1\nrole = prefill\n"
		  "[worker b]\nurl = http://h:1\nrole = decode\n");
	ck_assert_uint_eq(errors.n, 1);
	ck_assert_str_eq(errors.items[0].key, "kv_connector");
	ck_assert_uint_eq(errors.items[0].line, 1);
	load_good("[pool default]\nkv_connector = nixl\n" W "role = decode\n");
	ck_assert_uint_eq(errors.n, 1);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "none for prefill"));
	/* Set to something, a key without effect is told at its line; at its default it
	 * is not. */
	load_good("[router]\ntls_handshake_timeout = 7s\ntrusted_proxies = none\n"
		  "[pool default]\n" W "tls_verify = off\n");
	ck_assert_uint_eq(errors.n, 2);
	ck_assert_uint_eq(errors.n_errors, 0);
	ck_assert_str_eq(errors.items[0].key, "tls_handshake_timeout");
	ck_assert_uint_eq(errors.items[0].line, 2);
	ck_assert_str_eq(errors.items[1].key, "tls_verify");
	load_good("[pool a]\nmodels = x\n[pool b]\n[worker a]\nurl = http://h:1\npool = "
		  "b\n");
	ck_assert_uint_eq(errors.n, 0);
}
END_TEST

/* Several files */

START_TEST(reads_conf_d_in_order)
{
	make_folder("conf.d");
	write_text("conf.d/20-b.conf", "[worker b]\nurl = http://h:2\n");
	write_text("conf.d/10-a.conf",
		"[router]\nthreads = 3\nlisten = :2\n[worker a]\nurl = "
		"http://h:1\n");
	write_text("conf.d/README", "nonsense");
	write_text("conf.d/.hidden.conf", "nonsense");
	load_good("[router]\nlisten = :1\n[worker z]\nurl = http://h:9\n");
	ck_assert_uint_eq(conf->n_workers, 3);
	ck_assert_str_eq(conf->workers[0].name, "z");
	ck_assert_str_eq(conf->workers[1].name, "a");
	ck_assert_str_eq(conf->workers[2].name, "b");
	ck_assert_uint_eq(conf->router.threads, 3);
	ck_assert_uint_eq(conf->router.listen.n, 1);
	ck_assert_str_eq(conf->router.listen.items[0], ":2");
}
END_TEST

START_TEST(a_later_file_replaces_what_former_ones_said)
{
	make_folder("conf.d");
	write_text("conf.d/a.conf",
		"[router]\nthreads = 3\nlisten = :5\n[worker a]\nurl = http://h:2\n"
		"[pool default]\nmodels = x y\n");
	write_text("conf.d/b.conf",
		"[router]\nlisten = :6\nlisten = :7\n[pool default]\nmodels = z\n");
	ck_assert_int_eq(load("[router]\nthreads = 1\nlisten = :1 :2\nlisten = :3\n"
			      "drain_timeout = 7s\n" W
			      "[pool default]\nmodels = w\nconnect_timeout = 9s\n"),
		0);
	ck_assert_uint_eq(conf->router.threads, 3);
	ck_assert_uint_eq(conf->router.drain_timeout_ms, 7000);
	ck_assert_uint_eq(conf->router.listen.n, 2);
	ck_assert_str_eq(conf->router.listen.items[0], ":6");
	ck_assert_str_eq(conf->router.listen.items[1], ":7");
	ck_assert_uint_eq(conf->n_workers, 1);
	ck_assert_str_eq(conf->workers[0].url.text, "http://h:2");
	ck_assert_uint_eq(conf->pools[0].models.n, 1);
	ck_assert_str_eq(conf->pools[0].models.items[0], "z");
}
END_TEST

START_TEST(one_file_may_not_set_a_key_twice)
{
	make_folder("conf.d");
	write_text("conf.d/a.conf",
		"\n[router]\nthreads = 3\nthreads = 4\n[worker a]\nurl = http://h:2\n"
		"[worker a]\nrole = decode\n");
	ck_assert_int_eq(load("[router]\nthreads = 1\n" W), ERR_PARSE);
	ck_assert_uint_eq(errors.n_errors, 2);
	ck_assert_ptr_nonnull(strstr(errors.items[0].file, "/conf.d/a.conf"));
	ck_assert_uint_eq(errors.items[0].line, 4);
	ck_assert_str_eq(errors.items[0].key, "threads");
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "line 3"));
	ck_assert_ptr_nonnull(strstr(errors.items[1].message, "duplicate section"));
	ck_assert_uint_eq(errors.items[1].line, 7);
}
END_TEST

/* Print and difference */

static const char rich[] =
	"[router]\nthreads = 3\nlisten = :1 [::1]:2\nhalf_close = abort\nhead_timeout = "
	"1500ms\n"
	"max_body_size = 1000001\npass_paths = /a *\nadmin_socket = \" a\\\"\\\\b \"\n"
	"admin_socket_mode = 0600\ntrusted_proxies = 10.0.0.0/8 ::1\nlog_format = json\n"
	"metrics_listen = none\n"
	"[pool a]\nmodels = m* n\npolicy = random\ncache_threshold = 0.1234567890123\n"
	"retry_budget = 7\nkv_connector = sglang\n"
	"[pool a decode]\nbalance_abs_threshold = 3\nstall_timeout = 1h\nworker_cidrs = "
	"none\n"
	"[pool default]\nworker_cidrs = 10.0.0.0/8\n[pool default prefill]\npolicy = "
	"round_robin\n"
	"[worker w0]\nurl = http://[::1]:80/base/\npool = a\nrole = "
	"prefill\nbootstrap_port = 7\n"
	"[worker w1]\nurl = http://h:1\nrole = decode\npool = a\nstall_timeout = 1m\n"
	"kv_group = rack-1\n"
	"[worker w2]\nurl = http://h:2\nmodels = x y\nworker_cidrs = none\ncapacity = "
	"123456789012\n";

struct changes {
	size_t n;
	char text[4096];
};

static void note_change(void *arg, const char *section, const char *key, const char *was,
	const char *now, bool needs_restart)
{
	struct changes *c = arg;
	size_t used = strlen(c->text);

	c->n++;
	snprintf(c->text + used, sizeof(c->text) - used, "[%s] %s: %s -> %s%s\n", section,
		key, was, now, needs_restart ? " (restart)" : "");
}

START_TEST(print_reads_back)
{
	struct changes changes = {0};
	scoped_free char *first = NULL, *second = NULL;
	struct conf *was;

	load_good(rich);
	was = conf_ref(conf);
	first = conf_print(conf);
	load_good(first);
	ck_assert_int_eq(conf_diff(was, conf, note_change, &changes), 0);
	ck_assert_str_eq(changes.text, "");
	second = conf_print(conf);
	ck_assert_str_eq(first, second);
	ck_assert_str_eq(conf->router.admin_socket, " a\"\\b ");
	ck_assert_uint_eq(conf->workers[1].opts.stall_timeout_ms, 60000);
	ck_assert_uint_eq(
		conf->pools[0].roles[ROLE_DECODE].worker.stall_timeout_ms, 3600000);
	ck_assert_double_eq(
		conf->pools[0].roles[0].policy.cache_threshold, 0.1234567890123);
	conf_unref(was);
}
END_TEST

/* Every key is printed in its section. */
START_TEST(prints_every_key)
{
	scoped_free char *text = NULL;

	load_good(W);
	text = conf_print(conf);
	for (size_t i = 0; i < conf_keys_n; i++) {
		scoped_free char *line = xasprintf("\n%s = ", conf_keys[i].name);

		ck_assert_msg(strstr(text, line) != NULL, "%s", conf_keys[i].name);
	}
	ck_assert_ptr_nonnull(strstr(text, "\nhead_timeout = 10s\n"));
	ck_assert_ptr_nonnull(strstr(text, "\nmax_body_size = 512m\n"));
	ck_assert_ptr_nonnull(strstr(text, "\nadmin_socket_mode = 0660\n"));
	ck_assert_ptr_null(strstr(text, "[pool default prefill]"));
}
END_TEST

/* A role's section and a worker's hold only what they change. */
START_TEST(prints_no_inherited_key)
{
	scoped_free char *text = NULL;

	load_good("[pool default decode]\nbeta = 2\n[worker a]\nurl = http://h:1\n"
		  "stall_timeout = 5s\n");
	text = conf_print(conf);
	ck_assert_ptr_nonnull(
		strstr(text, "\n[pool default decode]\nbeta = 2\n\n[worker"));
	ck_assert_ptr_nonnull(strstr(text, "\nkv_group = none\nstall_timeout = 5s\n"));
	ck_assert_ptr_null(strstr(strstr(text, "[worker"), "health_path"));
}
END_TEST

static void diff_of(const char *was_text, const char *now_text, struct changes *out)
{
	struct conf *was;

	*out = (struct changes){0};
	load_good(was_text);
	was = conf_ref(conf);
	load_good(now_text);
	ck_assert_int_eq(conf_diff(was, conf, note_change, out), 0);
	conf_unref(was);
}

START_TEST(diff_lists_changes)
{
	struct changes c;

	diff_of("[router]\nthreads = 1\n" W "[worker b]\nurl = http://h:2\n",
		"[router]\nthreads = 2\nlog_level = debug\n" W "max_requests = 4\n"
		"stall_timeout = 5s\n[worker c]\nurl = http://h:3\n",
		&c);
	ck_assert_str_eq(c.text, "[router] threads: 1 -> 2 (restart)\n"
				 "[router] log_level: info -> debug\n"
				 "[worker b] (section): present -> absent\n"
				 "[worker a] max_requests: 0 -> 4\n"
				 "[worker a] stall_timeout: 60s -> 5s\n"
				 "[worker c] (section): absent -> present\n");
	/* a pool's change is said once, not again for its roles and workers */
	diff_of("[pool default]\n" W, "[pool default]\nstall_timeout = 5s\nbeta = 2\n" W,
		&c);
	ck_assert_str_eq(c.text, "[pool default] beta: 1 -> 2\n"
				 "[pool default] stall_timeout: 60s -> 5s\n");
	diff_of("[pool default]\n" W, "[pool default decode]\nbeta = 2\n" W, &c);
	ck_assert_str_eq(c.text, "[pool default decode] beta: 1 -> 2\n");
	diff_of("[pool a]\nmodels = x\n[pool default]\n" W, "[pool default]\n" W, &c);
	ck_assert_str_eq(c.text, "[pool a] (section): present -> absent\n");
	diff_of("[pool default]\n" W, "[pool a]\nmodels = x\n[pool default]\n" W, &c);
	ck_assert_str_eq(c.text, "[pool a] (section): absent -> present\n");
	diff_of("[pool a]\nmodels = x\n[pool default]\nmodels = y\n" W,
		"[pool default]\nmodels = y\n[pool a]\nmodels = x\n" W, &c);
	ck_assert_str_eq(c.text, "[pool a] (order): before -> after\n");
}
END_TEST

START_TEST(restart_keys_are_marked)
{
	static const char *const names[] = {"threads", "admin_socket", "metrics_listen",
		"hash_secret", "max_connections", "admin_socket_mode"};
	size_t n = 0;

	for (size_t i = 0; i < conf_keys_n; i++) {
		bool is_named = false;

		for (size_t j = 0; j < ARRAY_LEN(names); j++)
			is_named = is_named || strcmp(names[j], conf_keys[i].name) == 0;
		ck_assert_msg(
			is_named == conf_keys[i].needs_restart, "%s", conf_keys[i].name);
		n += conf_keys[i].needs_restart;
	}
	ck_assert_uint_eq(n, ARRAY_LEN(names));
}
END_TEST

/* The shipped file */

/* etc/kvsteer.conf, with `uncomment` the keys and sections in it brought to life. */
static char *read_shipped(bool uncomment)
{
	const char *source = getenv("srcdir");
	scoped_free char *path =
		xasprintf("%s/etc/kvsteer.conf", source != NULL ? source : ".");
	scoped_file FILE *f = fopen(path, "r");
	char *text = xcalloc(1, 65536), line[1024];

	ck_assert_msg(f != NULL, "%s (srcdir names its folder)", path);
	while (fgets(line, sizeof(line), f) != NULL) {
		bool is_dead = line[0] == '#' && line[1] != ' ' && line[1] != '#';

		strcat(text, line + (uncomment && is_dead));
	}
	return text;
}

START_TEST(shipped_file_says_the_defaults)
{
	scoped_free char *as_is = read_shipped(false), *alive = read_shipped(true);
	struct changes c;

	diff_of("[router]\n", as_is, &c);
	ck_assert_str_eq(c.text, "");
	ck_assert_ptr_nonnull(strstr(alive, "\nthreads = 0\n"));
	ck_assert_ptr_nonnull(strstr(alive, "\n[worker gpu1]\n"));
	diff_of("[worker gpu1]\nurl = http://127.0.0.1:8000\n", alive, &c);
	ck_assert_str_eq(c.text, "");
	ck_assert_uint_eq(errors.n, 0);
}
END_TEST

/* Secrets */

START_TEST(secrets_are_never_shown)
{
	static const char *const faulty[] = {
		"[router]\nadmin_key = HUSH HUSH\n" W,
		"[router]\nadmin_key = HUSH\nadmin_key = HUSH2\n" W,
		"[router]\nadmim_key = HUSH\n" W,
		"[router]\nworker_key = HUSH\n" W,
		"[pool default]\nhash_secret = HUSH\n" W,
		W "worker_key = HUSH\xc2\xa0\n",
		W "worker_key = \"HUSH\n",
		W "worker_key = \"HUSH\" HUSH\n",
		"[worker a]\nurl = http://u:HUSH@h:1\n",
		"[worker a]\nurl = u:HUSH@h:1\n",
	};
	struct changes c;

	for (size_t i = 0; i < ARRAY_LEN(faulty); i++) {
		ck_assert_msg(load(faulty[i]) == ERR_PARSE, "%s", faulty[i]);
		for (size_t j = 0; j < errors.n; j++) {
			scoped_free char *text = conf_error_text(&errors.items[j]);

			ck_assert_msg(strstr(text, "HUSH") == NULL, "%s", text);
		}
	}
	diff_of("[router]\nadmin_key = HUSH1\nhash_secret = HUSH2\n" W
		"worker_key = HUSH3\n",
		"[router]\nadmin_key = HUSH4\n" W "worker_key = HUSH5\n", &c);
	ck_assert_str_eq(c.text, "[router] admin_key: (set) -> (changed)\n"
				 "[router] hash_secret: (set) -> none (restart)\n"
				 "[worker a] worker_key: (set) -> (changed)\n");
	{
		scoped_free char *text = conf_print(conf);

		ck_assert_ptr_null(strstr(text, "HUSH"));
		ck_assert_ptr_nonnull(strstr(text, "\nadmin_key = (set)\n"));
		ck_assert_ptr_nonnull(strstr(text, "\nworker_key = (set)\n"));
		/* and a printed secret is not taken for the real one */
		ck_assert_int_eq(load(text), ERR_PARSE);
		ck_assert_uint_eq(errors.n_errors, 2);
	}
}
END_TEST

/* The admin API's worker */

START_TEST(makes_a_worker_for_the_api)
{
	struct conf_pair pairs[] = {{"url", "http://h:9/"}, {"role", "decode"},
		{"stall_timeout", "9s"}, {"models", "a"}, {"models", "b"}};
	struct worker_conf w, copy;

	load_good("[pool default decode]\nhealth_interval = 7s\nstall_timeout = 1s\n" W);
	ck_assert_int_eq(
		conf_worker_make(conf, "n", pairs, ARRAY_LEN(pairs), &errors, &w), 0);
	ck_assert_str_eq(w.name, "n");
	ck_assert_str_eq(w.url.text, "http://h:9");
	ck_assert_uint_eq(w.role, ROLE_DECODE);
	ck_assert_uint_eq(w.origin, ORIGIN_API);
	ck_assert_uint_eq(w.opts.health_interval_ms, 7000);
	ck_assert_uint_eq(w.opts.stall_timeout_ms, 9000);
	ck_assert_uint_eq(w.models.n, 2);
	ck_assert_int_eq(worker_conf_copy(&w, &copy), 0);
	worker_conf_free(&w);
	ck_assert_str_eq(copy.url.host_header, "h:9");
	ck_assert_str_eq(copy.opts.health_path, "/health");
	ck_assert_str_eq(copy.models.items[1], "b");
	worker_conf_free(&copy);
}
END_TEST

static const struct {
	struct conf_pair pairs[3];
	size_t n;
	const char *name, *key, *message;
} bad_workers[] = {
	{{{NULL, NULL}}, 0, "n", "url", "has no url"},
	{{{"url", "8001"}}, 1, "n", "url", "no scheme"},
	{{{"url", "https://h:1"}}, 1, "n", "url", "TLS"},
	{{{"url", "http://h:1"}, {"url", "http://h:2"}}, 2, "n", "url", "duplicate"},
	{{{"url", "http://h:1"}, {"pool", "x"}}, 2, "n", "pool", "no such pool"},
	{{{"url", "http://h:1"}, {"policy", "random"}}, 2, "n", "policy", "unknown key"},
	{{{"url", "http://h:1"}, {"dp_size", "0"}}, 2, "n", "dp_size", "range"},
	{{{"url", "http://h:1"}}, 1, "a/b", "name", "not a name"},
	{{{"url", "http://h:1"}}, 1, "", "name", "not a name"},
};

START_TEST(refuses_a_bad_worker_of_the_api)
{
	struct worker_conf w = {.name = (char *)0x1};

	load_good(W);
	ck_assert_int_eq(conf_worker_make(conf, bad_workers[_i].name,
				 bad_workers[_i].pairs, bad_workers[_i].n, &errors, &w),
		ERR_PARSE);
	ck_assert_ptr_eq(w.name, (char *)0x1);
	ck_assert_uint_eq(errors.n_errors, 1);
	ck_assert_ptr_null(errors.items[0].file);
	ck_assert_str_eq(errors.items[0].key, bad_workers[_i].key);
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, bad_workers[_i].message));
}
END_TEST

static TCase *make_case(const char *name)
{
	TCase *tc = tcase_create(name);

	tcase_add_checked_fixture(tc, set_up, tear_down);
	return tc;
}

static Suite *conf_suite(void)
{
	Suite *suite = suite_create("conf");
	TCase *faults = make_case("faults"), *values = make_case("values"),
	      *whole = make_case("whole"), *api = make_case("api");

	tcase_add_loop_test(faults, refuses_broken_files, 0, ARRAY_LEN(broken));
	tcase_add_test(faults, says_everything_in_one_line);
	tcase_add_test(faults, cuts_long_values_in_errors);
	tcase_add_test(faults, reports_unreadable_files);
	tcase_add_test(faults, secrets_are_never_shown);
	suite_add_tcase(suite, faults);
	tcase_add_test(values, defaults_are_those_of_the_contract);
	tcase_add_test(values, every_default_is_readable_and_prints_as_written);
	tcase_add_test(values, reads_units);
	tcase_add_test(values, reads_lists_and_none);
	tcase_add_test(values, reads_lists_of_statuses);
	tcase_add_test(values, reads_crlf_bom_utf8_and_quotes);
	tcase_add_test(values, takes_lines_of_64_kib);
	tcase_add_test(values, a5_role_keys_hold_with_an_inherited_policy);
	tcase_add_test(values, role_section_may_stand_before_its_pool);
	tcase_add_test(values, workers_inherit_from_pool_then_role);
	tcase_add_test(values, pools_are_made_for_workers_that_name_them);
	suite_add_tcase(suite, values);
	tcase_add_test(whole, warns_but_starts);
	tcase_add_test(whole, reads_conf_d_in_order);
	tcase_add_test(whole, a_later_file_replaces_what_former_ones_said);
	tcase_add_test(whole, one_file_may_not_set_a_key_twice);
	tcase_add_test(whole, print_reads_back);
	tcase_add_test(whole, prints_every_key);
	tcase_add_test(whole, prints_no_inherited_key);
	tcase_add_test(whole, diff_lists_changes);
	tcase_add_test(whole, restart_keys_are_marked);
	tcase_add_test(whole, shipped_file_says_the_defaults);
	suite_add_tcase(suite, whole);
	tcase_add_test(api, makes_a_worker_for_the_api);
	tcase_add_loop_test(
		api, refuses_a_bad_worker_of_the_api, 0, ARRAY_LEN(bad_workers));
	suite_add_tcase(suite, api);
	return suite;
}

UNIT_MAIN(conf_suite())
