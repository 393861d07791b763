/*
 * Times whole decisions of a pool: what a pick costs once the prompt is hashed, for each
 * cost of cache_aware and every other policy; and what several threads on one pool take
 * from each other. Not part of "make check": prints, asserts nothing.
 *
 *	bench_pool [SECONDS]        of each contention row; 1 by default
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/rng.h"
#include "conf/conf_flags.h"
#include "pool/pool.h"
#include "worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	LONG_BLOCKS = 3125, /* 100,000 tokens in blocks of 32 */
	TALKS = 400,
	SAMPLES = 20000,
	TURN_BLOCKS = 12,
	SHORT_BLOCKS = 160,
	THREADS_MAX = 8,
	HELD = 64 /* guards that are kept, so that loads differ */
};

static const uint64_t secret[2] = {1, 2};
static const struct pool_ops no_ops = {NULL, NULL, NULL};

static uint64_t now_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double part_us(uint64_t *ns, size_t n, double part)
{
	return (double)ns[(size_t)(part * (double)(n - 1))] / 1000;
}

/* ---- pools ---- */

struct spec {
	const char *policy, *signal, *cost;
};

static struct conf *load_conf(const struct spec *s, unsigned workers)
{
	struct conf_errors errors = {0};
	struct conf_flags flags;
	struct conf *conf = NULL;
	char *argv[1100] = {"kvsteerd", "--worker-urls"};
	int argc = 2;

	for (unsigned i = 0; i < workers; i++)
		argv[argc++] = xasprintf("http://10.0.%u.%u:8000", i >> 8, i & 255);
	argv[argc++] = xstrdup("--policy");
	argv[argc++] = xstrdup(s->policy);
	if (s->signal != NULL) {
		argv[argc++] = xstrdup("--signal");
		argv[argc++] = xstrdup(s->signal);
		argv[argc++] = xstrdup("--cost");
		argv[argc++] = xstrdup(s->cost);
	}
	if (conf_flags_parse(argc, argv, &errors, &flags) != 0 ||
		conf_load(NULL, &flags, &errors, &conf) != 0) {
		printf("%s: %s\n", s->policy, conf_error_text(&errors.items[0]));
		exit(1);
	}
	conf_flags_free(&flags);
	conf_errors_free(&errors);
	for (int i = 2; i < argc; i++)
		free(argv[i]);
	return conf;
}

static struct pool *open_pool(const struct spec *s, unsigned workers)
{
	struct conf *conf = load_conf(s, workers);
	struct pool *p = pool_new(conf->pools[0].name, secret, &no_ops, NULL);
	struct worker **list;
	size_t n;

	if (p == NULL || pool_update(p, &conf->pools[0], conf, 1000) != 0)
		exit(1);
	conf_unref(conf);
	list = pool_list(p, &n);
	for (size_t i = 0; i < n; i++) {
		atomic_store(&list[i]->health, WORKER_HEALTHY);
		worker_unref(list[i]);
	}
	free(list);
	return p;
}

static void close_pool(struct pool *p)
{
	pool_close(p);
	pool_unref(p);
}

/* Every signal and cost of cache_aware, then the other policies. */
static size_t list_specs(struct spec *out)
{
	static const char *const names[] = {"policy", "signal", "cost"};
	static const int n[] = {POLICY_KIND_MAX, SIGNAL_KIND_MAX, COST_KIND_MAX};
	const char *text[3][16];
	size_t k = 0;

	for (size_t t = 0; t < 3; t++) {
		const struct conf_key *key =
			conf_key_find(SECTION_POOL, span_str(names[t]));

		for (int i = 0; i < n[t]; i++) {
			struct role_opts opts = {
				.policy = {.policy = (enum policy_kind)0}};

			memcpy((char *)&opts + key->offset, &i, sizeof(i));
			text[t][i] = conf_value_text(key, &opts);
		}
	}
	for (int s = 0; s < SIGNAL_KIND_MAX; s++) {
		for (int c = 0; c < COST_KIND_MAX; c++)
			out[k++] = (struct spec){"cache_aware", text[1][s], text[2][c]};
	}
	for (int i = 0; i < POLICY_KIND_MAX; i++) {
		if (i != POLICY_CACHE_AWARE)
			out[k++] = (struct spec){text[0][i], NULL, NULL};
	}
	return k; /* the texts live as long as the program */
}

/* ---- keys ---- */

static void make_key(struct route_key *k, size_t blocks)
{
	route_key_init(k);
	k->readable = true;
	k->endpoint = ENDPOINT_CHAT;
	k->unit = 'b';
	k->block = 128;
	k->hashes = xcalloc(blocks, sizeof(*k->hashes));
	k->cap_blocks = blocks;
}

/* A talk's stream up to a last turn of its own; `common` blocks begin all of them. */
static void set_key(struct pool *p, struct route_key *k, uint64_t talk, size_t common,
	size_t blocks, uint64_t turn)
{
	for (size_t i = 0; i < blocks; i++)
		k->hashes[i] = (i < common ? 0 : talk + 1) * 1000003 + i;
	for (size_t i = blocks - MIN(blocks, (size_t)TURN_BLOCKS); i < blocks; i++)
		k->hashes[i] += (turn + 1) << 40;
	k->n_blocks = blocks;
	k->prompt_units = blocks * k->block;
	k->is_sealed = false;
	pool_seal_key(p, k, SPAN_LIT(""));
}

/* ---- one decision ---- */

struct held {
	struct guard guards[HELD];
	size_t at;
};

static uint64_t time_pick(struct pool *p, struct route_key *k, uint64_t at_ms,
	struct held *held, struct pool_pick *pick)
{
	struct pool_ask ask = {.role = ROLE_UNIFIED, .key = k, .now_ms = at_ms};
	struct guard *g = &held->guards[held->at++ % HELD];
	uint64_t began;

	guard_drop(g);
	began = now_ns();
	if (pool_pick(p, &ask, g, pick) != 0)
		exit(1);
	began = now_ns() - began;
	guard_prefilled(g);
	return began;
}

/*
 * 100,000-token prompts of 400 conversations, which come back with a last turn of their
 * own each time: nearly all of a prompt is known, 12 blocks are inserted.
 */
static void bench_decision(const struct spec *s, unsigned workers)
{
	struct pool *p = open_pool(s, workers);
	scoped_free uint64_t *ns = xcalloc(SAMPLES, sizeof(*ns));
	static struct held held;
	struct prefix_index_stats stats;
	struct pool_pick pick;
	struct route_key k;
	struct rng rng;
	double matched = 0;

	rng_seed(&rng, 1);
	make_key(&k, LONG_BLOCKS);
	for (uint64_t talk = 0; talk < TALKS; talk++) {
		set_key(p, &k, talk, 64, LONG_BLOCKS, 0);
		(void)time_pick(p, &k, 1000, &held, &pick);
	}
	for (size_t i = 0; i < SAMPLES; i++) {
		set_key(p, &k, rng_below(&rng, TALKS), 64, LONG_BLOCKS, i + 1);
		ns[i] = time_pick(p, &k, 1000 + i / 100, &held, &pick);
		matched += pick.matched;
	}
	qsort(ns, SAMPLES, sizeof(*ns), compare_ns);
	pool_index_stats(p, ROLE_UNIFIED, &stats);
	printf("%-15s %-14s %-14s %3u %8.2f %8.2f %8.2f %8.0f %8.1f\n", s->policy,
		s->signal != NULL ? s->signal : "", s->cost != NULL ? s->cost : "",
		workers, part_us(ns, SAMPLES, .5), part_us(ns, SAMPLES, .99),
		part_us(ns, SAMPLES, .999), matched / SAMPLES,
		stats.blocks > 0 ? (double)stats.bytes / (double)stats.blocks : 0);
	(void)fflush(stdout);
	for (size_t i = 0; i < HELD; i++)
		guard_drop(&held.guards[i]);
	route_key_free(&k);
	close_pool(p);
}

/* ---- several threads ---- */

struct thread {
	struct pool *pool;
	pthread_t id;
	uint64_t seed, n, *ns; /* the first SAMPLES of them */
	struct held held;
};

static _Atomic bool is_over;

/* Conversations under a common system prompt, at 20 blocks and more. */
static void *pick_on(void *arg)
{
	struct thread *t = arg;
	struct pool_pick pick;
	struct route_key k;
	struct rng rng;

	metric_thread_start();
	rng_seed(&rng, t->seed);
	make_key(&k, SHORT_BLOCKS);
	while (!atomic_load_explicit(&is_over, memory_order_relaxed)) {
		size_t blocks = 20 + rng_below(&rng, SHORT_BLOCKS - 20);
		uint64_t took;

		set_key(t->pool, &k, rng_below(&rng, 4000), 16, blocks, t->n);
		took = time_pick(t->pool, &k, 1000, &t->held, &pick);
		t->ns[t->n++ % SAMPLES] = took;
	}
	for (size_t i = 0; i < HELD; i++)
		guard_drop(&t->held.guards[i]);
	route_key_free(&k);
	return NULL;
}

static void print_threads(
	const struct spec *s, struct thread *threads, unsigned n, double took_s)
{
	scoped_free uint64_t *all = xcalloc((size_t)n * SAMPLES, sizeof(*all));
	uint64_t picks = 0;
	size_t kept = 0;

	for (unsigned i = 0; i < n; i++) {
		size_t has = MIN(threads[i].n, (uint64_t)SAMPLES);

		memcpy(all + kept, threads[i].ns, has * sizeof(*all));
		kept += has;
		picks += threads[i].n;
		free(threads[i].ns);
	}
	qsort(all, kept, sizeof(*all), compare_ns);
	printf("%-15s %-14s %2u threads %10.0f picks/s %8.2f %8.2f %8.2f\n", s->policy,
		s->cost != NULL ? s->cost : "", n, (double)picks / took_s,
		part_us(all, kept, .5), part_us(all, kept, .99),
		part_us(all, kept, .999));
	(void)fflush(stdout);
}

static void bench_threads(const struct spec *s, unsigned n, double seconds)
{
	static struct thread threads[THREADS_MAX];
	struct pool *p = open_pool(s, 16);
	struct timespec pause = {
		(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
	uint64_t began = now_ns();

	atomic_store(&is_over, false);
	for (unsigned i = 0; i < n; i++) {
		threads[i] = (struct thread){.pool = p, .seed = i + 1};
		threads[i].ns = xcalloc(SAMPLES, sizeof(*threads[i].ns));
		if (pthread_create(&threads[i].id, NULL, pick_on, &threads[i]) != 0)
			exit(1);
	}
	(void)nanosleep(&pause, NULL);
	atomic_store(&is_over, true);
	for (unsigned i = 0; i < n; i++)
		(void)pthread_join(threads[i].id, NULL);
	print_threads(s, threads, n, (double)(now_ns() - began) / 1e9);
	close_pool(p);
}

int main(int argc, char **argv)
{
	static const struct spec contended[] = {
		{"cache_aware", "longest_prefix", "overload_check"},
		{"cache_aware", "longest_prefix", "prefill_cost"},
		{"least_requests", NULL, NULL}};
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	struct spec specs[64];
	size_t n = list_specs(specs);

	metric_thread_start();
	printf("a decision for 100,000 tokens (3125 blocks), microseconds\n%-15s %-14s "
	       "%-14s %3s %8s %8s %8s %8s %8s\n",
		"policy", "signal", "cost", "", "p50", "p99", "p99.9", "matched",
		"B/block");
	for (size_t i = 0; i < n; i++) {
		bench_decision(&specs[i], 1);
		bench_decision(&specs[i], 16);
	}
	printf("\nthreads on one pool of 16 workers, prompts of 20 to 160 blocks, "
	       "microseconds p50, p99, p99.9\n");
	for (size_t i = 0; i < ARRAY_LEN(contended); i++) {
		for (unsigned t = 1; t <= THREADS_MAX; t *= 2)
			bench_threads(&contended[i], t, seconds);
	}
	return 0;
}
