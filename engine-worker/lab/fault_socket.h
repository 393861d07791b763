/*
 * The control socket of faults: HTTP on a unix socket, on which tests tell a simulated
 * engine what to do wrong (fault.h).
 *
 *	GET  /faults		all of them
 *	POST /faults		changes those that the JSON object names; all or none
 *	POST /faults/clear	no faults any more
 *	POST /restart		an empty engine: all connections break, nothing is cached,
 *				another start time and engine_id
 *
 * Each answers with all faults, once they are in force.
 */
#ifndef ENGINE_LAB_FAULT_SOCKET_H
#define ENGINE_LAB_FAULT_SOCKET_H

#include "base/base.h"

struct fault_socket;
struct loop;
struct faults;

/* The owner of the faults, and what it does when they change. */
struct fault_target {
	struct faults *faults;
	void (*changed)(void *arg); /* they were */
	int (*restart)(void *arg);  /* an error: ERR_NOMEM */
	void *arg;
};

/* Listens on path (for its owner alone), which must outlive it, as must target.
 * ERR_EXISTS (somebody lives there), ERR_IO (errno), ERR_NOMEM. */
int fault_socket_new(struct loop *l, const char *path, const struct fault_target *target,
	struct fault_socket **out) MUST_CHECK;
void fault_socket_free(struct fault_socket *f); /* removes the path; NULL is fine */

#endif
