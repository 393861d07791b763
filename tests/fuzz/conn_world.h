/*
 * The world of fuzz_conn.c: one I/O thread with the real conn, request, upstream and
 * relay, clients and workers at the other ends of socket pairs, and a clock that only the
 * program moves.
 * The product has no seam for this. The linker replaces (--wrap) sock_connect(), which
 * hands out one end of a pair, what looks at such a connect, what asks for a reset, and
 * the source of secrets.
 */
#ifndef FUZZ_CONN_WORLD_H
#define FUZZ_CONN_WORLD_H

#include "base/base.h"
#include "base/span.h"

#define WORLD_CLIENTS 4
#define WORLD_PEERS 64 /* connections to workers in one program */

/* Configurations; once for the process. */
void world_prepare(void);
unsigned world_confs(void);

void world_begin(unsigned conf, bool small_buffers);
/* Lets everything that is under way end by itself, in virtual time; checks the promises;
 * frees all. */
void world_end(void);

/* Turns of the loop, and what the others read meanwhile. */
void world_turns(void);
void world_pass(uint64_t ms);

/* Client `i` connects if it has no connection. How many of the n bytes go in one write,
 * with turns in between: 0: all. */
void world_client_say(unsigned i, struct span bytes, size_t cut);
void world_client_fin(unsigned i);
void world_client_reset(unsigned i);
void world_client_reads(unsigned i, bool does);
/* What the client's requests are marked with. */
const char *world_client_mark(unsigned i);

/* The i-th, from the newest, of the connections to workers that are open. */
void world_worker_say(unsigned i, struct span bytes, size_t cut);
void world_worker_fin(unsigned i);
void world_worker_reset(unsigned i);
void world_worker_reads(unsigned i, bool does);
/* The mark of the request that it has; "" without one. */
const char *world_worker_mark(unsigned i);

enum world_connect { CONNECT_WORKS, CONNECT_REFUSED, CONNECT_FAILS_LATE, CONNECT_HANGS };
/* How the next connects to workers go. */
void world_connects(enum world_connect how);
/* Connects that hang are made now. */
void world_connect_now(void);
void world_worker_state(unsigned i, unsigned state);
void world_reload(unsigned conf);
/* As a stop and an upgrade do it, a step further with each call. */
void world_drain(unsigned way);
void world_cut(void);

#endif
