/*
 * Block hashes of a prompt. See kvsteer_prefix.h.
 */
#include "kvsteer_prefix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MEDIA_REPEATS 512 /* times 8 bytes of digest */

void kvsteer_prefix_init(struct kvsteer_prefix *p, char unit, uint32_t size)
{
	memset(p, 0, sizeof(*p));
	p->unit = unit;
	p->size = size;
	p->block_bytes = (size_t)size * (unit == 't' ? 4 : 1);
	p->part = size > 0 ? malloc(p->block_bytes) : NULL;
	p->has_failed = p->part == NULL || (unit != 'b' && unit != 't');
}

/* One whole block: its hash says what all blocks before it were. */
static void add_block(struct kvsteer_prefix *p, const void *block)
{
	size_t cap = p->cap > 0 ? 2 * p->cap : 64;
	uint64_t *more;

	if (p->n == KVSTEER_PREFIX_HASHES_MAX)
		return;
	if (p->n == p->cap) {
		more = realloc(p->hashes, cap * sizeof(*more));
		if (more == NULL) {
			p->has_failed = 1;
			return;
		}
		p->hashes = more;
		p->cap = cap;
	}
	p->last = XXH3_64bits_withSeed(block, p->block_bytes, p->last);
	p->hashes[p->n++] = p->last;
}

static void add(struct kvsteer_prefix *p, const void *bytes, size_t n)
{
	const unsigned char *from = bytes;

	while (n > 0 && !p->has_failed) {
		size_t take = p->block_bytes - p->part_bytes;

		if (p->part_bytes == 0 && n >= p->block_bytes) {
			add_block(p, from);
			take = p->block_bytes;
		} else {
			take = take < n ? take : n;
			memcpy(p->part + p->part_bytes, from, take);
			p->part_bytes += take;
			if (p->part_bytes == p->block_bytes) {
				add_block(p, p->part);
				p->part_bytes = 0;
			}
		}
		from += take;
		n -= take;
	}
}

void kvsteer_prefix_text(struct kvsteer_prefix *p, const void *text, size_t n)
{
	if (p->unit != 'b')
		p->has_failed = 1;
	add(p, text, n);
}

void kvsteer_prefix_border(
	struct kvsteer_prefix *p, char letter, const char *text, size_t n)
{
	const char mark[2] = {'\xff', letter};

	kvsteer_prefix_text(p, mark, sizeof(mark));
	kvsteer_prefix_text(p, text, n);
}

/* Claude Code's line at the head of its system prompt, new in each request. */
static const char billing[] = "x-anthropic-billing-header";

/* The text behind that line. */
static const char *skip_billing(const char *text, size_t *n)
{
	const char *end;

	if (*n < sizeof(billing) - 1 || memcmp(text, billing, sizeof(billing) - 1) != 0)
		return text;
	end = memchr(text, '\n', *n);
	end = end != NULL ? end + 1 : text + *n;
	*n -= (size_t)(end - text);
	return end;
}

void kvsteer_prefix_message(
	struct kvsteer_prefix *p, const char *role, const char *text, size_t n)
{
	size_t left = n;

	if (strcmp(role, "system") == 0)
		text = skip_billing(text, &left);
	kvsteer_prefix_border(p, 'm', role, strlen(role));
	if (left > 0 || n == 0)
		kvsteer_prefix_border(p, 'x', text, left);
}

/* Lowest byte first, on any machine. */
static void spell(uint64_t value, unsigned bytes, unsigned char *to)
{
	unsigned i;

	for (i = 0; i < bytes; i++)
		to[i] = (unsigned char)(value >> (8 * i));
}

void kvsteer_prefix_media(struct kvsteer_prefix *p, const char *url, size_t n)
{
	unsigned char digest[8];
	unsigned i;

	spell(XXH3_64bits_withSeed(url, n, 0), sizeof(digest), digest);
	kvsteer_prefix_border(p, 'i', NULL, 0);
	for (i = 0; i < MEDIA_REPEATS; i++)
		kvsteer_prefix_text(p, digest, sizeof(digest));
}

void kvsteer_prefix_tokens(struct kvsteer_prefix *p, const uint32_t *ids, size_t n)
{
	unsigned char id[4];
	size_t i;

	if (p->unit != 't')
		p->has_failed = 1;
	for (i = 0; i < n; i++) {
		spell(ids[i], sizeof(id), id);
		add(p, id, sizeof(id));
	}
}

char *kvsteer_prefix_value(const struct kvsteer_prefix *p)
{
	char *value = p->has_failed ? NULL : malloc(32 + 17 * p->n);
	size_t used, i;

	if (value == NULL)
		return NULL;
	used = (size_t)sprintf(value, "%lu%c;", (unsigned long)p->size, p->unit);
	for (i = 0; i < p->n; i++)
		used += (size_t)sprintf(value + used, "%s%llx", i > 0 ? "," : "",
			(unsigned long long)p->hashes[i]);
	return value;
}

void kvsteer_prefix_free(struct kvsteer_prefix *p)
{
	free(p->part);
	free(p->hashes);
	memset(p, 0, sizeof(*p));
}
