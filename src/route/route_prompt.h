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
#ifndef ROUTE_ROUTE_PROMPT_H
#define ROUTE_ROUTE_PROMPT_H

#include "route/route_scan.h"

/*
 * The digest of a media part (an image, a clip, a document) is not put once but again and
 * again, to this many bytes. That is more than the design's "one digest of their bytes",
 * which is too little: eight bytes share a block with the question that follows, so that
 * an image asked about anew matches nothing. An image or clip is worth about a thousand
 * tokens of KV, so it counts as the text of about a thousand tokens; and 4,096 bytes hold
 * a whole block of the image's own wherever it stands, at every size of block up to
 * 2,048 bytes. Data URLs inside tools and unknown parts are text to the engine: once.
 */
#define ROUTE_MEDIA_BYTES 4096
/*
 * The media parts of a prompt that count so; each later one has its digest once. A window
 * of a million tokens holds no more, and a body of many tiny ones must not make a stream
 * a thousand times its size.
 */
#define ROUTE_MEDIA_MOST 1024

/*
 * Hashes the prompt of a body that was read to its end: sets key's unit, block, hashes,
 * n_blocks and prompt_units. A prompt that cannot be read has no blocks. ERR_NOMEM only.
 */
int route_prompt_hash(const struct route_scan *scan, const struct json_text *text,
	const struct route_key_opts *opts, struct route_key *key) MUST_CHECK;

#endif
