/*
 * What the router answers itself on the client side and only this layer knows: readiness
 * and the merged model list. Runs on the I/O threads. Set once by daemon.c.
 */
#ifndef CONTROL_LOCAL_H
#define CONTROL_LOCAL_H

struct models;

/* Before the threads start; models must outlive them. */
void local_answers_start(struct models *models);

#endif
