/*
 * Responses and the workers that have them. See stored_response.h.
 */
#include "proxy/stored_response.h"

#include "proxy/request_state.h"
#include "worker/worker.h"

#define NOT_FOUND 404

static struct response_map *map_of(const struct request *r)
{
	return r->t->process->responses;
}

/* Named by the path alone: no body says a model, so any pool may have it. */
static bool is_by_path(const struct request *r)
{
	return r->verdict.id.n > 0;
}

static struct span wanted(const struct request *r)
{
	return is_by_path(r) ? span_make(r->stored.reader.id, r->stored.reader.n)
			     : r->key.previous;
}

void stored_look_up(struct request *r)
{
	struct stored *s = &r->stored;

	if (is_by_path(r)) {
		/* The head may move; the id is wanted once more when it was answered. */
		assert(r->verdict.id.n <= sizeof(s->reader.id));
		memcpy(s->reader.id, r->verdict.id.p, r->verdict.id.n);
		s->reader.n = (uint16_t)r->verdict.id.n;
		r->pool = r->site->pools[0];
	} else if (r->verdict.endpoint != ENDPOINT_RESPONSES || r->key.previous.n == 0) {
		return;
	}
	s->is_asked_for = true;
	s->home = response_map_find(map_of(r), wanted(r));
}

bool stored_look_elsewhere(struct request *r)
{
	struct stored *s = &r->stored;

	if (!s->is_asked_for)
		return false;
	if (is_by_path(r) && s->pool_at + 1 < r->site->n_pools) {
		r->pool = r->site->pools[++s->pool_at];
		return true;
	}
	if (s->home == 0)
		return false;
	/* Its worker is gone or cannot be had. */
	s->home = 0;
	s->pool_at = 0;
	if (is_by_path(r))
		r->pool = r->site->pools[0];
	return true;
}

static bool has_other(struct request *r, struct pool_ask *ask)
{
	size_t i;

	if (!is_by_path(r))
		return pool_has_candidate(r->pool, ask);
	for (i = r->stored.home != 0 ? 0 : r->stored.pool_at; i < r->site->n_pools; i++) {
		ask->role = pool_whole_role(r->site->pools[i]);
		if (pool_has_candidate(r->site->pools[i], ask))
			return true;
	}
	return false;
}

bool stored_asks_on(struct request *r, int status, struct pool_ask *ask)
{
	struct stored *s = &r->stored;
	uint64_t tried[TRIED_MAX];
	unsigned n = r->n_tried;

	if (!s->is_asked_for || status != NOT_FOUND || n == TRIED_MAX ||
		!upload_is_repeatable(&r->upload, &r->body))
		return false;
	memcpy(tried, r->tried, n * sizeof(*tried));
	tried[n++] = r->guard.worker->host_id;
	ask->tried = tried;
	ask->n_tried = n;
	ask->home = 0;
	if (!has_other(r, ask))
		return false;
	if (s->home != 0) {
		/* It has forgotten: from the first pool on, all others. */
		s->home = 0;
		s->pool_at = 0;
		if (is_by_path(r))
			r->pool = r->site->pools[0];
	}
	return true;
}

void stored_answered(struct request *r, int status)
{
	bool is_good = status >= 200 && status < 300;

	if (is_by_path(r)) {
		if (is_good && r->head.method == HTTP_DELETE)
			response_map_drop(map_of(r), wanted(r));
		else if (is_good)
			response_map_put(map_of(r), wanted(r), r->guard.worker->host_id);
		return;
	}
	r->stored.is_reading = is_good && r->verdict.endpoint == ENDPOINT_RESPONSES;
	if (r->stored.is_reading)
		response_reader_start(&r->stored.reader);
}

void stored_see(struct request *r, struct span bytes)
{
	struct response_reader *reader = &r->stored.reader;

	if (!r->stored.is_reading)
		return;
	response_reader_feed(reader, bytes);
	if (!reader->is_done)
		return;
	r->stored.is_reading = false;
	if (reader->n > 0 && r->guard.worker != NULL)
		response_map_put(map_of(r), span_make(reader->id, reader->n),
			r->guard.worker->host_id);
}
