/*
 * The addresses that clients connect to, and one socket for each address and I/O thread
 * (SO_REUSEPORT: one accept queue each). A change takes three steps, so that a reload
 * that fails changes nothing. The plan opens every new socket. Prepared, the threads have
 * listeners for them that accept nothing yet. The commit cannot fail. A plan is abandoned
 * before it is prepared, and retracted after that. Used on the control thread by daemon.c
 * and reload.c.
 */
#ifndef CONTROL_LISTEN_H
#define CONTROL_LISTEN_H

#include "base/base.h"
#include "conf/conf.h"
#include "io/sock.h"

struct bequest;
struct inherited;
struct listen_set;
struct threads;

/* Where a plan may take sockets from; each may be NULL. */
struct listen_from {
	const struct listen_set *have; /* its addresses that stay keep theirs */
	struct inherited *inherited;
	/* True if an address may be in use (errno EADDRINUSE) because this very service
	 * uses it. */
	bool (*is_ours)(void *arg, const union sock_addr *a);
	void *arg;
};

/*
 * The sockets for what conf's listen says. 0 and *plan; or ERR_IO or ERR_NOMEM, and what
 * is wrong with which address in *errors (sockets that were claimed for it are closed).
 * With n_threads 0 none is opened, but whether they could be is checked.
 */
int listen_plan(const struct listen_from *from, const struct conf *conf,
	unsigned n_threads, struct conf_errors *errors,
	struct listen_set **plan) MUST_CHECK;
/* Adds the error that conf's key (listen or metrics_listen) cannot have the address text,
 * for the reason errno gives, at its place. */
void listen_fault(const struct conf *conf, const char *key, const char *text, int error,
	struct conf_errors *errors);
/*
 * Hands the new sockets to the threads. Makes room for all letters to them up to the
 * commit, and for `more` letters. ERR_NOMEM: the plan is to be retracted.
 */
int listen_prepare(const struct listen_set *have, struct listen_set *plan,
	struct threads *threads, size_t more) MUST_CHECK;
/* Has the threads close what the plan handed to them, closes the rest, frees the plan. */
void listen_retract(struct listen_set *plan, struct threads *threads);
/* The threads accept from the new sockets and close removed ones; replaces *have. */
void listen_commit(
	struct listen_set **have, struct listen_set *plan, struct threads *threads);
/* Closes the sockets of a plan that was not prepared, and frees it. NULL is fine. */
void listen_abandon(struct listen_set *plan);
/* When the threads, and with them the sockets, are gone. The files of unix sockets go
 * too, unless the service manager keeps those, or listen_hand_over() was called. NULL is
 * fine. */
void listen_free(struct listen_set *set);
/* A successor has the sockets now, and their files are its own. */
void listen_hand_over(struct listen_set *set);
/* Gives the service manager the sockets of a set in force that it does not have yet. */
void listen_store(struct listen_set *set);
/* True if it has all of them: clients that connect wait for the next start. */
bool listen_is_stored(const struct listen_set *set);
/* All sockets of a set in force, for a successor. ERR_NOMEM. */
int listen_bequeath(const struct listen_set *set, struct bequest *out) MUST_CHECK;
/* "listening on http://..." or "listening on unix:..." for each address that is new since the last call. */
void listen_log(struct listen_set *set);
/*
 * 0 if no other process listens there. SO_REUSEPORT would let a second daemon of this
 * user take half of our connections silently, so a bind without it asks first. ERR_IO
 * with errno.
 */
int listen_check_free(const union sock_addr *a) MUST_CHECK;
unsigned listen_count(const struct listen_set *set);
/* The i-th address with its actual port; "127.0.0.1:30000", or "unix:/path". out has
 * LISTEN_TEXT_MAX. */
#define LISTEN_TEXT_MAX 128
void listen_text(const struct listen_set *set, unsigned i, char *out, size_t n);

#endif
