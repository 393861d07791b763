/*
 * The counting. See tally.h. Called by run.c; read by report.c.
 */
#include "bench/tally.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

struct tally *tally_new(void)
{
	return xcalloc(1, sizeof(struct tally));
}

void tally_free(struct tally *t)
{
	if (t == NULL)
		return;
	free(t->workers);
	free(t);
}

void tally_error(struct tally *t, const char *kind, const char *sample)
{
	struct tally_error *e = t->errors;
	size_t i;

	t->failed++;
	for (i = 0; i < t->n_errors && strcmp(e[i].kind, kind) != 0; i++)
		;
	i = MIN(i, TALLY_KINDS_MAX - 1u);
	if (i == t->n_errors) {
		(void)snprintf(e[i].kind, sizeof(e[i].kind), "%s", kind);
		(void)snprintf(e[i].sample, sizeof(e[i].sample), "%s", sample);
		t->n_errors++;
	}
	e[i].n++;
}

static struct tally_worker *find_worker(struct tally *t, const char *name)
{
	size_t i;

	for (i = 0; i < t->n_workers && strcmp(t->workers[i].name, name) != 0; i++)
		;
	if (i < t->n_workers)
		return &t->workers[i];
	if (t->n_workers == TALLY_WORKERS_MAX)
		return &t->workers[TALLY_WORKERS_MAX - 1];
	if (mem_grow(&t->workers, &t->cap_workers, i + 1, sizeof(*t->workers)) != 0)
		return NULL;
	t->workers[i] = (struct tally_worker){.requests = 0};
	t->n_workers++;
	(void)snprintf(t->workers[i].name, sizeof(t->workers[i].name), "%s",
		t->n_workers == TALLY_WORKERS_MAX ? "(others)" : name);
	return &t->workers[i];
}

static void count_usage(struct tally *t, const struct reply *r, uint64_t asked)
{
	t->with_usage++;
	t->prompt_tokens += r->prompt_tokens;
	t->new_tokens += r->new_tokens;
	if (r->has_cached) {
		t->with_cached++;
		t->cached_tokens += r->cached_tokens;
	}
	if (asked > 0) {
		t->asked_tokens += asked;
		t->counted_tokens += r->prompt_tokens;
	}
}

void tally_ok(struct tally *t, const struct reply *r, uint64_t asked)
{
	struct tally_worker *w =
		find_worker(t, r->worker[0] != '\0' ? r->worker : "(unnamed)");

	t->ok++;
	if (r->has_usage)
		count_usage(t, r, asked);
	if (w == NULL)
		return;
	w->requests++;
	w->prompt_tokens += r->prompt_tokens;
	w->cached_tokens += r->cached_tokens;
	w->new_tokens += r->new_tokens;
}

static int by_count(const void *a, const void *b)
{
	const struct tally_error *x = a, *y = b;

	return (x->n < y->n) - (x->n > y->n);
}

static int by_name(const void *a, const void *b)
{
	const struct tally_worker *x = a, *y = b;

	return strcmp(x->name, y->name);
}

void tally_sort(struct tally *t)
{
	qsort(t->errors, t->n_errors, sizeof(t->errors[0]), by_count);
	if (t->n_workers > 0)
		qsort(t->workers, t->n_workers, sizeof(t->workers[0]), by_name);
}
