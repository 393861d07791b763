/*
 * The second phase of a route key: the prompt stream, put together in prompt order from
 * the spans of the first, and hashed.
 *
 * The stream is public (kvsteer-prefix(7)): clients that make their own hashes build the
 * same bytes. It is, first to last, what the engine's template would render; JSON strings
 * are decoded, and 0xFF with a tag letter is a border, never closed, so that a longer
 * conversation always extends a shorter one. A plain string prompt has no border at all:
 * its bytes are the stream.
 */
#ifndef MODEL_ROUTE_PROMPT_H
#define MODEL_ROUTE_PROMPT_H

#include "model/route_scan.h"

/*
 * Hashes the prompt of a body that was read to its end: sets key's unit, block, hashes,
 * n_blocks and prompt_units. A prompt that cannot be read has no blocks. ERR_NOMEM only.
 */
int route_prompt_hash(const struct route_scan *scan, const struct json_text *text,
	const struct route_key_opts *opts, struct route_key *key) MUST_CHECK;

#endif
