/*
 * The types of configuration values: how a text is read into a field, and how a field is
 * printed, copied, compared and freed. One row per type; what is wrong is said without
 * quoting the value, since it may be a secret. Called by the other conf_*.c files through
 * conf_table.h.
 */
#include "base/cleanup.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_secret.h"
#include "conf/conf_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REAL_TEXT_MAX = 63 };

enum storage { STORE_PLAIN, STORE_STRING, STORE_LIST, STORE_URL };

/* value < 0: the name is known, but nothing stands behind it yet. */
struct choice {
	const char *name;
	int value;
};

struct type_row {
	const char *name;
	enum storage storage;
	size_t size; /* of a plain value */
	int (*read)(const struct conf_key *key, struct span text, void *field,
		struct conf_fault *fault);
	char *(*print)(
		const struct conf_key *key, const void *field); /* of a plain value */
	int (*check)(
		struct span text, struct conf_fault *fault); /* of a string or item */
	const struct choice *choices;                        /* ends in a NULL name */
};

static const struct type_row types[CONF_TYPE_MAX];

static const struct choice log_levels[] = {
	{"error", LOG_LEVEL_ERROR},
	{"warn", LOG_LEVEL_WARN},
	{"notice", LOG_LEVEL_NOTICE},
	{"info", LOG_LEVEL_INFO},
	{"debug", LOG_LEVEL_DEBUG},
	{NULL, 0},
};
static const struct choice log_formats[] = {
	{"text", LOG_FORMAT_TEXT},
	{"json", LOG_FORMAT_JSON},
	{NULL, 0},
};
static const struct choice half_closes[] = {
	{"auto", HALF_CLOSE_AUTO},
	{"abort", HALF_CLOSE_ABORT},
	{"allow", HALF_CLOSE_ALLOW},
	{NULL, 0},
};
static const struct choice roles[] = {
	{"unified", ROLE_UNIFIED},
	{"prefill", ROLE_PREFILL},
	{"decode", ROLE_DECODE},
	{NULL, 0},
};
/* clang-format off */
#define X(id, name) {#name, POLICY_##id},
#define NONE(id, name)
static const struct choice policies[] = {
	POLICY_TABLE(X, X)
	{"kv_aware", -1},
	{NULL, 0},
};
static const struct choice fallbacks[] = {
	POLICY_TABLE(X, NONE)
	{NULL, 0},
};
#undef X
#undef NONE
/* clang-format on */
static const struct choice signals[] = {
	{"longest_prefix", SIGNAL_LONGEST_PREFIX},
	{"first_block", SIGNAL_FIRST_BLOCK},
	{"none", SIGNAL_NONE},
	{NULL, 0},
};
static const struct choice costs[] = {
	{"overload_check", COST_OVERLOAD_CHECK},
	{"relative_load", COST_RELATIVE_LOAD},
	{"free_capacity", COST_FREE_CAPACITY},
	{"prefill_cost", COST_PREFILL},
	{NULL, 0},
};
static const struct choice connectors[] = {
	{"none", CONNECTOR_NONE},
	{"nixl", CONNECTOR_NIXL},
	{"mooncake", CONNECTOR_MOONCAKE},
	{"p2p_nccl", CONNECTOR_P2P_NCCL},
	{"sglang", CONNECTOR_SGLANG},
	{"nixl_push", CONNECTOR_NIXL_PUSH},
	{"moriio", -1},
	{NULL, 0},
};
static const struct choice kv_params[] = {
	{"strip", KV_PARAMS_STRIP},
	{"pass", KV_PARAMS_PASS},
	{NULL, 0},
};
static const struct choice load_sources[] = {
	{"own", LOAD_SOURCE_OWN},
	{"reported", LOAD_SOURCE_REPORTED},
	{NULL, 0},
};

/* Numbers */

static char *print_size(const struct conf_key *key UNUSED, const void *field);

static void print_bound(const struct conf_key *key, double bound, char *out, size_t n)
{
	double units[] = {3600000, 60000, 1000};

	if (key->type == CONF_TYPE_SIZE || key->type == CONF_TYPE_SIZE32) {
		uint64_t bytes = (uint64_t)bound;
		scoped_free char *text = print_size(key, &bytes);

		snprintf(out, n, "%s", text);
	} else if (key->type == CONF_TYPE_MODE) {
		snprintf(out, n, "%04o", (unsigned)bound);
	} else if (key->type != CONF_TYPE_TIME || bound == 0) {
		snprintf(out, n, "%.15g", bound);
	} else {
		snprintf(out, n, "%.0fms", bound);
		for (size_t i = 0; i < ARRAY_LEN(units); i++) {
			if (fmod(bound, units[i]) == 0) {
				snprintf(out, n, "%.0f%c", bound / units[i], "hms"[i]);
				break;
			}
		}
	}
}

static int check_range(const struct conf_key *key, double value, struct conf_fault *fault)
{
	char low[32], high[32];

	if (value >= key->min && value <= key->max)
		return 0;
	print_bound(key, key->min, low, sizeof(low));
	print_bound(key, key->max, high, sizeof(high));
	conf_fault_set(fault, "is out of range", "from %s to %s", low, high);
	return ERR_PARSE;
}

static int read_u64(const struct conf_key *key, struct span text, uint64_t *out,
	struct conf_fault *fault)
{
	int rc = span_to_u64(text, out);

	if (rc == ERR_RANGE)
		*out = UINT64_MAX;
	else if (rc != 0) {
		conf_fault_set(fault, "is not a whole number", "digits only, such as %s",
			key->def != NULL ? key->def : "1");
		return ERR_PARSE;
	}
	return check_range(key, (double)*out, fault);
}

static int read_count(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	uint64_t value;
	int rc = read_u64(key, text, &value, fault);

	if (rc == 0)
		*(unsigned *)field = (unsigned)value;
	return rc;
}

static int read_count64(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	uint64_t value;
	int rc = read_u64(key, text, &value, fault);

	if (rc == 0)
		*(uint64_t *)field = value;
	return rc;
}

static int read_percent(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	if (span_ends(text, SPAN_LIT("%")))
		text = span_trim(span_make(text.p, text.n - 1));
	if (read_count(key, text, field, fault) == 0)
		return 0;
	conf_fault_set(fault, "is not a percentage", "from 0%% to 100%%, such as 20%%");
	return ERR_PARSE;
}

static int read_mode(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	unsigned mode = 0;

	for (size_t i = 0; i < text.n; i++) {
		if (text.n > 5 || text.p[i] < '0' || text.p[i] > '7') {
			conf_fault_set(fault, "is not a file mode",
				"octal digits, such as 0660");
			return ERR_PARSE;
		}
		mode = mode * 8 + (unsigned)(text.p[i] - '0');
	}
	if (check_range(key, mode, fault) != 0)
		return ERR_PARSE;
	*(unsigned *)field = mode;
	return 0;
}

static int read_real(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	char copy[REAL_TEXT_MAX + 1] = "", *end = copy;
	double value = 0;

	if (text.n > 0 && text.n <= REAL_TEXT_MAX)
		memcpy(copy, text.p, text.n);
	/* strtod alone would take blanks, "inf", "nan" and hex. */
	if (strspn(copy, "0123456789.eE+-") == text.n && copy[0] != '+')
		value = strtod(copy, &end);
	if (text.n == 0 || text.n > REAL_TEXT_MAX || end != copy + text.n) {
		conf_fault_set(fault, "is not a number", "such as %s",
			key->def != NULL ? key->def : "0.5");
		return ERR_PARSE;
	}
	if (check_range(key, value, fault) != 0)
		return ERR_PARSE;
	*(double *)field = value == 0 ? 0 : value; /* no -0 */
	return 0;
}

static int read_time(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	const char *hint = "";
	uint64_t ms;
	int rc = conf_duration_ms(text, &ms, &hint);

	if (rc == ERR_RANGE)
		return check_range(key, INFINITY, fault);
	if (rc != 0) {
		bool is_bare = span_to_u64(text, &ms) != ERR_PARSE;

		conf_fault_set(
			fault, is_bare ? "has no unit" : "is not a time", "%s", hint);
		return ERR_PARSE;
	}
	if (check_range(key, (double)ms, fault) != 0)
		return ERR_PARSE;
	*(uint64_t *)field = ms;
	return 0;
}

static int read_size(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	const char *hint = "";
	uint64_t bytes;
	int rc = conf_size(text, &bytes, &hint);

	if (rc == ERR_RANGE)
		return check_range(key, INFINITY, fault);
	if (rc != 0) {
		conf_fault_set(fault, "is not a size", "%s", hint);
		return ERR_PARSE;
	}
	if (check_range(key, (double)bytes, fault) != 0)
		return ERR_PARSE;
	*(uint64_t *)field = bytes;
	return 0;
}

static int read_size32(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	uint64_t bytes;
	int rc = read_size(key, text, &bytes, fault);

	assert(key->max <= UINT32_MAX);
	if (rc == 0)
		*(unsigned *)field = (unsigned)bytes;
	return rc;
}

static int read_switch(const struct conf_key *key UNUSED, struct span text, void *field,
	struct conf_fault *fault)
{
	if (conf_bool(text, field) == 0)
		return 0;
	conf_fault_set(fault, "is neither on nor off", "on or off");
	return ERR_PARSE;
}

static int find_choice(
	const struct choice *all, struct span text, int *value, struct conf_fault *fault)
{
	const char *message = "is not known";
	char names[200] = "";
	size_t used = 0;

	for (const struct choice *c = all; c->name != NULL; c++) {
		if (span_is(text, c->name) && c->value >= 0) {
			*value = c->value;
			return 0;
		}
		if (span_is(text, c->name))
			message = "is not built yet";
		if (c->value >= 0 && used < sizeof(names))
			used += (size_t)snprintf(names + used, sizeof(names) - used,
				"%s%s", used > 0 ? ", " : "", c->name);
	}
	conf_fault_set(fault, message, "available: %s", names);
	return ERR_PARSE;
}

static int read_choice(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	return find_choice(types[key->type].choices, text, field, fault);
}

static char *print_count(const struct conf_key *key UNUSED, const void *field)
{
	return mem_format("%u", *(const unsigned *)field);
}

static char *print_count64(const struct conf_key *key UNUSED, const void *field)
{
	return mem_format("%llu", (unsigned long long)*(const uint64_t *)field);
}

static char *print_percent(const struct conf_key *key UNUSED, const void *field)
{
	return mem_format("%u%%", *(const unsigned *)field);
}

static char *print_mode(const struct conf_key *key UNUSED, const void *field)
{
	return mem_format("%04o", *(const unsigned *)field);
}

/* The shortest digits that read back as the same number. */
static char *print_real(const struct conf_key *key UNUSED, const void *field)
{
	double value = *(const double *)field;
	char text[40];

	for (int digits = 1; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	return strdup(text);
}

static char *print_time(const struct conf_key *key UNUSED, const void *field)
{
	unsigned long long ms = *(const uint64_t *)field;

	if (ms == 0)
		return strdup("0");
	if (ms % 1000 != 0)
		return mem_format("%llums", ms);
	return mem_format("%llus", ms / 1000);
}

static char *print_size(const struct conf_key *key UNUSED, const void *field)
{
	static const char *const units[] = {"", "k", "m", "g"};
	unsigned long long bytes = *(const uint64_t *)field;
	size_t unit = 0;

	while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
		bytes /= 1024;
		unit++;
	}
	return mem_format("%llu%s", bytes, units[unit]);
}

static char *print_size32(const struct conf_key *key, const void *field)
{
	uint64_t bytes = *(const unsigned *)field;

	return print_size(key, &bytes);
}

static char *print_switch(const struct conf_key *key UNUSED, const void *field)
{
	return strdup(*(const bool *)field ? "on" : "off");
}

static char *print_choice(const struct conf_key *key, const void *field)
{
	for (const struct choice *c = types[key->type].choices; c->name != NULL; c++)
		if (c->value == *(const int *)field)
			return strdup(c->name);
	assert(!"a choice outside its table");
	return NULL;
}

/* Strings and lists */

/* "none" unsets what may be unset; the types that must have a value take it as any other
 * word. */
static bool is_none(const struct conf_key *key, struct span text)
{
	return span_is(text, "none") && key->type != CONF_TYPE_TARGET &&
	       !(key->type == CONF_TYPE_NAME && key->def != NULL);
}

static bool read_status(struct span word, struct status_set *to)
{
	uint64_t status, i;

	if (span_to_u64(word, &status) != 0 || status < STATUS_SET_FIRST ||
		status > STATUS_SET_LAST)
		return false;
	i = status - STATUS_SET_FIRST;
	to->bits[i / 64] |= UINT64_C(1) << i % 64;
	return true;
}

static int read_statuses(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	struct status_set all = *(struct status_set *)field;
	struct span word;

	if (is_none(key, span_trim(text))) {
		*(struct status_set *)field = (struct status_set){{0}};
		return 0;
	}
	while (span_next_word(&text, &word)) {
		if (read_status(word, &all))
			continue;
		conf_fault_set(fault, "is not a list of error statuses",
			"from %d to %d, separated by blanks, such as 502 503; or none",
			STATUS_SET_FIRST, STATUS_SET_LAST);
		return ERR_PARSE;
	}
	*(struct status_set *)field = all;
	return 0;
}

static char *print_statuses(const struct conf_key *key UNUSED, const void *field)
{
	char text[4 * (STATUS_SET_LAST - STATUS_SET_FIRST + 1) + 1] = "none";
	size_t used = 0;

	for (int status = STATUS_SET_FIRST; status <= STATUS_SET_LAST; status++) {
		if (status_set_has(field, status))
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d",
				used > 0 ? " " : "", status);
	}
	return strdup(text);
}

static bool all_in(struct span text, const char *marks)
{
	for (size_t i = 0; i < text.n; i++) {
		unsigned char c = (unsigned char)text.p[i];
		bool is_alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
				(c >= 'a' && c <= 'z');

		if (!is_alnum && (c == 0 || strchr(marks, c) == NULL))
			return false;
	}
	return true;
}

int conf_name_check(struct span text, struct conf_fault *fault)
{
	if (text.n > 0 && text.n <= 128 && all_in(text, "._-:@"))
		return 0;
	conf_fault_set(fault, text.n > 128 ? "is too long" : "is not a name",
		"letters, digits and . _ - : @, up to 128");
	return ERR_PARSE;
}

static int check_text(struct span text UNUSED, struct conf_fault *fault UNUSED)
{
	return 0;
}

/* The characters that a header line may have after "Bearer ". */
static int check_token(struct span text, struct conf_fault *fault)
{
	for (size_t i = 0; i < text.n; i++) {
		if (text.p[i] <= ' ' || text.p[i] >= 0x7f) {
			conf_fault_set(fault, "cannot be sent in a header",
				"printable ASCII without blanks");
			return ERR_PARSE;
		}
	}
	return 0;
}

static int check_target(struct span text, struct conf_fault *fault)
{
	struct conf_fault unused;

	if (text.n > 0 && text.p[0] == '/' && check_token(text, &unused) == 0 &&
		memchr(text.p, '#', text.n) == NULL)
		return 0;
	conf_fault_set(
		fault, "is not a path", "begin with /, such as /health; no blanks");
	return ERR_PARSE;
}

static int check_pass_path(struct span text, struct conf_fault *fault)
{
	struct conf_fault unused;

	if (span_is(text, "*"))
		return 0;
	if (check_target(text, &unused) == 0 && memchr(text.p, '*', text.n) == NULL &&
		memchr(text.p, '?', text.n) == NULL)
		return 0;
	conf_fault_set(fault, "is not an exact path",
		"such as /v1/audio/speech, without query or wildcard; * alone for every "
		"path");
	return ERR_PARSE;
}

static int check_address(struct span text, struct conf_fault *fault)
{
	scoped_free char *host = NULL;
	uint16_t port;

	return conf_hostport_read(text, &host, &port, fault);
}

int conf_header_name_check(struct span text, struct conf_fault *fault)
{
	if (text.n > 0 && text.n <= 128 && all_in(text, "!#$%&'*+-.^_`|~"))
		return 0;
	conf_fault_set(fault, "is not a header name",
		"such as X-Session-Id; separate names by blanks");
	return ERR_PARSE;
}

/* As browsers send it: scheme://host[:port], of which the host may begin with "*.". */
static int check_origin(struct span text, struct conf_fault *fault)
{
	const char *mark = text.n > 3 ? memmem(text.p, text.n, "://", 3) : NULL;
	struct span scheme, host;

	if (span_is(text, "*"))
		return 0;
	if (mark != NULL) {
		scheme = span_make(text.p, (size_t)(mark - text.p));
		host = span_make(mark + 3, text.n - scheme.n - 3);
		if (span_starts(host, SPAN_LIT("*.")))
			host = span_make(host.p + 2, host.n - 2);
		if (scheme.n > 0 && all_in(scheme, "+-.") && host.n > 0 &&
			text.n <= 255 && all_in(host, "-._:[]") && host.p[0] != '.')
			return 0;
	}
	conf_fault_set(fault, "is not an origin",
		"such as https://chat.example.com or https://*.example.com, without a "
		"path; * alone for every page");
	return ERR_PARSE;
}

static int check_glob(struct span text, struct conf_fault *fault)
{
	if (memchr(text.p, ',', text.n) == NULL && text.n <= 256)
		return 0;
	conf_fault_set(fault, "is not a model pattern",
		"separate patterns by blanks, not commas");
	return ERR_PARSE;
}

static int read_string(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	char **out = field;
	bool unset = is_none(key, text);
	int rc = unset ? 0 : types[key->type].check(text, fault);
	char *copy = NULL;

	if (rc != 0)
		return rc;
	if (!unset && key->max > 0 && (double)text.n > key->max) {
		conf_fault_set(fault, "is too long", "up to %.0f characters", key->max);
		return ERR_PARSE;
	}
	if (!unset && (copy = span_dup(text)) == NULL)
		return conf_fault_no_memory(fault);
	free(*out);
	*out = copy;
	return 0;
}

static int add_to_list(struct conf_list *list, struct span item)
{
	char **items = realloc(list->items, (list->n + 1) * sizeof(*items));

	if (items == NULL)
		return ERR_NOMEM;
	list->items = items;
	items[list->n] = span_dup(item);
	if (items[list->n] == NULL)
		return ERR_NOMEM;
	list->n++;
	return 0;
}

/* Drops what stands behind the first n items. */
static void cut_list(struct conf_list *list, size_t n)
{
	while (list->n > n)
		free(list->items[--list->n]);
}

static void clear_list(struct conf_list *list)
{
	cut_list(list, 0);
	free(list->items);
	*list = (struct conf_list){NULL, 0};
}

static int read_list(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	struct conf_list *list = field;
	struct span rest = text, word;
	size_t before = list->n;
	int rc = 0;

	if (is_none(key, span_trim(text))) {
		clear_list(list);
		return 0;
	}
	while (rc == 0 && span_next_word(&rest, &word))
		rc = types[key->type].check(word, fault);
	if (rc != 0)
		return rc;
	rest = text;
	while (span_next_word(&rest, &word)) {
		if (add_to_list(list, word) == 0)
			continue;
		cut_list(list, before);
		return conf_fault_no_memory(fault);
	}
	return 0;
}

/* One item, of the whole text. */
static int read_rule(const struct conf_key *key, struct span text, void *field,
	struct conf_fault *fault)
{
	struct conf_list *list = field;
	size_t before = list->n;
	int rc;

	if (is_none(key, span_trim(text))) {
		clear_list(list);
		return 0;
	}
	rc = types[key->type].check(text, fault);
	if (rc != 0)
		return rc;
	if (add_to_list(list, span_trim(text)) == 0)
		return 0;
	cut_list(list, before);
	return conf_fault_no_memory(fault);
}

static int copy_list(const struct conf_list *from, struct conf_list *to)
{
	*to = (struct conf_list){NULL, 0};
	for (size_t i = 0; i < from->n; i++) {
		if (add_to_list(to, span_str(from->items[i])) == 0)
			continue;
		clear_list(to);
		return ERR_NOMEM;
	}
	return 0;
}

static int read_url(const struct conf_key *key UNUSED, struct span text, void *field,
	struct conf_fault *fault)
{
	struct conf_url *out = field, url;
	int rc = conf_url_read(text, &url, fault);

	if (rc != 0)
		return rc;
	conf_url_free(out);
	*out = url;
	return 0;
}

static char *print_list(const struct conf_list *list)
{
	size_t size = 1, used = 0;
	char *text;

	if (list->n == 0)
		return strdup("none");
	for (size_t i = 0; i < list->n; i++)
		size += strlen(list->items[i]) + 1;
	text = malloc(size);
	if (text == NULL)
		return NULL;
	for (size_t i = 0; i < list->n; i++)
		used += (size_t)snprintf(text + used, size - used, "%s%s",
			i > 0 ? " " : "", list->items[i]);
	return text;
}

/* clang-format off */
#define PLAIN(type, read, print) STORE_PLAIN, sizeof(type), read, print, NULL
#define CHOICE(table) STORE_PLAIN, sizeof(int), read_choice, print_choice, NULL, table
#define STRING(check) STORE_STRING, sizeof(char *), read_string, NULL, check, NULL
#define RULES(check) STORE_LIST, sizeof(struct conf_list), read_rule, NULL, check, NULL
#define LIST(check) STORE_LIST, sizeof(struct conf_list), read_list, NULL, check, NULL

static const struct type_row types[CONF_TYPE_MAX] = {
	[CONF_TYPE_COUNT] = { "number", PLAIN(unsigned, read_count, print_count), NULL },
	[CONF_TYPE_COUNT64] = { "number", PLAIN(uint64_t, read_count64, print_count64), NULL },
	[CONF_TYPE_MODE] = { "octal mode", PLAIN(unsigned, read_mode, print_mode), NULL },
	[CONF_TYPE_PERCENT] = { "percentage", PLAIN(unsigned, read_percent, print_percent), NULL },
	[CONF_TYPE_REAL] = { "fraction", PLAIN(double, read_real, print_real), NULL },
	[CONF_TYPE_TIME] = { "time", PLAIN(uint64_t, read_time, print_time), NULL },
	[CONF_TYPE_SIZE] = { "size", PLAIN(uint64_t, read_size, print_size), NULL },
	[CONF_TYPE_SIZE32] = { "size", PLAIN(unsigned, read_size32, print_size32), NULL },
	[CONF_TYPE_SWITCH] = { "on or off", PLAIN(bool, read_switch, print_switch), NULL },
	[CONF_TYPE_LOG_LEVEL] = { "word", CHOICE(log_levels) },
	[CONF_TYPE_LOG_FORMAT] = { "word", CHOICE(log_formats) },
	[CONF_TYPE_HALF_CLOSE] = { "word", CHOICE(half_closes) },
	[CONF_TYPE_ROLE] = { "word", CHOICE(roles) },
	[CONF_TYPE_POLICY] = { "word", CHOICE(policies) },
	[CONF_TYPE_FALLBACK] = { "word", CHOICE(fallbacks) },
	[CONF_TYPE_SIGNAL] = { "word", CHOICE(signals) },
	[CONF_TYPE_COST] = { "word", CHOICE(costs) },
	[CONF_TYPE_CONNECTOR] = { "word", CHOICE(connectors) },
	[CONF_TYPE_KV_PARAMS] = { "word", CHOICE(kv_params) },
	[CONF_TYPE_LOAD_SOURCE] = { "word", CHOICE(load_sources) },
	[CONF_TYPE_TEXT] = { "text", STRING(check_text) },
	[CONF_TYPE_TOKEN] = { "key", STRING(check_token) },
	[CONF_TYPE_NAME] = { "name", STRING(conf_name_check) },
	[CONF_TYPE_PATH] = { "file", STRING(check_text) },
	[CONF_TYPE_TARGET] = { "path", STRING(check_target) },
	[CONF_TYPE_ADDRESS] = { "address", STRING(check_address) },
	[CONF_TYPE_URL] = { "URL", STORE_URL, sizeof(struct conf_url), read_url, NULL, NULL, NULL },
	[CONF_TYPE_ADDRESSES] = { "list of addresses", LIST(conf_listen_check) },
	[CONF_TYPE_PATHS] = { "list of paths", LIST(check_pass_path) },
	[CONF_TYPE_HEADERS] = { "list of header names", LIST(conf_header_name_check) },
	[CONF_TYPE_GLOBS] = { "list of patterns", LIST(check_glob) },
	[CONF_TYPE_CIDRS] = { "list of networks", LIST(conf_cidr_check) },
	[CONF_TYPE_PEERS] = { "list of networks", LIST(conf_peer_check) },
	[CONF_TYPE_ORIGINS] = { "list of origins", LIST(check_origin) },
	[CONF_TYPE_ALIASES] = { "list of aliases", LIST(conf_alias_check) },
	[CONF_TYPE_REQUEST_RULES] = { "rule", RULES(conf_request_rule_check) },
	[CONF_TYPE_RESPONSE_RULES] = { "rule", RULES(conf_response_rule_check) },
	[CONF_TYPE_STATUSES] = { "list of statuses", PLAIN(struct status_set, read_statuses, print_statuses), NULL },
};
/* clang-format on */

static void *field_of(const struct conf_key *key, const void *base)
{
	return (char *)(uintptr_t)base + key->offset;
}

const char *conf_type_name(enum conf_type type)
{
	return types[type].name;
}

static int refuse_value(
	const struct conf_key *key, struct span text, struct conf_fault *fault)
{
	if (text.n == 0) {
		conf_fault_set(fault, "has no value", "%s",
			key->def == NULL ? "write none, or leave the line out"
					 : "give one, or leave the line out");
		return ERR_PARSE;
	}
	if (key->is_secret && span_is(text, "(set)")) {
		conf_fault_set(fault,
			"is the placeholder that kvsteerd -T prints, not a secret",
			"replace it by the secret");
		return ERR_PARSE;
	}
	return 0;
}

static int set_from_elsewhere(const struct conf_key *key, void *base, struct span text,
	struct conf_fault *fault)
{
	char *secret;
	int rc = conf_secret_read(text, &secret, fault);

	if (rc != 0)
		return rc;
	rc = types[key->type].read(key, span_str(secret), field_of(key, base), fault);
	mem_wipe(secret, strlen(secret));
	free(secret);
	return rc;
}

int conf_value_set(const struct conf_key *key, void *base, struct span text,
	struct conf_fault *fault)
{
	int rc = refuse_value(key, text, fault);

	if (rc == 0 && key->is_secret && conf_secret_is_elsewhere(text))
		return set_from_elsewhere(key, base, text, fault);
	return rc != 0 ? rc
		       : types[key->type].read(key, text, field_of(key, base), fault);
}

int conf_value_check(
	const struct conf_key *key, struct span text, struct conf_fault *fault)
{
	union {
		char *string;
		struct conf_list list;
		struct conf_url url;
		uint64_t number;
		double real;
		struct status_set statuses;
	} scratch;
	struct conf_key moved = *key;
	int rc;

	memset(&scratch, 0, sizeof(scratch));
	moved.offset = 0;
	rc = conf_value_set(&moved, &scratch, text, fault);
	conf_value_clear(&moved, &scratch);
	return rc;
}

void conf_value_clear(const struct conf_key *key, void *base)
{
	void *field = field_of(key, base);
	char **string = field;

	switch (types[key->type].storage) {
	case STORE_PLAIN:
		memset(field, 0, types[key->type].size);
		break;
	case STORE_STRING:
		if (*string != NULL && key->is_secret)
			mem_wipe(*string, strlen(*string));
		free(*string);
		*string = NULL;
		break;
	case STORE_LIST:
		clear_list(field);
		break;
	case STORE_URL:
		conf_url_free(field);
		break;
	}
}

int conf_value_copy(const struct conf_key *key, const void *from, void *to)
{
	const void *source = field_of(key, from);
	void *target = field_of(key, to);
	char *const *string = source;
	char *copy = NULL;

	switch (types[key->type].storage) {
	case STORE_PLAIN:
		memcpy(target, source, types[key->type].size);
		return 0;
	case STORE_STRING:
		if (*string != NULL)
			copy = strdup(*string);
		*(char **)target = copy;
		return *string != NULL && copy == NULL ? ERR_NOMEM : 0;
	case STORE_LIST:
		return copy_list(source, target);
	case STORE_URL:
		return conf_url_copy(source, target);
	}
	return 0;
}

static bool equal_lists(const struct conf_list *a, const struct conf_list *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->items[i], b->items[i]) != 0)
			return false;
	return true;
}

static bool equal_strings(const char *a, const char *b)
{
	return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool conf_value_equal(const struct conf_key *key, const void *a, const void *b)
{
	const void *left = field_of(key, a), *right = field_of(key, b);

	switch (types[key->type].storage) {
	case STORE_PLAIN:
		return memcmp(left, right, types[key->type].size) == 0;
	case STORE_STRING:
		return equal_strings(*(char *const *)left, *(char *const *)right);
	case STORE_LIST:
		return equal_lists(left, right);
	case STORE_URL:
		return equal_strings(((const struct conf_url *)left)->text,
			((const struct conf_url *)right)->text);
	}
	return false;
}

char *conf_value_text(const struct conf_key *key, const void *base)
{
	const void *field = field_of(key, base);
	const char *text = NULL;

	switch (types[key->type].storage) {
	case STORE_PLAIN:
		return types[key->type].print(key, field);
	case STORE_LIST:
		return print_list(field);
	case STORE_STRING:
		text = *(char *const *)field;
		break;
	case STORE_URL:
		text = ((const struct conf_url *)field)->text;
		break;
	}
	return strdup(text != NULL ? text : "none");
}

char *conf_value_shown(const struct conf_key *key, const void *base)
{
	if (key->is_secret && *(char *const *)field_of(key, base) != NULL)
		return strdup("(set)");
	return conf_value_text(key, base);
}
