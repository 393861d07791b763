/*
 * Calls of the admin API, over a socket, and the state that a process leaves to its
 * successor. The first byte chooses: 0 is such a state; any other a call, with the rest
 * of its path up to a line feed, and its body behind. What must hold: each call is
 * answered with JSON, by a well-formed response; what was taken over from a state is
 * written again as the same state.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "control/admin.h"
#include "control/control.h"
#include "control/upgrade_state.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/sock.h"
#include "pool/response_map.h"
#include "pool/site.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/http_feed.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/un.h>

#define TURNS 50
#define ROOM (1u << 20)

static const char text[] =
	"[pool default]\nindex_memory = 65536\n"
	"[pool split]\nindex_memory = 65536\nkv_connector = nixl\n"
	"[worker w0]\nurl = http://127.0.0.1:1\n[worker w1]\nurl = http://127.0.0.1:2\n"
	"[worker p0]\nurl = http://127.0.0.1:3\nrole = prefill\npool = split\n"
	"[worker d0]\nurl = http://127.0.0.1:4\nrole = decode\npool = split\n";

/* Reload, upgrade, status and metrics need the whole daemon. */
static const char *const calls[] = {
	"GET /admin/v1/workers",
	"POST /admin/v1/workers",
	"GET /admin/v1/workers/",
	"DELETE /admin/v1/workers/",
	"POST /admin/v1/workers/",
	"GET /admin/v1/tenants",
	"POST /admin/v1/explain",
	"POST /admin/v1/finish_session",
	"POST /admin/v1/pools/",
	"POST /admin/v1/log_level",
	"GET /admin/v1/config",
	"POST /admin/v1/workers/w0/",
	"DELETE /admin/v1/workers/w1",
	"POST /admin/v1/pools/split/",
};

static struct conf *conf;
static struct control control;
static int listen_fd;
static union sock_addr address;

struct fetch *__wrap_fetch_start(void);
struct fetch *__wrap_fetch_start(void)
{
	return NULL; /* no worker is asked anything */
}

static void on_worker(void *arg UNUSED, struct pool *p UNUSED, struct worker *w)
{
	atomic_store(&w->health, WORKER_HEALTHY);
}

static void on_leave(void *arg UNUSED, struct pool *p UNUSED, struct worker *w UNUSED)
{
}

static const struct pool_ops pool_ops = {NULL, on_worker, on_leave};

static struct site *new_site(void)
{
	struct site_opts o = {
		.boot_secret = {1, 2}, .pool_ops = &pool_ops, .now_ms = clock_now_ms()};
	struct site *s = site_new(conf, NULL, &o);

	MUST(s != NULL);
	return s;
}

static void free_site(struct site *s)
{
	site_retire(s, NULL);
	site_unref(s);
}

int LLVMFuzzerInitialize(int *argc UNUSED, char ***argv UNUSED)
{
	struct sockaddr_un *un = (struct sockaddr_un *)(void *)&address.storage;
	socklen_t n = sizeof(address);

	signal(SIGPIPE, SIG_IGN);
	metric_thread_start();
	log_open(open("/dev/null", O_WRONLY | O_CLOEXEC), false);
	conf = fuzz_conf(text);
	/* A name that the kernel chooses. */
	listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	un->sun_family = AF_UNIX;
	MUST(bind(listen_fd, &address.sa, sizeof(sa_family_t)) == 0);
	MUST(listen(listen_fd, 8) == 0);
	MUST(getsockname(listen_fd, &address.sa, &n) == 0);
	control.admin_fd = (int)n; /* the length of the address, until the first call */
	return 0;
}

/* ---- calls ---- */

static size_t write_call(char *out, const char *call, const char *p, size_t n)
{
	const char *feed = memchr(p, '\n', n);
	size_t path = feed != NULL ? MIN((size_t)(feed - p), (size_t)512) : 0;
	size_t body = feed != NULL ? n - (size_t)(feed - p) - 1 : n;
	size_t len = (size_t)sprintf(out, "%s", call);

	for (size_t i = 0; i < path; i++) {
		if (isgraph((unsigned char)p[i]))
			out[len++] = p[i];
	}
	len += (size_t)sprintf(out + len,
		" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
		"%zu\r\n\r\n",
		body);
	memcpy(out + len, p + n - body, body);
	return len + body;
}

static void check_answer(char *answer, size_t n)
{
	static struct feed f;
	const char *body = memmem(answer, n, "\r\n\r\n", 4), *why;
	struct js *doc;

	feed_start(&f, answer, true, HTTP_POST);
	feed_run(&f, n);
	MUST(f.why == FAIL_NONE && f.messages == 1 && f.pos == n && body != NULL);
	if (memmem(answer, n, "application/json", 16) == NULL || f.body_bytes == 0)
		return;
	doc = js_parse(span_make(body + 4, f.body_bytes), &why);
	MUST(doc != NULL);
	js_free(doc);
}

static void ask(const char *request, size_t n, socklen_t address_len)
{
	static char answer[ROOM];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	size_t sent = 0, got = 0;
	ssize_t did = 1;

	MUST(connect(fd, &address.sa, address_len) == 0);
	for (unsigned i = 0; i < TURNS && did != 0; i++) {
		did = send(fd, request + sent, n - sent, MSG_NOSIGNAL);
		sent += did > 0 ? (size_t)did : 0;
		loop_turn(control.loop, 0);
		did = read(fd, answer + got, sizeof(answer) - got);
		MUST(did >= 0 || errno == EAGAIN);
		got += did > 0 ? (size_t)did : 0;
	}
	MUST(got > 0);
	check_answer(answer, got);
	close(fd);
}

static void try_call(const char *call, const char *p, size_t n)
{
	static socklen_t address_len;
	char *request = malloc(n + 1024);
	struct admin *admin;

	if (address_len == 0)
		address_len = (socklen_t)control.admin_fd;
	MUST(request != NULL);
	clock_set(1000000);
	control.loop = loop_new();
	control.site = new_site();
	admin = admin_new(&control, dup(listen_fd), -1);
	MUST(admin != NULL);
	ask(request, write_call(request, call, p, n), address_len);
	admin_free(admin);
	loop_turn(control.loop, 0);
	loop_turn(control.loop, 0);
	free_site(control.site);
	loop_free(control.loop);
	log_set_level(LOG_LEVEL_ERROR);
	free(request);
}

/* ---- states ---- */

static struct js *saved(const struct site *site)
{
	int fd = upgrade_state_save(site);
	struct js *state;

	MUST(fd >= 0);
	state = upgrade_state_load(fd);
	MUST(state != NULL);
	close(fd);
	return state;
}

static struct js *take_over(const struct js *state)
{
	struct site *site = new_site();
	const char *lacking;
	struct js *now;

	upgrade_state_apply(state, site);
	(void)upgrade_state_is_reached(state, site, &lacking);
	now = saved(site);
	free_site(site);
	return now;
}

static void try_state(const char *p, size_t n)
{
	int fd = fuzz_file(p, n);
	struct js *state = upgrade_state_load(fd), *first, *second;
	char *a, *b;

	close(fd);
	if (state == NULL)
		return;
	first = take_over(state);
	second = take_over(first);
	a = js_print(first, false);
	b = js_print(second, false);
	MUST(a != NULL && b != NULL && strcmp(a, b) == 0);
	free(a);
	free(b);
	js_free(state);
	js_free(first);
	js_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	size_t n = size - 1;
	char *p;

	if (size == 0 || size > 65536)
		return 0;
	p = fuzz_copy((const char *)bytes + 1, n);
	if (bytes[0] == 0)
		try_state(p, n);
	else
		try_call(calls[bytes[0] % ARRAY_LEN(calls)], p, n);
	free(p);
	return 0;
}
