/*
 * The worker of each object that one worker keeps: a stored response, a conversation, a
 * file, a batch, an image, a video job, a session. It can only be continued, read or
 * deleted on the worker that made it. One table for all APIs. Bounded: it knows the
 * RESPONSE_MAP_MAX objects used last, in fixed memory; ids are kept as keyed hashes of
 * 128 bits. One for the process, shared by its threads; every function locks for itself.
 * And the reader that finds the id in an answer's first bytes. Made by the daemon, used
 * by proxy/stored_response.c.
 */
#ifndef POOL_RESPONSE_MAP_H
#define POOL_RESPONSE_MAP_H

#include "base/base.h"
#include "base/span.h"

#define RESPONSE_MAP_MAX 65536
#define RESPONSE_ID_MAX 256

struct response_map;

/* A map of at most max ids, 1 to 2^30. NULL: out of memory. */
struct response_map *response_map_new(size_t max);
void response_map_free(struct response_map *m); /* NULL is fine, here and below */
/* worker_id is not 0; a known id gets the new one. Over the bound the id that was not
 * asked for longest is forgotten. */
void response_map_put(struct response_map *m, struct span id, uint64_t worker_id);
/* 0: not known. */
uint64_t response_map_find(struct response_map *m, struct span id);
void response_map_drop(struct response_map *m, struct span id);
/* The worker left: its responses are not known any more. Walks over all that are. */
void response_map_forget(struct response_map *m, uint64_t worker_id);

/* Whether it has ever had an entry. */
bool response_map_is_used(struct response_map *m);

/*
 * Looks for the id in the bytes of an answer, in pieces of any size. Of a response:
 * "id":"resp_..." in an object, or in an event stream whose first event says what was
 * created; within strings these bytes stand escaped, so no text can feign them. Of all
 * else: the member "id" of the object itself, or a string that is the whole answer
 * (SGLang's sessions). Gives up after RESPONSE_READ_MAX bytes.
 */
#define RESPONSE_READ_MAX 16384
struct response_reader {
	uint8_t state;
	bool is_done; /* id is there, or will not be */
	bool is_response, is_in_string, is_escaped;
	uint32_t depth;
	uint16_t n; /* bytes of id; 0: none was found */
	uint32_t seen;
	char id[RESPONSE_ID_MAX];
};
void response_reader_start(struct response_reader *r, bool is_response);
void response_reader_feed(struct response_reader *r, struct span bytes);

#endif
