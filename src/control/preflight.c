/*
 * The machine's side of -t. See preflight.h. A port may be in use by the very daemon
 * whose file is tested. So the daemon is asked, at the file's admin socket, where it
 * listens.
 */
#include "control/preflight.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "control/listen.h"
#include "control/listen_unix.h"
#include "io/fetch.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/resolve.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ASK_TIMEOUT_MS 5000
#define ANSWER_MAX_BYTES (64u << 20)
#define NAMES_TIMEOUT_MS 5000 /* all of them */

enum neighbour_kind {
	NEIGHBOUR_NONE,   /* nobody is at the admin socket */
	NEIGHBOUR_OURS,   /* a daemon, which said where it listens */
	NEIGHBOUR_OTHER,  /* somebody who is no kvsteerd */
	NEIGHBOUR_HIDDEN, /* it cannot be asked */
};

struct neighbour {
	enum neighbour_kind kind;
	const char *why; /* HIDDEN */
	union sock_addr *addrs;
	size_t n;
	bool is_in_doubt; /* an address is in use, and HIDDEN may have it */
};

bool preflight_is_optional(const struct conf *conf, const char *value, const char *def)
{
	return conf->by_flags_alone && strcmp(value, def) == 0;
}

static bool is_off(const char *text)
{
	return text == NULL || text[0] == '\0' || strcmp(text, "off") == 0;
}

/* ---- addresses ---- */

/* One address, and no look-up for it. */
static const char *bare_host(const char *host)
{
	if (host[0] == '\0')
		return "0.0.0.0";
	return strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
}

int preflight_metrics_address(const char *text, union sock_addr *a, uint16_t *port)
{
	scoped_free char *host = NULL;
	const char *why;

	errno = EADDRNOTAVAIL;
	if (conf_hostport_parse(span_str(text), &host, port, &why) != 0)
		return ERR_IO;
	return sock_addr_parse(bare_host(host), *port, a) == 0 ? 0 : ERR_IO;
}

static bool is_every_address(const union sock_addr *a)
{
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

/* True if a listener on the one address blocks the other. */
static bool overlap(const union sock_addr *a, const union sock_addr *b)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return false;
	if (a->sa.sa_family == AF_UNIX)
		return memcmp(a, b, sock_addr_len(a)) == 0;
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_port == b->in.sin_port &&
		       (a->in.sin_addr.s_addr == b->in.sin_addr.s_addr ||
			       is_every_address(a) || is_every_address(b));
	return a->in6.sin6_port == b->in6.sin6_port &&
	       (memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof(a->in6.sin6_addr)) ==
			       0 ||
		       is_every_address(a) || is_every_address(b));
}

static const char *unix_path(const union sock_addr *a)
{
	return ((const struct sockaddr_un *)(const void *)&a->storage)->sun_path;
}

/*
 * Between two runs of a service its manager keeps its sockets (FileDescriptorStoreMax=),
 * and this runs before the next one. They are of this user, and shared by SO_REUSEPORT: a
 * bind beside them is allowed. It receives no connection, since it does not listen.
 */
static bool is_kept_for_us(const union sock_addr *a)
{
	scoped_fd int fd = -1;
	int on = 1;

	if (getenv("INVOCATION_ID") == NULL)
		return false;
	if (a->sa.sa_family == AF_UNIX)
		return listen_unix_is_kept(unix_path(a));
	fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) != 0 ||
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
		return false;
	if (a->sa.sa_family == AF_INET6 &&
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) != 0)
		return false;
	return bind(fd, &a->sa, sock_addr_len(a)) == 0;
}

static bool is_ours(void *arg, const union sock_addr *a)
{
	struct neighbour *n = arg;
	size_t i;

	if (n->kind == NEIGHBOUR_HIDDEN) {
		n->is_in_doubt = true;
		return true;
	}
	for (i = 0; i < n->n; i++)
		if (overlap(&n->addrs[i], a))
			return true;
	return is_kept_for_us(a);
}

/* ---- who is there ---- */

static void add_address(struct neighbour *n, struct span text)
{
	scoped_free char *copy = span_dup(text);
	const char *path = copy != NULL ? listen_unix_path(copy) : NULL;
	union sock_addr a;
	uint16_t port;

	if (copy == NULL ||
		(path != NULL ? sock_addr_parse(path, 0, &a)
			      : preflight_metrics_address(copy, &a, &port)) != 0)
		return;
	n->addrs = xrealloc(n->addrs, (n->n + 1) * sizeof(*n->addrs));
	n->addrs[n->n++] = a;
}

static void read_status(struct neighbour *n, const struct js *status)
{
	const struct js *list = js_get(status, "listen");
	struct span text;
	size_t i;

	if (list == NULL || !js_is_array(list))
		return;
	n->kind = NEIGHBOUR_OURS;
	for (i = 0; i < js_len(list); i++)
		if (js_as_str(js_at(list, i), &text))
			add_address(n, text);
	if (js_as_str(js_get(status, "metrics_listen"), &text))
		add_address(n, text);
}

static void ask_where(struct neighbour *n, const char *path)
{
	struct fetch_request req = {.url = "http://localhost/admin/v1/status",
		.unix_socket = path,
		.timeout_ms = ASK_TIMEOUT_MS,
		.max_body = ANSWER_MAX_BYTES};
	struct fetch_answer answer;
	struct js *status = NULL;
	const char *why;

	fetch_blocking(&req, &answer);
	n->kind = NEIGHBOUR_OTHER;
	if (answer.result == FETCH_OK && answer.status == 200)
		status = js_parse(answer.body, &why);
	if (status != NULL && js_is_object(status))
		read_status(n, status);
	js_free(status);
	free((char *)answer.body.p);
}

/* Finds out which program answers at the admin socket; the result is in *n. */
static void meet(struct neighbour *n, const char *path)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (is_off(path)) {
		n->kind = NEIGHBOUR_HIDDEN;
		n->why = "there is no admin socket";
		return;
	}
	if (fd < 0 || strlen(path) >= sizeof(un.sun_path))
		return;
	memcpy(un.sun_path, path, strlen(path) + 1);
	if (connect(fd, (const struct sockaddr *)&un, sizeof(un)) == 0) {
		ask_where(n, path);
	} else if (errno == EACCES || errno == EPERM) {
		n->kind = NEIGHBOUR_HIDDEN;
		n->why = "this user may not use its admin socket";
	}
}

/* ---- the admin socket ---- */

void preflight_admin_fault(const struct conf *conf, int error, struct conf_errors *errors)
{
	const char *path = conf->router.admin_socket, *why = "another daemon uses it";
	unsigned line;
	const char *file = conf_place(conf, "admin_socket", NULL, &line);
	struct stat st;

	if (error != 0)
		why = strerror(error);
	else if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
		why = "a file that is not a socket has this path";
	conf_errors_add(errors, file, line, "admin_socket", path,
		"choose another path, or none for no admin socket",
		"cannot be opened: %s", why);
}

/* The folder it is to be in; a start makes one that is missing, but not the one above. */
static int check_folder(const char *path)
{
	scoped_free char *folder = xstrdup(path);
	struct stat st;
	int i;

	for (i = 0; i < 2; i++) {
		char *slash = strrchr(folder, '/');

		if (slash == NULL || slash == folder)
			return 0;
		*slash = '\0';
		if (stat(folder, &st) == 0)
			return S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
		if (errno != ENOENT)
			return errno == EACCES ? 0 : errno;
	}
	return ENOENT;
}

static void check_admin_socket(
	const struct conf *conf, const struct neighbour *n, struct conf_errors *errors)
{
	const char *path = conf->router.admin_socket;
	struct stat st;
	int error;

	if (is_off(path) || n->kind == NEIGHBOUR_OURS || n->kind == NEIGHBOUR_HIDDEN ||
		preflight_is_optional(conf, path, DEFAULT_ADMIN_SOCKET))
		return;
	error = check_folder(path);
	if (error != 0)
		preflight_admin_fault(conf, error, errors);
	else if (n->kind == NEIGHBOUR_OTHER ||
		 (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode)))
		preflight_admin_fault(conf, 0, errors);
}

/* ---- all of it, in the order of a start ---- */

static void check_metrics(
	const struct conf *conf, struct neighbour *n, struct conf_errors *errors)
{
	const char *text = conf->router.metrics_listen;
	union sock_addr a;
	uint16_t port;
	int error;

	if (is_off(text) || preflight_is_optional(conf, text, DEFAULT_METRICS))
		return;
	if (preflight_metrics_address(text, &a, &port) == 0 && listen_check_free(&a) == 0)
		return;
	error = errno;
	if (error != EADDRINUSE || !is_ours(n, &a))
		listen_fault(conf, "metrics_listen", text, error, errors);
}

static void check_clients(
	const struct conf *conf, struct neighbour *n, struct conf_errors *errors)
{
	struct listen_from from = {.is_ours = is_ours, .arg = n};
	struct listen_set *plan;

	if (listen_plan(&from, conf, 0, errors, &plan) == 0)
		listen_abandon(plan);
}

/* ---- the workers' names ---- */

struct name_check {
	const struct worker_conf *worker;
	bool is_over, is_known;
};

static void on_name(void *arg, int err, struct addr_list *list)
{
	struct name_check *k = arg;

	k->is_over = true;
	k->is_known = err == 0;
	addr_list_unref(list);
}

static bool is_literal(const struct worker_conf *w)
{
	struct addr_list *list = addr_list_literal(w->url.host, w->url.port);
	bool is_one = list != NULL;

	addr_list_unref(list);
	return is_one;
}

static size_t ask_names(
	const struct conf *conf, struct resolver *resolver, struct name_check *checks)
{
	size_t n = 0, i;

	for (i = 0; i < conf->n_workers; i++) {
		const struct worker_conf *w = &conf->workers[i];

		if (is_literal(w))
			continue;
		checks[n].worker = w;
		if (resolver_ask(
			    resolver, w->url.host, w->url.port, on_name, &checks[n]) == 0)
			n++;
	}
	return n;
}

static bool all_are_over(const struct name_check *checks, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (!checks[i].is_over)
			return false;
	return true;
}

static void wait_for_names(struct loop *loop, const struct name_check *checks, size_t n)
{
	uint64_t end_ms = clock_now_ms() + NAMES_TIMEOUT_MS;

	while (!all_are_over(checks, n) && clock_now_ms() < end_ms)
		loop_turn(loop, (int)(end_ms - clock_now_ms()));
}

static void tell_names(
	const struct name_check *checks, size_t n, struct conf_errors *errors)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (!checks[i].is_known)
			conf_warnings_add(errors, NULL, 0, "url",
				checks[i].worker->url.text,
				"the daemon starts, and looks the name up again and "
				"again",
				"worker %s: %s", checks[i].worker->name,
				checks[i].is_over ? "its name cannot be resolved"
						  : "its name was not resolved in time");
}

/* A name that is not known now may be so later: a warning. */
static void check_names(const struct conf *conf, struct conf_errors *errors)
{
	scoped_free struct name_check *checks =
		xcalloc(conf->n_workers + 1, sizeof(*checks));
	struct loop *loop = loop_new();
	struct resolver *resolver = loop != NULL ? resolver_new(loop) : NULL;
	size_t n;

	if (resolver != NULL) {
		n = ask_names(conf, resolver, checks);
		wait_for_names(loop, checks, n);
		tell_names(checks, n, errors);
	}
	resolver_free(resolver);
	loop_free(loop);
}

int preflight(const struct conf *conf, struct conf_errors *errors)
{
	size_t before = errors->n_errors;
	struct neighbour n = {0};

	meet(&n, conf->router.admin_socket);
	check_admin_socket(conf, &n, errors);
	check_metrics(conf, &n, errors);
	check_clients(conf, &n, errors);
	if (n.is_in_doubt)
		conf_warnings_add(errors, NULL, 0, NULL, NULL,
			"run this as root, or as the daemon's user",
			"addresses are in use, and the daemon cannot be asked whether "
			"they are its own: %s",
			n.why);
	check_names(conf, errors);
	free(n.addrs);
	return errors->n_errors > before ? ERR_IO : 0;
}
