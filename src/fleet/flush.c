/*
 * The prefix caches of a whole pool emptied. See flush.h.
 *
 * Always true: a leg has a fetch under way, or it is done; on_done comes when the last
 * leg is, from the loop.
 */
#include "fleet/flush.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "fleet/host.h"
#include "pool/pool.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>

#define FLUSH_TIMEOUT_MS 20000

/* SGLang's and our engine's call, then vLLM's. */
static const char *const calls[] = {"/flush_cache", "/reset_prefix_cache"};

struct leg {
	struct flush *flush;
	struct host host;
	struct host_seat seat; /* of one of its workers: only the address counts */
	struct fetch *fetch;
	size_t at; /* the call in hand */
	bool is_flushed;
	char why_not[128];
};

struct flush {
	struct fetcher *fetcher;
	struct pool *pool; /* a reference */
	struct leg *legs;
	size_t n, left;
	void (*on_done)(void *arg, struct flush *flush);
	void *arg;
};

static void ask(struct leg *l);

static void all_done(struct flush *f)
{
	size_t i, flushed = 0;

	for (i = 0; i < f->n; i++)
		flushed += f->legs[i].is_flushed;
	/* Requests that came in between were keyed before: they are forgotten too. */
	if (flushed > 0)
		pool_bump_generation(f->pool);
	log_notice("pool %s: caches of %zu of %zu workers flushed, generation %llu",
		pool_name(f->pool), flushed, f->n,
		(unsigned long long)pool_generation(f->pool));
	f->on_done(f->arg, f);
}

static void leg_done(struct leg *l)
{
	struct flush *f = l->flush;

	f->left--;
	if (f->left == 0)
		all_done(f);
}

static void on_answer(void *arg, const struct fetch_answer *a)
{
	struct leg *l = arg;

	l->fetch = NULL;
	l->is_flushed = host_said_yes(a);
	if (a->result != FETCH_OK)
		snprintf(l->why_not, sizeof(l->why_not), "%s",
			fetch_result_text(a->result));
	else if (!l->is_flushed)
		snprintf(l->why_not, sizeof(l->why_not), "%s: status %d", calls[l->at],
			a->status);
	/* Another engine has another call for it. */
	if (a->result == FETCH_OK && (a->status == 404 || a->status == 405) &&
		l->at + 1 < ARRAY_LEN(calls)) {
		l->at++;
		ask(l);
		if (l->fetch != NULL)
			return;
	}
	leg_done(l);
}

static void ask(struct leg *l)
{
	struct host_ask what = {
		.method = "POST", .path = calls[l->at], .timeout_ms = FLUSH_TIMEOUT_MS};
	struct host_seat *seat;

	HOST_FOREACH(seat, &l->host)
	worker_expect_aborts(seat->worker, clock_now_ms());
	l->fetch = host_fetch(&l->host, l->flush->fetcher, &what, on_answer, l);
	if (l->fetch == NULL)
		snprintf(l->why_not, sizeof(l->why_not), "it has no address yet");
}

static struct leg *find_leg(const struct flush *f, const struct worker *w)
{
	size_t i;

	for (i = 0; i < f->n; i++) {
		if (f->legs[i].host.id == w->host_id)
			return &f->legs[i];
	}
	return NULL;
}

/* One leg for each host. */
static int fill_legs(struct flush *f)
{
	struct worker *w;
	size_t i, n = 0;

	while (pool_worker_at(f->pool, n) != NULL)
		n++;
	f->legs = calloc(n + 1, sizeof(*f->legs));
	if (f->legs == NULL)
		return ERR_NOMEM;
	for (i = 0; (w = pool_worker_at(f->pool, i)) != NULL; i++) {
		struct leg *l;

		if (find_leg(f, w) != NULL)
			continue;
		l = &f->legs[f->n++];
		l->flush = f;
		host_init(&l->host, f->pool, w->host_id);
		host_add(&l->host, &l->seat, w);
	}
	return 0;
}

struct flush *flush_start(struct fetcher *f, struct pool *p,
	void (*on_done)(void *arg, struct flush *flush), void *arg)
{
	struct flush *flush = calloc(1, sizeof(*flush));
	size_t i, asked = 0;

	if (flush == NULL)
		return NULL;
	*flush = (struct flush){
		.fetcher = f, .pool = pool_ref(p), .on_done = on_done, .arg = arg};
	if (fill_legs(flush) != 0) {
		flush_free(flush);
		return NULL;
	}
	flush->left = flush->n;
	for (i = 0; i < flush->n; i++) {
		ask(&flush->legs[i]);
		asked += flush->legs[i].fetch != NULL;
	}
	flush->left = asked;
	return flush;
}

bool flush_is_over(const struct flush *flush)
{
	return flush->left == 0;
}

void flush_free(struct flush *flush)
{
	size_t i;

	if (flush == NULL)
		return;
	for (i = 0; i < flush->n; i++) {
		if (flush->legs[i].fetch != NULL)
			fetch_cancel(flush->legs[i].fetch);
		host_clear(&flush->legs[i].host);
	}
	free(flush->legs);
	pool_unref(flush->pool);
	free(flush);
}

struct pool *flush_pool(const struct flush *flush)
{
	return flush->pool;
}

size_t flush_count(const struct flush *flush)
{
	return flush->n;
}

struct flush_outcome flush_outcome(const struct flush *flush, size_t i)
{
	const struct leg *l = &flush->legs[i];

	return (struct flush_outcome){host_worker(&l->host)->group, l->is_flushed,
		l->is_flushed ? "" : l->why_not};
}
