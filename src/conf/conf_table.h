/*
 * The keys as data: what exists in which section, and how one value is read, printed,
 * copied, compared. Reads and writes fields of the structs in conf.h by offset; knows no
 * file and no command line. Called by the conf_*.c files and by tests; nobody else.
 */
#ifndef CONF_CONF_TABLE_H
#define CONF_CONF_TABLE_H

#include "base/base.h"
#include "base/span.h"
#include "conf/conf.h"

/* The struct that holds a key's value. */
enum conf_base {
	CONF_BASE_ROUTER, /* struct router_opts */
	CONF_BASE_POOL,   /* struct pool_conf */
	CONF_BASE_ROLE,   /* struct role_opts, without its worker member */
	CONF_BASE_OPTS,   /* struct worker_opts */
	CONF_BASE_WORKER  /* struct worker_conf, without its opts member */
};

enum conf_section_kind {
	SECTION_ROUTER,
	SECTION_POOL,
	SECTION_POOL_ROLE,
	SECTION_WORKER
};

enum conf_type {
	CONF_TYPE_COUNT,
	CONF_TYPE_COUNT64,
	CONF_TYPE_MODE,
	CONF_TYPE_PERCENT,
	CONF_TYPE_REAL,
	CONF_TYPE_TIME,
	CONF_TYPE_SIZE,
	CONF_TYPE_SIZE32, /* in an unsigned */
	CONF_TYPE_SWITCH,
	CONF_TYPE_LOG_LEVEL,
	CONF_TYPE_LOG_FORMAT,
	CONF_TYPE_HALF_CLOSE,
	CONF_TYPE_ROLE,
	CONF_TYPE_POLICY,
	CONF_TYPE_FALLBACK,
	CONF_TYPE_SIGNAL,
	CONF_TYPE_COST,
	CONF_TYPE_CONNECTOR,
	CONF_TYPE_KV_PARAMS,
	CONF_TYPE_LOAD_SOURCE,
	CONF_TYPE_TEXT,
	CONF_TYPE_TOKEN,
	CONF_TYPE_NAME,
	CONF_TYPE_PATH,
	CONF_TYPE_TARGET,
	CONF_TYPE_ADDRESS,
	CONF_TYPE_URL,
	CONF_TYPE_ADDRESSES,
	CONF_TYPE_PATHS,
	CONF_TYPE_HEADERS,
	CONF_TYPE_GLOBS,
	CONF_TYPE_CIDRS,
	CONF_TYPE_PEERS,
	CONF_TYPE_ORIGINS,
	CONF_TYPE_ALIASES,
	CONF_TYPE_REQUEST_RULES, /* an item is a whole line */
	CONF_TYPE_RESPONSE_RULES,
	CONF_TYPE_STATUSES, /* in a struct status_set */
	CONF_TYPE_MAX
};

struct conf_key {
	const char *name;
	enum conf_base base;
	enum conf_type type;
	size_t offset;
	const char *def; /* NULL: not set */
	double min, max;
	bool needs_restart;
	bool is_secret;
	const char *doc;
};

extern const struct conf_key conf_keys[];
extern const size_t conf_keys_n;
/* The rows of --dump-tables, in the order of the manual. */
void conf_dump_keys(void);

/* The fault of a value, without quoting it. hint may be "". */
struct conf_fault {
	char message[160];
	char hint[256];
};
void conf_fault_set(struct conf_fault *fault, const char *message, const char *hint_fmt,
	...) PRINTF_LIKE(3, 4);
/* Memory ran out while the value was read; ERR_NOMEM. */
int conf_fault_no_memory(struct conf_fault *fault);

/* The key of that name in that kind of section, or NULL. */
const struct conf_key *conf_key_find(enum conf_section_kind kind, struct span name);
bool conf_key_in(const struct conf_key *key, enum conf_section_kind kind);
/* The hint for an unknown key: its section, the likely spelling, or the manual. The text
 * is static or `out`. */
const char *conf_key_hint(
	enum conf_section_kind kind, struct span name, char *out, size_t n);
bool conf_key_is_list(const struct conf_key *key);
const char *conf_section_form(enum conf_section_kind kind); /* "[pool NAME]" */

/*
 * Reads text into the key's field of `base`. A list gains the items; anything else is
 * replaced. ERR_PARSE or ERR_NOMEM and *fault otherwise, and the field as it was.
 */
int conf_value_set(const struct conf_key *key, void *base, struct span text,
	struct conf_fault *fault) MUST_CHECK;
/* 0 when text could be read, else what conf_value_set returns; no field is needed. */
int conf_value_check(const struct conf_key *key, struct span text,
	struct conf_fault *fault) MUST_CHECK;
/* Frees what the field holds and zeroes it. */
void conf_value_clear(const struct conf_key *key, void *base);
/* Overwrites without freeing. ERR_NOMEM: the field holds nothing. */
int conf_value_copy(const struct conf_key *key, const void *from, void *to) MUST_CHECK;
bool conf_value_equal(const struct conf_key *key, const void *a, const void *b);
/* The value as in a file ("none" if it is not set), unquoted; a new string, or
 * NULL when memory runs out. Secrets too. */
char *conf_value_text(const struct conf_key *key, const void *base);
/* conf_value_text, but "(set)" for a secret that is set. */
char *conf_value_shown(const struct conf_key *key, const void *base);
/* "time", "size", ... as the manual names the type. */
const char *conf_type_name(enum conf_type type);

/* All keys of a base at once. The structs that are filled must be zeroed before.
 * ERR_NOMEM: what was filled is to be cleared. */
int conf_base_defaults(enum conf_base which, void *base) MUST_CHECK;
int conf_base_copy(enum conf_base which, const void *from, void *to) MUST_CHECK;
void conf_base_clear(enum conf_base which, void *base);

/* conf_url_parse and conf_hostport_parse with hints; and the other address checks
 * (conf_url.c). */
int conf_url_read(
	struct span text, struct conf_url *out, struct conf_fault *fault) MUST_CHECK;
int conf_url_copy(const struct conf_url *from, struct conf_url *to) MUST_CHECK;
int conf_hostport_read(struct span text, char **host, uint16_t *port,
	struct conf_fault *fault) MUST_CHECK;
/* A rule of request_header or response_header (header_rule.h). All of one key are at most
 * 64, of 3072 bytes. */
#define CONF_HEADER_RULE_MAX 1024
#define CONF_HEADER_RULES_MAX 64
#define CONF_HEADER_RULES_BYTES 3072
int conf_request_rule_check(struct span text, struct conf_fault *fault) MUST_CHECK;
int conf_response_rule_check(struct span text, struct conf_fault *fault) MUST_CHECK;
int conf_header_name_check(struct span text, struct conf_fault *fault) MUST_CHECK;
/* A word of listen: such an address, "unix:/path", or CONF_LISTEN_PROXY. */
int conf_listen_check(struct span text, struct conf_fault *fault) MUST_CHECK;
/* "10.0.0.0/8", "fd00::/8", or an address alone; bits beyond the prefix must be zero. */
int conf_cidr_check(struct span text, struct conf_fault *fault) MUST_CHECK;
/* Such a network, or "unix:": who comes by a unix socket. */
int conf_peer_check(struct span text, struct conf_fault *fault) MUST_CHECK;

/* NAME=TARGET, two names of models. */
int conf_alias_check(struct span text, struct conf_fault *fault) MUST_CHECK;

/* By name, or NULL. */
const struct pool_conf *conf_pool_find(const struct conf *c, const char *name);

/* A name of a worker or pool: letters, digits and . _ - : @, up to 128. */
int conf_name_check(struct span text, struct conf_fault *fault) MUST_CHECK;

#endif
