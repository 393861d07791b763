/*
 * The engine's process: boot, signals, drain, exit. One thread, one loop. SIGTERM or
 * SIGINT: no new requests, what runs goes on until the drain timeout; a second one
 * ends at once. Called by main.c.
 */
#include "engine_daemon.h"
#include "api/serve.h"
#include "base/clock.h"
#include "base/dump.h"
#include "base/err.h"
#include "base/log_out.h"
#include "engine_dump.h"
#include "engine_flags.h"
#include "io/loop.h"
#include "io/notify.h"
#include "io/sock.h"
#include "io/wheel.h"
#include "kvx/kv_handoff.h"
#include "lab/fault_socket.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, DRAIN_POLL_MS = 20, LAST_WORDS_MS = 1000 };

/* The signals that end the process. */
static const int end_signals[] = {SIGTERM, SIGINT};

struct daemon {
	struct loop *loop;
	struct engine *engine;
	struct serve *serve;
	struct fault_socket *faults; /* NULL: none asked for */
	struct loop_signal *watched[ARRAY_LEN(end_signals)];
	struct wheel_timer drain_timer;
	uint64_t drain_timeout_ms, drain_end_ms;
	const struct engine_flags *flags;
	char where[SOCK_ADDR_TEXT_MAX]; /* it listens */
	bool is_draining, has_failed;
};

static unsigned count_sequences(
	const struct daemon *d, unsigned (*of)(const struct sched *s))
{
	return engine_is_ready(d->engine) ? of(engine_sched(d->engine)) : 0;
}

/* Waits for what runs; the answers of the last ones must leave, too. */
static void drain_on(void *arg)
{
	struct daemon *d = arg;
	uint64_t now_ms = clock_now_ms();

	if (serve_is_drained(d->serve)) {
		loop_stop(d->loop);
	} else if (now_ms >= d->drain_end_ms) {
		log_warn("drain timeout: %u running and %u waiting sequences are cut",
			count_sequences(d, sched_running),
			count_sequences(d, sched_waiting));
		loop_stop(d->loop);
	} else {
		wheel_set(loop_wheel(d->loop), &d->drain_timer, now_ms + DRAIN_POLL_MS);
	}
}

static void on_end_signal(void *arg, int signo)
{
	struct daemon *d = arg;

	if (d->is_draining) {
		log_notice("%s again: ending at once", strsignal(signo));
		loop_stop(d->loop);
		return;
	}
	d->is_draining = true;
	log_notice("%s: draining", strsignal(signo));
	(void)notify_send("STOPPING=1");
	d->drain_end_ms = clock_now_ms() + d->drain_timeout_ms;
	serve_drain(d->serve);
	drain_on(d);
}

static int listen_on(const struct engine_flags *flags, int *fd, char *text, size_t n)
{
	union sock_addr a;
	socklen_t len = sizeof(a);

	if (sock_addr_parse(flags->host, flags->port, &a) != 0) {
		log_error("--host %s: an IPv4 or IPv6 address is expected", flags->host);
		return ERR_PARSE;
	}
	if (sock_listen(&a, fd) != 0) {
		log_error("listening on %s port %u: %m", flags->host, flags->port);
		return ERR_IO;
	}
	if (getsockname(*fd, &a.sa, &len) != 0) {
		log_error("getsockname: %m");
		close(*fd);
		return ERR_IO;
	}
	(void)sock_addr_text(&a, true, text, n);
	return 0;
}

static int listen_for_faults(struct daemon *d, const char *path)
{
	int err = 0;

	if (path != NULL)
		err = fault_socket_new(
			d->loop, path, serve_fault_target(d->serve), &d->faults);

	if (err == ERR_IO)
		log_error("--fault-socket %s: %m", path);
	else if (err != 0)
		log_error("--fault-socket %s: %s", path, err_text(err));
	else if (path != NULL)
		log_notice("faults are taken on %s", path);
	return err;
}

static void tell_start(const struct daemon *d)
{
	const struct engine_flags *flags = d->flags;
	const struct handoff *h = serve_handoff(d->serve);
	const struct backend_shape *shape = sched_shape(engine_sched(d->engine));

	log_notice("model %s on the %s backend: %u blocks of %u tokens, prefill %g and "
		   "decode %g "
		   "tokens/s, speed %g",
		flags->served_name, flags->engine.backend->name, shape->n_blocks,
		shape->block_tokens, flags->prefill_rate, flags->decode_rate,
		flags->speed);
	if (handoff_is_on(h))
		log_notice("role %s: prompts are handed over on %s port %u, in group %s",
			role_text(handoff_role(h)), handoff_host(h), handoff_port(h),
			handoff_group(h));
}

/* Answers from now on, or ends. */
static void on_ready(void *arg, int err)
{
	struct daemon *d = arg;

	if (err == 0)
		err = serve_ready(d->serve);
	if (err == ERR_LIMIT)
		log_error("--max-model-len %zu: the KV cache holds %zu tokens",
			serve_max_model_len(d->serve),
			sched_max_tokens(engine_sched(d->engine)));
	else if (err != 0)
		log_error("opening %s: %s", d->flags->model, err_text(err));
	if (err != 0) {
		d->has_failed = true;
		loop_stop(d->loop);
		return;
	}
	tell_start(d);
	if (d->is_draining)
		return;
	printf("listening on http://%s\n", d->where);
	(void)fflush(stdout);
	(void)notify_send("READY=1");
}

/* Takes fd, unless it fails. */
static int open_engine(struct daemon *d, int fd)
{
	struct serve_opts opts = {d->flags->served_name, (size_t)d->flags->max_model_len,
		&d->flags->handoff};
	struct engine_opts engine_opts = d->flags->engine;
	int err;

	engine_opts.on_ready = on_ready;
	engine_opts.arg = d;
	err = engine_new(d->loop, &engine_opts, &d->engine);
	if (err == 0)
		err = serve_new(d->loop, fd, d->engine, &opts, &d->serve);
	if (err == ERR_IO && d->engine != NULL)
		log_error("--kvx-listen: %m");
	else if (err != 0)
		log_error("opening %s: %s", d->flags->model, err_text(err));
	return err;
}

static int start(struct daemon *d)
{
	int fd, err = listen_on(d->flags, &fd, d->where, sizeof(d->where));

	if (err != 0)
		return err;
	err = open_engine(d, fd);
	if (err != 0) {
		close(fd);
		return err;
	}
	return listen_for_faults(d, d->flags->fault_socket);
}

static void stop(struct daemon *d)
{
	fault_socket_free(d->faults);
	serve_free(d->serve);
	engine_free(d->engine);
	for (size_t i = 0; i < ARRAY_LEN(d->watched); i++)
		loop_signal_free(d->watched[i]);
	loop_free(d->loop);
}

static bool prepare(struct daemon *d)
{
	d->loop = loop_new();
	if (d->loop == NULL)
		return false;
	wheel_timer_init(&d->drain_timer, drain_on, d);
	for (size_t i = 0; i < ARRAY_LEN(d->watched); i++) {
		d->watched[i] =
			loop_signal_new(d->loop, end_signals[i], on_end_signal, d);
		if (d->watched[i] == NULL)
			return false;
	}
	return true;
}

static int dump_tables(void)
{
	engine_dump();
	for (size_t i = 0; i < ARRAY_LEN(end_signals); i++)
		dump_signal(end_signals[i]);
	dump_exits(EXIT_USAGE);
	return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int engine_main(int argc, char **argv)
{
	struct engine_flags flags;
	struct daemon d = {0};
	int status = EXIT_FAILURE;

	if (dump_is_asked(argc, argv))
		return dump_tables();
	switch (engine_flags_parse(argc, argv, &flags)) {
	case FLAG_DONE:
		status = fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
		engine_flags_free(&flags);
		return status;
	case FLAG_USAGE:
		status = flags.is_tested ? EXIT_FAILURE : EXIT_USAGE;
		engine_flags_free(&flags);
		return status;
	case FLAG_RUN:
		break;
	}
	log_open(STDERR_FILENO, getenv("JOURNAL_STREAM") != NULL);
	log_set_level(flags.log_level);
	log_out_start();
	(void)signal(SIGPIPE, SIG_IGN);
	(void)sock_raise_fd_limit();
	d.drain_timeout_ms = flags.drain_timeout_ms;
	d.flags = &flags;
	if (!prepare(&d)) {
		log_error("out of memory or descriptors");
	} else if (start(&d) == 0) {
		loop_run(d.loop);
		status = d.has_failed ? EXIT_FAILURE : EXIT_SUCCESS;
	}
	stop(&d);
	(void)log_out_flush(LAST_WORDS_MS);
	engine_flags_free(&flags);
	return status;
}
