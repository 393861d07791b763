/*
 * X-Kvsteer-Prefix for the bodies that the bench sends, by the router's own code, so that
 * a router in between reads only heads. One thread. Called by run.c.
 */
#ifndef BENCH_HASHES_H
#define BENCH_HASHES_H

#include "base/base.h"
#include "base/span.h"

struct hashes;
struct text;

/* Blocks of that many bytes. Dies without memory. */
struct hashes *hashes_new(bool is_completions, uint64_t block_bytes);
void hashes_free(struct hashes *h); /* NULL is fine */
/* Adds the header line for a body to out, with as many hashes as the head of a request
 * has room for; without memory, out says so. */
void hashes_add_line(struct hashes *h, struct span body, struct text *out);

#endif
