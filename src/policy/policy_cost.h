/*
 * The costs of cache_aware, which weigh the load of a worker against the prefix it holds.
 * Each is a function over candidates whose fraction the signal has filled; it fills terms
 * and score, and decides. Used by policy_cache_aware.c, which has the table.
 */
#ifndef POLICY_POLICY_COST_H
#define POLICY_POLICY_COST_H

#include "policy/policy.h"

typedef void cost_fn(const struct pick_input *in, struct pick_decision *out);

/* Affinity unless the holder itself is overloaded (policy_cost_overload.c). */
cost_fn cost_overload_check;
/* By one number a candidate (policy_cost.c). */
cost_fn cost_relative_load, cost_free_capacity, cost_prefill;

/* The reason if no prefix was followed because no worker has one. */
enum pick_reason cost_reason_without_holder(const struct pick_input *in);

#endif
