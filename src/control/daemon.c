/*
 * The daemon: command line, boot, signals, drain, exit. See daemon.h.
 * A stop goes through three phases: draining (the threads finish what they have), cut
 * (after drain_timeout or a second signal), ended (no connection is left: the loop
 * stops).
 */
#include "control/daemon.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "control/boot.h"
#include "control/control.h"
#include "control/listen.h"
#include "control/log_file.h"
#include "control/reload.h"
#include "control/threads.h"
#include "http/http_parse.h"
#include "io/loop.h"
#include "io/notify.h"
#include "io/wheel.h"
#include "model/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_RUNTIME 1
#define EXIT_USAGE 2
#define SWEEP_EVERY_MS 1000

struct daemon {
	struct control control;
	struct wheel_timer drain_timer, sweep_timer;
	struct loop_signal *signals[4];
};

/* ---- what the service manager is told ---- */

static void count_workers(const struct site *site, unsigned *healthy, unsigned *all)
{
	size_t i, j, n;

	*healthy = *all = 0;
	for (i = 0; i < site->n_pools; i++) {
		struct worker **workers = pool_list(site->pools[i], &n);

		for (j = 0; j < n; j++) {
			*healthy += worker_state(workers[j]) == WORKER_HEALTHY;
			worker_unref(workers[j]);
		}
		*all += (unsigned)n;
		free(workers);
	}
}

void control_notify(struct control *c)
{
	unsigned healthy, all;

	if (!c->is_ready || c->is_draining)
		return;
	count_workers(c->site, &healthy, &all);
	if (healthy == c->told_healthy && all == c->told_workers)
		return;
	c->told_healthy = healthy;
	c->told_workers = all;
	(void)notify_sendf("STATUS=%u of %u workers healthy", healthy, all);
}

static void report_ready(struct control *c)
{
	listen_log(c->listening);
	log_notice("kvsteerd %s is up: %u threads, up to %u connections", KVSTEER_VERSION,
		threads_count(c->threads), c->process.max_connections);
	c->is_ready = true;
	c->told_workers = UINT32_MAX;
	(void)notify_send("READY=1");
	control_notify(c);
}

/* ---- the end ---- */

static void on_empty(void *arg)
{
	struct daemon *d = arg;

	loop_stop(d->control.loop);
}

static void on_drain_timeout(void *arg)
{
	struct daemon *d = arg;

	log_warn("drain_timeout: %u connections are cut",
		atomic_load(&d->control.process.connections));
	threads_cut(d->control.threads);
}

static void start_drain(struct daemon *d, int signo)
{
	struct control *c = &d->control;
	uint64_t timeout_ms = c->site->conf->router.drain_timeout_ms;

	log_notice("%s: draining, %u requests in flight", strsignal(signo),
		atomic_load(&c->process.requests));
	(void)notify_send("STOPPING=1\nSTATUS=Draining");
	c->is_draining = true;
	atomic_store(&c->process.is_draining, true);
	threads_drain(c->threads, c->mailbox, on_empty, d);
	if (timeout_ms > 0)
		wheel_set(loop_wheel(c->loop), &d->drain_timer,
			clock_now_ms() + timeout_ms);
}

static void on_stop(void *arg, int signo)
{
	struct daemon *d = arg;

	if (!d->control.is_draining) {
		start_drain(d, signo);
		return;
	}
	log_warn("%s again: %u connections are cut", strsignal(signo),
		atomic_load(&d->control.process.connections));
	threads_cut(d->control.threads);
}

/* ---- other signals, and what comes every second ---- */

static void on_hup(void *arg, int signo)
{
	struct daemon *d = arg;
	struct reload_report report;

	(void)signo;
	if (reload_run(&d->control, &report) != 0)
		log_debug("SIGHUP: the old configuration stays");
	reload_report_free(&report);
}

static void on_usr1(void *arg, int signo)
{
	struct daemon *d = arg;

	(void)signo;
	threads_flush_logs(d->control.threads);
	if (log_file_reopen() == 0)
		log_notice("log file opened again");
}

static void on_sweep(void *arg)
{
	struct daemon *d = arg;
	const struct site *site = d->control.site;
	uint64_t now_ms = clock_now_ms();
	size_t i;

	for (i = 0; i < site->n_pools; i++)
		pool_sweep(site->pools[i], now_ms);
	wheel_set(loop_wheel(d->control.loop), &d->sweep_timer, now_ms + SWEEP_EVERY_MS);
}

static int watch_signals(struct daemon *d)
{
	static const struct {
		int signo;
		void (*fn)(void *arg, int signo);
	} rows[] = {{SIGTERM, on_stop}, {SIGINT, on_stop}, {SIGHUP, on_hup},
		{SIGUSR1, on_usr1}};
	size_t i;

	static_assert(ARRAY_LEN(rows) == ARRAY_LEN(d->signals), "a watch for each");
	for (i = 0; i < ARRAY_LEN(rows); i++) {
		d->signals[i] =
			loop_signal_new(d->control.loop, rows[i].signo, rows[i].fn, d);
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
	wheel_stop(loop_wheel(d->control.loop), &d->sweep_timer);
}

/* ---- running ---- */

static int run(struct daemon *d, struct conf *conf)
{
	struct control *c = &d->control;
	int err;

	wheel_timer_init(&d->drain_timer, on_drain_timeout, d);
	wheel_timer_init(&d->sweep_timer, on_sweep, d);
	err = boot_run(c, conf);
	if (err == 0)
		err = watch_signals(d);
	if (err == 0) {
		on_sweep(d);
		report_ready(c);
		loop_run(c->loop);
	}
	unwatch(d);
	if (!boot_undo(c))
		err = ERR_STATE;
	if (err == 0)
		log_notice("stopped");
	return err == 0 ? 0 : EXIT_RUNTIME;
}

/* ---- command line ---- */

static void print_errors(const struct conf_errors *errors)
{
	size_t i;

	for (i = 0; i < errors->n; i++) {
		scoped_free char *text = conf_error_text(&errors->items[i]);

		fprintf(stderr, "kvsteerd: %s\n", text);
	}
}

static void log_warnings(const struct conf_errors *errors)
{
	size_t i;

	for (i = 0; i < errors->n; i++) {
		scoped_free char *text = conf_error_text(&errors->items[i]);

		log_warn("%s", text);
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
		if (fputs(text, stdout) < 0 || fflush(stdout) != 0)
			return EXIT_RUNTIME;
	}
	if (flags->test)
		fprintf(stderr, "kvsteerd: the configuration is good\n");
	return 0;
}

static int start(struct daemon *d, struct conf_errors *errors)
{
	const struct conf_flags *flags = &d->control.flags;
	struct conf *conf;
	int status;

	if (conf_load(flags->conf_file, flags, errors, &conf) != 0) {
		print_errors(errors);
		return flags->test ? EXIT_RUNTIME : EXIT_USAGE;
	}
	if (conf_require_built(conf->workers, conf->n_workers, errors) != 0) {
		print_errors(errors);
		conf_unref(conf);
		return flags->test ? EXIT_RUNTIME : EXIT_USAGE;
	}
	if (flags->test || flags->print) {
		status = show(flags, conf, errors);
	} else {
		log_file_start();
		log_set_level(conf->router.log_level);
		log_warnings(errors);
		status = run(d, conf);
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

int daemon_main(int argc, char **argv)
{
	struct daemon *d = xcalloc(1, sizeof(*d));
	struct conf_errors errors = {0};
	int status = EXIT_USAGE;

	signal(SIGPIPE, SIG_IGN);
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
