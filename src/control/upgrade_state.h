/*
 * The state that a process leaves to its successor besides sockets, as JSON in a memory
 * file (it may hold worker keys): how many workers of each pool are up, the workers that
 * an operator drained, the workers that the admin API added, and the pools' generations.
 * Loads and prefix indexes are not in it: the old process's requests end there, and the
 * new one learns caches again. Used by upgrade.c and successor.c.
 */
#ifndef CONTROL_UPGRADE_STATE_H
#define CONTROL_UPGRADE_STATE_H

#include "base/base.h"

struct js;
struct site;

/* A descriptor at its beginning, the caller's; negative ERR_*: it could not be written.
 */
int upgrade_state_save(const struct site *site);
/* Reads fd to its end. The caller's; NULL: it is none of ours. */
struct js *upgrade_state_load(int fd);

/* Applies it to a site that is not in use yet. Parts without a place there are logged. */
void upgrade_state_apply(const struct js *state, const struct site *site);

/*
 * True if as many workers are up here as there were, in each pool and role, as far as the
 * configuration still has them. *lacking: a pool that had some up and has none now, or
 * NULL.
 */
bool upgrade_state_is_reached(
	const struct js *state, const struct site *site, const char **lacking);

#endif
