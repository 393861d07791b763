/*
 * Counters, gauges, histograms and requests_total: one set a thread, on its own cache
 * lines, and their Prometheus text.
 * A set is written by its thread only (relaxed load and store, no lock prefix) and read
 * by any; sets are never freed, so totals never go back. Threads that never registered
 * share one set and add atomically. The list of sets has a mutex.
 * Called by everything that counts; printed by the metrics listener and the admin side.
 */
#include "base/metric.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	BOUNDS_MAX = 16,
	REQUEST_CELLS = METRIC_ROUTES_MAX * 32, /* a power of two */
	REQUEST_PROBES = 64,
	ROUTE_OTHER = METRIC_ROUTES_MAX,
	STATUS_MAX = 999,
	RETRY_FIRST = 400, /* statuses of errors */
	RETRY_STATUSES = 200,
};

/* One series of requests_total; key 0 is free. */
struct request_cell {
	_Atomic uint32_t key;
	_Atomic uint64_t count;
};

struct histogram {
	/* Each its own values only; the last is +Inf. */
	_Atomic uint64_t buckets[BOUNDS_MAX + 1];
	_Atomic uint64_t sum;
};

struct metric_set {
	_Atomic int64_t values[METRIC_MAX];
	struct histogram histograms[METRIC_HISTOGRAM_MAX];
	_Atomic uint64_t retries[RETRY_STATUSES];
	_Atomic uint64_t requests_unplaced; /* found no cell: printed as "other" */
	struct request_cell requests[REQUEST_CELLS];
	bool is_shared; /* written by many: add atomically */
	struct metric_set *next;
} CACHE_ALIGNED;

static struct metric_set shared_set = {.is_shared = true};
static struct metric_set *sets = &shared_set; /* under sets_lock */
static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct metric_set *own_set;

static const char *const *_Atomic route_names;
static _Atomic unsigned route_count;

/* clang-format off */
static const struct {
	const char *name, *help;
	unsigned digits; /* decimal places between what is observed and what is printed */
	unsigned count;
	uint32_t bounds[BOUNDS_MAX];
} histograms[METRIC_HISTOGRAM_MAX] = {
	[METRIC_REQUEST_SECONDS] = {
		"kvsteer_request_seconds",
		"Time from a request's first byte to its end", 6, 14,
		{ 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000,
		  5000000, 15000000, 60000000, 180000000, 600000000 } },
	[METRIC_TTFT_SECONDS] = {
		"kvsteer_ttft_seconds",
		"Time until a worker's first body byte", 6, 15,
		{ 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000,
		  1000000, 2500000, 5000000, 10000000, 30000000, 60000000 } },
	[METRIC_QUEUE_SECONDS] = {
		"kvsteer_queue_seconds",
		"Time that requests waited for a worker", 6, 15,
		{ 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000,
		  1000000, 2500000, 5000000, 10000000, 30000000, 60000000 } },
	[METRIC_ROUTE_SECONDS] = {
		"kvsteer_route_seconds",
		"Time to choose a worker", 6, 14,
		{ 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000 } },
	[METRIC_PREFIX_MATCH_RATIO] = {
		"kvsteer_prefix_match_ratio",
		"Part of a prompt's blocks that the chosen worker held", 3, 11,
		{ 0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000 } },
};
/* clang-format on */

static struct metric_set *set_here(void)
{
	return own_set != NULL ? own_set : &shared_set;
}

static uint64_t peek(const _Atomic uint64_t *at)
{
	return atomic_load_explicit(at, memory_order_relaxed);
}

static void bump(struct metric_set *set, _Atomic uint64_t *at, uint64_t n)
{
	if (UNLIKELY(set->is_shared))
		atomic_fetch_add_explicit(at, n, memory_order_relaxed);
	else
		atomic_store_explicit(at, peek(at) + n, memory_order_relaxed);
}

void metric_thread_start(void)
{
	struct metric_set *set;
	uintptr_t room;

	if (own_set != NULL)
		return;
	/* xcalloc promises 16 bytes only: the slack is for a cache line's alignment */
	room = (uintptr_t)xcalloc(1, sizeof(*set) + CACHE_LINE);
	set = (struct metric_set *)((room + CACHE_LINE - 1) &
				    ~(uintptr_t)(CACHE_LINE - 1));
	pthread_mutex_lock(&sets_lock);
	set->next = sets;
	sets = set;
	pthread_mutex_unlock(&sets_lock);
	own_set = set;
}

void metric_add(enum metric_id id, int64_t n)
{
	struct metric_set *set = set_here();
	_Atomic int64_t *at;

	assert((unsigned)id < METRIC_MAX);
	at = &set->values[id];
	if (UNLIKELY(set->is_shared))
		atomic_fetch_add_explicit(at, n, memory_order_relaxed);
	else
		atomic_store_explicit(at,
			atomic_load_explicit(at, memory_order_relaxed) + n,
			memory_order_relaxed);
}

int64_t metric_total(enum metric_id id)
{
	int64_t total = 0;

	assert((unsigned)id < METRIC_MAX);
	pthread_mutex_lock(&sets_lock);
	for (struct metric_set *set = sets; set != NULL; set = set->next)
		total += atomic_load_explicit(&set->values[id], memory_order_relaxed);
	pthread_mutex_unlock(&sets_lock);
	return total;
}

void metric_observe(enum metric_histogram h, uint64_t value)
{
	struct metric_set *set = set_here();
	const uint32_t *bounds = histograms[h].bounds;
	unsigned at = 0, count = histograms[h].count;

	assert((unsigned)h < METRIC_HISTOGRAM_MAX);
	while (at < count && value > bounds[at])
		at++;
	bump(set, &set->histograms[h].buckets[at], 1);
	bump(set, &set->histograms[h].sum, value);
}

void metric_retry(int status)
{
	struct metric_set *set = set_here();

	assert(status >= RETRY_FIRST && status < RETRY_FIRST + RETRY_STATUSES);
	bump(set, &set->retries[status - RETRY_FIRST], 1);
}

static uint32_t request_key(unsigned route, int status, enum fail why)
{
	assert((unsigned)why < FAIL_MAX);
	route = MIN(route, (unsigned)ROUTE_OTHER);
	if (status < 0 || status > STATUS_MAX)
		status = 0;
	return ((uint32_t)route << 20 | (uint32_t)status << 8 | (uint32_t)why) + 1;
}

static_assert(FAIL_MAX < 256, "a failure takes 8 bits of the key");

/* The cell of key, claimed if need be; NULL where the table has no room for it. */
static struct request_cell *request_cell_of(struct metric_set *set, uint32_t key)
{
	uint32_t at = key * 2654435761u >> 16;

	for (int i = 0; i < REQUEST_PROBES; i++, at++) {
		struct request_cell *cell = &set->requests[at % REQUEST_CELLS];
		uint32_t found = atomic_load_explicit(&cell->key, memory_order_relaxed);

		if (found == key)
			return cell;
		if (found != 0)
			continue;
		if (!set->is_shared) {
			atomic_store_explicit(&cell->key, key, memory_order_relaxed);
			return cell;
		}
		if (atomic_compare_exchange_strong(&cell->key, &found, key) ||
			found == key)
			return cell;
	}
	return NULL;
}

void metric_request(unsigned route, int status, enum fail why)
{
	struct metric_set *set = set_here();
	struct request_cell *cell = request_cell_of(set, request_key(route, status, why));

	bump(set, cell != NULL ? &cell->count : &set->requests_unplaced, 1);
}

static bool is_error(uint32_t key)
{
	const char *type = fail_type((enum fail)(key & 0xff));

	return (key >> 8 & 0xfff) >= 500 || strcmp(type, "upstream_error") == 0;
}

void metric_request_sum(uint64_t *all, uint64_t *errors)
{
	*all = *errors = 0;
	pthread_mutex_lock(&sets_lock);
	for (struct metric_set *set = sets; set != NULL; set = set->next) {
		*all += peek(&set->requests_unplaced);
		for (size_t i = 0; i < REQUEST_CELLS; i++) {
			uint32_t key = atomic_load_explicit(
				&set->requests[i].key, memory_order_relaxed);
			uint64_t n = key != 0 ? peek(&set->requests[i].count) : 0;

			*all += n;
			if (key != 0 && is_error(key - 1))
				*errors += n;
		}
	}
	pthread_mutex_unlock(&sets_lock);
}

void metric_set_routes(const char *const *names, unsigned count)
{
	atomic_store_explicit(&route_count, 0, memory_order_relaxed);
	atomic_store_explicit(&route_names, names, memory_order_relaxed);
	atomic_store_explicit(
		&route_count, MIN(count, METRIC_ROUTES_MAX + 0u), memory_order_release);
}

static const char *route_name(unsigned route)
{
	const char *const *names;

	if (route >= atomic_load_explicit(&route_count, memory_order_acquire))
		return "other";
	names = atomic_load_explicit(&route_names, memory_order_relaxed);
	return names[route] != NULL ? names[route] : "other";
}

void metric_label(struct text *out, struct span value)
{
	/* SIZE_MAX cannot be had, and fails it */
	char *to = text_room(out, value.n < SIZE_MAX / 4 ? 2 * value.n : SIZE_MAX);

	if (to == NULL)
		return;
	for (size_t i = 0; i < value.n; i++) {
		char c = value.p[i];

		if (c == '\\' || c == '"' || c == '\n')
			*to++ = '\\';
		*to++ = c == '\n' ? 'n' : c;
	}
	*to = '\0';
	out->n = (size_t)(to - out->p);
}

void metric_family(struct text *out, const char *name, const char *type, const char *help)
{
	text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static bool is_retried_by_default(int status)
{
	static const int statuses[] = {408, 429, 500, 502, 503, 504};

	for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
		if (statuses[i] == status)
			return true;
	}
	return false;
}

/* The rest of their family: of any status, if it was retried. */
static void print_retries(struct text *out)
{
	uint64_t counts[RETRY_STATUSES] = {0};

	pthread_mutex_lock(&sets_lock);
	for (struct metric_set *set = sets; set != NULL; set = set->next) {
		for (int i = 0; i < RETRY_STATUSES; i++)
			counts[i] += peek(&set->retries[i]);
	}
	pthread_mutex_unlock(&sets_lock);
	for (int i = 0; i < RETRY_STATUSES; i++) {
		if (counts[i] > 0 || is_retried_by_default(RETRY_FIRST + i))
			text_printf(out, "kvsteer_retries_total{reason=\"%d\"} %llu\n",
				RETRY_FIRST + i, (unsigned long long)counts[i]);
	}
}

static void print_values(struct text *out)
{
	static const struct {
		const char *name, *help;
		enum metric_kind kind;
	} rows[] = {
#define X(id, kind, name, help) {name, help, METRIC_##kind},
		METRIC_TABLE(X)
#undef X
	};
	static const char *const kinds[] = {
		[METRIC_COUNTER] = "counter", [METRIC_GAUGE] = "gauge"};
	char family[128], last[128] = "";

	for (size_t i = 0; i < METRIC_MAX; i++) {
		snprintf(family, sizeof(family), "%.*s", (int)strcspn(rows[i].name, "{"),
			rows[i].name);
		if (strcmp(family, last) != 0)
			metric_family(out, family, kinds[rows[i].kind], rows[i].help);
		memcpy(last, family, sizeof(last));
		text_printf(out, "%s %lld\n", rows[i].name,
			(long long)metric_total((enum metric_id)i));
		if (i == METRIC_RETRIES_ERROR) /* the last that is no status */
			print_retries(out);
	}
}

/*
 * value / 10^digits, exactly and without trailing zeros: 2500 with 6 digits is "0.0025".
 */
static const char *print_decimal(uint64_t value, unsigned digits, char *out, size_t n)
{
	uint64_t unit = 1;
	int len;

	for (unsigned i = 0; i < digits; i++)
		unit *= 10;
	len = snprintf(out, n, "%llu.%0*llu", (unsigned long long)(value / unit),
		(int)digits, (unsigned long long)(value % unit));
	while (len > 0 && out[len - 1] == '0')
		out[--len] = '\0';
	if (len > 0 && out[len - 1] == '.')
		out[--len] = '\0';
	return out;
}

static void sum_histogram(enum metric_histogram h, uint64_t *buckets, uint64_t *sum)
{
	pthread_mutex_lock(&sets_lock);
	for (struct metric_set *set = sets; set != NULL; set = set->next) {
		for (size_t i = 0; i <= BOUNDS_MAX; i++)
			buckets[i] += peek(&set->histograms[h].buckets[i]);
		*sum += peek(&set->histograms[h].sum);
	}
	pthread_mutex_unlock(&sets_lock);
}

static void print_histogram(struct text *out, enum metric_histogram h)
{
	uint64_t buckets[BOUNDS_MAX + 1] = {0}, sum = 0, count = 0;
	const char *name = histograms[h].name;
	unsigned digits = histograms[h].digits, n = histograms[h].count;
	char number[48];

	sum_histogram(h, buckets, &sum);
	metric_family(out, name, "histogram", histograms[h].help);
	for (unsigned i = 0; i < n; i++) {
		count += buckets[i];
		text_printf(out, "%s_bucket{le=\"%s\"} %llu\n", name,
			print_decimal(
				histograms[h].bounds[i], digits, number, sizeof(number)),
			(unsigned long long)count);
	}
	count += buckets[n];
	text_printf(
		out, "%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)count);
	text_printf(out, "%s_sum %s\n", name,
		print_decimal(sum, digits, number, sizeof(number)));
	text_printf(out, "%s_count %llu\n", name, (unsigned long long)count);
}

/*
 * A series as its labels, which several keys may share: failures with one code, rows with
 * one route name.
 */
struct series {
	const char *route, *reason;
	int status;
	uint64_t count;
};

struct series_list {
	struct series *items;
	size_t n, cap;
};

static int add_series(struct series_list *list, struct series s)
{
	if (mem_grow(&list->items, &list->cap, list->n + 1, sizeof(*list->items)) != 0)
		return -1;
	list->items[list->n++] = s;
	return 0;
}

/* Every route stands there from the start, so that its first request is an increase. */
static int collect_routes(struct series_list *list)
{
	unsigned n = MIN(atomic_load(&route_count), (unsigned)METRIC_ROUTES_MAX);
	int rc = 0;

	for (unsigned i = 0; i < n && rc == 0; i++)
		rc = add_series(list, (struct series){route_name(i), fail_code(FAIL_NONE),
					      fail_status(FAIL_NONE), 0});
	return rc;
}

static int collect_set(struct series_list *list, struct metric_set *set)
{
	for (size_t i = 0; i < REQUEST_CELLS; i++) {
		uint32_t key =
			atomic_load_explicit(&set->requests[i].key, memory_order_relaxed);

		if (key == 0)
			continue;
		key--;
		if (add_series(list, (struct series){
					     .route = route_name(key >> 20),
					     .reason = fail_code((enum fail)(key & 0xff)),
					     .status = (int)(key >> 8 & 0xfff),
					     .count = peek(&set->requests[i].count),
				     }) != 0)
			return -1;
	}
	return 0;
}

/* Fills list, and *unplaced with what found no cell. */
static int collect_requests(struct series_list *list, uint64_t *unplaced)
{
	int rc = collect_routes(list);

	pthread_mutex_lock(&sets_lock);
	for (struct metric_set *set = sets; set != NULL && rc == 0; set = set->next) {
		rc = collect_set(list, set);
		*unplaced += peek(&set->requests_unplaced);
	}
	pthread_mutex_unlock(&sets_lock);
	return rc;
}

static int compare_series(const void *left, const void *right)
{
	const struct series *a = left, *b = right;
	int order = strcmp(a->route, b->route);

	if (order == 0)
		order = a->status - b->status;
	return order != 0 ? order : strcmp(a->reason, b->reason);
}

static void print_request(struct text *out, const struct series *s)
{
	text_printf(out, "kvsteer_requests_total{route=\"");
	metric_label(out, span_str(s->route));
	text_printf(out, "\",code=\"%d\",reason=\"%s\"} %llu\n", s->status, s->reason,
		(unsigned long long)s->count);
}

static void print_requests(struct text *out)
{
	struct series_list list = {0};
	uint64_t unplaced = 0;

	if (collect_requests(&list, &unplaced) != 0)
		out->failed = true;
	metric_family(out, "kvsteer_requests_total", "counter", "Requests ended");
	if (list.n > 1)
		qsort(list.items, list.n, sizeof(*list.items), compare_series);
	for (size_t i = 0; i < list.n; i++) {
		if (i + 1 < list.n &&
			compare_series(&list.items[i], &list.items[i + 1]) == 0)
			list.items[i + 1].count += list.items[i].count;
		else
			print_request(out, &list.items[i]);
	}
	if (unplaced > 0)
		print_request(out, &(struct series){"other", "other", 0, unplaced});
	free(list.items);
}

void metric_print(struct text *out)
{
	print_requests(out);
	print_values(out);
	for (int h = 0; h < METRIC_HISTOGRAM_MAX; h++)
		print_histogram(out, (enum metric_histogram)h);
	metric_family(
		out, "kvsteer_build_info", "gauge", "Always 1; the label is the version");
	text_printf(out, "kvsteer_build_info{version=\"%s\"} 1\n", KVSTEER_VERSION);
}
