/*
 * The share of a worker that has just come (back) grows over its slow_start: the policy
 * reads its load enlarged in proportion. Called by pool_pick.c under the pool's
 * lock, between gathering candidates and the policy. Pure.
 *
 * Between two workers that differ in nothing else, one with the share s then gets s times
 * the requests of the other: its load is read as (load + 1) / s - 1, for the one more
 * that is to be placed; its queued blocks, with those of this prompt, likewise; and in a
 * rotation its turn comes after n / s picks instead of n. Shares are relative to the
 * largest among the candidates: workers that start together are equals. Policies that
 * look at neither load nor turn (random, consistent_hash, rendezvous_hash) know no slow
 * start.
 */
#ifndef POOL_SLOW_START_H
#define POOL_SLOW_START_H

#include "base/base.h"

struct pick_input;

void slow_start(struct pick_input *in);

#endif
