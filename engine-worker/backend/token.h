/*
 * Text to token ids and back, without a vocabulary file: what the sim backend speaks.
 * Every byte string has exactly one id string, and text that grows at its end keeps all
 * ids but its last one.
 *
 * A token is 1 to 3 bytes of any kind, or 4 bytes of ASCII; a blank (SP, TAB, LF, CR)
 * only ever begins a token, so that words do not run together. From left to right each
 * token takes as much as it may. Ids are the bytes themselves, big-endian, behind an
 * offset for each length:
 *	1 byte b0			b0
 *	2 bytes				256 + (b0 << 8 | b1)
 *	3 bytes				65792 + (b0 << 16 | b1 << 8 | b2)
 *	4 ASCII bytes			16843008 + (b0 << 21 | b1 << 14 | b2 << 7 | b3)
 */
#ifndef ENGINE_BACKEND_TOKEN_H
#define ENGINE_BACKEND_TOKEN_H

#include "base/base.h"
#include "core/vocab.h"

#define TOKEN_BASE_2 256u
#define TOKEN_BASE_3 65792u
#define TOKEN_BASE_4 16843008u
#define TOKEN_VOCAB 285278464u /* ids are below this */
#define TOKEN_BYTES_MAX 4

/* Appends the ids of text. ERR_NOMEM: what was there stays. */
int token_encode(struct token_list *list, struct span text) MUST_CHECK;

/* The bytes of an id below TOKEN_VOCAB; returns how many. */
size_t token_text(uint32_t id, char out[TOKEN_BYTES_MAX]);

#endif
