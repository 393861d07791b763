/*
 * Buffers, bodies and references to the site that a thread lends. See io_thread.h; made
 * and freed in io_thread_life.c.
 */
#include "proxy/io_thread.h"

#include "base/poison.h"

#include <stdlib.h>

#define FREE_BLOCKS_MAX 64
#define SITE_REFS_AT_ONCE 256

struct io_block {
	struct io_block *next;
};

void io_thread_set_site(struct io_thread *t, struct site *site)
{
	struct site *old = t->site;
	unsigned n = 1 + t->spare_site_refs;

	t->site = site_ref(site);
	t->spare_site_refs = 0;
	site_unref_many(old, n);
}

struct site *io_site_take(struct io_thread *t)
{
	if (t->spare_site_refs == 0) {
		site_ref_many(t->site, SITE_REFS_AT_ONCE);
		t->spare_site_refs = SITE_REFS_AT_ONCE;
	}
	t->spare_site_refs--;
	return t->site;
}

void io_site_give(struct io_thread *t, struct site *site)
{
	if (site == t->site)
		t->spare_site_refs++;
	else
		site_unref(site);
}

/* Blocks on a list are poisoned, their link too: who still looks at one is caught. */
static void push(struct io_block **list, struct io_block *b, size_t n)
{
	b->next = *list;
	*list = b;
	poison(b, n);
}

static struct io_block *pop(struct io_block **list, size_t n)
{
	struct io_block *b = *list;

	unpoison(b, n);
	*list = b->next;
	return b;
}

static void free_blocks(struct io_block *list, size_t n)
{
	while (list != NULL)
		free(pop(&list, n));
}

void io_free_all(struct io_thread *t)
{
	unsigned i;

	free_blocks(t->free_blocks, IO_IN_BYTES);
	for (i = 0; i < IO_BODY_SIZES; i++)
		free_blocks(t->free_bodies[i], (size_t)IO_BODY_MIN << i);
}

char *io_block_get(struct io_thread *t)
{
	if (t->free_blocks == NULL)
		return malloc(IO_IN_BYTES);
	t->n_free_blocks--;
	return (char *)pop(&t->free_blocks, IO_IN_BYTES);
}

void io_block_put(struct io_thread *t, char *block)
{
	if (t->n_free_blocks >= FREE_BLOCKS_MAX) {
		free(block);
		return;
	}
	push(&t->free_blocks, (struct io_block *)(void *)block, IO_IN_BYTES);
	t->n_free_blocks++;
}

static_assert(IO_BODY_MIN << (IO_BODY_SIZES - 1) == IO_BODY_MAX, "the sizes of bodies");

/* The size that holds n bytes; IO_BODY_SIZES: none does. */
static unsigned size_for(size_t n)
{
	unsigned i = 0;

	while (i < IO_BODY_SIZES && (size_t)IO_BODY_MIN << i < n)
		i++;
	return i;
}

/* Fresh memory costs a page fault every 4 KiB, which is more than reading the bytes into
 * it. */
char *io_body_get(struct io_thread *t, size_t want, size_t *cap)
{
	unsigned i = size_for(want);
	char *fresh;

	if (i < IO_BODY_SIZES)
		want = (size_t)IO_BODY_MIN << i;
	if (i < IO_BODY_SIZES && t->free_bodies[i] != NULL) {
		t->free_body_bytes -= want;
		*cap = want;
		return (char *)pop(&t->free_bodies[i], want);
	}
	fresh = malloc(want);
	if (fresh != NULL)
		*cap = want;
	return fresh;
}

void io_body_put(struct io_thread *t, char *body, size_t cap)
{
	unsigned i = size_for(cap);

	if (body == NULL || i == IO_BODY_SIZES || (size_t)IO_BODY_MIN << i != cap ||
		cap > IO_BODY_KEPT_BYTES - t->free_body_bytes) {
		free(body);
		return;
	}
	push(&t->free_bodies[i], (struct io_block *)(void *)body, cap);
	t->free_body_bytes += cap;
}
