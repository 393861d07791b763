/*
 * The vLLM router's own API on the client side: its worker list, which its users' scripts
 * and its black-box tests call. Requests come as fan_out.h brings them; who may make them
 * was asked before (admin_gate.h). Control thread.
 */
#ifndef CONTROL_ROUTER_CALLS_H
#define CONTROL_ROUTER_CALLS_H

#include "base/base.h"

struct control;
struct fan_out;
struct router_calls;

struct router_calls *router_calls_new(struct control *c); /* NULL: out of memory */
/* Those that wait are freed. NULL is fine. */
void router_calls_free(struct router_calls *calls);
/* Answers it, now or later. */
void router_calls_take(struct router_calls *calls, struct fan_out *f);

#endif
