/*
 * Starting requests when they are due, and timing their answers. See run.h. Called by
 * bench.c.
 * A slot is one request in flight, or waits in the free list. In an open loop times count
 * from when a request was due, so that a delay by the server or by the bench shows.
 */
#include "bench/run.h"

#include "base/clock.h"
#include "base/dump.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "bench/hashes.h"
#include "bench/sse.h"
#include "bench/wire.h"
#include "http/http_head.h"
#include "io/loop.h"
#include "io/wheel.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define SLOT_MAGIC 0x534c4f54u
#define BODY_MAX (64u << 20) /* of a whole answer */
#define PROGRESS_MS 1000

struct slot {
	uint32_t magic;
	struct run *run;
	LIST_ENTRY(slot) link; /* in run->busy or run->free */
	struct wire_trip *trip;
	struct job job;
	struct text head, body; /* of the request; of an answer that is no stream */
	struct reply reply;
	struct sse sse;
	const char *fault; /* why on_body stopped */
	int status;
	bool is_events;
	uint64_t due_us, first_us, last_us; /* first and last text of a stream; 0: none */
};

struct run {
	struct run_opts o;
	struct tally *t;
	struct wire *wire;
	LIST_HEAD(slot_list, slot) busy, free;
	uint64_t in_flight, begun;
	uint64_t start_us, next_us; /* open: when the next one is due */
	bool is_stopping, was_interrupted;
	const char *gave_up;
	struct text fixed_head;
	int timer_fd;
	struct loop_watch *timer;
	struct wheel_timer progress;
	uint64_t progress_ok;
};

static void pump(struct run *r);

/* ---- the end of a request ---- */

static void free_slot(struct slot *s)
{
	text_free(&s->job.body);
	text_free(&s->head);
	text_free(&s->body);
	reply_free(&s->reply);
	sse_free(&s->sse);
	free(s);
}

static void retire(struct slot *s, bool ok)
{
	struct run *r = s->run;

	corpus_done(r->o.corpus, &s->job, ok, text_span(&s->reply.text));
	LIST_REMOVE(s, link);
	LIST_INSERT_HEAD(&r->free, s, link);
	r->in_flight--;
}

/* The error of a response that arrived whole; NULL: none. */
static const char *judge(struct slot *s)
{
	static char kind[32]; /* one thread, one use at a time */
	bool is_json = s->is_events || reply_read(&s->reply, text_span(&s->body)) == 0;

	if (s->status != 200) {
		(void)snprintf(kind, sizeof(kind), "http_%d", s->status);
		if (s->reply.message[0] == '\0')
			reply_copy(text_span(&s->body), s->reply.message,
				sizeof(s->reply.message));
		return kind;
	}
	if (!is_json)
		return "bad_json";
	if (s->reply.has_error)
		return s->is_events ? "stream_error" : "error";
	if (s->run->o.is_stream && !s->is_events)
		return "no_stream";
	if (s->is_events && !s->reply.is_done && !s->reply.has_finish)
		return "truncated";
	return NULL;
}

static void count_times(struct slot *s, uint64_t now_us)
{
	struct tally *t = s->run->t;

	histogram_add(&t->latency, now_us - s->due_us);
	if (s->first_us == 0)
		return;
	histogram_add(&t->ttft, s->first_us - s->due_us);
	if (s->reply.new_tokens > 1)
		histogram_add(&t->per_token,
			(s->last_us - s->first_us) / (s->reply.new_tokens - 1));
}

/* Nothing ever connected: the address is wrong, and asking on would only flood the log.
 */
static void give_up(struct run *r, enum wire_end end)
{
	if (wire_counts(r->wire).connects > 0 ||
		(end != WIRE_REFUSED && end != WIRE_UNREACHABLE))
		return;
	r->gave_up = wire_end_text(end);
	r->is_stopping = true;
}

static void on_end(void *arg, enum wire_end end)
{
	struct slot *s = arg;
	struct run *r = s->run;
	const char *kind;

	assert(s->magic == SLOT_MAGIC);
	s->trip = NULL;
	kind = end == WIRE_STOPPED ? s->fault
	       : end != WIRE_OK    ? wire_end_text(end)
				   : judge(s);
	if (kind == NULL) {
		tally_ok(r->t, &s->reply, s->job.prompt_tokens);
		count_times(s, clock_us());
	} else {
		tally_error(r->t, kind, s->reply.message);
		give_up(r, end);
	}
	retire(s, kind == NULL);
	pump(r);
}

/* ---- an answer ---- */

static void on_head(void *arg, const char *base, const struct http_head *h)
{
	struct slot *s = arg;
	const struct http_field *type = http_head_find(h, FIELD_CONTENT_TYPE);
	const struct http_field *worker = http_head_find(h, FIELD_X_KVSTEER_WORKER);

	s->status = h->status;
	s->is_events =
		h->status == 200 && type != NULL &&
		span_starts(http_field_value(base, type), SPAN_LIT("text/event-stream"));
	if (worker != NULL)
		reply_copy(http_field_value(base, worker), s->reply.worker,
			sizeof(s->reply.worker));
}

static int on_event(void *arg, struct span data)
{
	struct slot *s = arg;
	uint64_t now_us;
	bool has_text;

	if (reply_event(&s->reply, data, &has_text) != 0) {
		s->fault = "bad_event";
		return ERR_PARSE;
	}
	if (!has_text)
		return 0;
	now_us = clock_us();
	if (s->first_us == 0)
		s->first_us = now_us;
	else
		histogram_add(&s->run->t->gap, now_us - s->last_us);
	s->last_us = now_us;
	return 0;
}

static int on_body(void *arg, struct span data)
{
	struct slot *s = arg;

	s->fault = "too_large";
	if (s->is_events)
		return sse_feed(&s->sse, data, on_event, s);
	text_add(&s->body, data);
	return s->body.failed || s->body.n > BODY_MAX ? ERR_LIMIT : 0;
}

static const struct wire_ops wire_ops = {on_head, on_body, on_end};

/* ---- the beginning of a request ---- */

static struct slot *take_slot(struct run *r)
{
	struct slot *s = LIST_FIRST(&r->free);

	if (s != NULL)
		LIST_REMOVE(s, link);
	else
		s = calloc(1, sizeof(*s));
	if (s == NULL)
		return NULL;
	s->magic = SLOT_MAGIC;
	s->run = r;
	s->reply.keeps_text = r->o.keeps_text;
	reply_clear(&s->reply);
	sse_clear(&s->sse);
	text_clear(&s->head);
	text_clear(&s->body);
	s->status = 0;
	s->is_events = false;
	s->first_us = s->last_us = 0;
	LIST_INSERT_HEAD(&r->busy, s, link);
	r->in_flight++;
	return s;
}

static bool send_slot(struct slot *s)
{
	struct run *r = s->run;

	text_add(&s->head, text_span(&r->fixed_head));
	if (r->o.hashes != NULL)
		hashes_add_line(r->o.hashes, text_span(&s->job.body), &s->head);
	text_printf(&s->head, "Content-Length: %zu\r\n\r\n", s->job.body.n);
	if (s->head.failed)
		return false;
	s->trip = wire_send(
		r->wire, text_span(&s->head), text_span(&s->job.body), &wire_ops, s);
	return s->trip != NULL;
}

/* False: there was none to begin, or no memory for it. */
static bool begin(struct run *r, uint64_t due_us)
{
	struct slot *s = take_slot(r);
	int err = s != NULL ? corpus_next(r->o.corpus, &s->job) : ERR_NOMEM;

	if (err == ERR_NOENT) {
		retire(s, false);
		r->is_stopping = true;
		return false;
	}
	r->begun++;
	r->t->sent++;
	if (err == 0) {
		s->due_us = due_us;
		if (send_slot(s))
			return true;
	}
	tally_error(r->t, "local", "out of memory");
	if (s != NULL)
		retire(s, false);
	r->is_stopping = true;
	return false;
}

/* ---- when ---- */

static void find_next(struct run *r)
{
	const struct run_opts *o = &r->o;
	uint64_t at_us;

	if (o->trace == NULL)
		at_us = arrival_next(&r->o.arrival);
	else if (r->begun < o->trace->n)
		at_us = (uint64_t)((double)o->trace->requests[r->begun].at_us / o->speed);
	else {
		r->is_stopping = true;
		return;
	}
	r->next_us = r->start_us + at_us;
}

static bool has_ended(const struct run *r, uint64_t at_us)
{
	return r->is_stopping || (r->o.requests > 0 && r->begun >= r->o.requests) ||
	       (r->o.duration_us > 0 && at_us - r->start_us >= r->o.duration_us);
}

static void arm_timer(struct run *r)
{
	struct itimerspec at = {.it_value = {.tv_sec = (time_t)(r->next_us / 1000000),
					.tv_nsec = (long)(r->next_us % 1000000) * 1000}};

	if (timerfd_settime(r->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) != 0)
		r->is_stopping = true;
}

static void pump_open(struct run *r)
{
	uint64_t now_us = clock_us();

	while (r->in_flight < r->o.in_flight_max && !has_ended(r, r->next_us)) {
		if (r->next_us > now_us) {
			arm_timer(r);
			return;
		}
		histogram_add(&r->t->delay, now_us - r->next_us);
		if (!begin(r, r->next_us))
			return;
		find_next(r);
		now_us = clock_us();
	}
}

static void pump_closed(struct run *r)
{
	uint64_t now_us = clock_us();

	while (r->in_flight < r->o.in_flight_max && !has_ended(r, now_us)) {
		if (!begin(r, now_us))
			return;
		now_us = clock_us();
	}
}

/* Begins what is due; stops the loop once nothing is left to wait for. */
static void pump(struct run *r)
{
	if (r->o.is_open)
		pump_open(r);
	else
		pump_closed(r);
	if (r->in_flight == 0 && has_ended(r, r->o.is_open ? r->next_us : clock_us()))
		loop_stop(r->o.loop);
}

static void on_due(void *arg, int fd, unsigned events)
{
	uint64_t times;

	(void)events;
	if (read(fd, &times, sizeof(times)) == (ssize_t)sizeof(times))
		pump(arg);
}

static void on_progress(void *arg)
{
	struct run *r = arg;
	uint64_t now_us = clock_us();

	(void)fprintf(stderr,
		"\r%6.0f s  %" PRIu64 " answered, %" PRIu64 " failed, %" PRIu64
		" in flight, %" PRIu64 "/s \033[K",
		(double)(now_us - r->start_us) / 1e6, r->t->ok, r->t->failed,
		r->in_flight, r->t->ok - r->progress_ok);
	r->progress_ok = r->t->ok;
	wheel_set(loop_wheel(r->o.loop), &r->progress, clock_now_ms() + PROGRESS_MS);
}

static void on_signal(void *arg, int signo)
{
	struct run *r = arg;

	(void)signo;
	r->was_interrupted = r->is_stopping = true;
	loop_stop(r->o.loop);
}

/* ---- the run ---- */

static void write_fixed_head(struct run *r)
{
	struct text *h = &r->fixed_head;

	text_printf(h,
		"POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kvsteer-bench/%s\r\n"
		"Content-Type: application/json\r\nAccept: %s\r\n",
		r->o.target, r->o.authority, KVSTEER_VERSION,
		r->o.is_stream ? "text/event-stream" : "application/json");
	if (r->o.api_key != NULL)
		text_printf(h, "Authorization: Bearer %s\r\n", r->o.api_key);
	if (r->o.hashes != NULL)
		text_printf(h, "X-Kvsteer-Model: %s\r\n", r->o.model);
	if (r->o.new_connections)
		text_add(h, SPAN_LIT("Connection: close\r\n"));
}

static uint64_t cpu_us(void)
{
	struct rusage u;

	(void)getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* How long this thread was ready while others had the cores; 0: the kernel does not say.
 */
static uint64_t waited_us(void)
{
	unsigned long long ran_ns, waited_ns = 0;
	FILE *f = fopen("/proc/thread-self/schedstat", "re");

	if (f == NULL)
		return 0;
	if (fscanf(f, "%llu %llu", &ran_ns, &waited_ns) != 2)
		waited_ns = 0;
	(void)fclose(f);
	return waited_ns / 1000;
}

/* Requests that nobody waits for any more. */
static void cancel_all(struct run *r)
{
	struct slot *s;

	while ((s = LIST_FIRST(&r->busy)) != NULL) {
		wire_cancel(s->trip);
		s->trip = NULL;
		r->t->unfinished++;
		retire(s, false);
	}
}

/* The signals that end a run early. */
static const int end_signals[] = {SIGINT, SIGTERM};

void run_dump_signals(void)
{
	for (size_t i = 0; i < ARRAY_LEN(end_signals); i++)
		dump_signal(end_signals[i]);
}

static void turn(struct run *r)
{
	struct loop *l = r->o.loop;
	struct loop_signal *watched[ARRAY_LEN(end_signals)];

	for (size_t i = 0; i < ARRAY_LEN(watched); i++)
		watched[i] = loop_signal_new(l, end_signals[i], on_signal, r);
	wheel_timer_init(&r->progress, on_progress, r);
	if (r->o.shows_progress)
		wheel_set(loop_wheel(l), &r->progress, clock_now_ms() + PROGRESS_MS);
	if (r->o.is_open)
		find_next(r);
	pump(r);
	loop_run(l);
	wheel_stop(loop_wheel(l), &r->progress);
	if (r->o.shows_progress)
		(void)fputs("\r\033[K", stderr);
	for (size_t i = 0; i < ARRAY_LEN(watched); i++)
		loop_signal_free(watched[i]);
}

static void set_up(struct run *r)
{
	LIST_INIT(&r->busy);
	LIST_INIT(&r->free);
	clock_update();
	r->wire = wire_new(r->o.loop, r->o.addrs, r->o.timeout_ms, r->o.new_connections);
	r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (r->timer_fd >= 0)
		r->timer = loop_watch_new(r->o.loop, r->timer_fd, LOOP_READ, on_due, r);
	if (r->timer == NULL) {
		perror("kvsteer-bench: timer");
		exit(1);
	}
	write_fixed_head(r);
}

static void tear_down(struct run *r)
{
	struct wire_counts counts;
	struct slot *s;

	cancel_all(r);
	counts = wire_counts(r->wire);
	r->t->connects = counts.connects;
	r->t->resent = counts.resent;
	r->t->bytes_in = counts.bytes_in;
	r->t->bytes_out = counts.bytes_out;
	wire_free(r->wire);
	loop_watch_free(r->timer);
	close(r->timer_fd);
	while ((s = LIST_FIRST(&r->free)) != NULL) {
		LIST_REMOVE(s, link);
		free_slot(s);
	}
	if (r->fixed_head.p != NULL)
		mem_wipe(r->fixed_head.p, r->fixed_head.n);
	text_free(&r->fixed_head);
}

void run_go(const struct run_opts *o, struct tally *t, struct run_result *result)
{
	struct run r = {.o = *o, .t = t};
	uint64_t cpu_before = cpu_us(), waited_before = waited_us();

	set_up(&r);
	r.start_us = clock_us();
	turn(&r);
	result->took_us = MAX(clock_us() - r.start_us, UINT64_C(1));
	result->cpu_us = cpu_us() - cpu_before;
	result->waited_us = waited_us() - waited_before;
	result->was_interrupted = r.was_interrupted;
	result->gave_up = r.gave_up;
	tear_down(&r);
}
