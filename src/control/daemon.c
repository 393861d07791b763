/*
 * The daemon: command line, boot, signals, drain, exit. See daemon.h. A stop goes through
 * these phases: announced (the threads finish their requests and answer 503 to new ones;
 * for drain_grace, at least), draining (they accept no more), cut (after drain_timeout or
 * a second signal), ended (no connection is left: the loop stops). If the service manager
 * or a new process has the sockets, new clients wait for that process, and nothing is
 * announced.
 */
#include "control/daemon.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dump.h"
#include "base/err.h"
#include "base/log.h"
#include "base/log_out.h"
#include "base/mem.h"
#include "base/metric.h"
#include "control/admin.h"
#include "control/boot.h"
#include "control/conf_log.h"
#include "control/control.h"
#include "control/dump_tables.h"
#include "control/inherit.h"
#include "control/listen.h"
#include "control/local.h"
#include "control/log_file.h"
#include "control/preflight.h"
#include "control/readiness.h"
#include "control/reload.h"
#include "control/service.h"
#include "control/successor.h"
#include "control/threads.h"
#include "control/upgrade.h"
#include "http/http_parse.h"
#include "io/loop.h"
#include "io/wheel.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_RUNTIME = 1, EXIT_USAGE = 2 };
#define SWEEP_EVERY_MS 1000
#define SETTLE_MS 3000
#define SETTLE_LOOK_MS 20
#define LAST_WORDS_MS 1000

struct daemon {
	struct control control;
	struct wheel_timer drain_timer, grace_timer, sweep_timer, settle_timer;
	struct loop_signal *signals[5];
	struct inherited inherited;
	struct successor
		*successor; /* this one was started by another process; or NULL */
	bool is_open;       /* it accepts, or did */
	bool is_reload_due; /* as soon as it does */
	bool is_announcing; /* a stop: listeners are open */
	bool is_in_grace;
	bool is_served; /* announcing: who was in time has left */
	bool is_empty;  /* no client is left, of those that are to end */
	bool is_cut;
	bool is_handed_over, is_asked_to_stop;
	bool has_failed;
};

/* ---- the end ---- */

/* A process that stops waits for its predecessor, too: with the main process the service
 * manager ends all. */
static void end_if_done(struct daemon *d)
{
	if (d->is_empty && (d->is_handed_over || d->is_cut ||
				   !successor_has_predecessor(d->successor)))
		loop_stop(d->control.loop);
}

static void end_announcing_if_done(struct daemon *d)
{
	if (!d->is_announcing || !d->is_served || d->is_in_grace)
		return;
	d->is_announcing = false;
	threads_drain_late(d->control.threads);
}

static void on_grace_over(void *arg)
{
	struct daemon *d = arg;

	d->is_in_grace = false;
	end_announcing_if_done(d);
}

static void on_empty(void *arg)
{
	struct daemon *d = arg;

	if (d->is_announcing) {
		d->is_served = true;
		end_announcing_if_done(d);
		return;
	}
	d->is_empty = true;
	end_if_done(d);
}

static void cut(struct daemon *d, const char *why)
{
	unsigned n = atomic_load(&d->control.process.connections);

	if (n > 0)
		log_warn("%s: cutting %u connections", why, n);
	if (!d->is_handed_over)
		successor_hurry(d->successor, true);
	d->is_cut = true;
	/* Clients that were in time have left; the daemon waits for no others. */
	d->is_empty |= d->is_served;
	d->is_announcing = false;
	threads_cut(d->control.threads);
	end_if_done(d);
}

static void on_drain_timeout(void *arg)
{
	cut(arg, "drain_timeout");
}

static void start_drain(struct daemon *d, enum drain_way way)
{
	struct control *c = &d->control;
	uint64_t timeout_ms = c->site->conf->router.drain_timeout_ms;

	c->is_draining = true;
	threads_drain(c->threads, way, c->mailbox, on_empty, d);
	if (timeout_ms > 0)
		wheel_set(loop_wheel(c->loop), &d->drain_timer,
			clock_now_ms() + timeout_ms);
}

static void announce(struct daemon *d)
{
	struct control *c = &d->control;
	const struct router_opts *o = &c->site->conf->router;
	uint64_t grace_ms = o->drain_grace_ms;

	if (o->drain_timeout_ms > 0)
		grace_ms = MIN(grace_ms, o->drain_timeout_ms);
	d->is_announcing = true;
	d->is_in_grace = grace_ms > 0;
	if (d->is_in_grace)
		wheel_set(
			loop_wheel(c->loop), &d->grace_timer, clock_now_ms() + grace_ms);
}

static void stop(struct daemon *d, int signo)
{
	struct control *c = &d->control;
	bool is_announced = !listen_is_stored(c->listening);

	upgrade_cancel(c, "the daemon is stopping");
	log_notice("SIG%s: stopping; draining, %u requests in flight",
		sigabbrev_np(signo), (unsigned)metric_total(METRIC_REQUESTS));
	atomic_store(&c->process.is_draining, true);
	if (is_announced)
		announce(d);
	start_drain(d, is_announced ? DRAIN_KEEPS_LISTENING : DRAIN_ALL);
	service_stopping(c->service);
	successor_hurry(d->successor, false);
}

static struct daemon *daemon_of(struct control *c)
{
	return container_of(c, struct daemon, control);
}

void control_hand_over(struct control *c)
{
	struct daemon *d = daemon_of(c);

	d->is_handed_over = true;
	admin_drain(c->admin);
	start_drain(d, DRAIN_KEEPS_IDLE);
}

void control_hurry(struct control *c, bool cut_all)
{
	struct daemon *d = daemon_of(c);

	if (cut_all)
		cut(d, "the new process stops");
	else
		threads_close_idle(c->threads);
}

static void on_stop(void *arg, int signo)
{
	struct daemon *d = arg;
	char why[64];

	if (!d->is_open) {
		log_notice("SIG%s: stopped before the start was complete",
			sigabbrev_np(signo));
		successor_fail(d->successor, "it was told to stop");
		loop_stop(d->control.loop);
	} else if (!d->control.is_draining) {
		stop(d, signo);
	} else if (d->is_handed_over && !d->is_asked_to_stop) {
		log_notice("SIG%s: closing idle connections, %u requests in flight",
			sigabbrev_np(signo), (unsigned)metric_total(METRIC_REQUESTS));
		threads_close_idle(d->control.threads);
	} else {
		snprintf(why, sizeof(why), "SIG%s again", sigabbrev_np(signo));
		cut(d, why);
	}
	d->is_asked_to_stop = true;
}

/* ---- other signals, and what comes every second ---- */

static void on_hup(void *arg, int signo)
{
	struct daemon *d = arg;

	(void)signo;
	if (d->is_open)
		reload_by_signal(&d->control);
	else
		d->is_reload_due = true;
}

static void on_usr2(void *arg, int signo)
{
	struct daemon *d = arg;
	const char *why = "it has not taken over yet itself";

	(void)signo;
	if (!d->is_open || upgrade_begin(&d->control, NULL, NULL, &why) != 0)
		log_error("upgrade refused: %s", why);
}

static void on_usr1(void *arg, int signo)
{
	struct daemon *d = arg;

	(void)signo;
	threads_flush_logs(d->control.threads);
	if (log_file_reopen() == 0)
		log_notice("log file opened again");
}

static void look_at_files(struct daemon *d)
{
	const struct router_opts *o = &d->control.site->conf->router;
	const char *path = d->control.flags.conf_file;

	if (!o->watch_config || !d->is_open || d->control.is_draining ||
		!conf_watch_is_due(&d->control.watch, path, o->api_keys))
		return;
	log_notice("the configuration's files have changed: reload");
	reload_by_signal(&d->control);
}

static void on_sweep(void *arg)
{
	struct daemon *d = arg;
	const struct site *site = d->control.site;
	uint64_t now_ms = clock_now_ms();
	size_t i;

	for (i = 0; i < site->n_pools; i++) {
		pool_sweep(site->pools[i], now_ms);
		/* A breaker's time may be over. */
		pool_serve(site->pools[i], now_ms);
	}
	look_at_files(d);
	service_tick(d->control.service);
	wheel_set(loop_wheel(d->control.loop), &d->sweep_timer, now_ms + SWEEP_EVERY_MS);
}

static const struct {
	int signo;
	void (*fn)(void *arg, int signo);
} signal_rows[] = {{SIGTERM, on_stop}, {SIGINT, on_stop}, {SIGHUP, on_hup},
	{SIGUSR1, on_usr1}, {SIGUSR2, on_usr2}};

static int watch_signals(struct daemon *d)
{
	size_t i;

	static_assert(
		ARRAY_LEN(signal_rows) == ARRAY_LEN(d->signals), "a watch for each");
	for (i = 0; i < ARRAY_LEN(signal_rows); i++) {
		d->signals[i] = loop_signal_new(
			d->control.loop, signal_rows[i].signo, signal_rows[i].fn, d);
		if (d->signals[i] == NULL)
			return ERR_NOMEM;
	}
	return 0;
}

static void unwatch(struct daemon *d)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(d->signals); i++)
		loop_signal_free(d->signals[i]);
	if (d->control.loop == NULL)
		return;
	wheel_stop(loop_wheel(d->control.loop), &d->drain_timer);
	wheel_stop(loop_wheel(d->control.loop), &d->grace_timer);
	wheel_stop(loop_wheel(d->control.loop), &d->sweep_timer);
	wheel_stop(loop_wheel(d->control.loop), &d->settle_timer);
}

/* ---- running ---- */

static int open_all(struct daemon *d)
{
	struct control *c = &d->control;

	inherit_close(&d->inherited);
	if (boot_open(c) != 0)
		return ERR_NOMEM;
	d->is_open = true;
	listen_log(c->listening);
	log_notice("kvsteerd %s is up: %u thread%s, up to %u connections",
		KVSTEER_VERSION, threads_count(c->threads),
		threads_count(c->threads) == 1 ? "" : "s", c->process.max_connections);
	service_ready(c->service);
	boot_store(c);
	return 0;
}

/* ---- as the successor of another process ---- */

static void on_go(void *arg, bool reload)
{
	struct daemon *d = arg;

	if (open_all(d) != 0) {
		d->has_failed = true;
		loop_stop(d->control.loop);
	} else if (reload || d->is_reload_due) {
		reload_by_signal(&d->control);
	}
}

static void on_give_up(void *arg)
{
	struct daemon *d = arg;

	d->has_failed = true;
	loop_stop(d->control.loop);
}

static void on_alone(void *arg)
{
	struct daemon *d = arg;

	if (d->control.is_draining)
		end_if_done(d);
}

/* ---- as the next start of a service ---- */

/*
 * Clients wait in the sockets that were taken over: until there are workers for them, or
 * SETTLE_MS. At a first start nobody does.
 */
static void on_settle(void *arg)
{
	struct daemon *d = arg;
	struct control *c = &d->control;

	if (!readiness_is_whole(c->site) && clock_now_ms() - c->started_ms < SETTLE_MS)
		wheel_set(loop_wheel(c->loop), &d->settle_timer,
			clock_now_ms() + SETTLE_LOOK_MS);
	else
		on_go(d, false);
}

static int open_or_wait(struct daemon *d)
{
	static const struct successor_ops ops = {on_go, on_give_up, on_alone};

	if (d->successor != NULL)
		return successor_start(d->successor, &d->control, &ops, d);
	if (d->inherited.n == 0)
		return open_all(d);
	on_settle(d);
	return 0;
}

static int run(struct daemon *d, struct conf *conf)
{
	struct control *c = &d->control;
	int err;

	wheel_timer_init(&d->drain_timer, on_drain_timeout, d);
	wheel_timer_init(&d->grace_timer, on_grace_over, d);
	wheel_timer_init(&d->sweep_timer, on_sweep, d);
	wheel_timer_init(&d->settle_timer, on_settle, d);
	err = boot_prepare(c, conf, &d->inherited);
	if (err == 0)
		err = watch_signals(d);
	if (err == 0)
		err = open_or_wait(d);
	if (err == 0) {
		on_sweep(d);
		loop_run(c->loop);
	}
	if (d->has_failed)
		err = ERR_STATE;
	if (err != 0)
		successor_fail(d->successor, NULL);
	unwatch(d);
	inherit_drop(&d->inherited);
	successor_free(take_ptr(d->successor));
	if (!boot_undo(c))
		err = ERR_STATE;
	if (err == 0)
		log_notice("stopped");
	return err == 0 ? 0 : EXIT_RUNTIME;
}

/* ---- command line ---- */

static void print_errors(const struct conf_errors *errors)
{
	const struct conf_error *e;
	char text[CONF_ERROR_TEXT_MAX];
	size_t i;

	for (i = 0; (e = conf_errors_at(errors, i)) != NULL; i++) {
		conf_error_print(e, text, sizeof(text));
		fprintf(stderr, "kvsteerd: %s\n", text);
	}
}

/* -t and -T: what the configuration is worth. */
static int show(const struct conf_flags *flags, const struct conf *conf,
	const struct conf_errors *errors)
{
	scoped_free char *text = NULL;

	print_errors(errors);
	if (flags->print) {
		text = conf_print(conf);
		if (text == NULL || fputs(text, stdout) < 0 || fflush(stdout) != 0)
			return EXIT_RUNTIME;
	}
	if (flags->test)
		fprintf(stderr, "kvsteerd: the configuration is good\n");
	return 0;
}

/* 0, or what is wrong was printed, and told to the process that this one should replace.
 */
static int load(struct daemon *d, struct conf_errors *errors, struct conf **conf)
{
	const struct conf_flags *flags = &d->control.flags;
	char text[RELOAD_FAILURE_MAX];
	int err;

	conf_watch_begin(&d->control.watch, flags->conf_file);
	err = conf_load(flags->conf_file, flags, errors, conf);
	if (err == 0) {
		conf_watch_end(&d->control.watch, (*conf)->router.api_keys);
		return 0;
	}
	print_errors(errors);
	reload_failure_text(errors, text, sizeof(text));
	successor_fail(d->successor, text);
	return err;
}

static int start(struct daemon *d, struct conf_errors *errors)
{
	const struct conf_flags *flags = &d->control.flags;
	struct conf *conf;
	int status;

	if (!flags->test && !flags->print)
		d->successor = successor_take();
	if (load(d, errors, &conf) != 0) {
		successor_free(d->successor);
		return flags->test ? EXIT_RUNTIME : EXIT_USAGE;
	}
	if (flags->test && preflight(conf, errors) != 0) {
		print_errors(errors);
		status = EXIT_RUNTIME;
	} else if (flags->test || flags->print) {
		status = show(flags, conf, errors);
	} else {
		log_file_start();
		log_out_start();
		log_set_level(conf->router.log_level);
		conf_log(errors, LOG_LEVEL_WARN);
		inherit_take(&d->inherited);
		status = run(d, conf);
		/* What cannot be written in that time is lost: the process ends. */
		(void)log_out_flush(LAST_WORDS_MS);
	}
	conf_unref(conf);
	return status;
}

static int run_flags(struct daemon *d, struct conf_errors *errors)
{
	const struct conf_flags *flags = &d->control.flags;

	if (flags->help) {
		conf_usage(stdout);
		return 0;
	}
	if (flags->version) {
		printf("kvsteerd %s\n", KVSTEER_VERSION);
		return 0;
	}
	if (!http_parse_selftest()) {
		fprintf(stderr,
			"kvsteerd: the HTTP parser library accepts what it must refuse: "
			"it was built in its loose mode\n");
		return EXIT_RUNTIME;
	}
	return start(d, errors);
}

static int dump_tables(void)
{
	dump_daemon_tables();
	for (size_t i = 0; i < ARRAY_LEN(signal_rows); i++)
		dump_signal(signal_rows[i].signo);
	dump_exits(EXIT_USAGE);
	return fflush(stdout) == 0 ? 0 : EXIT_RUNTIME;
}

int daemon_main(int argc, char **argv)
{
	struct conf_errors errors = {0};
	int status = EXIT_USAGE;
	struct daemon *d;

	if (dump_is_asked(argc, argv))
		return dump_tables();
	d = xcalloc(1, sizeof(*d));
	signal(SIGPIPE, SIG_IGN);
	upgrade_remember(argv);
	if (conf_flags_parse(argc, argv, &errors, &d->control.flags) == 0) {
		status = run_flags(d, &errors);
		conf_flags_free(&d->control.flags);
	} else {
		print_errors(&errors);
	}
	conf_errors_free(&errors);
	free(d);
	return status;
}
