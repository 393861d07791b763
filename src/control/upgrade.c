/*
 * Upgrade in place: the successor is started, and this process hands over. See upgrade.h.
 * Always true: c->upgrade is NULL, or open (its deadline is set), or handed over (this
 * process drains).
 */
#include "control/upgrade.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/span.h"
#include "control/control.h"
#include "control/inherit.h"
#include "control/launch.h"
#include "control/listen.h"
#include "control/reload.h"
#include "control/service.h"
#include "control/upgrade_state.h"
#include "io/loop.h"
#include "io/wheel.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEADLINE_MS 30000
#define MESSAGE_BYTES 2048

struct upgrade {
	struct control *control;
	int channel;
	struct loop_watch *watch;
	struct wheel_timer deadline;
	pid_t pid;             /* 0: it has not said hello yet */
	upgrade_done_fn *done; /* NULL: nobody waits */
	void *arg;
	bool is_reload_due, is_handed_over;
};

static char *path; /* of the program, absolute */
static char **arguments;

void upgrade_remember(char **argv)
{
	char text[PATH_MAX];
	ssize_t n;

	arguments = argv;
	if (argv[0][0] == '/') {
		path = xstrdup(argv[0]);
	} else if (strchr(argv[0], '/') != NULL && getcwd(text, sizeof(text)) != NULL) {
		path = xasprintf("%s/%s", text, argv[0]);
	} else {
		n = readlink("/proc/self/exe", text, sizeof(text) - 1);
		path = xstrndup(text, n > 0 ? (size_t)n : 0);
	}
}

bool upgrade_is_open(const struct control *c)
{
	return c->upgrade != NULL && !c->upgrade->is_handed_over;
}

void upgrade_reload_later(struct control *c)
{
	c->upgrade->is_reload_due = true;
}

void upgrade_forget(struct control *c)
{
	if (c->upgrade != NULL)
		c->upgrade->done = NULL;
}

/* ---- the end of it ---- */

static void tell_asker(struct upgrade *u, pid_t pid, const char *failure)
{
	upgrade_done_fn *done = u->done;

	u->done = NULL;
	if (done != NULL)
		done(u->arg, pid, failure);
}

static void close_upgrade(struct upgrade *u)
{
	struct control *c = u->control;

	wheel_stop(loop_wheel(c->loop), &u->deadline);
	loop_watch_free(u->watch);
	close(u->channel); /* what is left of a successor gives up */
	c->upgrade = NULL;
	free(u);
}

static void fail(struct upgrade *u, const char *why)
{
	struct control *c = u->control;
	bool is_reload_due = u->is_reload_due;

	log_error("upgrade failed, this process carries on: %s", why);
	tell_asker(u, 0, why);
	close_upgrade(u);
	service_note(c->service, NULL);
	if (is_reload_due && !c->is_draining)
		reload_by_signal(c);
}

void upgrade_cancel(struct control *c, const char *why)
{
	if (upgrade_is_open(c))
		fail(c->upgrade, why);
}

void upgrade_free(struct control *c)
{
	if (c->upgrade == NULL)
		return;
	tell_asker(c->upgrade, 0, "the daemon ended");
	close_upgrade(c->upgrade);
}

static void on_deadline(void *arg)
{
	struct upgrade *u = arg;

	/* It holds its end of the channel open, so the number is still its own. */
	if (u->pid > 1)
		(void)kill(u->pid, SIGKILL);
	fail(u, "the new process was not ready within 30s");
}

/* ---- handing over ---- */

static bool say(const struct upgrade *u, const char *text)
{
	return send(u->channel, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) ==
	       (ssize_t)strlen(text);
}

/*
 * The manager hears of the new main process before that speaks itself; if it is gone
 * already, this one stays.
 */
static void hand_over(struct upgrade *u, pid_t pid, bool takes_admin_socket)
{
	struct control *c = u->control;

	service_note(c->service, NULL);
	service_handed_over(c->service, pid);
	if (!say(u, u->is_reload_due ? "go reload" : "go")) {
		service_handed_over(c->service, getpid());
		fail(u, "the new process ended when it was to take over");
		return;
	}
	wheel_stop(loop_wheel(c->loop), &u->deadline);
	u->is_handed_over = true;
	if (takes_admin_socket)
		c->owns_admin_socket = false;
	listen_hand_over(c->listening);
	log_notice("upgrade: process %ld takes over; this process finishes %u requests",
		(long)pid, (unsigned)metric_total(METRIC_REQUESTS));
	/* A caller that learns of it may rely on it: the successor was told to go. */
	control_hand_over(c);
	tell_asker(u, pid, NULL);
}

/* ---- what the successor says ---- */

static bool number(struct span *rest, uint64_t *out)
{
	struct span word;

	return span_next_word(rest, &word) && span_to_u64(word, out) == 0;
}

static void on_exec_failed(struct upgrade *u, struct span rest)
{
	char why[PATH_MAX + 128];
	uint64_t error = 0;

	(void)number(&rest, &error);
	snprintf(why, sizeof(why), "%s cannot be executed: %s", path,
		strerror((int)error));
	fail(u, why);
}

static void on_ready(struct upgrade *u, struct span rest)
{
	uint64_t pid, takes_admin_socket;

	if (number(&rest, &pid) && number(&rest, &takes_admin_socket) && pid > 1 &&
		pid <= INT32_MAX)
		hand_over(u, (pid_t)pid, takes_admin_socket != 0);
	else
		fail(u, "the new process is of a version that speaks otherwise");
}

static void on_successor_ended(struct upgrade *u)
{
	if (u->is_handed_over) {
		loop_watch_enable(u->watch, false);
		return;
	}
	fail(u, "the new process ended before it was ready; its messages are in the log");
}

static void on_message(struct upgrade *u, struct span text)
{
	struct control *c = u->control;
	struct span rest = text, word;
	uint64_t pid;

	if (!span_next_word(&rest, &word))
		return;
	if (u->is_handed_over) {
		if (span_is(word, "stop"))
			control_hurry(c, false);
		else if (span_is(word, "cut"))
			control_hurry(c, true);
	} else if (span_is(word, "hello")) {
		if (number(&rest, &pid) && pid <= INT32_MAX)
			u->pid = (pid_t)pid;
	} else if (span_is(word, "exec")) {
		on_exec_failed(u, rest);
	} else if (span_is(word, "ready")) {
		on_ready(u, rest);
	} else if (span_is(word, "failed")) {
		char why[MESSAGE_BYTES + 64];

		snprintf(why, sizeof(why), "the new process cannot serve: " SPAN_FMT,
			SPAN_ARG(span_trim(rest)));
		fail(u, why);
	}
}

/* One message a call: what it brings about may free u. */
static void on_readable(void *arg, int fd, unsigned events)
{
	struct upgrade *u = arg;
	char text[MESSAGE_BYTES];
	ssize_t n = recv(fd, text, sizeof(text), MSG_DONTWAIT);

	(void)events;
	if (n > 0)
		on_message(u, span_make(text, (size_t)n));
	else if (n == 0 || (errno != EAGAIN && errno != EINTR))
		on_successor_ended(u);
}

/* ---- starting ---- */

static int gather_sockets(const struct control *c, struct bequest *out)
{
	char name[INHERIT_NAME_MAX];
	const struct router_opts *o = &c->site->conf->router;
	int err = listen_bequeath(c->listening, out);

	if (err == 0 && c->admin_fd >= 0) {
		inherit_name(INHERIT_ADMIN, o->admin_socket, name);
		err = bequest_add(out, c->admin_fd, name);
	}
	if (err == 0 && c->metrics_fd >= 0) {
		inherit_name(INHERIT_METRICS, o->metrics_listen, name);
		err = bequest_add(out, c->metrics_fd, name);
	}
	return err;
}

/* Both ends open, everything gathered: forks. */
static int start(struct control *c, int channel)
{
	struct bequest sockets = {0};
	struct launch l = {.path = path, .argv = arguments, .channel = channel};
	int err;

	l.state = upgrade_state_save(c->site);
	if (l.state < 0)
		return ERR_IO;
	l.sockets = &sockets;
	err = gather_sockets(c, &sockets);
	if (err == 0)
		err = launch(&l);
	close(l.state);
	bequest_free(&sockets);
	return err;
}

static struct upgrade *upgrade_new(struct control *c, int channel)
{
	struct upgrade *u = calloc(1, sizeof(*u));

	if (u == NULL)
		return NULL;
	u->control = c;
	u->channel = channel;
	wheel_timer_init(&u->deadline, on_deadline, u);
	u->watch = loop_watch_new(c->loop, channel, LOOP_READ, on_readable, u);
	if (u->watch == NULL) {
		free(u);
		return NULL;
	}
	wheel_set(loop_wheel(c->loop), &u->deadline, clock_now_ms() + DEADLINE_MS);
	return u;
}

static const char *why_not(const struct control *c)
{
	if (c->is_draining)
		return "the daemon is stopping";
	return c->upgrade != NULL ? "an upgrade is under way already" : NULL;
}

int upgrade_begin(struct control *c, upgrade_done_fn *done, void *arg, const char **why)
{
	int pair[2];

	*why = why_not(c);
	if (*why != NULL)
		return ERR_STATE;
	*why = "descriptors or memory are short";
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		return ERR_IO;
	c->upgrade = upgrade_new(c, pair[0]);
	if (c->upgrade == NULL) {
		close(pair[0]);
		close(pair[1]);
		return ERR_IO;
	}
	if (start(c, pair[1]) != 0) {
		close(pair[1]);
		close_upgrade(c->upgrade);
		*why = "no process could be started: memory or processes are short";
		return ERR_IO;
	}
	close(pair[1]);
	c->upgrade->done = done;
	c->upgrade->arg = arg;
	log_notice("upgrade: starting %s", path);
	service_note(c->service, "an upgrade is under way");
	return 0;
}
