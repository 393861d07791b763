/*
 * Responses and the workers that have them. See stored_response.h.
 */
#include "proxy/stored_response.h"

#include "base/err.h"
#include "pool/site.h"
#include "proxy/attempt.h"
#include "proxy/placement.h"
#include "worker/worker.h"

#define NOT_FOUND 404

static struct span wanted(const struct stored *s)
{
	return span_make(s->reader.id, s->reader.n);
}

void stored_look_up(struct stored *s, struct span id, enum route_endpoint endpoint,
	struct span previous, struct pool **pool)
{
	s->is_by_path = id.n > 0;
	if (s->is_by_path) {
		/* The header may move, and the id is needed again with the answer. */
		assert(id.n <= sizeof(s->reader.id));
		memcpy(s->reader.id, id.p, id.n);
		s->reader.n = (uint16_t)id.n;
		*pool = s->site->pools[0];
	} else if (endpoint != ENDPOINT_RESPONSES || previous.n == 0) {
		return;
	}
	s->is_asked_for = true;
	s->home = response_map_find(s->map, s->is_by_path ? wanted(s) : previous);
}

/* Its worker is gone, or has forgotten it: all others, from the first pool on. */
static void forget_home(struct stored *s, struct pool **pool)
{
	s->home = 0;
	s->pool_at = 0;
	if (s->is_by_path)
		*pool = s->site->pools[0];
}

bool stored_asks_others(struct stored *s, struct pool **pool)
{
	if (!s->is_asked_for)
		return false;
	if (s->is_by_path && s->pool_at + 1 < s->site->n_pools) {
		*pool = s->site->pools[++s->pool_at];
		return true;
	}
	if (s->home == 0)
		return false;
	forget_home(s, pool);
	return true;
}

static bool has_other(const struct stored *s, struct retry_case *c)
{
	struct pool_ask ask = c->ask;
	size_t i;

	ask.home = 0;
	if (!s->is_by_path)
		return pool_has_candidate(c->pool, &ask);
	for (i = s->home != 0 ? 0 : s->pool_at; i < s->site->n_pools; i++) {
		ask.role = pool_whole_role(s->site->pools[i]);
		if (pool_has_candidate(s->site->pools[i], &ask))
			return true;
	}
	return false;
}

struct decision stored_answered(
	struct stored *s, struct retry_case *c, int status, struct pool **pool)
{
	if (status != NOT_FOUND || !c->may_repeat)
		return next_is(NEXT_STEP);
	/* Without the list a worker would be asked twice; 404 would be no answer. */
	if (attempt_note_tried(c, c->at->guard.worker->host_id) != 0)
		return next_fail(FAIL_OVERLOADED);
	if (!has_other(s, c))
		return next_is(NEXT_STEP);
	if (s->home != 0)
		forget_home(s, pool);
	return next_is(NEXT_ELSEWHERE);
}

void stored_note_answer(struct stored *s, bool makes_one, enum http_method method,
	int status, const struct worker *w)
{
	bool is_good = status >= 200 && status < 300;

	if (s->is_by_path) {
		if (is_good && method == HTTP_DELETE)
			response_map_drop(s->map, wanted(s));
		else if (is_good)
			response_map_put(s->map, wanted(s), w->host_id);
		return;
	}
	s->is_reading = is_good && makes_one;
	if (s->is_reading)
		response_reader_start(&s->reader);
}

void stored_read(struct stored *s, struct span bytes, const struct worker *w)
{
	struct response_reader *reader = &s->reader;

	if (!s->is_reading)
		return;
	response_reader_feed(reader, bytes);
	if (!reader->is_done)
		return;
	s->is_reading = false;
	if (reader->n > 0 && w != NULL)
		response_map_put(s->map, span_make(reader->id, reader->n), w->host_id);
}
