/*
 * Reads what a worker reports: the size of its KV cache, its requests, its process. It
 * comes from /metrics (scrape_read) or from the JSON that engines serve beside it
 * (scrape_json: server_info, loads). Pure: text in, numbers out; unreadable parts are
 * skipped. Called by report.c.
 */
#ifndef FLEET_SCRAPE_H
#define FLEET_SCRAPE_H

#include "base/base.h"
#include "base/span.h"
#include "worker/adapters.h"

#define SCRAPE_ID_MAX 64

/* One engine, or all engines of the process together. */
struct scrape_engine {
	uint64_t capacity_tokens; /* of its KV cache; 0: not said */
	uint64_t running, waiting;
	bool has_load; /* running or waiting was said */
	bool has_tokens, has_generated;
	double tokens;    /* counted since the process began */
	double generated; /* of them those that are no prompt's */
};

struct scrape {
	/* The caller's: one for each data-parallel rank of the worker, or none. Filled
	 * from what is said of that rank by number. */
	struct scrape_engine *ranks;
	size_t n_ranks;
	/* What the engine calls the first of them: the caller's, until a page of metrics
	 * names as many engines as there are ranks, beginning with another number. */
	unsigned first_rank;

	struct scrape_engine all;
	struct { /* vLLM's blocks, which each engine may say of all together */
		uint64_t tokens;
		unsigned lines;
		bool differ;
	} blocks;
	struct
	{ /* SGLang's gauge: the size of one rank's cache, said by all its processes */
		uint64_t tokens;
		unsigned ranks;
	} pool;
	struct {                /* LoRA adapters, of the newest line (vLLM) */
		double said_at; /* 0: not said */
		struct adapters_report report;
	} adapters;
	bool is_sglang;         /* it has metrics of that name */
	double start_seconds;   /* process_start_time_seconds; 0: not said */
	char id[SCRAPE_ID_MAX]; /* of this process; empty: not said */
};

/* Sets all but what is the caller's to "not said". */
void scrape_begin(struct scrape *s);
/* Prometheus text of vLLM, SGLang or our own engine. */
void scrape_read(struct span text, struct scrape *s);
/*
 * JSON: SGLang's server_info and loads (/v1/loads, /get_load), the server_info of our own
 * engine, llama.cpp's props, and {"load": N} or {"server_load": N}.
 */
void scrape_json(struct span text, struct scrape *s);

#endif
