/*
 * Buffers, bodies and references to the site that a thread lends. See io_thread.h; made
 * and freed in io_thread_life.c.
 */
#include "proxy/io_thread.h"

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

static void free_blocks(struct io_block *b)
{
	while (b != NULL) {
		struct io_block *next = b->next;

		free(b);
		b = next;
	}
}

void io_free_all(struct io_thread *t)
{
	unsigned i;

	free_blocks(t->free_blocks);
	for (i = 0; i < IO_BODY_SIZES; i++)
		free_blocks(t->free_bodies[i]);
}

char *io_block_get(struct io_thread *t)
{
	struct io_block *b = t->free_blocks;

	if (b == NULL)
		return malloc(IO_IN_BYTES);
	t->free_blocks = b->next;
	t->n_free_blocks--;
	return (char *)b;
}

void io_block_put(struct io_thread *t, char *block)
{
	struct io_block *b = (struct io_block *)block;

	if (t->n_free_blocks >= FREE_BLOCKS_MAX) {
		free(block);
		return;
	}
	b->next = t->free_blocks;
	t->free_blocks = b;
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
	struct io_block *b;
	char *fresh;

	if (i < IO_BODY_SIZES)
		want = (size_t)IO_BODY_MIN << i;
	if (i < IO_BODY_SIZES && t->free_bodies[i] != NULL) {
		b = t->free_bodies[i];
		t->free_bodies[i] = b->next;
		t->free_body_bytes -= want;
		*cap = want;
		return (char *)b;
	}
	fresh = malloc(want);
	if (fresh != NULL)
		*cap = want;
	return fresh;
}

void io_body_put(struct io_thread *t, char *body, size_t cap)
{
	struct io_block *b = (struct io_block *)(void *)body;
	unsigned i = size_for(cap);

	if (body == NULL || i == IO_BODY_SIZES || (size_t)IO_BODY_MIN << i != cap ||
		cap > IO_BODY_KEPT_BYTES - t->free_body_bytes) {
		free(body);
		return;
	}
	b->next = t->free_bodies[i];
	t->free_bodies[i] = b;
	t->free_body_bytes += cap;
}
