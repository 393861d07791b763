/*
 * What the model's tests share: a configuration from a text, a pool of usable workers,
 * prompts as sealed keys, and the balance of guards that every one of them ends with.
 */
#ifndef UNIT_UNIT_MODEL_H
#define UNIT_UNIT_MODEL_H

#include "base/metric.h"
#include "conf/conf.h"
#include "pool/pool.h"
#include "tests/unit/unit.h"
#include "worker/worker.h"

#include <string.h>

/* ck_assert writes a file position each time; what is asked millions of times asks here.
 */
#define WANT(fact)                                         \
	do {                                               \
		if (!(fact))                               \
			ck_abort_msg("not so: %s", #fact); \
	} while (0)

static const uint64_t unit_secret[2] = {0x1111, 0x2222};
static const struct pool_ops unit_no_ops = {NULL, NULL, NULL};

/* One reference; the text is a configuration file's. */
static inline struct conf *unit_conf(const char *text)
{
	char path[] = "/tmp/kvsteer_unit.XXXXXX/kvsteer.conf";
	struct conf_errors errors = {0};
	struct conf *conf = NULL;
	FILE *f;
	int err;

	path[strlen("/tmp/kvsteer_unit.XXXXXX")] = '\0';
	ck_assert_ptr_nonnull(mkdtemp(path));
	path[strlen(path)] = '/';
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
	err = conf_load(path, NULL, &errors, &conf);
	unlink(path);
	*strrchr(path, '/') = '\0';
	rmdir(path);
	if (err != 0 && errors.n > 0)
		ck_abort_msg("%s in\n%s", conf_error_text(&errors.items[0]), text);
	conf_errors_free(&errors);
	return conf;
}

/* "[worker w0] ... [worker w<n-1>]", each with the lines of extra. */
static inline void unit_workers(char *out, size_t room, unsigned n, const char *extra)
{
	size_t len = strlen(out);

	for (unsigned i = 0; i < n; i++)
		len += (size_t)snprintf(out + len, room - len,
			"[worker w%u]\nurl = http://10.0.0.%u:8000\n%s", i, i + 1, extra);
	ck_assert_uint_lt(len, room);
}

static inline void unit_make_healthy(struct pool *p)
{
	size_t n;
	struct worker **list = pool_list(p, &n);

	for (size_t i = 0; i < n; i++) {
		atomic_store(&list[i]->health, WORKER_HEALTHY);
		worker_unref(list[i]);
	}
	free(list);
}

/* The first pool of a configuration text, its workers healthy. */
static inline struct pool *unit_pool(const char *text)
{
	struct conf *conf = unit_conf(text);
	struct pool *p = pool_new(conf->pools[0].name, unit_secret, &unit_no_ops, NULL);

	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(pool_update(p, &conf->pools[0], conf, 1000), 0);
	conf_unref(conf);
	unit_make_healthy(p);
	return p;
}

/* A pool "default" with these lines and n healthy workers. */
static inline struct pool *unit_pool_of(unsigned n, const char *pool_lines)
{
	char text[8192];

	snprintf(text, sizeof(text), "[pool default]\n%s", pool_lines);
	unit_workers(text, sizeof(text), n, "");
	return unit_pool(text);
}

/* Borrowed: it lives as long as it is in the pool. */
static inline struct worker *unit_worker(struct pool *p, const char *name)
{
	struct worker *w = pool_find(p, span_str(name));

	ck_assert_msg(w != NULL, "no worker %s", name);
	worker_unref(w);
	return w;
}

/* Puts a worker's load at n. */
static inline void unit_hold(struct worker *w, struct guard *guards, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		guards[i].worker = NULL;
		guard_take(&guards[i], w);
	}
}

static inline void unit_drop(struct guard *guards, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		guard_drop(&guards[i]);
}

/*
 * A prompt: its first `shared` blocks are those of family a, the rest up to n are family
 * b's (as the chain has it: after a difference every hash differs). Public hashes.
 */
static inline struct route_key unit_key(uint64_t a, size_t shared, uint64_t b, size_t n)
{
	struct route_key k;

	route_key_init(&k);
	k.readable = true;
	k.unit = 'b';
	k.block = 128;
	k.hashes = calloc(n + 1, sizeof(*k.hashes));
	k.n_blocks = k.cap_blocks = n;
	for (size_t i = 0; i < n; i++)
		k.hashes[i] = (i < shared ? a : b) * 1000003 + i;
	return k;
}

static inline struct route_key unit_sealed(
	struct pool *p, uint64_t a, size_t shared, uint64_t b, size_t n)
{
	struct route_key k = unit_key(a, shared, b, n);

	pool_seal_key(p, &k, SPAN_LIT(""));
	return k;
}

/* Every guard came back, no worker of p holds any; p goes. */
static inline void unit_close(struct pool *p)
{
	size_t n;
	struct worker **list = pool_list(p, &n);

	for (size_t i = 0; i < n; i++) {
		ck_assert_uint_eq(worker_load(list[i]), 0);
		ck_assert_uint_eq(worker_queued_blocks(list[i]), 0);
		ck_assert_uint_eq(worker_streams(list[i]), 0);
		worker_unref(list[i]);
	}
	free(list);
	ck_assert_int_eq(
		metric_total(METRIC_GUARDS_TAKEN), metric_total(METRIC_GUARDS_DROPPED));
	pool_close(p);
	pool_unref(p);
}

#endif
