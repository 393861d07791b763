/*
 * Responses and their workers. See response_map.h.
 */
#include "pool/response_map.h"

#include "base/hash.h"
#include "base/lru_map.h"
#include "base/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct entry {
	struct lru_node node;
	uint64_t key[2];
	uint64_t worker_id;
};

static_assert(offsetof(struct entry, key) == sizeof(struct lru_node), "its key");

struct response_map {
	pthread_mutex_t lock;
	uint64_t secret[2];
	struct lru_map *entries;
	_Atomic bool is_used;
};

struct response_map *response_map_new(size_t max)
{
	struct response_map *m = calloc(1, sizeof(*m));

	assert(max >= 1 && max <= 1u << 30);
	if (m == NULL)
		return NULL;
	/* Its keys are hashes with a secret already. */
	m->entries = lru_map_new((uint32_t)max, sizeof(struct entry), 2, 0);
	if (m->entries == NULL) {
		free(m);
		return NULL;
	}
	pthread_mutex_init(&m->lock, NULL);
	rng_secret(m->secret, sizeof(m->secret));
	return m;
}

void response_map_free(struct response_map *m)
{
	if (m == NULL)
		return;
	pthread_mutex_destroy(&m->lock);
	lru_map_free(m->entries);
	free(m);
}

static void make_key(const struct response_map *m, struct span id, uint64_t key[2])
{
	key[0] = hash64(id.p, id.n, m->secret[0]);
	key[1] = hash64(id.p, id.n, m->secret[1]);
}

static void put_locked(struct lru_map *entries, const uint64_t key[2], uint64_t worker_id)
{
	struct entry *e = lru_map_find(entries, key);

	if (e != NULL) {
		lru_map_use(entries, e);
	} else {
		if (lru_map_is_full(entries))
			lru_map_drop(entries, lru_map_oldest(entries));
		e = lru_map_add(entries, key);
	}
	e->worker_id = worker_id;
}

void response_map_put(struct response_map *m, struct span id, uint64_t worker_id)
{
	uint64_t key[2];

	assert(worker_id != 0);
	if (m == NULL)
		return;
	make_key(m, id, key);
	pthread_mutex_lock(&m->lock);
	put_locked(m->entries, key, worker_id);
	atomic_store_explicit(&m->is_used, true, memory_order_relaxed);
	pthread_mutex_unlock(&m->lock);
}

uint64_t response_map_find(struct response_map *m, struct span id)
{
	uint64_t key[2], worker_id = 0;
	struct entry *e;

	if (m == NULL)
		return 0;
	make_key(m, id, key);
	pthread_mutex_lock(&m->lock);
	e = lru_map_find(m->entries, key);
	if (e != NULL) {
		worker_id = e->worker_id;
		lru_map_use(m->entries, e);
	}
	pthread_mutex_unlock(&m->lock);
	return worker_id;
}

void response_map_drop(struct response_map *m, struct span id)
{
	uint64_t key[2];
	struct entry *e;

	if (m == NULL)
		return;
	make_key(m, id, key);
	pthread_mutex_lock(&m->lock);
	e = lru_map_find(m->entries, key);
	if (e != NULL)
		lru_map_drop(m->entries, e);
	pthread_mutex_unlock(&m->lock);
}

void response_map_forget(struct response_map *m, uint64_t worker_id)
{
	struct entry *e, *newer;

	if (m == NULL)
		return;
	pthread_mutex_lock(&m->lock);
	for (e = lru_map_oldest(m->entries); e != NULL; e = newer) {
		newer = lru_map_newer(m->entries, e);
		if (e->worker_id == worker_id)
			lru_map_drop(m->entries, e);
	}
	pthread_mutex_unlock(&m->lock);
}

bool response_map_is_used(struct response_map *m)
{
	return m != NULL && atomic_load_explicit(&m->is_used, memory_order_relaxed);
}

/* ---- the reader ---- */

/* The bytes of "id" as states 0 to 3; then what follows the name. */
static const char name[] = "\"id\"";
static const char kind[] = "resp_";
enum { AT_COLON = 4, AT_VALUE, IN_ID };

void response_reader_start(struct response_reader *r, bool is_response)
{
	r->state = 0;
	r->is_done = false;
	r->is_response = is_response;
	r->is_in_string = r->is_escaped = false;
	r->depth = 0;
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

static void take_of_response(struct response_reader *r, char c)
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

/* States of take_of_object(): those of a name's bytes, then what follows it. */
enum { OBJ_OTHER, OBJ_NAME, OBJ_NAME_I, OBJ_NAME_ID, OBJ_COLON, OBJ_VALUE, OBJ_ID };

static void end_object(struct response_reader *r)
{
	r->is_done = true;
	r->n = 0;
}

static void take_in_string(struct response_reader *r, char c)
{
	if (r->is_escaped || c == '\\') {
		if (r->state == OBJ_ID)
			end_object(r);
		r->is_escaped = !r->is_escaped;
		r->state = OBJ_OTHER;
	} else if (c == '"') {
		r->is_in_string = false;
		r->is_done = r->state == OBJ_ID;
		r->state = r->state == OBJ_NAME_ID ? OBJ_COLON : OBJ_OTHER;
	} else if (r->state == OBJ_ID) {
		if (r->n == RESPONSE_ID_MAX)
			end_object(r);
		else
			r->id[r->n++] = c;
	} else if (r->state == OBJ_NAME && c == 'i') {
		r->state = OBJ_NAME_I;
	} else {
		r->state = r->state == OBJ_NAME_I && c == 'd' ? OBJ_NAME_ID : OBJ_OTHER;
	}
}

static void begin_string(struct response_reader *r)
{
	r->is_in_string = true;
	if (r->depth == 0 || (r->depth == 1 && r->state == OBJ_VALUE))
		r->state = OBJ_ID;
	else
		r->state = r->depth == 1 ? OBJ_NAME : OBJ_OTHER;
}

static void take_of_object(struct response_reader *r, char c)
{
	if (r->is_in_string) {
		take_in_string(r, c);
	} else if (c == '"') {
		begin_string(r);
	} else if (c == ':' && r->state == OBJ_COLON) {
		r->state = OBJ_VALUE;
	} else if (!is_blank(c)) {
		r->state = OBJ_OTHER;
		r->depth += c == '{' || c == '[';
		if (c == '}' || c == ']')
			r->depth -= r->depth > 0;
		if (r->depth == 0)
			end_object(r);
	}
}

static void take(struct response_reader *r, char c)
{
	if (r->is_response)
		take_of_response(r, c);
	else
		take_of_object(r, c);
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
