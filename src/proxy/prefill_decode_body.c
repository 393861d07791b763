/*
 * The bodies that the legs of a request send, made from the client's, and the prefill's
 * response. Both count in the request's budget. See prefill_decode.h; the wire forms are
 * rewrite/kv_transfer.h.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/rng.h"
#include "proxy/budget.h"
#include "proxy/prefill_decode.h"
#include "proxy/prefill_decode_state.h"
#include "proxy/upstream.h"
#include "worker/worker.h"

#include <stdlib.h>

/* ---- memory ---- */

void pd_drop_body(struct pd *m)
{
	free(m->body);
	budget_let_go(m->budget, m->body_len);
	m->body = NULL;
	m->body_len = 0;
	free(m->parallel_body);
	budget_let_go(m->budget, m->parallel_len);
	m->parallel_body = NULL;
	m->parallel_len = 0;
}

char *pd_take_parallel_body(struct pd *m)
{
	budget_let_go(m->budget, m->parallel_len);
	m->parallel_len = 0;
	return take_ptr(m->parallel_body);
}

void pd_drop_answer(struct pd *m)
{
	free(m->answer);
	budget_let_go(m->budget, m->answer_cap);
	m->answer = NULL;
	m->answer_len = m->answer_cap = 0;
	m->params = span_make(NULL, 0);
}

void pd_drop_bodies(struct pd *m)
{
	pd_drop_answer(m);
	pd_drop_body(m);
	m->id_len = 0;
}

/* ---- bodies ---- */

/* Both workers' addresses as they know each other, from their URLs and the bootstrap ports
 * that came with the picks. */
static size_t make_id(struct pd *m)
{
	struct worker_conf p = {
		.url = m->prefill->url, .bootstrap_port = m->prefill_pick.bootstrap_port};
	struct worker_conf d = {.url = m->reserved.guard.worker->url,
		.bootstrap_port = m->reserved.pick.bootstrap_port};
	char at[KV_ADDRESS_ROOM], to[KV_ADDRESS_ROOM];
	size_t n_at = kv_address(&p, at), n_to = kv_address(&d, to);
	uint8_t secret[16];

	rng_secret(secret, sizeof(secret));
	if (n_at == 0 || n_to == 0)
		return 0;
	return kv_make_id(span_make(at, n_at), span_make(to, n_to), secret, m->id);
}

static unsigned ranks_of(const struct pd *m)
{
	return m->prefill->has_rank ? m->prefill_pick.dp_size : 0;
}

/* Names this pair of workers, for this attempt. False: it cannot be named. */
static bool begin_pair(struct pd *m)
{
	uint8_t secret[16];
	uint64_t random;

	if (m->form->needs_id) {
		m->id_len = make_id(m);
		return m->id_len > 0;
	}
	if (m->form->has_transfer_id) {
		rng_secret(secret, sizeof(secret));
		kv_make_transfer_id(secret, m->transfer_id);
	}
	rng_secret(&random, sizeof(random));
	m->room = kv_make_room(random, m->prefill->rank, ranks_of(m));
	return true;
}

static struct kv_pair pair_of(const struct pd *m)
{
	return (struct kv_pair){
		.prefill_host = span_str(m->prefill->url.host),
		.bootstrap_port = m->prefill_pick.bootstrap_port,
		.rank = m->prefill->rank,
		.ranks = ranks_of(m),
		.room = m->room,
		.transfer_id = span_str(m->transfer_id),
		.engine_id = span_str(m->engine),
	};
}

static int make_body(const struct pd *m, struct span body, char **out, size_t *n)
{
	struct kv_pair pair;

	if (!m->is_computed && m->at != PD_PREFILL && !pd_is_parallel(m))
		return kv_request_whole(&m->kv, body, out, n);
	pair = pair_of(m);
	if (m->at == PD_PREFILL)
		return kv_request_prefill(&m->kv, body, &pair, out, n);
	return kv_request_decode(&m->kv, body, &pair, m->params, out, n);
}

static enum fail make_parallel(struct pd *m, struct span body)
{
	struct kv_pair pair = pair_of(m);

	if (kv_request_prefill(
		    &m->kv, body, &pair, &m->parallel_body, &m->parallel_len) != 0) {
		m->parallel_body = NULL;
		m->parallel_len = 0;
		return FAIL_OVERLOADED;
	}
	return budget_hold(m->budget, m->parallel_len) ? FAIL_NONE : FAIL_BODY_MEMORY;
}

enum fail pd_prepare(struct pd *m, struct span body)
{
	pd_drop_body(m);
	if ((m->at == PD_PREFILL || pd_is_parallel(m)) && !begin_pair(m))
		return FAIL_INTERNAL;
	if (make_body(m, body, &m->body, &m->body_len) != 0) {
		m->body = NULL;
		m->body_len = 0;
		return FAIL_OVERLOADED;
	}
	if (!budget_hold(m->budget, m->body_len))
		return FAIL_BODY_MEMORY;
	return pd_is_parallel(m) ? make_parallel(m, body) : FAIL_NONE;
}

struct span pd_body(const struct pd *m, struct span body)
{
	return m->body != NULL ? span_make(m->body, m->body_len) : body;
}

struct span pd_parallel_body(const struct pd *m)
{
	return span_make(m->parallel_body, m->parallel_len);
}

struct span pd_request_id(const struct pd *m, struct span id)
{
	return m == NULL || m->id_len == 0 ? id : span_make(m->id, m->id_len);
}

/* ---- the prefill's answer ---- */

static enum fail append(struct pd *m, struct span data)
{
	size_t cap = MAX(m->answer_cap, (size_t)4096);
	char *grown;

	while (cap < m->answer_len + data.n)
		cap *= 2;
	if (cap != m->answer_cap) {
		grown = realloc(m->answer, cap);
		if (grown == NULL)
			return FAIL_OVERLOADED;
		m->answer = grown;
		if (!budget_hold(m->budget, cap - m->answer_cap)) {
			m->answer_cap = cap;
			return FAIL_BODY_MEMORY;
		}
		m->answer_cap = cap;
	}
	memcpy(m->answer + m->answer_len, data.p, data.n);
	m->answer_len += data.n;
	return FAIL_NONE;
}

static bool is_read(const struct pd *m)
{
	return m->form->has_params || m->form->needs_cut;
}

/* Only some forms know the blocks by what it says. */
static bool names_no_blocks(const struct pd *m)
{
	return m->form->has_params && m->form->decodes_alone;
}

/* A prefill whose text ended by itself hands nothing over: decode computes the prompt. */
static void look_for_the_cut(struct pd *m)
{
	if (!m->form->needs_cut ||
		kv_answer_was_cut(span_make(m->answer, m->answer_len), m->kv.endpoint))
		return;
	m->way = WAY_RECOMPUTED;
	m->engine[0] = '\0';
}

static enum fail read_answer(struct pd *m)
{
	struct span answer = span_make(m->answer, m->answer_len);

	if (!is_read(m))
		return FAIL_NONE;
	switch (kv_answer_read(answer, &m->params)) {
	case KV_ANSWER_PARAMS:
		break;
	case KV_ANSWER_NONE:
		if (names_no_blocks(m))
			m->way = WAY_RECOMPUTED;
		break;
	default:
		return FAIL_WORKER_PREFILL;
	}
	kv_answer_usage(answer, &m->usage);
	look_for_the_cut(m);
	return FAIL_NONE;
}

static enum fail take_data(struct pd *m, struct span data)
{
	if (!is_read(m))
		return FAIL_NONE;
	return data.n > m->max_answer - m->answer_len ? FAIL_WORKER_PREFILL_TOO_LARGE
						      : append(m, data);
}

int pd_read_answer(struct pd *m, struct exchange *ex, enum fail *why)
{
	struct span data;

	for (*why = FAIL_NONE; *why == FAIL_NONE;) {
		switch (exchange_body(ex, &data)) {
		case EXCHANGE_OK:
			*why = take_data(m, data);
			break;
		case EXCHANGE_AGAIN:
			return ERR_AGAIN;
		case EXCHANGE_END:
			*why = read_answer(m);
			return *why == FAIL_NONE ? 0 : ERR_STATE;
		default:
			*why = exchange_failure(ex);
		}
	}
	return ERR_STATE;
}

/* ---- beside decode's ---- */

void pd_overhear(struct pd *m, struct span data)
{
	if (m->is_deaf)
		return;
	m->is_deaf = data.n > PD_OVERHEARD_MAX - m->answer_len || append(m, data) != 0;
	if (m->is_deaf)
		pd_drop_answer(m);
}

void pd_overhear_end(struct pd *m)
{
	if (!m->is_deaf)
		kv_answer_usage(span_make(m->answer, m->answer_len), &m->usage);
	pd_drop_answer(m);
}
