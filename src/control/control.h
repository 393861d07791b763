/*
 * What the control thread owns, as the modules of this layer see it. Made, filled and
 * torn down by daemon.c; nobody but the control thread touches it, but for `process`
 * (atomics).
 */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include "base/base.h"
#include "model/conf_flags.h"
#include "model/site.h"
#include "proxy/io_thread.h"

struct admin;
struct health;
struct listen_set;
struct mailbox;
struct threads;

enum reload_result { RELOAD_OK, RELOAD_FAILED, RELOAD_RESULT_MAX };

struct control {
	struct conf_flags flags; /* applied again by each reload */
	struct loop *loop;
	struct mailbox *mailbox;
	struct process process;
	struct site_opts site_opts;
	struct site *site; /* in force; a reference */
	struct threads *threads;
	struct listen_set *listening;
	struct health *health;
	struct admin *admin;
	uint64_t started_ms;
	uint64_t reloads[RELOAD_RESULT_MAX];
	bool is_draining, is_ready;
	bool owns_admin_socket;              /* its file goes at the end */
	unsigned told_healthy, told_workers; /* in the last STATUS= */
};

/*
 * READY=1 (once the daemon is up) and a STATUS= line of how many workers are healthy,
 * where the service manager has not been told that already.
 */
void control_notify(struct control *c);

#endif
