/*
 * Both legs at once: while decode's exchange is the request's, prefill's goes on in
 * parallel and holds prefill's guard until its end. See prefill_decode.h.
 *
 * Where prefill fails before the client has a byte, pd_swap_to_prefill() makes it the
 * request's only leg again, as if it had been sent first: one place decides what a failed
 * prefill means. After that its end concerns its worker alone. It is never cut off because
 * decode was faster: an engine that still sends blocks would take them back.
 */
#include "proxy/prefill_decode.h"
#include "proxy/prefill_decode_state.h"
#include "proxy/upstream.h"

struct placement *pd_parallel(struct pd *m)
{
	return m != NULL && pd_is_parallel(m) ? &m->parallel : NULL;
}

void pd_begin_parallel(struct pd *m, struct placement *p)
{
	assert(!pd_is_parallel(m) && m->reserved.guard.worker != NULL);
	m->parallel = *p;
	m->parallel.is_confirmed = false;
	m->parallel.guard.began_us = m->began_us;
	*p = m->reserved;
	m->reserved = (struct placement){0};
	m->at = PD_DECODE;
	m->took_us = 0;
	m->is_deaf = false;
}

/* END: the header is no 2xx. */
static enum exchange_result read_header(
	struct placement *p, const struct http_head **a, const char **base)
{
	enum exchange_result res;

	if (p->is_confirmed)
		return EXCHANGE_OK;
	res = exchange_head(p->ex, a, base);
	if (res != EXCHANGE_OK)
		return res;
	p->is_confirmed = (*a)->status >= 200 && (*a)->status < 300;
	return p->is_confirmed ? EXCHANGE_OK : EXCHANGE_END;
}

static enum parallel drain(struct pd *m)
{
	struct span data;
	enum exchange_result res;

	while ((res = exchange_body(m->parallel.ex, &data)) == EXCHANGE_OK)
		pd_overhear(m, data);
	if (res == EXCHANGE_FAILED)
		return PARALLEL_BROKE;
	if (res != EXCHANGE_END)
		return PARALLEL_GOES_ON;
	m->took_us = pd_since(m);
	pd_overhear_end(m);
	return PARALLEL_DONE;
}

enum parallel pd_run_parallel(struct pd *m, const struct http_head **a, const char **base)
{
	switch (read_header(&m->parallel, a, base)) {
	case EXCHANGE_OK:
		return drain(m);
	case EXCHANGE_AGAIN:
		return PARALLEL_GOES_ON;
	case EXCHANGE_END:
		return PARALLEL_REFUSES;
	default:
		return PARALLEL_FAILED;
	}
}

void pd_swap_to_prefill(struct pd *m, struct placement *p, char worker_name[64])
{
	assert(p->ex == NULL);
	pd_drop_answer(m);
	m->reserved = *p;
	m->reserved.is_confirmed = false;
	*p = m->parallel;
	p->is_confirmed = false;
	m->parallel = (struct placement){0};
	m->at = PD_PREFILL;
	m->is_taken = false;
	memcpy(worker_name, m->prefill_name, sizeof(m->prefill_name));
}
