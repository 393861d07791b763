/*
 * The I/O threads. See threads.h.
 * A struct thread is made by the control thread and then belongs to its thread, but for
 * `mailbox`, which is set before the start is reported, and `id`, which is joined at the
 * end.
 */
#include "control/threads.h"

#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "io/loop.h"
#include "io/mailbox.h"
#include "proxy/access_log.h"
#include "proxy/cleanup.h"
#include "proxy/conn.h"
#include "proxy/io_thread.h"
#include "proxy/listener.h"
#include "proxy/upstream.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WAIT_SECS 2
#define END_LETTERS 8 /* for each thread, what it is told at the end */

struct socket_entry {
	LIST_ENTRY(socket_entry) link;
	uint64_t id;
	struct listener *listener;
};

struct thread {
	unsigned index;
	struct threads *all;
	pthread_t id;
	struct loop *loop;
	struct mailbox *mailbox;
	struct io_thread *io;
	LIST_HEAD(, socket_entry) sockets;
	bool has_reported; /* that no connection is left */
	struct mail report;
	struct mail poke;
	struct mail tidy;
	_Atomic bool is_tidy_posted;
	uint64_t poked; /* times that it was asked; the control thread's */
	_Atomic uint64_t answered;
	_Atomic uint64_t site_number; /* the newest that it works under */
};

struct threads {
	unsigned n;
	struct thread *items;
	/* The values that threads start with. */
	struct process *process;
	struct site *site;
	sem_t started;
	struct letter *spares; /* the control thread's */
	size_t n_spare;
	uint64_t site_number; /* of the newest site; the control thread's */
	unsigned n_prepared;  /* listeners that were asked for; the control thread's */
	_Atomic unsigned n_made, n_failed; /* of them */
	unsigned n_failed_before;          /* which was told; the control thread's */
	unsigned n_drops;                  /* that were asked for; the control thread's */
	_Atomic unsigned n_dropped;        /* of them */
	sem_t is_answered;                 /* one more thread has done what it was told */
	/* Draining: written before the threads are told, and then by the control thread
	 * only. */
	struct mailbox *home;
	void (*on_empty)(void *arg);
	void *arg;
	unsigned n_empty;
};

/* A message to a thread. */
struct letter {
	union {
		struct mail mail;
		struct letter *next; /* of the spares */
	};
	struct thread *t;
	void (*run)(struct thread *t, struct letter *letter);
	uint64_t id;
	int fd;
	bool is_introduced;
	struct site *site;
	enum drain_way way;
};

static void run_letter(void *arg)
{
	struct letter *letter = arg;

	letter->run(letter->t, letter);
	free(letter);
}

static int fill_spares(struct threads *all, size_t n)
{
	while (all->n_spare < n) {
		struct letter *letter = malloc(sizeof(*letter));

		if (letter == NULL)
			return ERR_NOMEM;
		letter->next = all->spares;
		all->spares = letter;
		all->n_spare++;
	}
	return 0;
}

int threads_make_room(struct threads *all, size_t n)
{
	return fill_spares(all, (size_t)all->n * END_LETTERS + n);
}

/* The sender of a letter that must not be lost made room for it before: half a message to
 * the threads would leave them in two configurations. */
static struct letter *letter_new(struct threads *all)
{
	struct letter *letter = malloc(sizeof(*letter));

	if (letter != NULL)
		return letter;
	if (all->n_spare == 0) {
		log_error("out of memory for a message to an I/O thread");
		abort();
	}
	letter = all->spares;
	all->spares = letter->next;
	all->n_spare--;
	return letter;
}

static void tell(struct thread *t, struct letter what)
{
	struct letter *letter = letter_new(t->all);

	*letter = what;
	letter->t = t;
	mailbox_send(t->mailbox, &letter->mail, run_letter, letter);
}

static void tell_all(struct threads *all, struct letter what)
{
	unsigned i;

	for (i = 0; i < all->n; i++)
		tell(&all->items[i], what);
}

unsigned threads_for_cores(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < 1)
		return 1;
	return (unsigned)CPU_COUNT(&set);
}

unsigned threads_count(const struct threads *all)
{
	return all->n;
}

/* ---- sockets ---- */

static bool add_listener(struct thread *t, const struct letter *letter)
{
	struct socket_entry *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return false;
	s->listener = listener_new(t->io, letter->fd, letter->is_introduced);
	if (s->listener == NULL) {
		free(s);
		return false;
	}
	s->id = letter->id;
	LIST_INSERT_HEAD(&t->sockets, s, link);
	return true;
}

static void on_prepare(struct thread *t, struct letter *letter)
{
	if (add_listener(t, letter)) {
		atomic_fetch_add(&t->all->n_made, 1);
	} else {
		log_error("thread %u: out of memory for a listening socket", t->index);
		close(letter->fd);
		atomic_fetch_add(&t->all->n_failed, 1);
	}
	(void)sem_post(&t->all->is_answered);
}

void threads_prepare(
	struct threads *all, unsigned index, uint64_t id, int fd, bool is_introduced)
{
	assert(index < all->n);
	all->n_prepared++;
	tell(&all->items[index], (struct letter){.run = on_prepare,
					 .id = id,
					 .fd = fd,
					 .is_introduced = is_introduced});
}

/* Waits until every thread has answered what it was told. A thread's turn is short; one
 * that hangs is not awaited. */
static void await(struct threads *all, bool (*is_there)(const struct threads *all))
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_SECS;
	while (!is_there(all)) {
		if (sem_timedwait(&all->is_answered, &until) != 0 && errno != EINTR)
			return;
	}
}

static bool have_listeners(const struct threads *all)
{
	return atomic_load(&all->n_made) + atomic_load(&all->n_failed) >= all->n_prepared;
}

int threads_await_prepared(struct threads *all)
{
	unsigned failed;

	await(all, have_listeners);
	failed = atomic_load(&all->n_failed) - all->n_failed_before;
	all->n_failed_before += failed;
	return failed == 0 ? 0 : ERR_NOMEM;
}

static void on_listen(struct thread *t, struct letter *letter)
{
	struct socket_entry *s;

	LIST_FOREACH (s, &t->sockets, link) {
		if (s->id == letter->id)
			listener_open(s->listener);
	}
}

void threads_listen(struct threads *all, uint64_t id)
{
	tell_all(all, (struct letter){.run = on_listen, .id = id});
}

static void drop_socket(struct socket_entry *s, bool for_good)
{
	LIST_REMOVE(s, link);
	listener_free(s->listener, for_good);
	free(s);
}

static void on_unlisten(struct thread *t, struct letter *letter)
{
	struct socket_entry *s, *next;

	LIST_FOREACH_SAFE(s, &t->sockets, link, next)
	{
		if (s->id == letter->id)
			drop_socket(s, true);
	}
	atomic_fetch_add(&t->all->n_dropped, 1);
	(void)sem_post(&t->all->is_answered);
}

static bool have_dropped(const struct threads *all)
{
	return atomic_load(&all->n_dropped) >= all->n_drops;
}

void threads_unlisten(struct threads *all, uint64_t id)
{
	all->n_drops += all->n;
	tell_all(all, (struct letter){.run = on_unlisten, .id = id});
	await(all, have_dropped);
}

static void drop_sockets(struct thread *t)
{
	while (!LIST_EMPTY(&t->sockets))
		drop_socket(LIST_FIRST(&t->sockets), false);
}

/* ---- configuration and logs ---- */

static void on_set_site(struct thread *t, struct letter *letter)
{
	io_thread_set_site(t->io, letter->site);
	site_unref(letter->site);
	atomic_store(&t->site_number, letter->id);
	(void)sem_post(&t->all->is_answered);
}

static bool have_site(const struct threads *all)
{
	unsigned i;

	for (i = 0; i < all->n; i++) {
		if (atomic_load(&all->items[i].site_number) < all->site_number)
			return false;
	}
	return true;
}

/* The caller may report that a reload is done, so it must hold: a key that was taken out
 * opens nothing any more. */
void threads_set_site(struct threads *all, struct site *site)
{
	unsigned i;

	all->site_number++;
	for (i = 0; i < all->n; i++)
		tell(&all->items[i], (struct letter){.run = on_set_site,
					     .id = all->site_number,
					     .site = site_ref(site)});
	await(all, have_site);
}

static void on_flush(struct thread *t, struct letter *letter)
{
	(void)letter;
	access_log_flush(t->io->log);
}

void threads_flush_logs(struct threads *all)
{
	if (threads_make_room(all, all->n) == 0)
		tell_all(all, (struct letter){.run = on_flush});
	else
		log_error("out of memory: the access log is not flushed");
}

/* The mark goes before the look: a worker that leaves behind it is told of again. */
static void on_tidy(void *arg)
{
	struct thread *t = arg;

	atomic_store(&t->is_tidy_posted, false);
	upstream_idle_tidy(t->io->idle);
}

void threads_tidy(struct threads *all)
{
	unsigned i;

	for (i = 0; all != NULL && i < all->n; i++) {
		struct thread *t = &all->items[i];

		if (!atomic_exchange(&t->is_tidy_posted, true))
			mailbox_send(t->mailbox, &t->tidy, on_tidy, t);
	}
}

/* ---- is it alive ---- */

static void on_poke(void *arg)
{
	struct thread *t = arg;

	atomic_fetch_add_explicit(&t->answered, 1, memory_order_relaxed);
}

int threads_poke(struct threads *all)
{
	int silent = -1;
	unsigned i;

	for (i = 0; i < all->n; i++) {
		struct thread *t = &all->items[i];

		if (atomic_load_explicit(&t->answered, memory_order_relaxed) ==
			t->poked) {
			t->poked++;
			mailbox_send(t->mailbox, &t->poke, on_poke, t);
		} else if (silent < 0) {
			silent = (int)i;
		}
	}
	return silent;
}

/* ---- the end ---- */

static void count_empty(void *arg)
{
	struct threads *all = arg;

	all->n_empty++;
	if (all->n_empty == all->n && all->on_empty != NULL)
		all->on_empty(all->arg);
}

static void report_empty(void *arg)
{
	struct thread *t = arg;

	if (t->has_reported)
		return;
	t->has_reported = true;
	mailbox_send(t->all->home, &t->report, count_empty, t->all);
}

/* Accepts the clients that have connected by now: they were in time. */
static void accept_waiting(struct thread *t)
{
	struct socket_entry *s;

	LIST_FOREACH (s, &t->sockets, link)
		listener_accept_all(s->listener);
}

static void on_drain(struct thread *t, struct letter *letter)
{
	bool keeps_listening = letter->way == DRAIN_KEEPS_LISTENING;

	if (keeps_listening)
		accept_waiting(t);
	else
		drop_sockets(t);
	t->io->on_last_conn = report_empty;
	t->io->on_last_conn_arg = t;
	conn_drain_all(t->io, letter->way == DRAIN_KEEPS_IDLE, keeps_listening);
}

static void on_drain_late(struct thread *t, struct letter *letter)
{
	(void)letter;
	t->has_reported = false;
	drop_sockets(t);
	conn_drain_late(t->io);
}

void threads_drain_late(struct threads *all)
{
	assert(all->n_empty == all->n);
	all->n_empty = 0;
	tell_all(all, (struct letter){.run = on_drain_late});
}

static void on_close_idle(struct thread *t, struct letter *letter)
{
	(void)letter;
	conn_drain_all(t->io, false, false);
}

void threads_close_idle(struct threads *all)
{
	assert(all->home != NULL);
	tell_all(all, (struct letter){.run = on_close_idle});
}

void threads_drain(struct threads *all, enum drain_way way, struct mailbox *home,
	void (*on_empty)(void *arg), void *arg)
{
	assert(all->home == NULL);
	all->home = home;
	all->on_empty = on_empty;
	all->arg = arg;
	tell_all(all, (struct letter){.run = on_drain, .way = way});
}

static void on_cut(struct thread *t, struct letter *letter)
{
	(void)letter;
	t->io->keeps_listening = false;
	drop_sockets(t);
	conn_close_all(t->io);
	if (t->io->n_conns == 0)
		report_empty(t);
}

void threads_cut(struct threads *all)
{
	assert(all->home != NULL);
	tell_all(all, (struct letter){.run = on_cut});
}

static void on_stop(struct thread *t, struct letter *letter)
{
	(void)letter;
	loop_stop(t->loop);
}

static void free_spares(struct threads *all)
{
	struct letter *letter;

	while ((letter = all->spares) != NULL) {
		all->spares = letter->next;
		free(letter);
	}
}

void threads_stop(struct threads *all)
{
	unsigned i;

	if (all == NULL)
		return;
	all->on_empty = NULL;
	tell_all(all, (struct letter){.run = on_stop});
	for (i = 0; i < all->n; i++)
		pthread_join(all->items[i].id, NULL);
	if (all->home != NULL) /* what they said last is about what goes here */
		mailbox_deliver(all->home);
	sem_destroy(&all->started);
	sem_destroy(&all->is_answered);
	free_spares(all);
	free(all->items);
	free(all);
}

/* ---- the thread itself ---- */

static bool open_thread(struct thread *t)
{
	struct threads *all = t->all;

	metric_thread_start();
	LIST_INIT(&t->sockets);
	t->loop = loop_new();
	if (t->loop == NULL)
		return false;
	t->mailbox = mailbox_new(t->loop);
	t->io = io_thread_new(t->index, t->loop, all->process, all->site);
	if (t->mailbox == NULL || t->io == NULL)
		return false;
	t->io->mailbox = t->mailbox;
	return true;
}

static void close_thread(struct thread *t)
{
	if (t->io != NULL) {
		drop_sockets(t);
		t->io->on_last_conn = NULL;
		conn_close_all(t->io);
		cleanup_cancel_all(t->io);
		/* Closed objects are reaped while their thread is still there. */
		loop_turn(t->loop, 0);
		loop_turn(t->loop, 0);
	}
	mailbox_free(t->mailbox);
	io_thread_free(t->io);
	loop_free(t->loop);
	t->loop = NULL;
}

static void *thread_main(void *arg)
{
	struct thread *t = arg;

	if (!open_thread(t)) {
		close_thread(t);
		sem_post(&t->all->started);
		return NULL;
	}
	sem_post(&t->all->started);
	loop_run(t->loop);
	close_thread(t);
	return NULL;
}

static bool start_thread(struct threads *all, unsigned index)
{
	struct thread *t = &all->items[index];
	char name[16];

	t->index = index;
	t->all = all;
	if (pthread_create(&t->id, NULL, thread_main, t) != 0)
		return false;
	while (sem_wait(&all->started) != 0)
		;
	if (t->loop == NULL) {
		pthread_join(t->id, NULL);
		return false;
	}
	snprintf(name, sizeof(name), "io/%u", index);
	pthread_setname_np(t->id, name);
	return true;
}

struct threads *threads_start(unsigned n, struct process *p, struct site *site)
{
	struct threads *all = xcalloc(1, sizeof(*all));

	all->items = xcalloc(n, sizeof(*all->items));
	all->process = p;
	all->site = site;
	sem_init(&all->started, 0, 0);
	sem_init(&all->is_answered, 0, 0);
	if (fill_spares(all, (size_t)n * END_LETTERS) != 0) {
		log_error("out of memory for the threads' letters");
		threads_stop(all);
		return NULL;
	}
	while (all->n < n) {
		if (!start_thread(all, all->n)) {
			log_error("thread %u of %u cannot start: "
				  "out of memory or file descriptors",
				all->n + 1, n);
			threads_stop(all);
			return NULL;
		}
		all->n++;
	}
	all->site = NULL;
	return all;
}
