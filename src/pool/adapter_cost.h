/*
 * A worker that must load a request's LoRA adapter first counts as busier, for every policy
 * that looks at load: loading takes time, and where no place is free it takes an adapter
 * from others. Called by pool_pick.c under the pool's lock, between gathering candidates
 * and the policy. Pure.
 */
#ifndef POOL_ADAPTER_COST_H
#define POOL_ADAPTER_COST_H

#include "base/base.h"

struct pick_input;

/* adapter: its hash; block: bytes of prompt in one. */
void adapter_cost(struct pick_input *in, uint64_t adapter, unsigned block);

#endif
