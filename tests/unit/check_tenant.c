/*
 * The file of client keys (what is read, what is refused and how it is told, random
 * bytes), the table (every key found, no other, at any size), what outlives a reload,
 * and how a key is presented.
 */
#include "pool/tenant.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "conf/conf.h"
#include "tests/unit/unit.h"

#include <string.h>
#include <sys/stat.h>

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"
#define C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"

static struct conf_client_keys *parse(const char *text, struct conf_errors *errors)
{
	*errors = (struct conf_errors){0};
	return conf_client_keys_parse(span_str(text), "/k", errors);
}

static struct conf_client_keys *parse_good(const char *text)
{
	struct conf_errors errors;
	struct conf_client_keys *k = parse(text, &errors);

	ck_assert_ptr_nonnull(k);
	ck_assert_uint_eq(errors.n, 0);
	conf_errors_free(&errors);
	return k;
}

START_TEST(what_a_file_says)
{
	struct conf_client_keys *k =
		parse_good("# keys\n\n; more\r\n" B " zoe  priority=low\t# hers\r\n"
			   "  " A " acme priority=high max_requests=8 "
			   "rate=600/m cache_group=shared\n" C " acme rate=600/m");

	ck_assert_uint_eq(k->n_keys, 3);
	ck_assert_uint_eq(k->n_tenants, 2);
	ck_assert_str_eq(k->tenants[0].name, "acme");
	ck_assert_str_eq(k->tenants[0].cache_group, "shared");
	ck_assert_uint_eq(k->tenants[0].max_requests, 8);
	ck_assert_uint_eq(k->tenants[0].rate, 600);
	ck_assert_uint_eq(k->tenants[0].rate_period_ms, 60000);
	ck_assert_uint_eq(k->tenants[0].n_keys, 2);
	ck_assert_str_eq(k->tenants[1].name, "zoe");
	ck_assert_ptr_null(k->tenants[1].cache_group);
	ck_assert_uint_eq(k->tenants[1].rate, 0);
	/* By digest: A, B, C. */
	ck_assert_int_eq(k->keys[0].priority, KEY_PRIORITY_HIGH);
	ck_assert_int_eq(k->keys[1].priority, KEY_PRIORITY_LOW);
	ck_assert_uint_eq(k->keys[1].tenant, 1);
	ck_assert_int_eq(k->keys[2].priority, KEY_PRIORITY_NONE);
	ck_assert_uint_eq(k->keys[2].tenant, 0);
	conf_client_keys_free(k);
}
END_TEST

static const struct {
	const char *text;
	unsigned line;
	const char *message;
} faults[] = {
	{"sk-secret-key acme\n", 1, "SHA-256"},
	{A "\n", 1, "names no tenant"},
	{"\n\n" A " ac/me\n", 3, "has an invalid tenant name"},
	{A " acme sk-secret-key\n", 1, "unknown word after the tenant"},
	{A " acme rate\n", 1, "has an invalid value"},
	{A " acme rate=5\n", 1, "has an invalid value"},
	{A " acme rate=0/s\n", 1, "has an invalid value"},
	{A " acme rate=5/h\n", 1, "has an invalid value"},
	{A " acme rate=5/s/s\n", 1, "has an invalid value"},
	{A " acme rate=1000001/s\n", 1, "has an invalid value"},
	{A " acme rate=-1/s\n", 1, "has an invalid value"},
	{A " acme max_requests=\n", 1, "has an invalid value"},
	{A " acme max_requests=1000001\n", 1, "has an invalid value"},
	{A " acme priority=urgent\n", 1, "has an invalid value"},
	{A " acme priority=low priority=low\n", 1, "given twice"},
	{A " acme cache_group=\n", 1, "has an invalid value"},
	{A " acme rate=5/s\n" B " acme rate=6/s\n", 2, "differs from another line"},
	{A " acme rate=60/m\n" B " acme rate=60/s\n", 2, "differs from another line"},
	{A " a max_requests=0\n" B " a max_requests=1\n", 2, "differs from another"},
	{A " a cache_group=x\n" B " a\n" C " a cache_group=y\n", 3,
		"differs from another"},
	{A " acme\n#\n" A " other\n", 3, "has the key of line 1 again"},
	{B " acme\nbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb "
	   "acme\n",
		2, "has the key of line 1 again"},
};

START_TEST(faults_are_told_with_their_line_and_without_a_key)
{
	size_t i, k;

	for (i = 0; i < ARRAY_LEN(faults); i++) {
		struct conf_errors errors;

		ck_assert_ptr_null(parse(faults[i].text, &errors));
		ck_assert_uint_eq(errors.n_errors, 1);
		ck_assert_str_eq(errors.items[0].file, "/k");
		ck_assert_uint_eq(errors.items[0].line, faults[i].line);
		ck_assert_ptr_nonnull(strstr(errors.items[0].message, faults[i].message));
		for (k = 0; k < errors.n; k++) {
			char *text = conf_error_text(&errors.items[k]);

			ck_assert_ptr_null(strstr(text, "secret"));
			ck_assert_ptr_null(strstr(text, "aaaaaaaa"));
			free(text);
		}
		conf_errors_free(&errors);
	}
}
END_TEST

START_TEST(a_thousand_faults_are_a_few)
{
	struct conf_errors errors;
	char *text = xcalloc(1, 4001);
	size_t i;

	for (i = 0; i < 1000; i++)
		memcpy(text + 4 * i, "x y\n", 4);
	ck_assert_ptr_null(parse(text, &errors));
	ck_assert_uint_eq(errors.n_errors, 21);
	conf_errors_free(&errors);
	free(text);
}
END_TEST

START_TEST(an_empty_file_opens_nothing)
{
	struct conf_errors errors;
	struct conf_client_keys *k = parse("# none yet\n", &errors);
	struct tenants *t;
	unsigned char digest[DIGEST_BYTES] = {0};

	ck_assert_uint_eq(errors.n_errors, 0);
	ck_assert_uint_eq(errors.n, 1);
	ck_assert_int_eq(tenants_new(k, NULL, &t), 0);
	ck_assert_ptr_null(tenants_find(t, digest));
	ck_assert_ptr_null(tenants_named(t, span_str("acme")));
	tenants_free(t);
	conf_client_keys_free(k);
	conf_errors_free(&errors);
	ck_assert_int_eq(tenants_new(NULL, NULL, &t), 0);
	ck_assert_ptr_null(t);
}
END_TEST

/* What opens doors is looked at before it is believed. */
START_TEST(files_that_are_none_and_modes)
{
	static const struct {
		mode_t mode;
		unsigned n_errors, n;
	} rows[] = {{0600, 0, 0}, {0640, 0, 0}, {0644, 0, 1}, {0602, 1, 1}, {0666, 1, 1}};
	char path[] = "/tmp/check_tenant.XXXXXX";
	int fd = mkstemp(path);
	struct conf_errors errors = {0};
	size_t i;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, A " a\n", 67), 67);
	for (i = 0; i < ARRAY_LEN(rows); i++) {
		struct conf_client_keys *k;

		ck_assert_int_eq(fchmod(fd, rows[i].mode), 0);
		k = conf_client_keys_read(path, &errors);
		ck_assert_uint_eq(errors.n_errors, rows[i].n_errors);
		ck_assert_uint_eq(errors.n, rows[i].n);
		ck_assert_int_eq(k != NULL, rows[i].n_errors == 0);
		conf_client_keys_free(k);
		conf_errors_free(&errors);
	}
	ck_assert_int_eq(fchmod(fd, 0600), 0);
	ck_assert_int_eq(ftruncate(fd, (64 << 20) + 1), 0);
	ck_assert_ptr_null(conf_client_keys_read(path, &errors));
	ck_assert_ptr_nonnull(strstr(errors.items[0].message, "too large"));
	close(fd);
	unlink(path);
	ck_assert_int_eq(mkfifo(path, 0600), 0); /* must not wait for a writer */
	ck_assert_ptr_null(conf_client_keys_read(path, &errors));
	unlink(path);
	ck_assert_ptr_null(conf_client_keys_read(path, &errors));
	ck_assert_ptr_null(conf_client_keys_read("/", &errors));
	ck_assert_uint_eq(errors.n_errors, 4);
	conf_errors_free(&errors);
}
END_TEST

static char *many_keys(size_t n)
{
	char *text = xmalloc(n * 100 + 1), *at = text;
	unsigned char digest[DIGEST_BYTES];
	struct digester *d = digester_new();
	char key[32];
	size_t i, b;

	for (i = 0; i < n; i++) {
		snprintf(key, sizeof(key), "key-%zu", i);
		ck_assert(digest_sha256(d, span_str(key), digest));
		for (b = 0; b < DIGEST_BYTES; b++)
			at += sprintf(at, "%02x", digest[b]);
		at += sprintf(at, " t%zu\n", i % (n / 2 + 1));
	}
	*at = '\0';
	digester_free(d);
	return text;
}

/* The longest row of taken slots: what one look-up may cost at most. */
static size_t longest_row(const struct tenants *t)
{
	size_t i, row = 0, longest = 0;

	for (i = 0; i < 2 * (t->mask + 1); i++) {
		row = t->slots[i & t->mask] != 0 ? row + 1 : 0;
		longest = MAX(longest, row);
	}
	return longest;
}

START_TEST(of_many_keys_each_is_found_in_a_few_steps)
{
	static const size_t sizes[] = {1, 7, 8, 9, 1000, 100000};
	struct digester *d = digester_new();
	size_t s, i;

	for (s = 0; s < ARRAY_LEN(sizes); s++) {
		char *text = many_keys(sizes[s]), name[32];
		struct conf_client_keys *k = parse_good(text);
		struct tenants *t;
		unsigned char digest[DIGEST_BYTES];

		ck_assert_int_eq(tenants_new(k, NULL, &t), 0);
		ck_assert_uint_ge(t->mask + 1, 2 * sizes[s]);
		/* Logarithmic in theory; a list of them all would be far above. */
		ck_assert_uint_le(longest_row(t), 64);
		for (i = 0; i < sizes[s] + 1000; i++) {
			const struct conf_client_key *key;

			snprintf(name, sizeof(name), "key-%zu", i);
			ck_assert(digest_sha256(d, span_str(name), digest));
			key = tenants_find(t, digest);
			ck_assert_int_eq(key != NULL, i < sizes[s]);
			if (key == NULL)
				continue;
			snprintf(name, sizeof(name), "t%zu", i % (sizes[s] / 2 + 1));
			ck_assert_str_eq(tenants_of(t, key)->conf->name, name);
			ck_assert_ptr_eq(
				tenants_named(t, span_str(name)), tenants_of(t, key));
		}
		tenants_free(t);
		conf_client_keys_free(k);
		free(text);
	}
	digester_free(d);
}
END_TEST

START_TEST(digests_that_begin_alike_are_apart)
{
	struct conf_client_keys *k = parse_good(
		"00000000000000000000000000000000000000000000000000000000000000aa a\n"
		"00000000000000000000000000000000000000000000000000000000000000ab b\n");
	unsigned char digest[DIGEST_BYTES] = {0};
	struct tenants *t;

	ck_assert_int_eq(tenants_new(k, NULL, &t), 0);
	digest[31] = 0xab;
	ck_assert_str_eq(tenants_of(t, tenants_find(t, digest))->conf->name, "b");
	digest[31] = 0xac;
	ck_assert_ptr_null(tenants_find(t, digest));
	tenants_free(t);
	conf_client_keys_free(k);
}
END_TEST

START_TEST(salts_part_tenants_and_join_groups)
{
	struct conf_client_keys *k =
		parse_good(A " x\n" B " y cache_group=x\n" C " z cache_group=x\n");
	struct tenants *t;

	ck_assert_int_eq(tenants_new(k, NULL, &t), 0);
	ck_assert_str_ne(t->items[0].salt, t->items[1].salt);
	ck_assert_str_eq(t->items[1].salt, t->items[2].salt);
	tenants_free(t);
	conf_client_keys_free(k);
}
END_TEST

/* A reload gives no fresh allowance, and who left the table still pays back. */
START_TEST(accounts_outlive_reloads)
{
	struct conf_client_keys *first =
		parse_good(A " a max_requests=1 rate=2/m\n" B " b\n");
	struct conf_client_keys *second = parse_good(C " a max_requests=2 rate=2/m\n");
	struct tenants *t, *u;
	const struct tenant *a, *b;
	uint64_t wait;

	ck_assert_int_eq(tenants_new(first, NULL, &t), 0);
	a = tenants_named(t, span_str("a"));
	b = tenants_named(t, span_str("b"));
	ck_assert_int_eq(tenant_enter(a, 1, &wait), TENANT_MAY);
	ck_assert_int_eq(tenant_enter(a, 1, &wait), TENANT_AT_CAP);
	ck_assert_uint_eq(wait, 0);
	ck_assert_int_eq(tenant_enter(b, 1, &wait), TENANT_MAY);
	ck_assert_int_eq(tenants_new(second, t, &u), 0);
	ck_assert_ptr_null(tenants_named(u, span_str("b")));
	ck_assert_ptr_eq(tenants_named(u, span_str("a"))->account, a->account);
	tenant_leave(b);
	tenant_leave(a);
	tenants_free(t);
	conf_client_keys_free(first);
	a = tenants_named(u, span_str("a"));
	ck_assert_int_eq(tenant_enter(a, 1, &wait), TENANT_MAY);
	/* One at the cap was no request of the two. */
	ck_assert_int_eq(tenant_enter(a, 1, &wait), TENANT_TOO_FAST);
	ck_assert_uint_eq(wait, 30 * 1000000);
	ck_assert_uint_eq(a->account->limit.active, 1);
	ck_assert_uint_eq(a->account->asked[TENANT_MAY], 2);
	ck_assert_uint_eq(a->account->asked[TENANT_AT_CAP], 1);
	ck_assert_uint_eq(a->account->asked[TENANT_TOO_FAST], 1);
	tenant_leave(a);
	tenants_free(u);
	conf_client_keys_free(second);
}
END_TEST

START_TEST(equal_files)
{
	static const char *const texts[] = {
		A " a\n" B " b\n",
		B " b\n#\n" A "  a\n", /* equal to the first */
		A " a\n",
		A " a\n" B " a\n",
		A " a\n" B " b priority=low\n",
		A " a\n" B " b rate=1/s\n",
		A " a\n" B " b max_requests=1\n",
		A " a\n" B " b cache_group=b\n",
		A " a\n" C " b\n",
	};
	struct conf_client_keys *base = parse_good(texts[0]);
	size_t i;

	for (i = 0; i < ARRAY_LEN(texts); i++) {
		struct conf_client_keys *k = parse_good(texts[i]);

		ck_assert_int_eq(conf_client_keys_equal(base, k), i < 2);
		conf_client_keys_free(k);
	}
	ck_assert(!conf_client_keys_equal(base, NULL));
	ck_assert(conf_client_keys_equal(NULL, NULL));
	conf_client_keys_free(base);
}
END_TEST

START_TEST(how_a_key_is_presented)
{
	static const struct {
		const char *authorization, *x_api_key;
		int err;
		const char *key;
	} rows[] = {
		{"Bearer k1", "", 0, "k1"},
		{"bEARER  k1", "", 0, "k1"},
		{"", "k2", 0, "k2"},
		{"Bearer k1", "k1", 0, "k1"},
		{"Bearer k1", "k2", ERR_PARSE, NULL},
		{"Basic dTpw", "k2", 0, "k2"},
		{"Basic dTpw", "", ERR_NOENT, NULL},
		{"", "", ERR_NOENT, NULL},
		{"Bearer", "", ERR_NOENT, NULL},
		{"Bearer ", "", ERR_NOENT, NULL},
		{"Bearerk1", "", ERR_NOENT, NULL},
		{"k1", "", ERR_NOENT, NULL},
		{"Bearer k 1", "", ERR_NOENT, NULL},
		{"Bearer k\xc3\xa4", "", ERR_NOENT, NULL},
		{"", "k 2", ERR_NOENT, NULL},
	};
	char longest[TENANT_KEY_MAX + 2];
	struct span key;
	size_t i;

	for (i = 0; i < ARRAY_LEN(rows); i++) {
		ck_assert_int_eq(tenant_presented(span_str(rows[i].authorization),
					 span_str(rows[i].x_api_key), &key),
			rows[i].err);
		if (rows[i].err == 0)
			ck_assert(span_is(key, rows[i].key));
	}
	memset(longest, 'k', sizeof(longest));
	ck_assert_int_eq(tenant_presented(span_make(NULL, 0),
				 span_make(longest, TENANT_KEY_MAX), &key),
		0);
	ck_assert_int_eq(tenant_presented(span_make(NULL, 0),
				 span_make(longest, TENANT_KEY_MAX + 1), &key),
		ERR_NOENT);
}
END_TEST

/* Lines cut, joined and spoilt at random: a table or errors, never both, never a crash.
 */
START_TEST(random_files)
{
	static const char *const pieces[] = {A, B, C, " ", "\t", "\n", "\r\n", "acme",
		"zoe", " priority=high", " priority=", " max_requests=3", " rate=5/s",
		"rate=/", " cache_group=g", "=", "#", ";", "\xff", "sk-x"};
	struct rng rng;
	int round;

	rng_seed(&rng, 11);
	for (round = 0; round < 20000; round++) {
		char text[2048] = "";
		size_t n = 0, i, pick = rng_next(&rng) % 24;
		struct conf_errors errors;
		struct conf_client_keys *k;
		struct tenants *t;

		for (i = 0; i < pick; i++) {
			const char *p = pieces[rng_next(&rng) % ARRAY_LEN(pieces)];

			memcpy(text + n, p, strlen(p));
			n += strlen(p);
		}
		if (n > 0 && rng_next(&rng) % 4 == 0)
			text[rng_next(&rng) % n] = (char)rng_next(&rng);
		errors = (struct conf_errors){0};
		k = conf_client_keys_parse(span_make(text, n), "/k", &errors);
		ck_assert_int_eq(k == NULL, errors.n_errors > 0);
		if (k != NULL) {
			ck_assert_int_eq(tenants_new(k, NULL, &t), 0);
			for (i = 0; i < k->n_keys; i++)
				ck_assert_ptr_eq(
					tenants_find(t, k->keys[i].digest), &k->keys[i]);
			tenants_free(t);
		}
		conf_client_keys_free(k);
		conf_errors_free(&errors);
	}
}
END_TEST

static Suite *tenant_suite(void)
{
	Suite *s = suite_create("tenant");
	TCase *t = tcase_create("tenant");

	tcase_add_test(t, what_a_file_says);
	tcase_add_test(t, faults_are_told_with_their_line_and_without_a_key);
	tcase_add_test(t, a_thousand_faults_are_a_few);
	tcase_add_test(t, an_empty_file_opens_nothing);
	tcase_add_test(t, files_that_are_none_and_modes);
	tcase_add_test(t, of_many_keys_each_is_found_in_a_few_steps);
	tcase_add_test(t, digests_that_begin_alike_are_apart);
	tcase_add_test(t, salts_part_tenants_and_join_groups);
	tcase_add_test(t, accounts_outlive_reloads);
	tcase_add_test(t, equal_files);
	tcase_add_test(t, how_a_key_is_presented);
	tcase_add_test(t, random_files);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(tenant_suite())
