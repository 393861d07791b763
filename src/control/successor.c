/*
 * Upgrade in place, the side of the new process. See successor.h.
 */
#include "control/successor.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/span.h"
#include "control/control.h"
#include "control/upgrade.h"
#include "control/upgrade_state.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/wheel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_EVERY_MS 20
#define SETTLE_MS 10000 /* less than the predecessor waits */
#define MESSAGE_BYTES 256

struct successor {
	struct control *control; /* NULL: not started */
	int channel, state_fd;
	struct loop_watch *watch;
	struct wheel_timer timer;
	uint64_t due_ms;
	struct js *state;
	bool is_ready, is_main, is_over;
	const struct successor_ops *ops;
	void *arg;
};

struct successor *successor_take(void)
{
	const char *text = getenv(UPGRADE_VARIABLE);
	struct successor *s;
	int channel, state;

	if (text == NULL || sscanf(text, "%d,%d", &channel, &state) != 2 || channel < 3 ||
		state < 3 || fcntl(channel, F_SETFD, FD_CLOEXEC) != 0 ||
		fcntl(state, F_SETFD, FD_CLOEXEC) != 0)
		return NULL;
	unsetenv(UPGRADE_VARIABLE);
	s = xcalloc(1, sizeof(*s));
	s->channel = channel;
	s->state_fd = state;
	return s;
}

static bool say(const struct successor *s, const char *text)
{
	return send(s->channel, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) ==
	       (ssize_t)strlen(text);
}

void successor_fail(struct successor *s, const char *text)
{
	char last[512];
	scoped_free char *message = NULL;

	if (s == NULL || s->is_main || s->is_over)
		return;
	if (text == NULL) {
		log_last_error(last, sizeof(last));
		text = last;
	}
	message = xasprintf("failed %s", text);
	(void)say(s, message);
	s->is_over = true;
}

void successor_free(struct successor *s)
{
	if (s == NULL)
		return;
	if (s->control != NULL) {
		wheel_stop(loop_wheel(s->control->loop), &s->timer);
		loop_watch_free(s->watch);
	}
	close(s->channel);
	close(s->state_fd);
	js_free(s->state);
	free(s);
}

bool successor_has_predecessor(const struct successor *s)
{
	return s != NULL && s->is_main && !s->is_over;
}

void successor_hurry(struct successor *s, bool cut)
{
	if (successor_has_predecessor(s))
		(void)say(s, cut ? "cut" : "stop");
}

/* ---- until it is the main process ---- */

static void report_ready(struct successor *s)
{
	char text[64];

	s->is_ready = true;
	snprintf(text, sizeof(text), "ready %ld %d", (long)getpid(),
		s->control->has_admin_from_predecessor);
	(void)say(s, text); /* if it is gone, the end of the channel tells */
}

static void give_up(struct successor *s)
{
	wheel_stop(loop_wheel(s->control->loop), &s->timer);
	s->ops->on_give_up(s->arg);
}

/* As soon as as many workers are up as the predecessor had; in the end, one of each pool
 * will do. */
static void on_look(void *arg)
{
	struct successor *s = arg;
	bool is_late = clock_now_ms() >= s->due_ms;
	const char *lacking;

	if (upgrade_state_is_reached(s->state, s->control->site, &lacking)) {
		report_ready(s);
	} else if (is_late && lacking != NULL) {
		log_error("pool %s: no worker is up after %d s, but the running process "
			  "has one",
			lacking, SETTLE_MS / 1000);
		successor_fail(s, NULL);
		give_up(s);
	} else if (is_late) {
		log_warn(
			"after %d s some workers are not up that the running process has",
			SETTLE_MS / 1000);
		report_ready(s);
	} else {
		wheel_set(loop_wheel(s->control->loop), &s->timer,
			clock_now_ms() + LOOK_EVERY_MS);
	}
}

static void on_predecessor_ended(struct successor *s)
{
	bool was_main = s->is_main;

	if (s->is_over && !was_main)
		return;
	s->is_over = true;
	loop_watch_enable(s->watch, false);
	if (was_main) {
		log_info("the old process has ended");
		s->ops->on_alone(s->arg);
		return;
	}
	log_error(
		"the running process cancelled the upgrade or ended: this process ends");
	give_up(s);
}

static void on_readable(void *arg, int fd, unsigned events)
{
	struct successor *s = arg;
	char text[MESSAGE_BYTES];
	ssize_t n = recv(fd, text, sizeof(text), MSG_DONTWAIT);
	struct span rest, word;

	(void)events;
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		on_predecessor_ended(s);
		return;
	}
	if (n < 0)
		return;
	rest = span_make(text, (size_t)n);
	if (!s->is_ready || s->is_main || !span_next_word(&rest, &word) ||
		!span_is(word, "go"))
		return;
	s->is_main = true;
	s->ops->on_go(s->arg, span_next_word(&rest, &word) && span_is(word, "reload"));
}

int successor_start(struct successor *s, struct control *c,
	const struct successor_ops *ops, void *arg)
{
	s->ops = ops;
	s->arg = arg;
	s->watch = loop_watch_new(c->loop, s->channel, LOOP_READ, on_readable, s);
	if (s->watch == NULL)
		return ERR_NOMEM;
	s->control = c;
	wheel_timer_init(&s->timer, on_look, s);
	s->due_ms = clock_now_ms() + SETTLE_MS;
	s->state = upgrade_state_load(s->state_fd);
	if (s->state == NULL)
		s->state = js_object();
	upgrade_state_apply(s->state, c->site);
	on_look(s);
	return 0;
}
