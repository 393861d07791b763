/*
 * The file of client keys, line by line. See conf_client_keys.h.
 *
 * An error names a line by its number and never quotes it, because a user may have put a
 * key where its SHA-256 belongs.
 */
#include "conf/conf_client_keys.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/file.h"
#include "base/limit.h"
#include "base/mem.h"
#include "conf/conf.h"
#include "conf/conf_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_MAX_BYTES = 64 << 20, REQUESTS_MAX = 1000000, FAULTS_TOLD_MAX = 20 };

static const char form[] = "SHA256-HEX TENANT [priority=high|normal|low] "
			   "[max_requests=N] [rate=N/s|N/m] [cache_group=NAME]";

/* One line as it was read. Spans point into the file's text. */
struct key_line {
	struct conf_client_key key;
	unsigned number;
	struct span tenant, cache_group;
	bool has_max, has_rate;
	unsigned max_requests, rate, rate_period_ms;
};

struct key_reader {
	const char *file;
	struct conf_errors *errors;
	size_t faults; /* of this file */
	struct key_line *lines;
	size_t n, cap;
};

/* Nobody reads more of them than a few. */
static void report(struct key_reader *r, unsigned line, const char *key, const char *hint,
	const char *message)
{
	r->faults++;
	if (r->faults <= FAULTS_TOLD_MAX)
		conf_errors_add(r->errors, r->file, line, key, NULL, hint, "%s", message);
	else if (r->faults == FAULTS_TOLD_MAX + 1)
		conf_errors_add(r->errors, r->file, line, NULL, NULL, NULL,
			"there are more errors in this file");
}

static void no_memory(struct key_reader *r)
{
	r->faults++;
	conf_errors_no_memory(r->errors);
}

/* ---- a line ---- */

static bool read_number(struct span text, uint64_t min, uint64_t max, unsigned *out)
{
	uint64_t n;

	if (span_to_u64(text, &n) != 0 || n < min || n > max)
		return false;
	*out = (unsigned)n;
	return true;
}

static const char *take_priority(struct span value, struct key_line *l)
{
	static const char *const words[] = {
		[KEY_PRIORITY_HIGH] = "high",
		[KEY_PRIORITY_NORMAL] = "normal",
		[KEY_PRIORITY_LOW] = "low",
	};

	for (int i = KEY_PRIORITY_HIGH; i <= KEY_PRIORITY_LOW; i++) {
		if (span_is(value, words[i])) {
			l->key.priority = (enum key_priority)i;
			return NULL;
		}
	}
	return "high, normal or low";
}

static const char *take_max_requests(struct span value, struct key_line *l)
{
	l->has_max = true;
	return read_number(value, 0, REQUESTS_MAX, &l->max_requests)
		       ? NULL
		       : "a number up to 1000000; 0: no limit";
}

static const char *take_rate(struct span value, struct key_line *l)
{
	static const char hint[] =
		"requests in a second or a minute, such as 10/s or 600/m; up to 1000000";
	struct span number;

	l->has_rate = true;
	if (!span_next(&value, '/', &number) ||
		!read_number(number, 1, LIMIT_RATE_MAX, &l->rate))
		return hint;
	l->rate_period_ms = span_is(value, "s") ? 1000 : span_is(value, "m") ? 60000 : 0;
	return l->rate_period_ms != 0 ? NULL : hint;
}

static const char *take_cache_group(struct span value, struct key_line *l)
{
	struct conf_fault fault;

	l->cache_group = value;
	return conf_name_check(value, &fault) == 0 ? NULL
						   : "letters, digits and . _ - : @, up "
						     "to 128";
}

/* Each returns what would do; NULL: it was right. */
static const struct {
	const char *name;
	const char *(*take)(struct span value, struct key_line *l);
} options[] = {
	{"priority", take_priority},
	{"max_requests", take_max_requests},
	{"rate", take_rate},
	{"cache_group", take_cache_group},
};

static bool take_option(
	struct key_reader *r, struct span word, struct key_line *l, unsigned *seen)
{
	struct span name;
	const char *hint;

	for (unsigned i = 0; i < ARRAY_LEN(options); i++) {
		struct span value = word;

		if (!span_next(&value, '=', &name) || !span_is(name, options[i].name))
			continue;
		if ((*seen & 1u << i) != 0) {
			report(r, l->number, options[i].name, "leave one of them",
				"is given twice");
			return false;
		}
		*seen |= 1u << i;
		hint = options[i].take(value, l);
		if (hint != NULL)
			report(r, l->number, options[i].name, hint,
				"has an invalid value");
		return hint == NULL;
	}
	report(r, l->number, NULL, form, "has an unknown word after the tenant");
	return false;
}

static bool read_words(struct key_reader *r, struct span rest, struct key_line *l)
{
	struct conf_fault fault;
	struct span word = {0};
	unsigned seen = 0;

	if (!span_next_word(&rest, &word) || !digest_read(word, l->key.digest)) {
		report(r, l->number, NULL, "printf %s KEY | sha256sum",
			"does not begin with the SHA-256 of a key, 64 hex digits");
		return false;
	}
	if (!span_next_word(&rest, &l->tenant)) {
		report(r, l->number, NULL, form, "names no tenant");
		return false;
	}
	if (conf_name_check(l->tenant, &fault) != 0) {
		report(r, l->number, NULL, fault.hint, "has an invalid tenant name");
		return false;
	}
	while (span_next_word(&rest, &word) && word.p[0] != '#') {
		if (!take_option(r, word, l, &seen))
			return false;
	}
	return true;
}

static void take_line(struct key_reader *r, unsigned number, struct span text)
{
	struct key_line l = {.number = number};

	text = span_trim_all(text);
	if (text.n == 0 || text.p[0] == '#' || text.p[0] == ';' ||
		!read_words(r, text, &l))
		return;
	if (mem_grow(&r->lines, &r->cap, r->n + 1, sizeof(l)) != 0)
		no_memory(r);
	else
		r->lines[r->n++] = l;
}

/* ---- lines into tenants ---- */

static int by_tenant(const void *a, const void *b)
{
	const struct key_line *x = a, *y = b;
	int order = span_order(x->tenant, y->tenant);

	return order != 0 ? order : (x->number > y->number) - (x->number < y->number);
}

static void differs(struct key_reader *r, const struct key_line *l, const char *key)
{
	report(r, l->number, key, "give it on one line of the tenant",
		"differs from another line of this tenant");
}

/* Merges a tenant's lines: each option is on one of them, or the same on all. */
static void merge(struct key_reader *r, struct key_line *into, const struct key_line *l)
{
	if (l->has_max && into->has_max && l->max_requests != into->max_requests)
		differs(r, l, "max_requests");
	if (l->has_rate && into->has_rate &&
		(l->rate != into->rate || l->rate_period_ms != into->rate_period_ms))
		differs(r, l, "rate");
	if (l->cache_group.n > 0 && into->cache_group.n > 0 &&
		!span_eq(l->cache_group, into->cache_group))
		differs(r, l, "cache_group");
	if (l->has_max) {
		into->has_max = true;
		into->max_requests = l->max_requests;
	}
	if (l->has_rate) {
		into->has_rate = true;
		into->rate = l->rate;
		into->rate_period_ms = l->rate_period_ms;
	}
	if (l->cache_group.n > 0)
		into->cache_group = l->cache_group;
}

static void add_tenant(struct key_reader *r, struct conf_client_keys *k,
	const struct key_line *said, unsigned n_keys)
{
	bool has_group = said->cache_group.n > 0;
	struct conf_tenant *t = &k->tenants[k->n_tenants++];

	*t = (struct conf_tenant){
		.name = span_dup(said->tenant),
		.cache_group = has_group ? span_dup(said->cache_group) : NULL,
		.max_requests = said->max_requests,
		.rate = said->rate,
		.rate_period_ms = said->rate_period_ms,
		.n_keys = n_keys,
	};
	if (t->name == NULL || (has_group && t->cache_group == NULL))
		no_memory(r);
}

static void make_tenants(struct key_reader *r, struct conf_client_keys *k)
{
	size_t from, i;

	qsort(r->lines, r->n, sizeof(*r->lines), by_tenant);
	for (from = 0; from < r->n; from = i) {
		struct key_line said = r->lines[from];

		for (i = from;
			i < r->n && span_eq(r->lines[i].tenant, r->lines[from].tenant);
			i++) {
			r->lines[i].key.tenant = (uint32_t)k->n_tenants;
			merge(r, &said, &r->lines[i]);
		}
		add_tenant(r, k, &said, (unsigned)(i - from));
	}
}

/* ---- lines into keys ---- */

static int by_digest(const void *a, const void *b)
{
	const struct key_line *x = a, *y = b;
	int order = memcmp(x->key.digest, y->key.digest, DIGEST_BYTES);

	return order != 0 ? order : (x->number > y->number) - (x->number < y->number);
}

static void make_keys(struct key_reader *r, struct conf_client_keys *k)
{
	qsort(r->lines, r->n, sizeof(*r->lines), by_digest);
	for (size_t i = 0; i < r->n; i++) {
		const struct key_line *l = &r->lines[i];

		if (i > 0 && memcmp(l->key.digest, l[-1].key.digest, DIGEST_BYTES) == 0) {
			char message[64];

			snprintf(message, sizeof(message), "has the key of line %u again",
				l[-1].number);
			report(r, l->number, NULL, "leave one of them", message);
		}
		k->keys[k->n_keys++] = l->key;
	}
}

/* Room for n keys, each of a tenant of its own. NULL: out of memory. */
static struct conf_client_keys *keys_new(size_t n)
{
	struct conf_client_keys *k = calloc(1, sizeof(*k));

	if (k == NULL)
		return NULL;
	k->tenants = calloc(n + 1, sizeof(*k->tenants));
	k->keys = calloc(n + 1, sizeof(*k->keys));
	if (k->tenants != NULL && k->keys != NULL)
		return k;
	conf_client_keys_free(k);
	return NULL;
}

struct conf_client_keys *conf_client_keys_parse(
	struct span text, const char *file, struct conf_errors *errors)
{
	struct key_reader r = {.file = file, .errors = errors};
	struct conf_client_keys *k;
	struct span line;

	for (unsigned number = 1; span_next(&text, '\n', &line); number++)
		take_line(&r, number, line);
	k = keys_new(r.n);
	if (k == NULL) {
		no_memory(&r);
	} else if (r.n > 0) {
		make_tenants(&r, k);
		make_keys(&r, k);
	}
	free(r.lines);
	if (r.faults == 0 && k->n_keys == 0)
		conf_warnings_add(errors, file, 0, NULL, NULL, form,
			"the file has no keys: every request is refused");
	if (r.faults == 0)
		return k;
	conf_client_keys_free(k);
	return NULL;
}

/* ---- the file ---- */

/* Hashes of good keys tell nothing, but who can write here lets himself in. */
static bool is_guarded(const char *path, struct conf_errors *errors)
{
	struct stat st;
	const char *why = NULL, *hint = NULL;

	if (stat(path, &st) != 0) {
		why = strerror(errno);
	} else if (!S_ISREG(st.st_mode)) {
		why = "it is not a regular file";
	} else if ((st.st_mode & S_IWOTH) != 0) {
		why = "every user may write to it";
		hint = "chmod o-rw";
	}
	if (why != NULL) {
		conf_errors_add(errors, path, 0, "api_keys", NULL, hint,
			"cannot be used: %s", why);
		return false;
	}
	if ((st.st_mode & S_IROTH) != 0)
		conf_warnings_add(errors, path, 0, "api_keys", NULL, "chmod o-r",
			"every user may read this file");
	return true;
}

struct conf_client_keys *conf_client_keys_read(
	const char *path, struct conf_errors *errors)
{
	struct conf_client_keys *k;
	scoped_free char *text = NULL;
	size_t n;
	int err;

	if (!is_guarded(path, errors))
		return NULL;
	err = file_read(path, FILE_MAX_BYTES, &text, &n);
	if (err == ERR_NOMEM) {
		conf_errors_no_memory(errors);
		return NULL;
	}
	if (err != 0) {
		conf_errors_add(errors, path, 0, "api_keys", NULL,
			err == ERR_LIMIT ? "up to 64m" : NULL, "cannot be used: %s",
			err == ERR_LIMIT ? "it is too large" : strerror(errno));
		return NULL;
	}
	k = conf_client_keys_parse(span_make(text, n), path, errors);
	mem_wipe(text, n);
	return k;
}

void conf_client_keys_free(struct conf_client_keys *k)
{
	if (k == NULL)
		return;
	for (size_t i = 0; i < k->n_tenants; i++) {
		free(k->tenants[i].name);
		free(k->tenants[i].cache_group);
	}
	free(k->tenants);
	free(k->keys);
	free(k);
}

static bool is_same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool is_same_tenant(const struct conf_tenant *a, const struct conf_tenant *b)
{
	return strcmp(a->name, b->name) == 0 &&
	       is_same_text(a->cache_group, b->cache_group) &&
	       a->max_requests == b->max_requests && a->rate == b->rate &&
	       a->rate_period_ms == b->rate_period_ms;
}

static bool is_same_key(const struct conf_client_key *a, const struct conf_client_key *b)
{
	return memcmp(a->digest, b->digest, DIGEST_BYTES) == 0 &&
	       a->tenant == b->tenant && a->priority == b->priority;
}

bool conf_client_keys_equal(
	const struct conf_client_keys *a, const struct conf_client_keys *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	if (a->n_keys != b->n_keys || a->n_tenants != b->n_tenants)
		return false;
	for (size_t i = 0; i < a->n_tenants; i++)
		if (!is_same_tenant(&a->tenants[i], &b->tenants[i]))
			return false;
	for (size_t i = 0; i < a->n_keys; i++)
		if (!is_same_key(&a->keys[i], &b->keys[i]))
			return false;
	return true;
}
