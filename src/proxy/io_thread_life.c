/*
 * How a thread's state is made and freed: it keeps memory of modules that know the thread
 * themselves. See io_thread.h.
 */
#include "base/digest.h"
#include "base/poison.h"
#include "http/http_head.h"
#include "proxy/access_log.h"
#include "proxy/dial_line.h"
#include "proxy/io_thread.h"
#include "proxy/request.h"
#include "proxy/upstream.h"

#include <stdlib.h>

/* What a turn left there is of no use in the next one. */
static void poison_scratch(void *arg)
{
	struct io_thread *t = arg;

	poison(t->scratch_bytes, IO_SCRATCH_BYTES);
	poison(t->out_bytes, IO_OUT_BYTES);
}

static void io_thread_destroy(struct io_thread *t)
{
	upstream_idle_free(t->idle);
	dial_line_free(t->dial_line);
	request_free_all(t);
	exchange_free_all(t);
	access_log_free(t->log);
	io_free_all(t);
	site_unref_many(t->site, 1 + t->spare_site_refs);
	digester_free(t->digester);
	if (HAS_POISON)
		loop_turn_hook_remove(t->loop, &t->poisons_scratch);
	free(t->scratch_bytes);
	free(t->out_bytes);
	free(t);
}

struct io_thread *io_thread_new(
	unsigned index, struct loop *l, struct process *p, struct site *site)
{
	struct io_thread *t = calloc(1, sizeof(*t));
	uint64_t seed;

	if (t == NULL)
		return NULL;
	rng_secret(&seed, sizeof(seed));
	rng_seed(&t->rng, seed);
	t->index = index;
	t->loop = l;
	t->wheel = loop_wheel(l);
	t->process = p;
	t->site = site_ref(site);
	TAILQ_INIT(&t->conns);
	LIST_INIT(&t->releases);
	LIST_INIT(&t->drains);
	t->scratch_bytes = malloc(IO_SCRATCH_BYTES);
	t->out_bytes = malloc(IO_OUT_BYTES);
	t->idle = upstream_idle_new(t);
	t->dial_line = dial_line_new(t);
	t->log = access_log_new(l);
	t->digester = digester_new();
	t->poisons_scratch = (struct turn_hook){.fn = poison_scratch, .arg = t};
	if (HAS_POISON)
		loop_turn_hook_add(l, &t->poisons_scratch);
	if (t->scratch_bytes == NULL || t->out_bytes == NULL || t->idle == NULL ||
		t->dial_line == NULL || t->log == NULL || t->digester == NULL) {
		io_thread_destroy(t);
		return NULL;
	}
	return t;
}

void io_thread_free(struct io_thread *t)
{
	if (t == NULL)
		return;
	assert(t->n_conns == 0 && t->n_cleanups == 0);
	io_thread_destroy(t);
}
