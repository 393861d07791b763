/*
 * Listening addresses and their sockets. See listen.h.
 * An entry is one address; a name or a bare port may stand for several. The plan owns its
 * sockets until listen_prepare(). Then the threads own them, and only their numbers are
 * kept here, for the service manager and for a successor.
 */
#include "control/listen.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "control/inherit.h"
#include "control/listen_unix.h"
#include "control/threads.h"
#include "io/notify.h"
#include "io/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct listen_entry {
	char *text;           /* as configured */
	union sock_addr addr; /* with the actual port */
	uint64_t id;
	/* At least one for each thread; in a set in force they are the threads', and open
	 * until those are told to drop the id. */
	int *fds;
	size_t cap_fds;
	unsigned n_fds, n_stored; /* the first n_stored: the service manager has them */
	bool is_logged;
	bool is_kept;   /* fds were here before the plan */
	bool is_handed; /* by the plan to the threads */
	/* A unix socket: one, with a descriptor for each thread. */
	const char *path;   /* in text; NULL: it is none */
	bool owns_file;     /* it goes with the entry */
	bool is_introduced; /* connections begin with a header of the PROXY protocol */
};

struct listen_set {
	struct listen_entry *items;
	size_t cap;
	unsigned n, n_threads;
	bool is_introduced; /* what is being planned */
};

static uint64_t next_id = 1;

unsigned listen_count(const struct listen_set *set)
{
	return set->n;
}

void listen_text(const struct listen_set *set, unsigned i, char *out, size_t n)
{
	const struct listen_entry *e = &set->items[i];

	if (e->path != NULL)
		snprintf(out, n, "unix:%s", e->path);
	else
		sock_addr_text(&e->addr, true, out, n);
}

void listen_log(struct listen_set *set)
{
	char text[LISTEN_TEXT_MAX];
	unsigned i;

	for (i = 0; i < set->n; i++) {
		if (set->items[i].is_logged)
			continue;
		listen_text(set, i, text, sizeof(text));
		log_notice("listening on %s%s on %u thread%s%s",
			set->items[i].path == NULL ? "http://" : "", text, set->n_threads,
			set->n_threads == 1 ? "" : "s",
			set->items[i].is_introduced ? ", with the PROXY protocol" : "");
		set->items[i].is_logged = true;
	}
}

static void close_fds(struct listen_entry *e)
{
	unsigned i;

	for (i = 0; i < e->n_fds; i++)
		close(e->fds[i]);
	e->n_fds = 0;
}

static void remove_file(struct listen_entry *e)
{
	if (e->owns_file)
		(void)unlink(e->path);
	e->owns_file = false;
}

/* The sockets behind its descriptors. */
static unsigned count_sockets(const struct listen_entry *e)
{
	return e->path != NULL ? MIN(e->n_fds, 1u) : e->n_fds;
}

static void set_free(struct listen_set *set)
{
	unsigned i;

	for (i = 0; i < set->n; i++) {
		free(set->items[i].fds);
		free(set->items[i].text);
	}
	free(set->items);
	free(set);
}

void listen_abandon(struct listen_set *plan)
{
	unsigned i;

	if (plan == NULL)
		return;
	for (i = 0; i < plan->n; i++) {
		if (plan->items[i].is_kept)
			continue;
		remove_file(&plan->items[i]);
		close_fds(&plan->items[i]);
	}
	set_free(plan);
}

void listen_free(struct listen_set *set)
{
	unsigned i;

	if (set == NULL)
		return;
	for (i = 0; i < set->n; i++) {
		if (set->items[i].n_stored == 0)
			remove_file(&set->items[i]);
	}
	set_free(set);
}

void listen_hand_over(struct listen_set *set)
{
	unsigned i;

	for (i = 0; i < set->n; i++)
		set->items[i].owns_file = false;
}

/* May move the other entries. NULL: out of memory. */
static struct listen_entry *add_entry(struct listen_set *set, const char *text)
{
	char *copy = strdup(text);

	if (copy == NULL || mem_grow(&set->items, &set->cap, (size_t)set->n + 1,
				    sizeof(*set->items)) != 0) {
		free(copy);
		return NULL;
	}
	set->items[set->n] = (struct listen_entry){.text = copy,
		.path = listen_unix_path(copy),
		.is_introduced = set->is_introduced};
	return &set->items[set->n++];
}

static void drop_last(struct listen_set *set)
{
	struct listen_entry *e = &set->items[--set->n];

	remove_file(e);
	close_fds(e);
	free(e->fds);
	free(e->text);
}

/* ---- opening ---- */

int listen_check_free(const union sock_addr *a)
{
	scoped_fd int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;

	if (fd < 0)
		return ERR_IO;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
		return ERR_IO;
	if (a->sa.sa_family == AF_INET6 &&
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) != 0)
		return ERR_IO;
	if (bind(fd, &a->sa, sock_addr_len(a)) != 0 || listen(fd, 1) != 0)
		return ERR_IO;
	return 0;
}

/* Ours on that port already: a wildcard may replace an address, or the reverse. */
static bool has_port(const struct listen_set *have, const union sock_addr *a)
{
	unsigned i;

	for (i = 0; have != NULL && i < have->n; i++) {
		if (sock_addr_port(&have->items[i].addr) == sock_addr_port(a))
			return true;
	}
	return false;
}

/* Takes fd, also when memory runs out. */
static int add_fd(struct listen_entry *e, int fd)
{
	if (mem_grow(&e->fds, &e->cap_fds, (size_t)e->n_fds + 1, sizeof(*e->fds)) != 0) {
		close(fd);
		errno = ENOMEM;
		return ERR_NOMEM;
	}
	e->fds[e->n_fds++] = fd;
	return 0;
}

/* Claims all sockets that a predecessor left: each has a queue of its own and must be
 * accepted from. */
static int claim_fds(struct listen_entry *e, struct inherited *in)
{
	bool is_stored;
	int fd;

	while ((fd = inherit_claim(in, INHERIT_CLIENTS, e->text, &e->addr, &is_stored)) >=
		0) {
		if (add_fd(e, fd) != 0)
			return ERR_NOMEM;
		if (!is_stored)
			continue;
		e->fds[e->n_fds - 1] = e->fds[e->n_stored];
		e->fds[e->n_stored++] = fd;
	}
	return 0;
}

/* One socket for each thread; the first one gets the port where none was named. */
static int open_fds(struct listen_entry *e, unsigned n_threads)
{
	socklen_t len = sizeof(e->addr);
	int fd;

	while (e->n_fds < n_threads) {
		if (sock_listen(&e->addr, &fd) != 0)
			return ERR_IO;
		if (add_fd(e, fd) != 0)
			return ERR_NOMEM;
		if (e->n_fds == 1 && getsockname(fd, &e->addr.sa, &len) != 0)
			return ERR_IO;
	}
	return 0;
}

static bool is_ours(const struct listen_from *from, const union sock_addr *a)
{
	int saved = errno;
	bool is_so = errno == EADDRINUSE && from->is_ours != NULL &&
		     from->is_ours(from->arg, a);

	errno = saved;
	return is_so;
}

static int open_entry(const struct listen_from *from, struct listen_set *set,
	const char *text, const union sock_addr *a)
{
	struct listen_set before = {.items = set->items, .n = set->n};
	struct listen_entry *e;
	int err, saved;

	if ((sock_addr_port(a) != 0 || set->n_threads == 0) && !has_port(from->have, a) &&
		!has_port(&before, a) && !inherit_has_port(from->inherited, a) &&
		listen_check_free(a) != 0 && !is_ours(from, a))
		return ERR_IO;
	e = add_entry(set, text);
	if (e == NULL) {
		errno = ENOMEM;
		return ERR_NOMEM;
	}
	e->addr = *a;
	e->id = next_id++;
	err = claim_fds(e, from->inherited);
	if (err == 0)
		err = open_fds(e, set->n_threads);
	if (err != 0) {
		saved = errno;
		drop_last(set);
		errno = saved;
	}
	return err;
}

/* The socket, and a descriptor of it for each further thread. */
static int open_unix_fds(struct listen_entry *e, struct inherited *in, unsigned n_threads)
{
	int fd, err;

	err = listen_unix_open(e->path, in, &fd, &e->owns_file);
	if (err == 0)
		err = add_fd(e, fd);
	while (err == 0 && e->n_fds < n_threads) {
		fd = fcntl(e->fds[0], F_DUPFD_CLOEXEC, 0);
		err = fd >= 0 ? add_fd(e, fd) : ERR_IO;
	}
	return err;
}

/* Ours already, with other words behind it; a second socket cannot take its place. */
static bool is_changing(const struct listen_set *have, const char *text)
{
	unsigned i;

	for (i = 0; have != NULL && i < have->n; i++) {
		if (strcmp(have->items[i].text, text) == 0)
			return true;
	}
	return false;
}

static int open_unix(const struct listen_from *from, struct listen_set *set,
	const char *text, const char *path)
{
	struct listen_entry *e;
	union sock_addr a;
	int err = sock_addr_parse(path, 0, &a), saved;

	if (is_changing(from->have, text)) {
		errno = EBUSY;
		return ERR_IO;
	}
	if (err == 0 && set->n_threads == 0 && listen_unix_check(path) != 0 &&
		!is_ours(from, &a))
		return ERR_IO;
	e = err == 0 ? add_entry(set, text) : NULL;
	if (e == NULL) {
		errno = ENOMEM;
		return ERR_NOMEM;
	}
	e->addr = a;
	e->id = next_id++;
	if (set->n_threads > 0)
		err = open_unix_fds(e, from->inherited, set->n_threads);
	if (err != 0) {
		saved = errno;
		drop_last(set);
		errno = saved;
	}
	return err;
}

/* An address family or address that this machine does not have. */
static bool is_absent(int error)
{
	return error == EAFNOSUPPORT || error == EADDRNOTAVAIL ||
	       error == EPROTONOSUPPORT;
}

static void add_error(const struct conf *conf, const char *key, const char *text,
	const char *hint, const char *why, struct conf_errors *errors)
{
	unsigned line;
	const char *file = conf_place(conf, key, text, &line);

	conf_errors_add(errors, file, line, key, text, hint, "cannot listen: %s", why);
}

static int no_memory(struct conf_errors *errors)
{
	conf_errors_no_memory(errors);
	return ERR_NOMEM;
}

static const char *hint_for(const char *text, int error)
{
	if (error == EBUSY)
		return "proxy_protocol of a unix socket changes with a restart";
	if (listen_unix_path(text) != NULL)
		return error == EADDRINUSE || error == EEXIST
			       ? "choose another path, or stop the program that uses it"
			       : "a path in a folder that this user may "
				 "write to";
	switch (error) {
	case EADDRINUSE:
		return "choose another port, or stop the program that uses it "
		       "(find it with ss -ltnp)";
	case EADDRNOTAVAIL:
		return "give an address of this machine, or :port for all of them";
	case EACCES:
		return "a port below 1024 needs the capability CAP_NET_BIND_SERVICE";
	default:
		return NULL;
	}
}

void listen_fault(const struct conf *conf, const char *key, const char *text, int error,
	struct conf_errors *errors)
{
	add_error(conf, key, text, hint_for(text, error), strerror(error), errors);
}

/* All addresses of a name, or of "" (every one); those that this machine lacks are left
 * out. ERR_NOMEM, or ERR_IO with errno. */
static int open_all(const struct listen_from *from, struct listen_set *set,
	const char *text, const struct addrinfo *list)
{
	const struct addrinfo *ai;
	unsigned opened = 0;
	int error = EADDRNOTAVAIL;

	for (ai = list; ai != NULL; ai = ai->ai_next) {
		union sock_addr a = {0};

		if (ai->ai_addrlen > sizeof(a))
			continue;
		memcpy(&a, ai->ai_addr, ai->ai_addrlen);
		if (open_entry(from, set, text, &a) == 0) {
			opened++;
			continue;
		}
		error = errno;
		if (!is_absent(error))
			break;
	}
	if (opened > 0 && ai == NULL)
		return 0;
	errno = error;
	return error == ENOMEM ? ERR_NOMEM : ERR_IO;
}

/* The addresses of "host:port". Errors are reported. */
static int find_addresses(const struct conf *conf, const char *text,
	struct addrinfo **list, struct conf_errors *errors)
{
	struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
	scoped_free char *host = NULL;
	const char *why = "malformed";
	char service[8];
	uint16_t port;
	int err = conf_hostport_parse(span_str(text), &host, &port, &why);

	if (err == ERR_NOMEM)
		return no_memory(errors);
	if (err != 0) {
		add_error(conf, "listen", text, NULL, why, errors);
		return ERR_IO;
	}
	snprintf(service, sizeof(service), "%u", port);
	err = getaddrinfo(host[0] != '\0' ? host : NULL, service, &hints, list);
	if (err == EAI_MEMORY)
		return no_memory(errors);
	if (err != 0) {
		add_error(conf, "listen", text, "a name that this machine knows",
			gai_strerror(err), errors);
		return ERR_IO;
	}
	return 0;
}

static int open_text(const struct listen_from *from, struct listen_set *set,
	const struct conf *conf, const char *text, struct conf_errors *errors)
{
	const char *path = listen_unix_path(text);
	struct addrinfo *list = NULL;
	int err = 0;

	if (path == NULL)
		err = find_addresses(conf, text, &list, errors);
	if (err != 0)
		return err;
	err = path != NULL ? open_unix(from, set, text, path)
			   : open_all(from, set, text, list);
	if (err == ERR_NOMEM)
		conf_errors_no_memory(errors);
	else if (err != 0)
		listen_fault(conf, "listen", text, errno, errors);
	if (list != NULL)
		freeaddrinfo(list);
	return err;
}

/* ---- the plan ---- */

/* Keeps the entries of an address that is listened on already. *n: their number. */
static int keep_entries(const struct listen_set *have, struct listen_set *plan,
	const char *text, unsigned *n)
{
	unsigned i;

	*n = 0;

	for (i = 0; have != NULL && i < have->n; i++) {
		const struct listen_entry *old = &have->items[i];
		struct listen_entry *e;

		if (strcmp(old->text, text) != 0 ||
			old->is_introduced != plan->is_introduced)
			continue;
		e = add_entry(plan, text);
		if (e == NULL)
			return ERR_NOMEM;
		e->is_kept = true;
		e->addr = old->addr;
		e->id = old->id;
		e->is_logged = old->is_logged;
		if (mem_grow(&e->fds, &e->cap_fds, old->n_fds, sizeof(*e->fds)) != 0)
			return ERR_NOMEM;
		e->n_fds = old->n_fds;
		e->n_stored = old->n_stored;
		memcpy(e->fds, old->fds, e->n_fds * sizeof(*e->fds));
		(*n)++;
	}
	return 0;
}

/* "127.0.0.1:0" may stand there twice, each with a port of its own: it is kept once. */
static bool is_planned(const struct listen_set *plan, const char *text)
{
	unsigned i;

	for (i = 0; i < plan->n; i++) {
		if (plan->items[i].is_kept && strcmp(plan->items[i].text, text) == 0)
			return true;
	}
	return false;
}

static int plan_text(const struct listen_from *from, struct listen_set *set,
	const struct conf *conf, const char *text, struct conf_errors *errors)
{
	unsigned n_kept;

	if (is_planned(set, text))
		return 0;
	if (keep_entries(from->have, set, text, &n_kept) != 0)
		return no_memory(errors);
	return n_kept > 0 ? 0 : open_text(from, set, conf, text, errors);
}

static bool is_option(const struct conf_list *listen, size_t i)
{
	return i < listen->n && strcmp(listen->items[i], CONF_LISTEN_PROXY) == 0;
}

int listen_plan(const struct listen_from *from, const struct conf *conf,
	unsigned n_threads, struct conf_errors *errors, struct listen_set **plan)
{
	const struct conf_list *want = &conf->router.listen;
	struct listen_set *set = calloc(1, sizeof(*set));
	int err = 0, failed;
	size_t i;

	if (set == NULL)
		return no_memory(errors);
	set->n_threads = n_threads;
	for (i = 0; i < want->n; i++) {
		if (is_option(want, i))
			continue;
		set->is_introduced = is_option(want, i + 1);
		failed = plan_text(from, set, conf, want->items[i], errors);
		if (failed != 0 && err != ERR_NOMEM)
			err = failed;
	}
	if (err != 0) {
		listen_abandon(set);
		return err;
	}
	*plan = set;
	return 0;
}

static bool has_id(const struct listen_set *set, uint64_t id)
{
	unsigned i;

	for (i = 0; i < set->n; i++) {
		if (set->items[i].id == id)
			return true;
	}
	return false;
}

/* Where there are more than threads, each thread accepts from several. */
static void hand_over(struct listen_entry *e, struct threads *threads)
{
	unsigned i, n = threads_count(threads);

	for (i = 0; i < e->n_fds; i++)
		threads_prepare(threads, i % n, e->id, e->fds[i], e->is_introduced);
	e->is_handed = true;
}

/* The most letters that a plan sends to the threads: to prepare each socket; for each
 * thread, to listen on an address or to drop it again, and to drop one that it had. */
static size_t count_letters(
	const struct listen_set *have, const struct listen_set *plan, size_t n_threads)
{
	size_t n = have != NULL ? have->n * n_threads : 0;
	unsigned i;

	for (i = 0; i < plan->n; i++) {
		if (!plan->items[i].is_kept)
			n += plan->items[i].n_fds + n_threads;
	}
	return n;
}

int listen_prepare(const struct listen_set *have, struct listen_set *plan,
	struct threads *threads, size_t more)
{
	size_t n = count_letters(have, plan, threads_count(threads));
	unsigned i;

	if (threads_make_room(threads, n + more) != 0)
		return ERR_NOMEM;
	for (i = 0; i < plan->n; i++) {
		if (!plan->items[i].is_kept)
			hand_over(&plan->items[i], threads);
	}
	return threads_await_prepared(threads);
}

void listen_retract(struct listen_set *plan, struct threads *threads)
{
	unsigned i;

	for (i = 0; i < plan->n; i++) {
		struct listen_entry *e = &plan->items[i];

		if (!e->is_handed)
			continue;
		remove_file(e);
		threads_unlisten(threads, e->id);
		e->n_fds = 0; /* the threads close them */
	}
	listen_abandon(plan);
}

/* Gone for good: the service manager lets go of its copies, too. */
static void unlisten(struct listen_entry *e, struct threads *threads)
{
	char name[INHERIT_NAME_MAX];

	inherit_name(INHERIT_CLIENTS, e->text, name);
	if (e->n_stored > 0)
		(void)notify_unstore(name);
	remove_file(e);
	threads_unlisten(threads, e->id);
	log_notice("no longer listening on %s", e->text);
}

void listen_commit(
	struct listen_set **have, struct listen_set *plan, struct threads *threads)
{
	struct listen_set *old = *have;
	unsigned i;

	for (i = 0; i < plan->n; i++) {
		if (!plan->items[i].is_kept)
			threads_listen(threads, plan->items[i].id);
		plan->items[i].is_kept = true;
		plan->items[i].owns_file = plan->items[i].path != NULL;
	}
	for (i = 0; old != NULL && i < old->n; i++) {
		if (!has_id(plan, old->items[i].id))
			unlisten(&old->items[i], threads);
		old->items[i].owns_file = false; /* else it is the plan's now */
	}
	*have = plan;
	listen_free(old);
}

void listen_store(struct listen_set *set)
{
	char name[INHERIT_NAME_MAX];
	unsigned i, n;

	for (i = 0; notify_is_on() && i < set->n; i++) {
		struct listen_entry *e = &set->items[i];

		inherit_name(INHERIT_CLIENTS, e->text, name);
		n = count_sockets(e);
		if (e->n_stored < n &&
			notify_store(name, e->fds + e->n_stored, n - e->n_stored) == 0)
			e->n_stored = n;
	}
}

bool listen_is_stored(const struct listen_set *set)
{
	unsigned i;

	for (i = 0; i < set->n; i++) {
		if (set->items[i].n_stored < count_sockets(&set->items[i]))
			return false;
	}
	return true;
}

int listen_bequeath(const struct listen_set *set, struct bequest *out)
{
	char name[INHERIT_NAME_MAX];
	unsigned i, k;
	int err = 0;

	for (i = 0; err == 0 && i < set->n; i++) {
		const struct listen_entry *e = &set->items[i];

		inherit_name(INHERIT_CLIENTS, e->text, name);
		for (k = 0; err == 0 && k < count_sockets(e); k++)
			err = bequest_add(out, e->fds[k], name);
	}
	return err;
}
