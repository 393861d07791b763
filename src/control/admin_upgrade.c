/*
 * Upgrade in place by the admin API: the call stays open until the new process serves, or
 * this one carries on. A row of admin.c's table.
 */
#include "control/admin_calls.h"

#include "base/err.h"
#include "control/admin_reply.h"
#include "control/upgrade.h"
#include "http/http_server.h"

#include <unistd.h>

static void on_done(void *arg, pid_t pid, const char *failure)
{
	struct http_call *call = arg;
	struct js *out;

	if (failure != NULL) {
		admin_fail(call, ADMIN_UPGRADE_FAILED, "%s", failure);
		return;
	}
	out = js_object();
	js_set_int(out, "pid", pid);
	js_set_int(out, "old_pid", getpid());
	admin_reply(call, 200, out);
}

/* The upgrade goes on without whoever asked for it. */
static void on_gone(void *arg)
{
	struct admin *a = arg;

	upgrade_forget(a->control);
}

/* POST upgrade */
void admin_upgrade(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	const char *why;
	int err;

	err = upgrade_begin(a->control, on_done, call, &why);
	if (err == ERR_STATE)
		admin_fail(call, ADMIN_BUSY, "%s", why);
	else if (err != 0)
		admin_fail(call, ADMIN_UPGRADE_FAILED, "%s", why);
	else
		http_call_watch(call, on_gone, NULL, a);
}
