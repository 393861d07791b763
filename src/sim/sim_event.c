/*
 * A binary heap of events. See sim_event.h. Called by sim_worker.c and sim.c.
 */
#include "sim/sim_event.h"

#include "base/mem.h"

#include <stdlib.h>

static bool is_before(const struct sim_event *a, const struct sim_event *b)
{
	if (a->at_us != b->at_us)
		return a->at_us < b->at_us;
	if (a->kind != b->kind)
		return a->kind < b->kind;
	return a->serial < b->serial;
}

void sim_events_push(struct sim_events *e, struct sim_event event)
{
	size_t i = e->n;

	if (mem_grow(&e->items, &e->cap, e->n + 1, sizeof(*e->items)) != 0)
		abort();
	event.serial = e->pushed++;
	e->n++;
	for (; i > 0 && is_before(&event, &e->items[(i - 1) / 2]); i = (i - 1) / 2)
		e->items[i] = e->items[(i - 1) / 2];
	e->items[i] = event;
}

const struct sim_event *sim_events_next(const struct sim_events *e)
{
	return e->n > 0 ? &e->items[0] : NULL;
}

struct sim_event sim_events_pop(struct sim_events *e)
{
	struct sim_event first, last;
	size_t i = 0, child;

	assert(e->n > 0);
	first = e->items[0];
	last = e->items[--e->n];
	while ((child = 2 * i + 1) < e->n) {
		if (child + 1 < e->n && is_before(&e->items[child + 1], &e->items[child]))
			child++;
		if (!is_before(&e->items[child], &last))
			break;
		e->items[i] = e->items[child];
		i = child;
	}
	e->items[i] = last;
	return first;
}

void sim_events_free(struct sim_events *e)
{
	free(e->items);
	*e = (struct sim_events){0};
}
