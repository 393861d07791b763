/*
 * Names to immutable, reference-counted address lists, on a helper thread (getaddrinfo
 * blocks), re-resolved every RESOLVE_EVERY_MS.
 */
#ifndef IO_RESOLVE_H
#define IO_RESOLVE_H

#include "base/base.h"
#include "io/sock.h"

#define RESOLVE_EVERY_MS \
	30000 /* how old an answer may get before its owner asks again \
				*/

struct loop;
struct resolver;

struct addr_list {
	_Atomic unsigned refs;
	size_t n; /* at least 1 */
	union sock_addr addrs[];
};
struct addr_list *addr_list_ref(struct addr_list *a);
void addr_list_unref(struct addr_list *a); /* NULL is fine */
/* The same addresses, in whatever order; NULL equals NULL only. */
bool addr_list_equal(const struct addr_list *a, const struct addr_list *b);
/* True if they share an address. */
bool addr_list_meets(const struct addr_list *a, const struct addr_list *b);
/* For an IP literal, at once and without a thread; NULL when host is a name. */
struct addr_list *addr_list_literal(const char *host, uint16_t port);

struct resolver *resolver_new(
	struct loop *l); /* starts the helper thread; callbacks run on l */
void resolver_free(
	struct resolver *r); /* no callback afterwards; never waits for a look-up (its
				thread ends by itself); NULL is fine */
/* One look-up: on_done(arg, err, list): list is the callee's reference, NULL unless err
 * is 0; ERR_RESOLVE. Never from inside this call. Cancel by resolver_cancel(arg): all
 * that were asked with this arg. ERR_NOMEM. */
int resolver_ask(struct resolver *r, const char *host, uint16_t port,
	void (*on_done)(void *arg, int err, struct addr_list *list),
	void *arg) MUST_CHECK;
void resolver_cancel(struct resolver *r, void *arg);

#endif
