/*
 * Block hashes of the bench's own bodies. See hashes.h.
 */
#include "bench/hashes.h"

#include "base/mem.h"
#include "base/text.h"
#include "route/route_key.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define HASHES_MAX 1800 /* what 32 KiB of head hold, with the other fields */
#define IDS_PER_BLOCK 32

struct hashes {
	struct route_scan *scan;
	struct route_key key;
	struct route_key_opts opts;
	enum route_endpoint endpoint;
};

struct hashes *hashes_new(bool is_completions, uint64_t block_bytes)
{
	struct hashes *h = xcalloc(1, sizeof(*h));

	h->scan = route_scan_new();
	if (h->scan == NULL) {
		perror("kvsteer-bench: hashes");
		exit(1);
	}
	route_key_init(&h->key);
	h->opts = (struct route_key_opts){
		.block_bytes = (unsigned)block_bytes,
		.block_tokens = IDS_PER_BLOCK,
		.max_blocks = HASHES_MAX,
	};
	h->endpoint = is_completions ? ENDPOINT_COMPLETIONS : ENDPOINT_CHAT;
	return h;
}

void hashes_free(struct hashes *h)
{
	if (h == NULL)
		return;
	route_scan_free(h->scan);
	route_key_free(&h->key);
	free(h);
}

void hashes_add_line(struct hashes *h, struct span body, struct text *out)
{
	size_t i;

	route_key_reset(&h->key);
	route_scan_begin(h->scan, h->endpoint);
	if (route_scan_feed(h->scan, body.p, 0, body.n) != 0 ||
		route_key_build(h->scan, body.p, body.n, &h->opts, &h->key) != 0) {
		out->failed = true;
		return;
	}
	text_printf(out, "X-Kvsteer-Prefix: %u%c;", h->key.block, h->key.unit);
	for (i = 0; i < h->key.n_blocks; i++)
		text_printf(out, "%s%" PRIx64, i > 0 ? "," : "", h->key.hashes[i]);
	text_add(out, SPAN_LIT("\r\n"));
}
