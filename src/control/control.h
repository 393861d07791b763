/*
 * The state of the control thread, as the modules of this room see it. Made, filled and
 * torn down by daemon.c. Only the control thread touches it, except for `process`
 * (atomics).
 */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include "base/base.h"
#include "conf/conf_flags.h"
#include "control/conf_watch.h"
#include "pool/site.h"
#include "proxy/io_thread.h"

struct admin;
struct fleet_calls;
struct health;
struct inherited;
struct listen_set;
struct mailbox;
struct service;
struct threads;
struct upgrade;

enum reload_result { RELOAD_OK, RELOAD_FAILED, RELOAD_RESULT_MAX };

struct control {
	struct conf_flags flags; /* applied again by each reload */
	struct loop *loop;
	struct mailbox *mailbox;
	struct process process;
	struct site_opts site_opts;
	struct conf_watch watch; /* watch_config */
	struct site *site;       /* in force; a reference */
	struct threads *threads;
	struct listen_set *listening;
	struct health *health;
	struct admin *admin;
	struct fleet_calls *fleet_calls;
	uint64_t started_ms;
	uint64_t reloads[RELOAD_RESULT_MAX];
	struct service *service;
	struct upgrade *upgrade; /* under way, or handed over; NULL: neither */
	/* From boot_prepare() to boot_open(): sockets that are open and not used yet. */
	struct listen_set *planned;
	/* Listening sockets of the admin API and the metrics; -1: none. Once boot_open()
	 * ran they are struct admin's to close. */
	int admin_fd, metrics_fd;
	bool is_metrics_stored; /* by the service manager */
	bool has_admin_from_predecessor;
	bool is_draining;
	bool owns_admin_socket; /* its file goes at the end */
};

/*
 * Another process accepts from now on (upgrade.c). This one finishes its requests and
 * ends. It keeps idle clients until their time is up and closes with their next response,
 * so that none loses a request to the change.
 */
void control_hand_over(struct control *c);
/* After that: idle clients go now; or everything does. */
void control_hurry(struct control *c, bool cut);

#endif
