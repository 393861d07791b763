/*
 * Letters from other threads: a locked list and an eventfd that wakes the loop.
 * Always true: while the list is not empty, the eventfd is readable or its callback is
 * running. The lock covers the list only, never a letter's fn. Posted to by control,
 * resolve and I/O threads; read on the loop's thread.
 */
#include "io/mailbox.h"
#include "base/err.h"
#include "io/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct letter {
	struct letter *next;
	void (*fn)(void *arg);
	void *arg;
};

struct mailbox {
	struct loop_watch *watch; /* the loop's thread only */
	int fd;
	pthread_mutex_t lock; /* guards the list */
	struct letter *first, **end;
};

static struct letter *take_all(struct mailbox *m)
{
	struct letter *first;

	pthread_mutex_lock(&m->lock);
	first = m->first;
	m->first = NULL;
	m->end = &m->first;
	pthread_mutex_unlock(&m->lock);
	return first;
}

static bool run_letters(struct letter *letter)
{
	bool any = letter != NULL;

	while (letter != NULL) {
		struct letter *next = letter->next;

		letter->fn(letter->arg);
		free(letter);
		letter = next;
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
	/* Emptied before the list is taken: a letter posted in between wakes us again. */
	run_letters(take_all(m));
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
	while (run_letters(take_all(m)))
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

int mailbox_post(struct mailbox *m, void (*fn)(void *arg), void *arg)
{
	struct letter *letter = malloc(sizeof(*letter));
	bool was_empty;

	if (letter == NULL)
		return ERR_NOMEM;
	*letter = (struct letter){.fn = fn, .arg = arg};
	pthread_mutex_lock(&m->lock);
	was_empty = m->first == NULL;
	*m->end = letter;
	m->end = &letter->next;
	if (was_empty) /* under the lock: the reader may free the box once it is released
			*/
		wake(m);
	pthread_mutex_unlock(&m->lock);
	return 0;
}
