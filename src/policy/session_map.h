/*
 * The worker of each session: a bounded map from hashes of session ids to workers, which
 * drops the least recently used, and the number of sessions of each worker. No ids are
 * kept. Not locked: its owner (a pool) is.
 *
 * Always true: the tallies add up to the sessions that live, whose worker has not been
 * forgotten. Memory is taken once and touched as sessions come: 48 bytes a session and 4
 * to 8 for its buckets.
 */
#ifndef POLICY_SESSION_MAP_H
#define POLICY_SESSION_MAP_H

#include "base/base.h"

struct session_map;

/* seed: a secret, so that no client can aim at one bucket. NULL: out of memory. */
struct session_map *session_map_new(uint32_t max_sessions, uint64_t seed);
void session_map_free(struct session_map *m);

/* The session's worker; false: it has none, or was last used ttl_ms ago or longer (0: no
 * end). Changes nothing. */
bool session_map_find(const struct session_map *m, uint64_t session, uint64_t now_ms,
	uint64_t ttl_ms, uint64_t *worker);
/* The session is used now, and lives on worker. Without memory for a worker's tally it is
 * not kept. */
void session_map_put(
	struct session_map *m, uint64_t session, uint64_t worker, uint64_t now_ms);
/* False: it was not there. */
bool session_map_end(struct session_map *m, uint64_t session);
/* Ends those last used ttl_ms ago or longer, the oldest first, max of them at most. */
unsigned session_map_sweep(
	struct session_map *m, uint64_t now_ms, uint64_t ttl_ms, unsigned max);

/* The worker left: its sessions live nowhere any more. The cost does not depend on how
 * many they are; each keeps its place until it is used, swept or the least recently
 * used. */
void session_map_forget(struct session_map *m, uint64_t worker);

uint32_t session_map_of(const struct session_map *m, uint64_t worker);

#endif
