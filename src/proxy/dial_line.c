/*
 * Waits for the connects of others. See dial_line.h.
 *
 * No call is lost: who waits is counted at the worker before it looks once more, and who
 * ends a connect tells the worker's reach before it reads that count.
 */
#include "proxy/dial_line.h"

#include "io/mailbox.h"
#include "proxy/io_thread.h"
#include "worker/worker.h"

#include <stdlib.h>

LIST_HEAD(dial_places, dial_place);

struct dial_line {
	/* While somebody waits here, under the process's dial_lock: so a thread that
	 * ends is called no more. */
	LIST_ENTRY(dial_line) link;
	struct io_thread *t;
	struct dial_places places;
	unsigned n;
	struct mail mail;
	_Atomic bool is_called; /* the mail is under way */
};

struct dial_line *dial_line_new(struct io_thread *t)
{
	struct dial_line *line = calloc(1, sizeof(*line));

	if (line != NULL)
		line->t = t;
	return line;
}

void dial_line_free(struct dial_line *line)
{
	assert(line == NULL || (line->n == 0 && !atomic_load(&line->is_called)));
	free(line);
}

void dial_line_join(struct dial_line *line, struct dial_place *place, struct worker *w)
{
	struct process *p = line->t->process;

	if (place->line != NULL)
		return;
	place->line = line;
	place->worker = w;
	LIST_INSERT_HEAD(&line->places, place, link);
	if (line->n++ == 0) {
		pthread_mutex_lock(&p->dial_lock);
		LIST_INSERT_HEAD(&p->dial_lines, line, link);
		pthread_mutex_unlock(&p->dial_lock);
	}
	atomic_fetch_add(&w->reach.waiting, 1);
}

void dial_line_leave(struct dial_place *place)
{
	struct dial_line *line = place->line;

	if (line == NULL)
		return;
	place->line = NULL;
	LIST_REMOVE(place, link);
	atomic_fetch_sub(&place->worker->reach.waiting, 1);
	if (--line->n > 0)
		return;
	pthread_mutex_lock(&line->t->process->dial_lock);
	LIST_REMOVE(line, link);
	pthread_mutex_unlock(&line->t->process->dial_lock);
}

/* The mail: whoever waits on this thread looks. Any of them may leave meanwhile, its own
 * place or another's. */
static void look(void *arg)
{
	struct dial_line *line = arg;
	struct dial_places todo = LIST_HEAD_INITIALIZER(todo);
	struct dial_place *place;

	atomic_store(&line->is_called, false);
	while ((place = LIST_FIRST(&line->places)) != NULL) {
		LIST_REMOVE(place, link);
		LIST_INSERT_HEAD(&todo, place, link);
	}
	while ((place = LIST_FIRST(&todo)) != NULL) {
		LIST_REMOVE(place, link);
		LIST_INSERT_HEAD(&line->places, place, link);
		place->look(place->arg);
	}
}

void dial_line_call(struct process *p, struct worker *w)
{
	struct dial_line *line;

	if (atomic_load(&w->reach.waiting) == 0)
		return;
	pthread_mutex_lock(&p->dial_lock);
	LIST_FOREACH (line, &p->dial_lines, link)
		if (!atomic_exchange(&line->is_called, true))
			mailbox_send(line->t->mailbox, &line->mail, look, line);
	pthread_mutex_unlock(&p->dial_lock);
}
