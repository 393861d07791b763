/*
 * The router's own answers on the client side that need this room: readiness and the
 * merged model list. Runs on the I/O threads. Set once by daemon.c.
 */
#ifndef CONTROL_LOCAL_H
#define CONTROL_LOCAL_H

#include "base/base.h"

struct models;
struct site;

/* Before the threads start; models must outlive them. */
void local_answers_start(struct models *models);
/* Every pool has a usable worker for each role that it has workers for. */
bool local_is_ready(const struct site *site);

#endif
