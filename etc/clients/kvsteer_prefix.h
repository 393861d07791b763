/*
 * The header X-Kvsteer-Prefix for a prompt, made by the client: what kvsteerd would hash
 * of it, by kvsteer-prefix(7). With it the router reads nothing of the body, which goes
 * on to the worker while it comes. An example to copy: needs libxxhash (-lxxhash).
 *
 *	struct kvsteer_prefix p;
 *
 *	kvsteer_prefix_init(&p, 'b', 128);
 *	kvsteer_prefix_message(&p, "system", "Be brief.", 9);
 *	kvsteer_prefix_message(&p, "user", question, strlen(question));
 *	value = kvsteer_prefix_value(&p);
 *	... "X-Kvsteer-Prefix: %s\r\nX-Kvsteer-Model: %s\r\n", value, model ...
 *	free(value);
 *
 * A prompt of /v1/completions is kvsteer_prefix_text(), or with the unit 't',
 * kvsteer_prefix_tokens(). The parts of a message that is more than one text follow
 * kvsteer_prefix_border(&p, 'm', role, n) as kvsteer-prefix(7) lists them. Texts are
 * UTF-8, as they are meant: without the escapes of JSON. Send X-Kvsteer-Model with it
 * wherever prompts for several models meet.
 */
#ifndef KVSTEER_PREFIX_H
#define KVSTEER_PREFIX_H

#include <stddef.h>
#include <stdint.h>

#define KVSTEER_PREFIX_HASHES_MAX 1890 /* what the head of a request has room for */

struct kvsteer_prefix {
	char unit;           /* 'b' bytes, 't' token ids */
	uint32_t size;       /* of a block, in units */
	size_t block_bytes;  /* the same, in bytes */
	unsigned char *part; /* the block that is not full yet */
	size_t part_bytes;
	uint64_t *hashes;
	size_t n, cap;
	uint64_t last;  /* hash of the block before */
	int has_failed; /* memory was short, or an argument is wrong */
};

/* Texts in blocks of 128 bytes and ids in blocks of 32 meet what the router hashes. */
void kvsteer_prefix_init(struct kvsteer_prefix *p, char unit, uint32_t size);
/* Bytes of the stream as they are. */
void kvsteer_prefix_text(struct kvsteer_prefix *p, const void *text, size_t n);
/* 0xFF, the letter, and the text that follows it (n may be 0). */
void kvsteer_prefix_border(
	struct kvsteer_prefix *p, char letter, const char *text, size_t n);
/* A chat message with one text. The line that Claude Code puts at the head of a system
 * prompt is left out, as engines do. */
void kvsteer_prefix_message(
	struct kvsteer_prefix *p, const char *role, const char *text, size_t n);
/* A media part: its URL or data, as it stands in the body; of the first 1,024. */
void kvsteer_prefix_media(struct kvsteer_prefix *p, const char *url, size_t n);
void kvsteer_prefix_tokens(struct kvsteer_prefix *p, const uint32_t *ids, size_t n);
/*
 * The header's value, for free(), of what was added so far; a prompt with more blocks
 * than fit has the first ones. More may be added afterwards. NULL: memory was short, or
 * an argument wrong.
 */
char *kvsteer_prefix_value(const struct kvsteer_prefix *p);
void kvsteer_prefix_free(struct kvsteer_prefix *p);

#endif
