/*
 * The tokenizer of the sim backend; token.h says how ids are made. Pure.
 * Called by vocab_sim.c.
 */
#include "backend/token.h"

static bool is_blank(unsigned char b)
{
	return b == ' ' || b == '\t' || b == '\n' || b == '\r';
}

/* How many bytes the first token of p[0..n) takes, n > 0. */
static size_t token_len(const unsigned char *p, size_t n)
{
	bool is_ascii = p[0] < 0x80;
	size_t len = 1;

	for (; len < n && len < TOKEN_BYTES_MAX && !is_blank(p[len]); len++) {
		is_ascii = is_ascii && p[len] < 0x80;
		if (len == TOKEN_BYTES_MAX - 1 && !is_ascii)
			break;
	}
	return len;
}

static uint32_t token_id(const unsigned char *p, size_t len)
{
	switch (len) {
	case 1:
		return p[0];
	case 2:
		return TOKEN_BASE_2 + ((uint32_t)p[0] << 8 | p[1]);
	case 3:
		return TOKEN_BASE_3 + ((uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2]);
	default:
		return TOKEN_BASE_4 + ((uint32_t)p[0] << 21 | (uint32_t)p[1] << 14 |
					      (uint32_t)p[2] << 7 | p[3]);
	}
}

int token_encode(struct token_list *list, struct span text)
{
	const unsigned char *p = (const unsigned char *)text.p;
	size_t before = list->n;

	for (size_t at = 0, len; at < text.n; at += len) {
		int err;

		len = token_len(p + at, text.n - at);
		err = token_push(list, token_id(p + at, len));
		if (err != 0) {
			list->n = before;
			return err;
		}
	}
	return 0;
}

size_t token_text(uint32_t id, char out[TOKEN_BYTES_MAX])
{
	size_t len = id < TOKEN_BASE_2   ? 1
		     : id < TOKEN_BASE_3 ? 2
		     : id < TOKEN_BASE_4 ? 3
					 : 4;
	static const uint32_t base[] = {0, 0, TOKEN_BASE_2, TOKEN_BASE_3, TOKEN_BASE_4};
	unsigned bits = len == 4 ? 7 : 8;
	uint32_t code = id - base[len];

	assert(id < TOKEN_VOCAB);
	for (size_t i = len; i-- > 0; code >>= bits)
		out[i] = (char)(code & ((1u << bits) - 1));
	return len;
}
