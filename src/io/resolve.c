/*
 * Look-ups on one helper thread, since getaddrinfo blocks; answers come back by mailbox.
 * Always true: a look-up is waiting in the queue, in the thread's hands, or a letter in
 * the mailbox, and its holder frees it; its on_done and links belong to the loop's
 * thread, its host and answer to the holder. Once is_stopped, the thread posts nothing
 * more. The thread may outlive its resolver (getaddrinfo cannot be interrupted), so what
 * both touch is counted: struct desk. Used by control for the workers' addresses.
 */
#include "io/resolve.h"
#include "base/err.h"
#include "base/list.h"
#include "io/loop.h"
#include "io/mailbox.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ADDRS_MAX 64 /* a name with more is cut */
#define POST_AGAIN_NS 10000000

struct lookup {
	STAILQ_ENTRY(lookup) queued;
	LIST_ENTRY(lookup) asked;
	void (*on_done)(void *arg, int err, struct addr_list *list); /* NULL: cancelled */
	void *arg;
	struct addr_list *list; /* the answer; NULL: there is none */
	uint16_t port;
	char host[];
};

STAILQ_HEAD(lookup_queue, lookup);

struct desk {
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t wake;
	unsigned refs; /* resolver and thread */
	bool is_stopped, is_busy;
	struct mailbox *mailbox;
	struct lookup_queue queue;
};

struct resolver {
	struct desk *desk;
	pthread_t thread;
	struct mailbox *mailbox;
	LIST_HEAD(, lookup) asked; /* whose on_done is still to come */
};

struct addr_list *addr_list_ref(struct addr_list *a)
{
	atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
	return a;
}

void addr_list_unref(struct addr_list *a)
{
	if (a != NULL &&
		atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) == 1)
		free(a);
}

static struct addr_list *new_list(size_t n)
{
	struct addr_list *a = calloc(1, sizeof(*a) + n * sizeof(a->addrs[0]));

	if (a == NULL)
		return NULL;
	atomic_init(&a->refs, 1);
	a->n = n;
	return a;
}

static bool addr_equal(const union sock_addr *a, const union sock_addr *b)
{
	return a->sa.sa_family == b->sa.sa_family && memcmp(a, b, sock_addr_len(a)) == 0;
}

static bool holds_all(const struct addr_list *a, const struct addr_list *b)
{
	for (size_t i = 0; i < b->n; i++) {
		size_t j = 0;

		while (j < a->n && !addr_equal(&a->addrs[j], &b->addrs[i]))
			j++;
		if (j == a->n)
			return false;
	}
	return true;
}

bool addr_list_equal(const struct addr_list *a, const struct addr_list *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return a->n == b->n && holds_all(a, b) && holds_all(b, a);
}

bool addr_list_meets(const struct addr_list *a, const struct addr_list *b)
{
	for (size_t i = 0; i < a->n; i++) {
		for (size_t j = 0; j < b->n; j++) {
			if (addr_equal(&a->addrs[i], &b->addrs[j]))
				return true;
		}
	}
	return false;
}

struct addr_list *addr_list_literal(const char *host, uint16_t port)
{
	union sock_addr addr;
	struct addr_list *a;

	if (sock_addr_parse(host, port, &addr) != 0)
		return NULL;
	a = new_list(1);
	if (a != NULL)
		a->addrs[0] = addr;
	return a;
}

static bool is_usable(const struct addrinfo *ai)
{
	return (ai->ai_family == AF_INET || ai->ai_family == AF_INET6) &&
	       ai->ai_addrlen <= sizeof(union sock_addr);
}

static struct addr_list *copy_addrs(const struct addrinfo *first, uint16_t port)
{
	struct addr_list *a;
	size_t n = 0;

	for (const struct addrinfo *ai = first; ai != NULL && n < ADDRS_MAX;
		ai = ai->ai_next)
		n += is_usable(ai);
	a = n > 0 ? new_list(n) : NULL;
	if (a == NULL)
		return NULL;
	n = 0;
	for (const struct addrinfo *ai = first; ai != NULL && n < a->n;
		ai = ai->ai_next) {
		if (!is_usable(ai))
			continue;
		memcpy(&a->addrs[n], ai->ai_addr, ai->ai_addrlen);
		if (ai->ai_family == AF_INET)
			a->addrs[n].in.sin_port = htons(port);
		else
			a->addrs[n].in6.sin6_port = htons(port);
		n++;
	}
	return a;
}

static struct addr_list *look_up(const char *host, uint16_t port)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *first = NULL;
	struct addr_list *a;

	if (getaddrinfo(host, NULL, &hints, &first) != 0)
		return NULL;
	a = copy_addrs(first, port);
	freeaddrinfo(first);
	return a;
}

static void free_lookup(struct lookup *k)
{
	addr_list_unref(k->list);
	free(k);
}

/* On the loop's thread: the letter. */
static void deliver(void *arg)
{
	struct lookup *k = arg;
	struct addr_list *list = k->list;
	void (*on_done)(void *, int, struct addr_list *) = k->on_done;

	if (on_done != NULL) {
		LIST_REMOVE(k, asked);
		k->list = NULL;
		on_done(k->arg, list != NULL ? 0 : ERR_RESOLVE, list);
	}
	free_lookup(k);
}

/* Called and left with the lock held. */
static void drop_desk(struct desk *d)
{
	bool is_last = --d->refs == 0;

	pthread_mutex_unlock(&d->lock);
	if (!is_last)
		return;
	pthread_mutex_destroy(&d->lock);
	pthread_cond_destroy(&d->wake);
	free(d);
}

/* With the lock held: hands the answered look-up over. Short of memory it tries again,
 * since somebody waits for the answer. */
static void post_answer(struct desk *d, struct lookup *k)
{
	struct timespec pause = {.tv_nsec = POST_AGAIN_NS};

	while (!d->is_stopped) {
		if (mailbox_post(d->mailbox, deliver, k) == 0)
			return;
		pthread_mutex_unlock(&d->lock);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&d->lock);
	}
	free_lookup(k);
}

static void *run_thread(void *arg)
{
	struct desk *d = arg;

	pthread_mutex_lock(&d->lock);
	while (!d->is_stopped) {
		struct lookup *k = STAILQ_FIRST(&d->queue);

		if (k == NULL) {
			pthread_cond_wait(&d->wake, &d->lock);
			continue;
		}
		STAILQ_REMOVE_HEAD(&d->queue, queued);
		d->is_busy = true;
		pthread_mutex_unlock(&d->lock);
		k->list = look_up(k->host, k->port);
		pthread_mutex_lock(&d->lock);
		d->is_busy = false;
		post_answer(d, k);
	}
	drop_desk(d);
	return NULL;
}

static struct desk *new_desk(struct mailbox *mailbox)
{
	struct desk *d = calloc(1, sizeof(*d));

	if (d == NULL)
		return NULL;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->wake, NULL);
	d->refs = 2;
	d->mailbox = mailbox;
	STAILQ_INIT(&d->queue);
	return d;
}

/* Signals are the control thread's. */
static bool start_thread(struct resolver *r)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	error = pthread_create(&r->thread, NULL, run_thread, r->desk);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error == 0;
}

struct resolver *resolver_new(struct loop *l)
{
	struct resolver *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	LIST_INIT(&r->asked);
	r->mailbox = mailbox_new(l);
	if (r->mailbox != NULL)
		r->desk = new_desk(r->mailbox);
	if (r->desk != NULL && start_thread(r))
		return r;
	free(r->desk);
	mailbox_free(r->mailbox);
	free(r);
	return NULL;
}

static void forget_lookup(struct lookup *k)
{
	LIST_REMOVE(k, asked);
	k->on_done = NULL;
}

static void drop_queue(struct desk *d)
{
	struct lookup *k;

	while ((k = STAILQ_FIRST(&d->queue)) != NULL) {
		STAILQ_REMOVE_HEAD(&d->queue, queued);
		free_lookup(k);
	}
}

void resolver_free(struct resolver *r)
{
	struct lookup *k;
	bool is_busy;

	if (r == NULL)
		return;
	while ((k = LIST_FIRST(&r->asked)) != NULL)
		forget_lookup(k);
	pthread_mutex_lock(&r->desk->lock);
	r->desk->is_stopped = true;
	is_busy = r->desk->is_busy;
	drop_queue(r->desk);
	pthread_cond_signal(&r->desk->wake);
	drop_desk(r->desk);
	if (is_busy)
		pthread_detach(r->thread);
	else
		pthread_join(r->thread, NULL);
	mailbox_free(r->mailbox);
	free(r);
}

static int submit(struct resolver *r, struct lookup *k)
{
	/* A literal needs no thread, but its callback comes later too. */
	k->list = addr_list_literal(k->host, k->port);
	if (k->list != NULL)
		return mailbox_post(r->mailbox, deliver, k);
	pthread_mutex_lock(&r->desk->lock);
	STAILQ_INSERT_TAIL(&r->desk->queue, k, queued);
	pthread_cond_signal(&r->desk->wake);
	pthread_mutex_unlock(&r->desk->lock);
	return 0;
}

int resolver_ask(struct resolver *r, const char *host, uint16_t port,
	void (*on_done)(void *arg, int err, struct addr_list *list), void *arg)
{
	size_t n = strlen(host) + 1;
	struct lookup *k = calloc(1, sizeof(*k) + n);

	if (k == NULL)
		return ERR_NOMEM;
	memcpy(k->host, host, n);
	k->port = port;
	k->on_done = on_done;
	k->arg = arg;
	LIST_INSERT_HEAD(&r->asked, k, asked);
	if (submit(r, k) == 0)
		return 0;
	forget_lookup(k);
	free_lookup(k);
	return ERR_NOMEM;
}

void resolver_cancel(struct resolver *r, void *arg)
{
	struct lookup *k, *next;

	LIST_FOREACH_SAFE(k, &r->asked, asked, next)
	if (k->arg == arg)
		forget_lookup(k);
}
