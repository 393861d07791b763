/*
 * What a worker's /metrics says of its cache and its process. Pure: text in, numbers out;
 * lines that cannot be read are passed over. Called by health.c.
 */
#ifndef CONTROL_SCRAPE_H
#define CONTROL_SCRAPE_H

#include "base/span.h"

struct scrape {
	uint64_t capacity_tokens; /* KV cache, all engines of the process together; 0: not
				     said */
	double start_seconds;     /* process_start_time_seconds; 0: not said */
};

void scrape_read(struct span text, struct scrape *out);

#endif
