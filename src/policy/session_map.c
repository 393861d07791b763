/*
 * Sessions and the workers they live on. See session_map.h.
 */
#include "policy/session_map.h"

#include "base/hash.h"
#include "base/lru_map.h"

#include <stdlib.h>

#define FIRST_TALLIES 16

struct session {
	struct lru_node node;
	uint64_t id;
	uint64_t worker;
	uint64_t used_ms;
	uint32_t stay; /* its tally's when it was put there: else it is forgotten */
};

static_assert(offsetof(struct session, id) == sizeof(struct lru_node), "its key");

/* Open addressing; a worker without sessions keeps its place until the next growth. */
struct tally {
	uint64_t worker;
	uint32_t sessions;
	uint32_t stay; /* another one each time the worker comes */
	bool is_taken;
};

struct session_map {
	struct lru_map *sessions;
	struct tally *tallies;
	size_t n_tallies, cap_tallies; /* a power of two, half full at most */
	uint32_t last_stay;
};

struct session_map *session_map_new(uint32_t max_sessions, uint64_t seed)
{
	struct session_map *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	m->cap_tallies = FIRST_TALLIES;
	m->sessions = lru_map_new(max_sessions, sizeof(struct session), 1, seed);
	m->tallies = calloc(m->cap_tallies, sizeof(*m->tallies));
	if (m->sessions == NULL || m->tallies == NULL) {
		session_map_free(m);
		return NULL;
	}
	return m;
}

void session_map_free(struct session_map *m)
{
	if (m == NULL)
		return;
	lru_map_free(m->sessions);
	free(m->tallies);
	free(m);
}

/* ---- tallies ---- */

static struct tally *tally_place(struct tally *list, size_t cap, uint64_t worker)
{
	size_t i = (size_t)hash_mix64(worker, 0) & (cap - 1);

	while (list[i].is_taken && list[i].worker != worker)
		i = (i + 1) & (cap - 1);
	return &list[i];
}

static bool grow_tallies(struct session_map *m)
{
	size_t i, cap, live = 0;
	struct tally *list;

	for (i = 0; i < m->cap_tallies; i++)
		live += m->tallies[i].sessions > 0;
	cap = live * 4 >= m->cap_tallies ? m->cap_tallies * 2 : m->cap_tallies;
	list = calloc(cap, sizeof(*list));
	if (list == NULL)
		return false;
	for (i = 0; i < m->cap_tallies; i++) {
		if (m->tallies[i].sessions > 0)
			*tally_place(list, cap, m->tallies[i].worker) = m->tallies[i];
	}
	free(m->tallies);
	m->tallies = list;
	m->cap_tallies = cap;
	m->n_tallies = live;
	return true;
}

/* NULL: out of memory. */
static struct tally *tally_of(struct session_map *m, uint64_t worker)
{
	struct tally *t = tally_place(m->tallies, m->cap_tallies, worker);

	if (t->is_taken)
		return t;
	if ((m->n_tallies + 1) * 2 > m->cap_tallies) {
		if (!grow_tallies(m))
			return NULL;
		t = tally_place(m->tallies, m->cap_tallies, worker);
	}
	*t = (struct tally){.worker = worker, .stay = ++m->last_stay, .is_taken = true};
	m->n_tallies++;
	return t;
}

/* Where the session counts; NULL: it was forgotten. */
static struct tally *tally_of_live(const struct session_map *m, const struct session *s)
{
	struct tally *t = tally_place(m->tallies, m->cap_tallies, s->worker);

	return t->is_taken && t->stay == s->stay ? t : NULL;
}

static void tally_less(struct session_map *m, const struct session *s)
{
	struct tally *t = tally_of_live(m, s);

	if (t == NULL)
		return;
	assert(t->sessions > 0);
	t->sessions--;
}

void session_map_forget(struct session_map *m, uint64_t worker)
{
	struct tally *t = tally_place(m->tallies, m->cap_tallies, worker);

	if (!t->is_taken)
		return;
	t->sessions = 0;
	t->stay = ++m->last_stay;
}

/* ---- sessions ---- */

static void remove_session(struct session_map *m, struct session *s)
{
	tally_less(m, s);
	lru_map_drop(m->sessions, s);
}

static bool is_over(const struct session *s, uint64_t now_ms, uint64_t ttl_ms)
{
	return ttl_ms > 0 && now_ms >= s->used_ms && now_ms - s->used_ms >= ttl_ms;
}

bool session_map_find(const struct session_map *m, uint64_t session, uint64_t now_ms,
	uint64_t ttl_ms, uint64_t *worker)
{
	const struct session *s = lru_map_find(m->sessions, &session);

	if (s == NULL || is_over(s, now_ms, ttl_ms) || tally_of_live(m, s) == NULL)
		return false;
	*worker = s->worker;
	return true;
}

/* The least recently used goes where there is no room. */
static struct session *add_session(struct session_map *m, uint64_t session)
{
	if (lru_map_is_full(m->sessions))
		remove_session(m, lru_map_oldest(m->sessions));
	return lru_map_add(m->sessions, &session);
}

void session_map_put(
	struct session_map *m, uint64_t session, uint64_t worker, uint64_t now_ms)
{
	struct tally *t = tally_of(m, worker);
	struct session *s = lru_map_find(m->sessions, &session);

	if (t == NULL) {
		if (s != NULL)
			remove_session(m, s);
		return;
	}
	t->sessions++;
	if (s != NULL) {
		tally_less(m, s);
		lru_map_use(m->sessions, s);
	} else {
		s = add_session(m, session);
	}
	s->worker = worker;
	s->stay = t->stay;
	s->used_ms = now_ms;
}

bool session_map_end(struct session_map *m, uint64_t session)
{
	struct session *s = lru_map_find(m->sessions, &session);
	bool is_live = s != NULL && tally_of_live(m, s) != NULL;

	if (s != NULL)
		remove_session(m, s);
	return is_live;
}

unsigned session_map_sweep(
	struct session_map *m, uint64_t now_ms, uint64_t ttl_ms, unsigned max)
{
	struct session *s;
	unsigned n;

	for (n = 0; n < max; n++) {
		s = lru_map_oldest(m->sessions);
		if (s == NULL || !is_over(s, now_ms, ttl_ms))
			break;
		remove_session(m, s);
	}
	return n;
}

uint32_t session_map_of(const struct session_map *m, uint64_t worker)
{
	const struct tally *t = tally_place(m->tallies, m->cap_tallies, worker);

	return t->is_taken ? t->sessions : 0;
}
