/*
 * One in-flight slot of a worker: taken in one function, dropped in one function; the
 * only writer of worker->load. Embedded by value in the request; holds a reference, so
 * that a removed or re-added worker's counts cannot mix.
 */
#ifndef MODEL_GUARD_H
#define MODEL_GUARD_H

struct worker;

struct guard {
	struct worker *worker; /* NULL: holds nothing */
};

void guard_take(struct guard *g, struct worker *w); /* g must be empty */
void guard_drop(struct guard *g);                   /* safe on an empty guard */

#endif
