/*
 * What the tests of route keys share: the scan and the key that main() opens for a whole
 * suite, and a body that is built in pieces, each of which ends where its memory does.
 */
#ifndef UNIT_ROUTE_RIG_H
#define UNIT_ROUTE_RIG_H

#include "base/rng.h"
#include "route/route_key.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct route_scan *scan;
static struct route_key key;

/* The key of the body, read in pieces cut by rng (NULL: whole). */
static inline void rig_build(enum route_endpoint endpoint, const char *body, size_t n,
	const struct route_key_opts *opts, struct rng *rng)
{
	size_t at = 0;
	char *piece = NULL;

	route_key_reset(&key);
	route_scan_begin(scan, endpoint);
	do {
		size_t to = n;

		if (rng != NULL)
			to = MIN(
				to, at + 1 + rng_below(rng, rng_below(rng, 2) ? 5 : 900));
		free(piece);
		piece = malloc(to > 0 ? to : 1);
		ck_assert_ptr_nonnull(piece);
		memcpy(piece, body, to);
		ck_assert_int_eq(route_scan_feed(scan, piece, at, to), 0);
		at = to;
	} while (at < n);
	ck_assert_int_eq(route_key_build(scan, piece, n, opts, &key), 0);
	free(piece);
}

static inline int rig_main(Suite *suite)
{
	int status;

	scan = route_scan_new();
	if (scan == NULL)
		return EXIT_FAILURE;
	route_key_init(&key);
	status = unit_run(suite);
	route_key_free(&key);
	route_scan_free(scan);
	return status;
}

#endif
