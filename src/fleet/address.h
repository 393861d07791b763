/*
 * The addresses that a worker may have once its name is resolved: inside worker_cidrs if
 * they are set, and never link-local, metadata, unspecified or multicast, because a
 * worker URL must not turn the router into a way to those. Pure. Called by health.c.
 */
#ifndef FLEET_ADDRESS_H
#define FLEET_ADDRESS_H

#include "conf/conf.h"
#include "io/resolve.h"

bool address_is_allowed(const union sock_addr *a, const struct conf_list *cidrs);
/*
 * The allowed ones of list in their order, as a new list (or list itself once more
 * referenced, when all are); NULL: none is, or out of memory.
 */
struct addr_list *address_filter(struct addr_list *list, const struct conf_list *cidrs);

#endif
