/*
 * Sessions and the workers they live on. See session_map.h.
 */
#include "policy/session_map.h"

#include "base/hash.h"

#include <stdlib.h>

#define NONE UINT32_MAX
#define FIRST_TALLIES 16

struct session {
	uint64_t id;
	uint64_t worker;
	uint64_t used_ms;
	uint32_t newer, older; /* in order of use; NONE at the ends */
	uint32_t next;         /* in its bucket, or of the free ones */
};

/* Open addressing; a worker without sessions keeps its place until the next growth. */
struct tally {
	uint64_t worker;
	uint32_t sessions;
	bool is_taken;
};

struct session_map {
	uint64_t seed;
	uint32_t max, n;
	uint32_t touched;   /* sessions[touched..] were never used */
	uint32_t free_list; /* of the others */
	uint32_t newest, oldest;
	uint32_t mask; /* of buckets */
	uint32_t *buckets;
	struct session *sessions;
	struct tally *tallies;
	size_t n_tallies, cap_tallies; /* a power of two, half full at most */
};

static uint32_t power_of_two(uint32_t at_least)
{
	uint32_t n = 1;

	while (n < at_least)
		n *= 2;
	return n;
}

struct session_map *session_map_new(uint32_t max_sessions, uint64_t seed)
{
	struct session_map *m = calloc(1, sizeof(*m));
	uint32_t buckets = power_of_two(max_sessions);

	if (m == NULL)
		return NULL;
	*m = (struct session_map){.seed = seed,
		.max = max_sessions,
		.free_list = NONE,
		.newest = NONE,
		.oldest = NONE,
		.mask = buckets - 1,
		.cap_tallies = FIRST_TALLIES};
	/* Fresh pages from the kernel: only those that are used count. A bucket holds
	 * its first session's number plus one. */
	m->buckets = calloc(buckets, sizeof(*m->buckets));
	m->sessions = calloc(max_sessions, sizeof(*m->sessions));
	m->tallies = calloc(m->cap_tallies, sizeof(*m->tallies));
	if (m->buckets == NULL || m->sessions == NULL || m->tallies == NULL) {
		session_map_free(m);
		return NULL;
	}
	return m;
}

void session_map_free(struct session_map *m)
{
	if (m == NULL)
		return;
	free(m->buckets);
	free(m->sessions);
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
	*t = (struct tally){.worker = worker, .is_taken = true};
	m->n_tallies++;
	return t;
}

static void tally_less(struct session_map *m, uint64_t worker)
{
	struct tally *t = tally_place(m->tallies, m->cap_tallies, worker);

	assert(t->is_taken && t->sessions > 0);
	t->sessions--;
}

/* ---- sessions ---- */

static uint32_t *bucket_of(const struct session_map *m, uint64_t session)
{
	return &m->buckets[(uint32_t)hash_mix64(session, m->seed) & m->mask];
}

static uint32_t look_up(const struct session_map *m, uint64_t session)
{
	uint32_t at = *bucket_of(m, session);

	for (; at != 0; at = m->sessions[at - 1].next) {
		if (m->sessions[at - 1].id == session)
			return at - 1;
	}
	return NONE;
}

static void unlink_use(struct session_map *m, struct session *s)
{
	if (s->newer != NONE)
		m->sessions[s->newer].older = s->older;
	else
		m->newest = s->older;
	if (s->older != NONE)
		m->sessions[s->older].newer = s->newer;
	else
		m->oldest = s->newer;
}

static void link_newest(struct session_map *m, uint32_t at)
{
	m->sessions[at].newer = NONE;
	m->sessions[at].older = m->newest;
	if (m->newest != NONE)
		m->sessions[m->newest].newer = at;
	else
		m->oldest = at;
	m->newest = at;
}

static void remove_session(struct session_map *m, uint32_t at)
{
	struct session *s = &m->sessions[at];
	uint32_t *link = bucket_of(m, s->id);

	while (*link != at + 1)
		link = &m->sessions[*link - 1].next;
	*link = s->next;
	unlink_use(m, s);
	tally_less(m, s->worker);
	s->next = m->free_list;
	m->free_list = at;
	m->n--;
}

/* Room for one more; the least recently used goes when there is none. */
static uint32_t take_place(struct session_map *m)
{
	uint32_t at;

	if (m->n == m->max)
		remove_session(m, m->oldest);
	at = m->free_list;
	if (at == NONE)
		return m->touched++;
	m->free_list = m->sessions[at].next;
	return at;
}

static uint32_t add_session(struct session_map *m, uint64_t session)
{
	uint32_t at = take_place(m), *bucket = bucket_of(m, session);

	m->sessions[at] = (struct session){.id = session, .next = *bucket};
	*bucket = at + 1;
	m->n++;
	return at;
}

static bool is_over(const struct session *s, uint64_t now_ms, uint64_t ttl_ms)
{
	return ttl_ms > 0 && now_ms >= s->used_ms && now_ms - s->used_ms >= ttl_ms;
}

bool session_map_find(const struct session_map *m, uint64_t session, uint64_t now_ms,
	uint64_t ttl_ms, uint64_t *worker)
{
	uint32_t at = look_up(m, session);

	if (at == NONE || is_over(&m->sessions[at], now_ms, ttl_ms))
		return false;
	*worker = m->sessions[at].worker;
	return true;
}

void session_map_put(
	struct session_map *m, uint64_t session, uint64_t worker, uint64_t now_ms)
{
	struct tally *t = tally_of(m, worker);
	uint32_t at = look_up(m, session);

	if (t == NULL) {
		if (at != NONE)
			remove_session(m, at);
		return;
	}
	t->sessions++;
	if (at != NONE) {
		tally_less(m, m->sessions[at].worker);
		unlink_use(m, &m->sessions[at]);
	} else {
		at = add_session(m, session);
	}
	m->sessions[at].worker = worker;
	m->sessions[at].used_ms = now_ms;
	link_newest(m, at);
}

bool session_map_end(struct session_map *m, uint64_t session)
{
	uint32_t at = look_up(m, session);

	if (at == NONE)
		return false;
	remove_session(m, at);
	return true;
}

unsigned session_map_sweep(
	struct session_map *m, uint64_t now_ms, uint64_t ttl_ms, unsigned max)
{
	unsigned n;

	for (n = 0; n < max && m->oldest != NONE; n++) {
		if (!is_over(&m->sessions[m->oldest], now_ms, ttl_ms))
			break;
		remove_session(m, m->oldest);
	}
	return n;
}

uint32_t session_map_total(const struct session_map *m)
{
	return m->n;
}

uint32_t session_map_of(const struct session_map *m, uint64_t worker)
{
	const struct tally *t = tally_place(m->tallies, m->cap_tallies, worker);

	return t->is_taken ? t->sessions : 0;
}
