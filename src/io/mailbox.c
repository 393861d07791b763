/*
 * Mail from other threads: a locked list and an eventfd that wakes the loop.
 * Always true: while the list is not empty, the eventfd is readable or its callback is
 * running. The lock covers the list only, never a mail's fn. Control, resolve and I/O
 * threads post; the loop's thread reads.
 */
#include "io/mailbox.h"
#include "base/err.h"
#include "io/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Mail in memory of the mailbox's own. */
struct letter {
	struct mail mail;
	void (*fn)(void *arg);
	void *arg;
};

struct mailbox {
	struct loop_watch *watch; /* the loop's thread only */
	int fd;
	pthread_mutex_t lock; /* guards the list */
	struct mail *first, **end;
};

static struct mail *take_all(struct mailbox *m)
{
	struct mail *first;

	pthread_mutex_lock(&m->lock);
	first = m->first;
	m->first = NULL;
	m->end = &m->first;
	pthread_mutex_unlock(&m->lock);
	return first;
}

static bool run_all(struct mail *mail)
{
	bool any = mail != NULL;

	while (mail != NULL) {
		struct mail *next = mail->next;

		mail->fn(mail->arg);
		mail = next;
	}
	return any;
}

static void on_woken(void *arg, int fd, unsigned events)
{
	struct mailbox *m = arg;
	uint64_t count;
	ssize_t n;

	(void)events;
	do
		n = read(fd, &count, sizeof(count));
	while (n < 0 && errno == EINTR);
	/* The eventfd is emptied first: mail that is posted in between wakes the loop again. */
	run_all(take_all(m));
}

struct mailbox *mailbox_new(struct loop *l)
{
	struct mailbox *m = calloc(1, sizeof(*m));

	if (m == NULL)
		return NULL;
	m->end = &m->first;
	m->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (m->fd >= 0)
		m->watch = loop_watch_new(l, m->fd, LOOP_READ, on_woken, m);
	if (m->watch == NULL) {
		if (m->fd >= 0)
			close(m->fd);
		free(m);
		return NULL;
	}
	pthread_mutex_init(&m->lock, NULL);
	return m;
}

void mailbox_deliver(struct mailbox *m)
{
	while (run_all(take_all(m)))
		;
}

void mailbox_free(struct mailbox *m)
{
	if (m == NULL)
		return;
	mailbox_deliver(m);
	loop_watch_free(m->watch);
	close(m->fd);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

static void wake(struct mailbox *m)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(m->fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR); /* EAGAIN: it is readable already */
}

void mailbox_send(struct mailbox *m, struct mail *mail, void (*fn)(void *arg), void *arg)
{
	bool was_empty;

	*mail = (struct mail){.fn = fn, .arg = arg};
	pthread_mutex_lock(&m->lock);
	was_empty = m->first == NULL;
	*m->end = mail;
	m->end = &mail->next;
	/* Under the lock: the reader may free the mailbox once it is released. */
	if (was_empty)
		wake(m);
	pthread_mutex_unlock(&m->lock);
}

static void run_letter(void *arg)
{
	struct letter *letter = arg;

	letter->fn(letter->arg);
	free(letter);
}

int mailbox_post(struct mailbox *m, void (*fn)(void *arg), void *arg)
{
	struct letter *letter = malloc(sizeof(*letter));

	if (letter == NULL)
		return ERR_NOMEM;
	letter->fn = fn;
	letter->arg = arg;
	mailbox_send(m, &letter->mail, run_letter, letter);
	return 0;
}
