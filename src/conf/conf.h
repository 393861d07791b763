/*
 * An immutable, reference-counted configuration: parsed from files and flags, validated
 * whole, printed, compared. Four key tables (router, pool, role, worker; conf_keys.h)
 * drive parser, defaults, ranges, -t, -T, the documentation check and the reload rules.
 * Nothing here opens a socket or asks the clock. Made by the control thread. Any thread
 * may read a conf to which it holds a reference.
 */
#ifndef CONF_CONF_H
#define CONF_CONF_H

#include "base/base.h"
#include "base/log.h"
#include "base/span.h"

struct conf_client_keys;

enum role { ROLE_UNIFIED, ROLE_PREFILL, ROLE_DECODE, ROLE_MAX };
const char *role_name(enum role role); /* "unified", "prefill", "decode" */

enum half_close { HALF_CLOSE_AUTO, HALF_CLOSE_ABORT, HALF_CLOSE_ALLOW };
enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

/*
 * The policies: id and name. The one list: of their kinds, of the words in configurations
 * and answers, and of policy.c's rows, whose hooks are policy_<name>. The rows that are X
 * may be another policy's fallback; the one that is Y has a fallback.
 */
/* clang-format off */
#define POLICY_TABLE(X, Y)                          \
	X(CACHE_AWARE, cache_aware)                 \
	X(LEAST_REQUESTS, least_requests)           \
	X(ROUND_ROBIN, round_robin)                 \
	X(RANDOM, random)                           \
	Y(PREFIX_AFFINITY, prefix_affinity)         \
	X(POWER_OF_TWO, power_of_two)               \
	X(CONSISTENT_HASH, consistent_hash)         \
	X(RENDEZVOUS_HASH, rendezvous_hash)         \
	X(STICKY_LEAST_LOADED, sticky_least_loaded)
/* clang-format on */

enum policy_kind {
#define X(id, name) POLICY_##id,
	POLICY_TABLE(X, X)
#undef X
		POLICY_KIND_MAX
};
/* Whose requests count as a worker's load. */
enum load_source { LOAD_SOURCE_OWN, LOAD_SOURCE_REPORTED };
/* The values are the rows in policy_cache_aware.c's tables. */
enum signal_kind {
	SIGNAL_LONGEST_PREFIX,
	SIGNAL_FIRST_BLOCK,
	SIGNAL_NONE,
	SIGNAL_KIND_MAX
};
enum cost_kind {
	COST_OVERLOAD_CHECK,
	COST_RELATIVE_LOAD,
	COST_FREE_CAPACITY,
	COST_PREFILL,
	COST_KIND_MAX
};

/* How prefill hands its KV to decode. CONNECTOR_NONE: not said, which counts as nixl. */
enum kv_connector {
	CONNECTOR_NONE,
	CONNECTOR_NIXL,
	CONNECTOR_NIXL_PUSH,
	CONNECTOR_MOONCAKE,
	CONNECTOR_P2P_NCCL,
	CONNECTOR_SGLANG,
	CONNECTOR_MAX
};

/* What becomes of KV transfer fields that a client sends to a pool of unified workers, and
 * of those in responses. */
enum kv_params { KV_PARAMS_STRIP, KV_PARAMS_PASS };

/* A list of strings, owned by the conf. */
struct conf_list {
	char **items;
	size_t n;
};

/* Statuses from STATUS_SET_FIRST on: one bit each. */
#define STATUS_SET_FIRST 400
#define STATUS_SET_LAST 599
struct status_set {
	uint64_t bits[4];
};

static inline bool status_set_has(const struct status_set *s, int status)
{
	unsigned i = (unsigned)status - STATUS_SET_FIRST;

	return i <= STATUS_SET_LAST - STATUS_SET_FIRST &&
	       (s->bits[i / 64] >> i % 64 & 1) != 0;
}

/* A word of listen: the address before it is for the PROXY protocol. */
#define CONF_LISTEN_PROXY "proxy_protocol"

/* [router]. Times in milliseconds (0: none), sizes in bytes. */
struct router_opts {
	/* process */
	unsigned threads;     /* 0: one for each core */
	char *metrics_listen; /* NULL: none */
	char *admin_socket;   /* NULL: none */
	unsigned admin_socket_mode;
	char *admin_key; /* NULL: none */
	enum log_level log_level;
	enum log_format log_format;
	bool access_log;
	bool watch_config;
	uint64_t drain_timeout_ms, drain_grace_ms;
	uint64_t body_memory;
	unsigned max_connections; /* 0: from the descriptor limit */
	char *hash_secret;        /* NULL: random for each boot */
	/* client side */
	/* "host:port", "[v6]:port", "unix:/path"; CONF_LISTEN_PROXY behind some */
	struct conf_list listen;
	char *tls_cert, *tls_key, *client_ca, *api_keys;
	struct conf_list pass_paths; /* exact raw paths added to the table, or "*" */
	bool pass_all;               /* pass_paths has "*" */
	uint64_t max_body_size;
	uint64_t head_timeout_ms, body_timeout_ms, keepalive_timeout_ms, write_timeout_ms,
		tls_handshake_timeout_ms;
	enum half_close half_close;
	unsigned queue_size;
	uint64_t queue_timeout_ms;
	unsigned max_concurrent_requests;
	bool expose_worker, allow_pin;
	struct conf_list routing_key_headers, priority_headers;
	struct conf_list trusted_proxies;                   /* CIDRs, "unix:" */
	struct conf_list request_headers, response_headers; /* header_rule.h */
	struct conf_list allow, deny;                       /* the same */
	struct conf_list cors_origins; /* "https://a.test"; a host may begin with "*." */
};

/* The options of a policy; one for each role of a pool. Plain numbers, copied by
 * value. */
struct policy_opts {
	enum policy_kind policy;
	enum signal_kind signal;
	enum cost_kind cost;
	double cache_threshold; /* fraction in [0, 1], strict > */
	unsigned balance_abs_threshold;
	double balance_rel_threshold;
	double beta, alpha, decode_weight, max_load_skew;
	unsigned affinity_hash_tokens;
	enum policy_kind affinity_fallback; /* never prefix_affinity */
	uint64_t session_ttl_ms;            /* 0: no end */
};

/* Defaults of the workers of a pool; a worker may override each. Plain values but for the
 * strings (owned by the conf). */
struct worker_opts {
	char *health_path;
	uint64_t health_interval_ms, health_timeout_ms;
	unsigned health_failures, health_successes;
	uint64_t stall_timeout_ms;
	double degraded_ratio;
	uint64_t degraded_window_ms, slow_start_ms;
	uint64_t connect_timeout_ms, first_byte_timeout_ms, stream_idle_timeout_ms,
		total_timeout_ms, upstream_idle_ms;
	unsigned retry_max_retries;
	struct status_set retry_on;
	unsigned retry_budget; /* per cent of recent requests */
	bool retry_same, hold_headers, resume_streams;
	uint64_t no_worker_wait_ms;
	bool last_resort;
	unsigned cb_failure_threshold, cb_success_threshold;
	unsigned cb_failure_ratio; /* per cent of what ended */
	bool cb_full_5xx;
	uint64_t cb_timeout_ms, cb_window_ms;
	struct conf_list worker_cidrs;
	char *tls_ca;
	bool tls_verify;
};

/* The pool's options for one role: its policy and the defaults of that role's workers. */
struct role_opts {
	struct policy_opts policy;
	unsigned prefix_block; /* bytes */
	bool short_prompts;
	uint64_t index_memory;
	uint64_t prefix_ttl_ms;
	enum load_source load_source;
	enum kv_connector kv_connector; /* the same for prefill and decode */
	enum kv_params kv_params;       /* of the pool, whatever its roles */
	unsigned pd_min_prefill;        /* uncached tokens; that of ROLE_DECODE counts */
	uint64_t max_prefill_response;  /* bytes; that of ROLE_PREFILL counts */
	struct worker_opts worker;
};

/* [pool NAME] and its [pool NAME prefill|decode] sections, resolved: roles[r] holds every
 * value that is in force for role r. */
struct pool_conf {
	char *name;
	struct conf_list models;  /* globs; none: all */
	struct conf_list aliases; /* "NAME=TARGET": conf_alias() */
	struct role_opts roles[ROLE_MAX];
	bool is_explicit; /* a section stood in a file (else made for the workers that
			     name it) */
};

/* A parsed worker URL (conf_url_parse). */
struct conf_url {
	char *text; /* normalised: scheme://host[:port][/base], or unix:/path */
	bool tls;
	char *host; /* without brackets; of a unix socket its path, with port 0 */
	uint16_t port;
	char *base;        /* "" or "/team-a", never a trailing slash */
	char *host_header; /* "w0.test", "[::1]:8001": what Host says */
};

static inline bool conf_url_is_unix(const struct conf_url *u)
{
	return u->host != NULL && u->host[0] == '/';
}
/* The name of a worker that is given by its URL alone: "host:port", or the last segment of
 * a socket's path. NULL: out of memory. */
char *conf_url_name(const struct conf_url *u);

enum worker_origin { ORIGIN_FILE, ORIGIN_FLAG, ORIGIN_API };

struct worker_conf {
	char *name;
	char *pool;
	struct conf_url url;
	enum role role;
	struct conf_list models; /* none: whatever the pool serves */
	unsigned max_requests;   /* 0: no cap */
	unsigned dp_size, dp_start_rank;
	uint64_t capacity; /* tokens; 0: learn */
	char *worker_key;
	unsigned bootstrap_port; /* 0: the connector's default */
	char *kv_group;          /* NULL equals NULL; pairs are of one group */
	struct worker_opts opts; /* every value in force */
	enum worker_origin origin;
};

/* Requests must name a rank of it, even where it has one only: other nodes have more. */
static inline bool worker_conf_has_ranks(const struct worker_conf *c)
{
	return c->dp_size > 1 || c->dp_start_rank > 0;
}

static inline bool worker_conf_has_rank(const struct worker_conf *c, uint64_t rank)
{
	return worker_conf_has_ranks(c) && rank >= c->dp_start_rank &&
	       rank - c->dp_start_rank < c->dp_size;
}

struct conf {
	_Atomic unsigned refs;
	struct router_opts router;
	struct pool_conf *pools; /* in file order; at least one ("default") */
	size_t n_pools, cap_pools;
	struct worker_conf *workers; /* in file order, names unique */
	size_t n_workers, cap_workers;
	bool by_flags_alone;       /* no file was read */
	struct conf_place *places; /* of the keys of [router]: conf_place() */
	size_t n_places, cap_places;
	struct conf_client_keys *client_keys; /* router.api_keys, read; NULL: not set */
};

/* One thing wrong. file NULL: the command line (key is the flag then) or the admin API.
 * All strings owned. */
struct conf_error {
	char *file;
	unsigned line;
	char *key;     /* may be NULL */
	char *value;   /* may be NULL; secrets are never quoted */
	char *message; /* what is wrong */
	char *hint;    /* the accepted value or the remedy; may be NULL */
	bool is_warning;
};

struct conf_errors {
	struct conf_error *items;
	size_t n, cap;
	size_t n_errors; /* the number of items that are not warnings */
	bool no_memory;  /* memory ran out; this counts as an error */
};
/* A fault or warning for which memory is short sets no_memory instead. */
void conf_errors_add(struct conf_errors *errors, const char *file, unsigned line,
	const char *key, const char *value, const char *hint, const char *fmt, ...)
	PRINTF_LIKE(7, 8);
/* The same, for a fault that does not prevent a start. */
void conf_warnings_add(struct conf_errors *errors, const char *file, unsigned line,
	const char *key, const char *value, const char *hint, const char *fmt, ...)
	PRINTF_LIKE(7, 8);
void conf_errors_no_memory(struct conf_errors *errors);
/* The i-th error or warning, "out of memory" last where memory ran out; NULL behind
 * it. */
const struct conf_error *conf_errors_at(const struct conf_errors *errors, size_t i);
/* The first one that is no warning, or NULL. */
const struct conf_error *conf_errors_first(const struct conf_errors *errors);
void conf_errors_free(struct conf_errors *errors);
/* "file:line: key = value: message; hint" (or "--flag value: message; hint") into out,
 * cut where it is longer than n. CONF_ERROR_TEXT_MAX is room for any. */
#define CONF_ERROR_TEXT_MAX 6144
void conf_error_print(const struct conf_error *e, char *out, size_t n);
/* The same as a new string; NULL when memory runs out. */
char *conf_error_text(const struct conf_error *e);

/*
 * The settings of the command line: the configuration file (or NULL), and pairs of a key
 * path and a value in order. Filled by conf_flags.c; kept by the daemon so that SIGHUP
 * applies it again.
 */
struct conf_flags;

/*
 * Reads path (may be NULL) and then the conf.d/ *.conf in its directory, sorted by name,
 * applies flags (may be NULL) over it, resolves inheritance, validates the whole. 0 and
 * *out with one reference; or ERR_PARSE or ERR_NOMEM and at least one error in *errors
 * (warnings may be there in all cases). Reads files, nothing else.
 */
int conf_load(const char *path, const struct conf_flags *flags,
	struct conf_errors *errors, struct conf **out) MUST_CHECK;
/*
 * The file (owned by c) and *line where [router] gives that key; where it is a list, the
 * line with that item. NULL and 0: in no file. item may be NULL.
 */
const char *conf_place(
	const struct conf *c, const char *key, const char *item, unsigned *line);
struct conf *conf_ref(struct conf *c);
void conf_unref(struct conf *c);

/* The effective configuration in file form (-T, GET config), secrets shown as "(set)"; a
 * new string. NULL when memory runs out. */
char *conf_print(const struct conf *c);

/*
 * Calls on_change(arg, "section", "key", old text, new text, needs_restart) for each
 * difference. A worker or pool that came or went is one call with the key "(section)" and
 * the texts "absent" and "present". Secrets are shown as "(set)", a changed one as
 * "(set)" and "(changed)". Nothing is called when the two are equal. ERR_NOMEM: memory
 * ran out, and some differences were not told.
 */
typedef void conf_change_fn(void *arg, const char *section, const char *key,
	const char *was, const char *now, bool needs_restart);
int conf_diff(const struct conf *was, const struct conf *now, conf_change_fn *fn,
	void *arg) MUST_CHECK;

/* http(s)://host[:port][/base]; ERR_PARSE or ERR_NOMEM and a static *why. IPv6 literals
 * in brackets; no userinfo, query, fragment. */
int conf_url_parse(struct span text, struct conf_url *out, const char **why) MUST_CHECK;
void conf_url_free(struct conf_url *u);
/* "host:port" or "[v6]:port" or ":port"; host is newly allocated. ERR_PARSE or ERR_NOMEM
 * and a static *why. */
int conf_hostport_parse(
	struct span text, char **host, uint16_t *port, const char **why) MUST_CHECK;

/*
 * One worker as the admin API gives it: resolves it against the pool's defaults.
 * key/value pairs are the [worker] keys. The result is owned by the caller
 * (worker_conf_free). ERR_PARSE or ERR_NOMEM and at least one error in *errors.
 */
struct conf_pair {
	const char *key;
	const char *value;
};
int conf_worker_make(const struct conf *c, const char *name,
	const struct conf_pair *pairs, size_t n, struct conf_errors *errors,
	struct worker_conf *out) MUST_CHECK;
void worker_conf_free(struct worker_conf *w);
/* A copy that owns its strings. ERR_NOMEM: *to holds nothing. */
int worker_conf_copy(const struct worker_conf *from, struct worker_conf *to) MUST_CHECK;

/* '*' and '?' globs, as in models. */
bool conf_glob(const char *pattern, struct span text);
/* The pool's models match. */
bool conf_pool_serves(const struct pool_conf *pool, struct span model);

/* One of a pool's aliases, which points into the item. */
struct conf_alias {
	struct span name, target;
};
struct conf_alias conf_alias(const char *item);

#endif
