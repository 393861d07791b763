/*
 * Objects and the workers that have them. See stored_response.h.
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

static void look_up_by_path(struct stored *s, struct span id)
{
	/* The header may move, and the id is needed again with the answer. */
	s->is_by_path = true;
	s->reader.n = (uint16_t)MIN(id.n, sizeof(s->reader.id));
	if (s->reader.n > 0)
		memcpy(s->reader.id, id.p, s->reader.n);
	s->home = response_map_find(s->map, wanted(s));
}

void stored_look_up(
	struct stored *s, const struct stored_named *named, struct pool **pool)
{
	if (named->endpoint == ENDPOINT_OTHER)
		look_up_by_path(s, named->id);
	else if (named->object.n == 0)
		return;
	else
		s->home = response_map_find(s->map, named->object);
	/* The name of a session may be a client's own, which no worker has to know. */
	if (named->endpoint == ENDPOINT_GENERATE && s->home == 0)
		return;
	s->is_asked_for = true;
	s->is_anywhere =
		s->is_by_path || (named->endpoint == ENDPOINT_PLAIN && !named->has_model);
	if (s->is_anywhere)
		*pool = s->site->pools[0];
}

/* Its worker is gone, or has forgotten it: all others, from the first pool on. */
static void forget_home(struct stored *s, struct pool **pool)
{
	s->home = 0;
	s->pool_at = 0;
	if (s->is_anywhere)
		*pool = s->site->pools[0];
}

bool stored_asks_others(struct stored *s, struct pool **pool)
{
	if (!s->is_asked_for)
		return false;
	if (s->is_anywhere && s->pool_at + 1 < s->site->n_pools) {
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
	if (!s->is_anywhere)
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

static void note_asked_for(
	struct stored *s, enum http_method method, const struct worker *w)
{
	if (s->reader.n == 0)
		return;
	if (method == HTTP_DELETE)
		response_map_drop(s->map, wanted(s));
	else
		response_map_put(s->map, wanted(s), w->host_id);
}

void stored_note_answer(
	struct stored *s, const struct stored_answer *a, const struct worker *w)
{
	if (a->status < 200 || a->status >= 300)
		return;
	if (a->stream.n > 0)
		response_map_put(s->map, a->stream, w->host_id);
	if (s->is_by_path)
		note_asked_for(s, a->method, w);
	s->is_reading = a->makes_object;
	if (s->is_reading)
		response_reader_start(&s->reader, a->is_response);
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
