/*
 * Up and down. See boot.h.
 */
#include "control/boot.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/rng.h"
#include "control/admin.h"
#include "control/conf_log.h"
#include "control/fleet_calls.h"
#include "control/inherit.h"
#include "control/listen.h"
#include "control/local.h"
#include "control/preflight.h"
#include "control/roster.h"
#include "control/service.h"
#include "control/threads.h"
#include "control/upgrade.h"
#include "fleet/health.h"
#include "io/loop.h"
#include "io/mailbox.h"
#include "io/notify.h"
#include "io/sock.h"
#include "pool/response_map.h"
#include "proxy/request.h"
#include "route/path_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FDS_OF_PROCESS 64 /* logs, control loop, admin and metrics connections */
#define FDS_OF_THREAD 8   /* loop, mailbox, listening sockets */
#define CONNECTIONS_MIN 16

/* ---- limits and secrets ---- */

static unsigned thread_count(const struct router_opts *o)
{
	return o->threads != 0 ? o->threads : threads_for_cores();
}

/* Half of the descriptors are for clients, since each request needs one to its worker
 * too. */
static void set_max_connections(struct control *c, const struct conf *conf)
{
	unsigned long limit = sock_raise_fd_limit();
	unsigned long own = FDS_OF_PROCESS + conf->n_workers +
			    FDS_OF_THREAD * (unsigned long)thread_count(&conf->router);
	unsigned long most = limit > own ? (limit - own) / 2 : 0;

	most = MAX(most, (unsigned long)CONNECTIONS_MIN);
	c->process.max_connections = (unsigned)MIN(most, 1000000ul);
	if (conf->router.max_connections == 0)
		return;
	if (conf->router.max_connections > most)
		log_warn("max_connections = %u, but the limit of open files (%lu) allows "
			 "only %lu connections",
			conf->router.max_connections, limit, most);
	c->process.max_connections = conf->router.max_connections;
}

static void set_boot_secret(struct control *c, const char *hash_secret)
{
	uint64_t *secret = c->site_opts.boot_secret;

	if (hash_secret == NULL) {
		rng_secret(secret, sizeof(c->site_opts.boot_secret));
		return;
	}
	secret[0] = hash64(hash_secret, strlen(hash_secret), 1);
	secret[1] = hash64(hash_secret, strlen(hash_secret), 2);
}

/* ---- control's own listeners ---- */

/*
 * Under systemd the folder is there (RuntimeDirectory=). By hand, the first start makes
 * it, so that a configuration that says nothing of sockets works.
 */
static int listen_making_folder(const char *path, mode_t mode, int *fd)
{
	int err = sock_listen_unix(path, mode, fd);
	scoped_free char *folder = NULL;
	char *slash;

	if (err != ERR_IO || errno != ENOENT)
		return err;
	folder = xstrdup(path);
	slash = strrchr(folder, '/');
	if (slash == NULL || slash == folder)
		return err;
	*slash = '\0';
	if (mkdir(folder, 0755) != 0)
		return ERR_IO;
	return sock_listen_unix(path, mode, fd);
}

static int open_admin_socket(
	struct control *c, const struct conf *conf, struct inherited *in)
{
	const char *path = conf->router.admin_socket;
	struct conf_errors errors = {0};
	int err, *fd = &c->admin_fd;

	if (path == NULL)
		return 0;
	*fd = inherit_claim_unix(in, INHERIT_ADMIN, path);
	c->has_admin_from_predecessor = *fd >= 0;
	if (*fd >= 0)
		return 0;
	err = listen_making_folder(path, conf->router.admin_socket_mode, fd);
	if (err == 0) {
		log_notice("admin socket %s", path);
		return 0;
	}
	if (preflight_is_optional(conf, path, DEFAULT_ADMIN_SOCKET)) {
		log_warn("no admin socket at %s: %s; choose another path with "
			 "--admin-socket",
			path, err == ERR_EXISTS ? "in use" : strerror(errno));
		return 0;
	}
	preflight_admin_fault(conf, err == ERR_EXISTS ? 0 : errno, &errors);
	conf_log(&errors, LOG_LEVEL_ERROR);
	conf_errors_free(&errors);
	return err;
}

static int listen_metrics(struct control *c, const char *text, struct inherited *in)
{
	char printed[SOCK_ADDR_TEXT_MAX];
	union sock_addr a;
	socklen_t len = sizeof(a);
	uint16_t port;

	if (preflight_metrics_address(text, &a, &port) != 0)
		return ERR_IO;
	c->metrics_fd =
		inherit_claim(in, INHERIT_METRICS, text, &a, &c->is_metrics_stored);
	if (c->metrics_fd < 0) {
		if (port != 0 && listen_check_free(&a) != 0)
			return ERR_IO;
		if (sock_listen(&a, &c->metrics_fd) != 0)
			return ERR_IO;
	}
	if (getsockname(c->metrics_fd, &a.sa, &len) == 0) {
		sock_addr_text(&a, true, printed, sizeof(printed));
		log_notice("metrics on http://%s at /metrics", printed);
	}
	return 0;
}

static int open_metrics(struct control *c, const struct conf *conf, struct inherited *in)
{
	const char *text = conf->router.metrics_listen;
	struct conf_errors errors = {0};
	int err;

	if (text == NULL)
		return 0;
	err = listen_metrics(c, text, in);
	if (err == 0)
		return 0;
	if (preflight_is_optional(conf, text, DEFAULT_METRICS)) {
		log_warn("no metrics on %s: %m; choose another address with "
			 "--metrics-listen",
			text);
		return 0;
	}
	listen_fault(conf, "metrics_listen", text, errno, &errors);
	conf_log(&errors, LOG_LEVEL_ERROR);
	conf_errors_free(&errors);
	return err;
}

static int open_admin(struct control *c, const struct conf *conf, struct inherited *in)
{
	int err = open_admin_socket(c, conf, in);

	/* The predecessor's file stays its own until it hands over. */
	c->owns_admin_socket = c->admin_fd >= 0 && !c->has_admin_from_predecessor;
	return err == 0 ? open_metrics(c, conf, in) : err;
}

/* ---- clients ---- */

static void on_doubt(void *arg)
{
	struct control *c = arg;

	health_check_doubts(c->health);
}

/* On an I/O thread. Without memory the next turn of the worker's probe will see. */
static void tell_doubt(void *arg)
{
	struct control *c = arg;

	(void)!mailbox_post(c->mailbox, on_doubt, c);
}

static int open_clients(struct control *c, const struct conf *conf, struct inherited *in)
{
	struct listen_from from = {.inherited = in};
	struct conf_errors errors = {0};
	unsigned n = thread_count(&conf->router);

	if (listen_plan(&from, conf, n, &errors, &c->planned) != 0) {
		conf_log(&errors, LOG_LEVEL_ERROR);
		conf_errors_free(&errors);
		return ERR_IO;
	}
	c->process.responses = response_map_new(RESPONSE_MAP_MAX);
	if (c->process.responses == NULL)
		return ERR_NOMEM;
	c->process.tell_doubt = tell_doubt;
	c->process.tell_arg = c;
	c->threads = threads_start(n, &c->process, c->site);
	return c->threads != NULL ? 0 : ERR_NOMEM;
}

static void on_health_change(void *arg)
{
	struct control *c = arg;
	size_t i;

	/* A worker that came back may be what requests wait for. */
	for (i = 0; c->site != NULL && i < c->site->n_pools; i++)
		pool_serve(c->site->pools[i], clock_now_ms());
	service_changed(c->service);
}

static int open_site(struct control *c, struct conf *conf)
{
	const char *const *routes;
	unsigned n_routes;

	c->health = health_new(c->loop, on_health_change, c);
	if (c->health == NULL) {
		log_error(
			"health probes cannot start: out of memory or file descriptors");
		return ERR_NOMEM;
	}
	c->fleet_calls = fleet_calls_start(c);
	if (c->fleet_calls == NULL) {
		log_error("out of memory for calls to all workers");
		return ERR_NOMEM;
	}
	local_answers_start(health_models(c->health));
	routes = path_route_names(&n_routes);
	metric_set_routes(routes, n_routes);
	set_boot_secret(c, conf->router.hash_secret);
	c->site_opts.pool_ops = &roster_ops;
	c->site_opts.pool_arg = c;
	c->site_opts.now_ms = clock_now_ms();
	c->site = site_new(conf, NULL, &c->site_opts);
	return c->site != NULL ? 0 : ERR_NOMEM;
}

int boot_prepare(struct control *c, struct conf *conf, struct inherited *in)
{
	int err;

	c->admin_fd = c->metrics_fd = -1;
	log_set_level(conf->router.log_level);
	log_set_prefix(request_log_prefix);
	metric_thread_start();
	set_max_connections(c, conf);
	c->loop = loop_new();
	c->mailbox = c->loop != NULL ? mailbox_new(c->loop) : NULL;
	if (c->mailbox == NULL) {
		log_error(
			"the event loop cannot start: out of memory or file descriptors");
		return ERR_NOMEM;
	}
	c->started_ms = clock_now_ms();
	c->service = service_new(c);
	err = open_site(c, conf);
	if (err == 0)
		err = open_admin(c, conf, in);
	if (err == 0)
		err = open_clients(c, conf, in);
	return err;
}

int boot_open(struct control *c)
{
	c->admin = admin_new(c, c->admin_fd, c->metrics_fd);
	if (c->admin == NULL) {
		c->admin_fd = c->metrics_fd = -1;
		log_error("out of memory for the admin socket");
		return ERR_NOMEM;
	}
	c->owns_admin_socket = c->admin_fd >= 0;
	if (listen_prepare(NULL, c->planned, c->threads, 0) != 0) {
		/* The threads close what they have; the service manager keeps its
		 * copies. */
		listen_free(take_ptr(c->planned));
		log_error("out of memory for the listening sockets");
		return ERR_NOMEM;
	}
	listen_commit(&c->listening, take_ptr(c->planned), c->threads);
	return 0;
}

void boot_store(struct control *c)
{
	char name[INHERIT_NAME_MAX];

	listen_store(c->listening);
	if (c->metrics_fd < 0 || c->is_metrics_stored || !notify_is_on())
		return;
	inherit_name(INHERIT_METRICS, c->site->conf->router.metrics_listen, name);
	c->is_metrics_stored = notify_store(name, &c->metrics_fd, 1) == 0;
}

/* ---- down ---- */

static bool check_guards(void)
{
	int64_t taken = metric_total(METRIC_GUARDS_TAKEN);
	int64_t dropped = metric_total(METRIC_GUARDS_DROPPED);

	log_at(taken == dropped ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, NULL,
		"load slots %s: guards taken=%lld dropped=%lld",
		taken == dropped ? "are all given back" : "were lost", (long long)taken,
		(long long)dropped);
	return taken == dropped;
}

/* Closes sockets that were opened and not put into use. */
static void close_unused(struct control *c)
{
	listen_abandon(c->planned);
	if (c->admin != NULL)
		return;
	if (c->admin_fd >= 0)
		close(c->admin_fd);
	if (c->metrics_fd >= 0)
		close(c->metrics_fd);
}

bool boot_undo(struct control *c)
{
	bool is_balanced;

	service_end(c->service);
	threads_stop(take_ptr(c->threads));
	fleet_calls_stop(take_ptr(c->fleet_calls));
	response_map_free(take_ptr(c->process.responses));
	is_balanced = check_guards();
	upgrade_free(c);
	close_unused(c);
	admin_free(c->admin);
	if (c->owns_admin_socket)
		unlink(c->site->conf->router.admin_socket);
	listen_free(c->listening);
	site_retire(c->site, NULL);
	site_unref(c->site);
	health_free(c->health);
	service_free(c->service);
	mailbox_free(c->mailbox);
	loop_free(c->loop);
	return is_balanced;
}
