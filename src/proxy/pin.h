/*
 * The worker that a client insists on, where `allow_pin` lets it: by name
 * (X-Kvsteer-Worker) and by data-parallel rank (X-data-parallel-rank). Pure. Called by
 * the pick step of request.c and by explain, so that both read the same.
 */
#ifndef PROXY_PIN_H
#define PROXY_PIN_H

#include "base/span.h"

struct http_head;
struct pool_ask;

/*
 * Sets the pins of ask from the values of the two fields, which are empty where the field
 * is absent, and must live as long as ask. A rank that is no number matches no
 * worker.
 */
void pin_read(struct span worker, struct span rank, struct pool_ask *ask);
/* The same from a head whose bytes begin at base. */
void pin_read_head(const char *base, const struct http_head *head, struct pool_ask *ask);

#endif
