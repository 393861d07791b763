/*
 * Messages to the service manager, and their times. See service.h.
 */
#include "control/service.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "control/control.h"
#include "control/threads.h"
#include "io/loop.h"
#include "io/notify.h"
#include "io/wheel.h"
#include "worker/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATUS_EVERY_MS 1000
#define EXTEND_US 30000000 /* asked for again each second */
#define POKES_AN_INTERVAL 4
#define STATUS_BYTES 512
#define BEHIND_BYTES 400

struct service {
	struct control *control;
	char told[STATUS_BYTES]; /* the last STATUS= */
	uint64_t told_ms;
	/* The failure of the last reload, and the note of upgrade.c; empty: none. */
	char failure[BEHIND_BYTES], note[BEHIND_BYTES];
	bool is_ready, is_stopping, is_silent;
	struct wheel_timer keep_alive;
	uint64_t keep_alive_ms; /* 0: none is expected */
	bool is_stuck;          /* a thread did not answer, which was logged */
};

/* ---- status ---- */

static void count_workers(const struct site *site, unsigned *healthy, unsigned *all)
{
	const struct worker *w;
	size_t i, j;

	*healthy = *all = 0;
	for (i = 0; i < site->n_pools; i++) {
		for (j = 0; (w = pool_worker_at(site->pools[i], j)) != NULL; j++) {
			*healthy += worker_state(w) == WORKER_HEALTHY;
			(*all)++;
		}
	}
}

static void print_status(const struct service *s, char *out, size_t n)
{
	char *p;
	const struct control *c = s->control;
	unsigned healthy, all, in_flight = (unsigned)metric_total(METRIC_REQUESTS);
	uint64_t served, errors;
	const char *behind = s->note[0] != '\0' ? s->note : s->failure;

	count_workers(c->site, &healthy, &all);
	metric_request_sum(&served, &errors);
	snprintf(out, n,
		"%s%u of %u workers healthy, %u requests in flight, %llu served%s%s",
		s->is_stopping ? "Draining: " : "", healthy, all, in_flight,
		(unsigned long long)served, behind[0] != '\0' ? "; " : "", behind);
	for (p = out; *p != '\0'; p++) { /* one line, whatever a file held */
		if ((unsigned char)*p < ' ')
			*p = '?';
	}
}

/* With what else there is to say, "" for nothing; only if it is news. */
static void tell_status(struct service *s, const char *more)
{
	char text[STATUS_BYTES];

	print_status(s, text, sizeof(text));
	if (strcmp(text, s->told) != 0) {
		(void)notify_sendf(
			"%s%sSTATUS=%s", more, more[0] != '\0' ? "\n" : "", text);
		memcpy(s->told, text, sizeof(text));
		s->told_ms = clock_now_ms();
	} else if (more[0] != '\0') {
		(void)notify_send(more);
	}
}

void service_changed(struct service *s)
{
	if (!s->is_ready || s->is_silent || clock_now_ms() - s->told_ms < STATUS_EVERY_MS)
		return;
	tell_status(s, "");
}

void service_tick(struct service *s)
{
	char more[64];

	if (!s->is_ready || s->is_silent || !notify_is_on())
		return;
	if (!s->is_stopping) {
		service_changed(s);
		return;
	}
	snprintf(more, sizeof(more), "EXTEND_TIMEOUT_USEC=%d", EXTEND_US);
	tell_status(s, more);
}

void service_note(struct service *s, const char *note)
{
	snprintf(s->note, sizeof(s->note), "%s", note != NULL ? note : "");
	if (s->is_ready && !s->is_silent)
		tell_status(s, "");
}

/* ---- keep-alives ---- */

static void on_keep_alive(void *arg)
{
	struct service *s = arg;
	int silent = threads_poke(s->control->threads);

	if (silent < 0) {
		(void)notify_send("WATCHDOG=1");
		s->is_stuck = false;
	} else if (!s->is_stuck) {
		log_error("thread io/%d does not answer: the watchdog gets no keep-alive",
			silent);
		s->is_stuck = true;
	}
	wheel_set(loop_wheel(s->control->loop), &s->keep_alive,
		clock_now_ms() + s->keep_alive_ms);
}

static void start_keep_alives(struct service *s)
{
	uint64_t us = notify_watchdog_us();

	if (us == 0 || s->keep_alive_ms != 0)
		return;
	s->keep_alive_ms = MAX(us / 1000 / POKES_AN_INTERVAL, UINT64_C(1));
	on_keep_alive(s);
}

/* ---- phases ---- */

void service_ready(struct service *s)
{
	s->is_ready = true;
	tell_status(s, "READY=1");
	start_keep_alives(s);
}

void service_reloading(struct service *s)
{
	if (s->is_ready && !s->is_silent)
		(void)notify_reloading();
}

void service_reloaded(struct service *s, const char *failure)
{
	snprintf(s->failure, sizeof(s->failure), "%s%s",
		failure != NULL ? "the last reload failed: " : "",
		failure != NULL ? failure : "");
	if (s->is_ready && !s->is_silent)
		tell_status(s, "READY=1");
}

void service_stopping(struct service *s)
{
	char more[64];

	s->is_stopping = true;
	if (s->is_silent)
		return;
	snprintf(more, sizeof(more), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", EXTEND_US);
	tell_status(s, more);
}

void service_handed_over(struct service *s, pid_t main_pid)
{
	(void)notify_sendf("MAINPID=%ld", (long)main_pid);
	s->is_silent = main_pid != getpid();
	if (s->is_silent)
		wheel_stop(loop_wheel(s->control->loop), &s->keep_alive);
	else if (s->keep_alive_ms != 0)
		on_keep_alive(s);
}

void service_end(struct service *s)
{
	if (s == NULL)
		return;
	s->is_silent = true;
	wheel_stop(loop_wheel(s->control->loop), &s->keep_alive);
}

struct service *service_new(struct control *c)
{
	struct service *s = xcalloc(1, sizeof(*s));

	s->control = c;
	wheel_timer_init(&s->keep_alive, on_keep_alive, s);
	return s;
}

void service_free(struct service *s)
{
	if (s == NULL)
		return;
	service_end(s);
	free(s);
}
