/*
 * Responses and their workers. See response_map.h. Always true: each entry in use is in
 * the chain of its bucket and in the list by use; the others are in the chain of free
 * ones.
 */
#include "pool/response_map.h"

#include "base/hash.h"
#include "base/rng.h"

#include <pthread.h>
#include <stdlib.h>

#define NONE UINT32_MAX

struct entry {
	uint64_t key[2];
	uint64_t worker_id;
	uint32_t next;         /* in its bucket, or free */
	uint32_t older, newer; /* by use */
};

struct response_map {
	pthread_mutex_t lock;
	uint64_t secret[2];
	struct entry *entries;
	uint32_t *buckets;
	uint32_t mask; /* buckets - 1 */
	uint32_t max, n_made, n;
	uint32_t free, oldest, newest;
};

struct response_map *response_map_new(size_t max)
{
	struct response_map *m = calloc(1, sizeof(*m));
	size_t buckets = 16, i;

	assert(max >= 1 && max <= 1u << 30);
	if (m == NULL)
		return NULL;
	while (buckets < max)
		buckets *= 2;
	m->entries = calloc(max, sizeof(*m->entries));
	m->buckets = malloc(buckets * sizeof(*m->buckets));
	if (m->entries == NULL || m->buckets == NULL) {
		free(m->entries);
		free(m->buckets);
		free(m);
		return NULL;
	}
	for (i = 0; i < buckets; i++)
		m->buckets[i] = NONE;
	m->mask = (uint32_t)(buckets - 1);
	m->max = (uint32_t)max;
	m->free = m->oldest = m->newest = NONE;
	pthread_mutex_init(&m->lock, NULL);
	rng_secret(m->secret, sizeof(m->secret));
	return m;
}

void response_map_free(struct response_map *m)
{
	if (m == NULL)
		return;
	pthread_mutex_destroy(&m->lock);
	free(m->entries);
	free(m->buckets);
	free(m);
}

static void make_key(const struct response_map *m, struct span id, uint64_t key[2])
{
	key[0] = hash64(id.p, id.n, m->secret[0]);
	key[1] = hash64(id.p, id.n, m->secret[1]);
}

static uint32_t *bucket_of(struct response_map *m, const uint64_t key[2])
{
	return &m->buckets[(uint32_t)key[0] & m->mask];
}

/* The link that leads to the entry; *link is NONE where there is none. */
static uint32_t *find_link(struct response_map *m, const uint64_t key[2])
{
	uint32_t *link = bucket_of(m, key);

	while (*link != NONE && (m->entries[*link].key[0] != key[0] ||
					m->entries[*link].key[1] != key[1]))
		link = &m->entries[*link].next;
	return link;
}

static void unlist(struct response_map *m, const struct entry *e)
{
	if (e->older != NONE)
		m->entries[e->older].newer = e->newer;
	else
		m->oldest = e->newer;
	if (e->newer != NONE)
		m->entries[e->newer].older = e->older;
	else
		m->newest = e->older;
}

static void list_newest(struct response_map *m, uint32_t at)
{
	struct entry *e = &m->entries[at];

	e->older = m->newest;
	e->newer = NONE;
	if (m->newest != NONE)
		m->entries[m->newest].newer = at;
	else
		m->oldest = at;
	m->newest = at;
}

static void forget(struct response_map *m, uint32_t *link)
{
	uint32_t at = *link;
	struct entry *e = &m->entries[at];

	*link = e->next;
	unlist(m, e);
	e->next = m->free;
	m->free = at;
	m->n--;
}

static uint32_t take_free(struct response_map *m)
{
	uint32_t at;

	if (m->free == NONE && m->n_made < m->max)
		return m->n_made++;
	if (m->free == NONE)
		forget(m, find_link(m, m->entries[m->oldest].key));
	at = m->free;
	m->free = m->entries[at].next;
	return at;
}

static void put_locked(struct response_map *m, const uint64_t key[2], uint64_t worker_id)
{
	uint32_t at = *find_link(m, key);

	if (at != NONE) {
		unlist(m, &m->entries[at]);
	} else {
		uint32_t *bucket;

		at = take_free(m);
		bucket = bucket_of(m, key);
		m->entries[at] = (struct entry){.key = {key[0], key[1]}, .next = *bucket};
		*bucket = at;
		m->n++;
	}
	m->entries[at].worker_id = worker_id;
	list_newest(m, at);
}

void response_map_put(struct response_map *m, struct span id, uint64_t worker_id)
{
	uint64_t key[2];

	assert(worker_id != 0);
	if (m == NULL)
		return;
	make_key(m, id, key);
	pthread_mutex_lock(&m->lock);
	put_locked(m, key, worker_id);
	pthread_mutex_unlock(&m->lock);
}

uint64_t response_map_find(struct response_map *m, struct span id)
{
	uint64_t key[2], worker_id = 0;
	uint32_t at;

	if (m == NULL)
		return 0;
	make_key(m, id, key);
	pthread_mutex_lock(&m->lock);
	at = *find_link(m, key);
	if (at != NONE) {
		worker_id = m->entries[at].worker_id;
		unlist(m, &m->entries[at]);
		list_newest(m, at);
	}
	pthread_mutex_unlock(&m->lock);
	return worker_id;
}

void response_map_drop(struct response_map *m, struct span id)
{
	uint64_t key[2];
	uint32_t *link;

	if (m == NULL)
		return;
	make_key(m, id, key);
	pthread_mutex_lock(&m->lock);
	link = find_link(m, key);
	if (*link != NONE)
		forget(m, link);
	pthread_mutex_unlock(&m->lock);
}

size_t response_map_count(struct response_map *m)
{
	size_t n;

	if (m == NULL)
		return 0;
	pthread_mutex_lock(&m->lock);
	n = m->n;
	pthread_mutex_unlock(&m->lock);
	return n;
}

/* ---- the reader ---- */

/* The bytes of "id" as states 0 to 3; then what follows the name. */
static const char name[] = "\"id\"";
static const char kind[] = "resp_";
enum { AT_COLON = 4, AT_VALUE, IN_ID };

void response_reader_start(struct response_reader *r)
{
	r->state = 0;
	r->is_done = false;
	r->n = 0;
	r->seen = 0;
}

/* Not it: the byte may begin another name. */
static uint8_t begin_again(char c)
{
	return c == '"';
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void take_id(struct response_reader *r, char c)
{
	if (c == '"' && r->n >= sizeof(kind) - 1) {
		r->is_done = true;
		return;
	}
	if (c == '"' || c == '\\' || r->n == RESPONSE_ID_MAX ||
		(r->n < sizeof(kind) - 1 && c != kind[r->n])) {
		r->n = 0;
		r->state = begin_again(c);
		return;
	}
	r->id[r->n++] = c;
}

static void take(struct response_reader *r, char c)
{
	if (r->state < AT_COLON)
		r->state = c == name[r->state] ? (uint8_t)(r->state + 1) : begin_again(c);
	else if (r->state == IN_ID)
		take_id(r, c);
	else if (!is_blank(c))
		r->state = c == (r->state == AT_COLON ? ':' : '"')
				   ? (uint8_t)(r->state + 1)
				   : begin_again(c);
}

void response_reader_feed(struct response_reader *r, struct span bytes)
{
	size_t i;

	for (i = 0; i < bytes.n && !r->is_done; i++) {
		take(r, bytes.p[i]);
		if (!r->is_done && ++r->seen >= RESPONSE_READ_MAX) {
			r->is_done = true;
			r->n = 0;
		}
	}
}
