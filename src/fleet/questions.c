/*
 * What an engine that its probe finds well is asked besides. See questions.h.
 */
#include "fleet/questions.h"

#include "fleet/host.h"
#include "io/fetch.h"

#include <string.h>

#define ANSWER_MAX_BYTES 4096

static const struct question {
	const char *path;
	enum says (*read)(const struct fetch_answer *a);
	bool is_sglangs; /* others are not asked */
	bool loses_cache;
	const char *why;
} questions[N_QUESTIONS] = {
	{"/is_sleeping", says_sleeps, false, true, "it says that it sleeps"},
	{"/ready", says_unready, true, false, "it says that it is not ready"},
};

static bool ask_next(struct questions *q);

static void on_answer(void *arg, const struct fetch_answer *a)
{
	struct questions *q = arg;
	const struct question *question = &questions[q->at];
	enum says said = question->read(a);
	bool is_answer = a->result == FETCH_OK || a->result == FETCH_TOO_BIG;
	struct questions_outcome o = {.is_resting = said == SAYS_YES,
		.is_silent = !is_answer,
		.loses_cache = question->loses_cache,
		.why = question->why};

	q->fetch = NULL;
	q->is_mute[q->at] = is_answer && said == SAYS_NOTHING;
	q->at++;
	if (!o.is_resting && !o.is_silent && ask_next(q))
		return;
	q->on_done(q->arg, &o);
}

static bool ask_next(struct questions *q)
{
	struct host_ask ask = {.max_body = ANSWER_MAX_BYTES, .timeout_ms = q->timeout_ms};

	for (; q->at < N_QUESTIONS; q->at++) {
		if (q->is_mute[q->at] || (questions[q->at].is_sglangs && !q->is_sglang))
			continue;
		ask.path = questions[q->at].path;
		q->fetch = host_fetch(q->host, q->fetcher, &ask, on_answer, q);
		if (q->fetch != NULL)
			return true;
	}
	return false;
}

bool questions_ask(struct questions *q, bool is_sglang, uint64_t timeout_ms)
{
	if (q->restarts != q->host->restarts)
		questions_start_anew(q);
	q->restarts = q->host->restarts;
	q->is_sglang = is_sglang;
	q->timeout_ms = timeout_ms;
	q->at = 0;
	return ask_next(q);
}

void questions_cancel(struct questions *q)
{
	if (q->fetch != NULL)
		fetch_cancel(q->fetch);
	q->fetch = NULL;
}

void questions_start_anew(struct questions *q)
{
	memset(q->is_mute, 0, sizeof(q->is_mute));
}

void questions_init(struct questions *q, const struct host *host, struct fetcher *f,
	void (*on_done)(void *arg, const struct questions_outcome *o), void *arg)
{
	*q = (struct questions){
		.host = host, .fetcher = f, .on_done = on_done, .arg = arg};
}
