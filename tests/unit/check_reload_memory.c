/*
 * A reload that runs out of memory changes nothing: the n-th allocation of site_new()
 * fails, for every n until it succeeds, and each time the old site is whole: workers,
 * their options and keys, policies, indexes and their entries. The allocators are wrapped
 * by the linker (--wrap), so only what the model itself asks for can fail.
 */
#include "base/err.h"
#include "pool/site.h"
#include "tests/unit/unit_model.h"

#include <stdarg.h>
#include <sys/mman.h>

static bool is_armed;
static unsigned until_failure; /* 0: the next one fails */

static bool fails(void)
{
	return is_armed && until_failure-- == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from);
int __wrap_asprintf(char **out, const char *fmt, ...) PRINTF_LIKE(2, 3);
int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...) PRINTF_LIKE(3, 4);

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t count, size_t n)
{
	return fails() ? NULL : __real_calloc(count, n);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
	return fails() ? NULL : __real_strdup(s);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
	return fails() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, from);
}

int __wrap_asprintf(char **out, const char *fmt, ...)
{
	va_list args;
	int n;

	if (fails())
		return -1;
	va_start(args, fmt);
	n = vasprintf(out, fmt, args);
	va_end(args);
	return n;
}

int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...)
{
	va_list args;
	int n;

	(void)flag;
	if (fails())
		return -1;
	va_start(args, fmt);
	n = vasprintf(out, fmt, args);
	va_end(args);
	return n;
}

/* What dies where memory is short is no part of this: it is left alone. */
int __real_worker_conf_copy(const struct worker_conf *from, struct worker_conf *to);
int __wrap_worker_conf_copy(const struct worker_conf *from, struct worker_conf *to);
int __real_conf_url_parse(struct span text, struct conf_url *out, const char **why);
int __wrap_conf_url_parse(struct span text, struct conf_url *out, const char **why);

int __wrap_worker_conf_copy(const struct worker_conf *from, struct worker_conf *to)
{
	bool was_armed = is_armed;
	int err;

	if (fails())
		return ERR_NOMEM;
	is_armed = false;
	err = __real_worker_conf_copy(from, to);
	is_armed = was_armed;
	return err;
}

int __wrap_conf_url_parse(struct span text, struct conf_url *out, const char **why)
{
	bool was_armed = is_armed;
	int err;

	is_armed = false;
	err = __real_conf_url_parse(text, out, why);
	is_armed = was_armed;
	return err;
}

static unsigned n_added, n_removed;

static void on_added(void *arg, struct pool *p, struct worker *w)
{
	(void)arg;
	(void)p;
	atomic_store(&w->health, WORKER_HEALTHY);
	n_added++;
}

static void on_removed(void *arg, struct pool *p, struct worker *w)
{
	(void)arg;
	(void)p;
	(void)w;
	n_removed++;
}

static const struct pool_ops ops = {NULL, on_added, on_removed};
static const struct site_opts opts = {
	.boot_secret = {1, 2}, .pool_ops = &ops, .now_ms = 1000};

#define BEFORE                                                                           \
	"[pool one]\nmodels = a*\n[pool two]\n"                                          \
	"[worker a]\nurl = http://a:1\npool = one\nmax_requests = 5\nworker_key = old\n" \
	"[worker b]\nurl = http://b:1\npool = two\nworker_key = old\n"                   \
	"[worker c]\nurl = http://c:1\npool = two\n"
/* Another policy, block, index, pool; a worker that stays, ones that come, go and move.
 */
#define AFTER                                                                            \
	"[pool one]\nmodels = a*\npolicy = round_robin\n"                                \
	"[pool two]\nprefix_block = 256\nindex_memory = 32m\n[pool three]\nmodels = z\n" \
	"[worker a]\nurl = http://a:1\npool = one\nmax_requests = 9\nworker_key = new\n" \
	"[worker b]\nurl = http://b:1\npool = two\nworker_key = new\nmax_requests = 9\n" \
	"[worker c]\nurl = http://c:1\npool = three\n"                                   \
	"[worker d]\nurl = http://d:1\npool = two\n"

static struct conf *before, *after;
static struct site *site;

static void set_up(void)
{
	n_added = n_removed = 0;
	before = unit_conf(BEFORE);
	after = unit_conf(AFTER);
	site = site_new(before, NULL, &opts);
	ck_assert_ptr_nonnull(site);
}

static void tear_down(void)
{
	site_retire(site, NULL);
	site_unref(site);
	conf_unref(before);
	conf_unref(after);
	ck_assert_uint_eq(n_added, n_removed);
}

/* One prompt of four blocks is picked once, so that its worker holds it. */
static uint32_t matched_by(struct pool *p)
{
	struct route_key k = unit_sealed(p, 7, 4, 7, 4);
	struct pool_ask ask = {.role = ROLE_UNIFIED, .key = &k, .now_ms = 1000};
	struct guard g = {NULL};
	struct pool_pick pick;

	ck_assert_int_eq(pool_pick(p, &ask, &g, &pick), 0);
	guard_drop(&g);
	route_key_free(&k);
	return pick.matched;
}

static void want_old(struct pool *one, struct pool *two)
{
	struct worker *a = unit_worker(one, "a"), *b = unit_worker(two, "b");

	ck_assert_ptr_eq(site_pool(site, SPAN_LIT("one")), one);
	ck_assert_str_eq(pool_policy_name(one, ROLE_UNIFIED), "cache_aware");
	ck_assert_uint_eq(a->conf->max_requests, 5);
	ck_assert_uint_eq(b->conf->max_requests, 0);
	ck_assert_str_eq(atomic_load(&a->authorization), "Bearer old");
	ck_assert_str_eq(atomic_load(&b->authorization), "Bearer old");
	ck_assert(!atomic_load(&unit_worker(two, "c")->is_removed));
	ck_assert_ptr_null(pool_find(two, SPAN_LIT("d")));
	ck_assert_uint_eq(n_added, 3);
	ck_assert_uint_eq(n_removed, 0);
	ck_assert_uint_eq(matched_by(one), 4);
	ck_assert_uint_eq(matched_by(two), 4);
}

START_TEST(every_failure_changes_nothing)
{
	struct pool *one = site_pool(site, SPAN_LIT("one"));
	struct pool *two = site_pool(site, SPAN_LIT("two"));
	struct site *next = NULL;
	unsigned n = 0;

	matched_by(one);
	matched_by(two);
	while (next == NULL) {
		is_armed = true;
		until_failure = n;
		next = site_new(after, site, &opts);
		is_armed = false;
		if (next != NULL)
			break;
		want_old(one, two);
		n++;
	}
	/* Few allocations would mean that the wrappers were not there. */
	ck_assert_uint_gt(n, 20);
	site_retire(site, next);
	site_unref(site);
	site = next;
	ck_assert_uint_eq(unit_worker(one, "a")->conf->max_requests, 9);
	ck_assert_str_eq(
		atomic_load(&unit_worker(two, "b")->authorization), "Bearer new");
	ck_assert_str_eq(pool_policy_name(one, ROLE_UNIFIED), "round_robin");
	ck_assert_ptr_null(pool_find(two, SPAN_LIT("c")));
	ck_assert_uint_eq(n_added, 5);
	ck_assert_uint_eq(n_removed, 1);
}
END_TEST

/* A removal and the end need no memory: they cannot fail half-way. */
START_TEST(going_needs_no_memory)
{
	struct pool *two = site_pool(site, SPAN_LIT("two"));

	is_armed = true;
	until_failure = 0;
	ck_assert_int_eq(pool_remove_worker(two, SPAN_LIT("c")), 0);
	pool_close(two);
	is_armed = false;
	ck_assert_uint_eq(n_removed, 2);
	ck_assert_uint_eq(pool_workers(two, ROLE_UNIFIED), 0);
}
END_TEST

static Suite *reload_memory_suite(void)
{
	Suite *s = suite_create("reload_memory");
	TCase *tc = tcase_create("reload_memory");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, every_failure_changes_nothing);
	tcase_add_test(tc, going_needs_no_memory);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(reload_memory_suite())
