/*
 * The world of fuzz_conn.c. See conn_world.h.
 * Promises, each checked as it can be: a worker gets nothing that the scanner and the
 * parser alone would refuse; a client gets well-formed responses, cut ones with a reset,
 * and no byte that is marked for another; the queue to a client keeps within its marks;
 * all ends within ENDS_WITHIN_MS; guards taken are guards dropped, and every account is
 * back at nothing.
 */
#include "tests/fuzz/conn_world.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "conf/conf.h"
#include "http/http_head.h"
#include "io/loop.h"
#include "io/mailbox.h"
#include "io/sock.h"
#include "io/stream.h"
#include "pool/response_map.h"
#include "pool/site.h"
#include "proxy/cleanup.h"
#include "proxy/client.h"
#include "proxy/conn.h"
#include "proxy/io_thread.h"
#include "proxy/own_answer.h"
#include "proxy/upstream.h"
#include "tests/fuzz/conn_conf.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/http_feed.h"

#include <errno.h>
#include <fcntl.h>

#define START_MS 1000000u
#define ENDS_WITHIN_MS 100000u /* a request, with all its retries; and what follows it */
#define TURNS 3
#define SMALL_BUFFER 4608
#define HEARD_MAX (4u << 20) /* of one connection; what comes beyond is not looked at */
#define REQUESTS_MAX 64u     /* whose method is known, of one client connection */
#define QUEUED_MAX                                             \
	(STREAM_HIGH_BYTES + IO_SCRATCH_BYTES + IO_OUT_BYTES + \
		16384) /* one response more */

/* What one side said, read as messages. */
struct heard {
	char *buf;
	size_t len, cap;
	size_t shown; /* to the feed */
	struct feed feed;
	bool is_off;
};

struct end {
	int fd;        /* ours; -1: closed */
	int router_fd; /* -1: the router has closed it */
	bool reads, saw_end, was_reset;
	struct heard heard;
};

struct talker {
	struct end end;
	char mark[16];
	bool has_left; /* by FIN or reset */
	struct heard said;
	enum http_method methods[REQUESTS_MAX];
	unsigned n_asked, n_answered;
	bool is_answered; /* the next response has begun */
};

struct server {
	struct end end;
	bool hangs, fails_late;
	char mark[16];
};

static struct conf *confs[ARRAY_LEN(conf_texts)];
static struct process process;
static struct loop *loop;
static struct io_thread *io;
static struct site *site;
static struct talker talkers[WORLD_CLIENTS];
static struct server servers[WORLD_PEERS];
static unsigned n_servers, n_marks;
static enum world_connect connects;
static bool has_small_buffers, is_draining, keeps_listening, is_empty;
static uint64_t now_ms, secret_seed, swept_ms;
static int64_t guards_before;

/* ---- FUZZ_TELL=1: what happens, for whoever looks at a fault ---- */

static bool tells;

static void tell_bytes(const char *who, size_t number, const char *bytes, size_t n)
{
	if (!tells)
		return;
	fprintf(stderr, "%7u ms %s %zu: %zu bytes \"", (unsigned)(now_ms - START_MS), who,
		number, n);
	for (size_t i = 0; i < MIN(n, (size_t)400); i++)
		fprintf(stderr, bytes[i] >= ' ' && bytes[i] < 127 ? "%c" : "\\%02x",
			(unsigned char)bytes[i]);
	fprintf(stderr, "\"\n");
}

static void tell(const char *who, size_t number, const char *what)
{
	if (tells)
		fprintf(stderr, "%7u ms %s %zu %s\n", (unsigned)(now_ms - START_MS), who,
			number, what);
}

/* ---- what is heard ---- */

static void heard_start(struct heard *h, bool is_response, enum http_method m)
{
	h->len = h->shown = 0;
	h->is_off = false;
	feed_start(&h->feed, h->buf, is_response, m);
}

static void heard_free(struct heard *h)
{
	free(h->buf);
	*h = (struct heard){.buf = NULL};
}

/* What was read before is dropped between messages and within bodies. */
static void heard_add(struct heard *h, const char *bytes, size_t n)
{
	if (h->feed.pos > 0) {
		memmove(h->buf, h->buf + h->feed.pos, h->len - h->feed.pos);
		h->len -= h->feed.pos;
		h->shown -= MIN(h->shown, h->feed.pos);
		h->feed.pos = 0;
	}
	if (h->len + n > h->cap) {
		h->cap = MAX(2 * h->cap, h->len + n + 1024);
		h->buf = realloc(h->buf, h->cap);
		MUST(h->buf != NULL);
	}
	memcpy(h->buf + h->len, bytes, n);
	h->len += n;
	h->feed.buf = h->buf;
	if (h->len > HEARD_MAX)
		h->is_off = true;
}

/* Requests, a step at a time, so that each header is seen. True: there was one. */
static bool heard_step(struct heard *h)
{
	unsigned before = h->feed.heads;

	if (h->feed.at == FEED_LENGTH)
		h->shown = MIN((uint64_t)h->len, h->feed.pos + h->feed.left);
	else
		h->shown++;
	feed_run(&h->feed, h->shown);
	return h->feed.heads > before;
}

static bool heard_has_more(const struct heard *h)
{
	return h->shown < h->len && h->feed.at != FEED_OVER;
}

/* ---- wrapped ---- */

int __wrap_sock_connect(const union sock_addr *a, int *fd);
int __wrap_sock_connect_result(int fd);
int __real_sock_connect_result(int fd);
void __wrap_sock_abort_on_close(int fd);
void __wrap_rng_secret(void *out, size_t n);
int __real_stream_write(struct stream *s, const struct iovec *iov, int n);
int __wrap_stream_write(struct stream *s, const struct iovec *iov, int n);

/* Numbers of descriptors are used again: whose they were is forgotten. */
static void forget_number(int fd)
{
	for (unsigned i = 0; i < WORLD_CLIENTS; i++) {
		if (talkers[i].end.router_fd == fd)
			talkers[i].end.router_fd = -1;
	}
	for (unsigned i = 0; i < n_servers; i++) {
		if (servers[i].end.router_fd == fd)
			servers[i].end.router_fd = -1;
	}
}

static void make_pair(struct end *e)
{
	int fds[2], small = SMALL_BUFFER;

	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) ==
		0);
	forget_number(fds[0]);
	forget_number(fds[1]);
	if (has_small_buffers)
		MUST(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)) ==
			0);
	e->router_fd = fds[0];
	e->fd = fds[1];
	e->reads = true;
	e->saw_end = e->was_reset = false;
}

static struct server *server_of(int router_fd)
{
	for (unsigned i = n_servers; i-- > 0;) {
		if (servers[i].end.router_fd == router_fd && servers[i].end.fd >= 0)
			return &servers[i];
	}
	return NULL;
}

/* A connect is under way as long as the router's end takes nothing. */
static void fill(int fd)
{
	char bytes[4096] = {0};

	while (write(fd, bytes, sizeof(bytes)) > 0)
		;
}

static void drain_filling(struct server *s)
{
	char bytes[4096];

	while (s->hangs && read(s->end.fd, bytes, sizeof(bytes)) > 0)
		;
	s->hangs = false;
}

int __wrap_sock_connect(const union sock_addr *a UNUSED, int *fd)
{
	struct server *s = &servers[n_servers];

	if (connects == CONNECT_REFUSED || n_servers == WORLD_PEERS)
		return ERR_REFUSED;
	make_pair(&s->end);
	s->fails_late = connects == CONNECT_FAILS_LATE;
	s->hangs = connects == CONNECT_HANGS;
	s->mark[0] = '\0';
	if (s->hangs)
		fill(s->end.router_fd);
	heard_start(&s->end.heard, false, HTTP_GET);
	*fd = s->end.router_fd;
	n_servers++;
	return 0;
}

int __wrap_sock_connect_result(int fd)
{
	struct server *s = server_of(fd);

	if (s != NULL && s->fails_late)
		return ERR_REFUSED;
	return __real_sock_connect_result(fd);
}

/* A socket pair has no reset of this kind: it is noted. */
void __wrap_sock_abort_on_close(int fd)
{
	for (unsigned i = 0; i < WORLD_CLIENTS; i++) {
		if (talkers[i].end.router_fd == fd)
			talkers[i].end.was_reset = true;
	}
}

/* The same bytes in every run, so that an input does the same each time. */
void __wrap_rng_secret(void *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)out)[i] = (uint8_t)(secret_seed++ * 37 + 11);
}

static bool is_client(const struct stream *s)
{
	for (unsigned i = 0; i < WORLD_CLIENTS; i++) {
		if (talkers[i].end.router_fd == s->fd)
			return true;
	}
	return false;
}

int __wrap_stream_write(struct stream *s, const struct iovec *iov, int n)
{
	bool is_watched = s->fd >= 0 && is_client(s);
	int err = __real_stream_write(s, iov, n);

	if (is_watched)
		MUST(stream_queued(s) <= QUEUED_MAX);
	return err;
}

/* ---- the ends ---- */

static void end_close(struct end *e)
{
	if (e->fd >= 0)
		close(e->fd);
	e->fd = -1;
}

/* A reset of a socket pair: the end closes with bytes that it has not read. */
static void end_reset(struct end *e)
{
	end_close(e);
}

/* Returns the bytes; 0: none now, or the end was seen. */
static size_t end_read(struct end *e, char *bytes, size_t room)
{
	ssize_t n;

	if (e->fd < 0 || !e->reads || e->saw_end)
		return 0;
	n = read(e->fd, bytes, room);
	if (n > 0)
		return (size_t)n;
	if (n == 0 || errno != EAGAIN)
		e->saw_end = true;
	return 0;
}

/* ---- clients ---- */

/* No byte that is marked for another client. */
static void check_marks(const struct talker *k, const char *bytes, size_t n)
{
	const char *end = bytes + n, *at = bytes;
	size_t len = strlen(k->mark);

	while ((at = memmem(at, (size_t)(end - at), "Mk", 2)) != NULL) {
		if ((size_t)(end - at) < len)
			return;
		MUST(memcmp(at, k->mark, len) == 0);
		at += 2;
	}
}

/* False: nothing is there, or what is there answers no request, or one whose method is not
 * known. */
static bool start_answer(struct talker *k)
{
	struct heard *h = &k->end.heard;
	size_t pos = h->feed.pos;

	if (pos == h->len)
		return false;
	h->is_off = k->n_answered >= MIN(k->n_asked, REQUESTS_MAX);
	if (h->is_off)
		return false;
	feed_start(&h->feed, h->buf, true, k->methods[k->n_answered]);
	h->feed.pos = pos;
	return true;
}

static void read_answers(struct talker *k)
{
	struct heard *h = &k->end.heard;

	while (!h->is_off && (k->is_answered || start_answer(k))) {
		feed_run(&h->feed, h->len);
		MUST(h->feed.why == FAIL_NONE);
		k->is_answered = h->feed.messages == 0;
		if (k->is_answered)
			return;
		k->n_answered++;
	}
}

static void client_hears(struct talker *k, const char *bytes, size_t n)
{
	struct heard *h = &k->end.heard;

	tell_bytes("client hears", (size_t)(k - talkers), bytes, n);
	check_marks(k, bytes, n);
	if (h->is_off)
		return;
	heard_add(h, bytes, n);
	read_answers(k);
}

/* The router has ended it: without a reset there is no half header. A body that is cut
 * shows by its framing. */
static void check_client_end(const struct talker *k)
{
	const struct heard *h = &k->end.heard;

	if (k->has_left || h->is_off || k->end.was_reset)
		return;
	MUST(!k->is_answered || h->feed.at != FEED_HEAD);
}

static void client_leaves(struct talker *k)
{
	end_close(&k->end);
	heard_free(&k->end.heard);
	heard_free(&k->said);
}

static void client_reads(struct talker *k)
{
	char bytes[16384];
	size_t n;

	while ((n = end_read(&k->end, bytes, sizeof(bytes))) > 0)
		client_hears(k, bytes, n);
	if (k->end.fd >= 0 && k->end.saw_end) {
		tell("client", (size_t)(k - talkers),
			k->end.was_reset ? "is reset" : "sees the end");
		check_client_end(k);
		client_leaves(k);
	}
}

/* Late ones come only as long as a listener would be there. */
static bool may_connect(void)
{
	return !is_draining || keeps_listening;
}

static bool client_connect(struct talker *k)
{
	union sock_addr from;

	if (k->end.fd >= 0)
		return true;
	if (!may_connect())
		return false;
	make_pair(&k->end);
	k->has_left = false;
	k->n_asked = k->n_answered = 0;
	k->is_answered = false;
	snprintf(k->mark, sizeof(k->mark), "Mk%04uq", n_marks++ % 10000);
	heard_start(&k->said, false, HTTP_GET);
	heard_start(&k->end.heard, true, HTTP_GET);
	MUST(sock_addr_parse("10.1.0.1", 1, &from) == 0);
	atomic_fetch_add(&process.connections, 1);
	MUST(conn_open(io, k->end.router_fd, &from, false) == 0);
	return true;
}

/* The methods of what it asks, by the scanner alone. */
static void note_request(struct talker *k, const char *bytes, size_t n)
{
	struct heard *h = &k->said;

	if (h->is_off)
		return;
	heard_add(h, bytes, n);
	while (heard_has_more(h)) {
		if (heard_step(h) && k->n_asked < REQUESTS_MAX)
			k->methods[k->n_asked++] = h->feed.head.method;
	}
	h->is_off = h->feed.at == FEED_OVER;
}

static bool client_write(struct talker *k, const char *bytes, size_t n)
{
	ssize_t did = k->end.fd >= 0 && !k->has_left
			      ? send(k->end.fd, bytes, n, MSG_NOSIGNAL)
			      : -1;

	tell_bytes("client says", (size_t)(k - talkers), bytes, MAX(did, (ssize_t)0));
	if (did > 0)
		note_request(k, bytes, (size_t)did);
	return did == (ssize_t)n;
}

/* Its mark must not be spelled by a program, or it would be no proof. */
static bool spells_mark(struct span bytes, const char *own)
{
	const char *end = bytes.p + bytes.n, *at = bytes.p;
	size_t len = strlen(own);

	while ((at = memmem(at, (size_t)(end - at), "M", 1)) != NULL) {
		if ((size_t)(end - at) < 2)
			return true;
		if (at[1] == 'k' && (len == 0 || (size_t)(end - at) < len ||
					    memcmp(at, own, len) != 0))
			return true;
		at++;
	}
	return false;
}

void world_client_say(unsigned i, struct span bytes, size_t cut)
{
	struct talker *k = &talkers[i % WORLD_CLIENTS];

	if (!client_connect(k) || spells_mark(bytes, k->mark))
		return;
	cut = cut == 0 ? bytes.n : cut;
	for (size_t at = 0; at < bytes.n; at += cut) {
		if (!client_write(k, bytes.p + at, MIN(cut, bytes.n - at)))
			return;
		if (cut < bytes.n)
			world_turns();
	}
}

void world_client_fin(unsigned i)
{
	struct talker *k = &talkers[i % WORLD_CLIENTS];

	if (k->end.fd < 0)
		return;
	k->has_left = true;
	tell("client", i % WORLD_CLIENTS, "sends FIN");
	(void)shutdown(k->end.fd, SHUT_WR);
}

void world_client_reset(unsigned i)
{
	struct talker *k = &talkers[i % WORLD_CLIENTS];

	if (k->end.fd < 0)
		return;
	tell("client", i % WORLD_CLIENTS, "resets");
	end_reset(&k->end);
	client_leaves(k);
}

void world_client_reads(unsigned i, bool does)
{
	talkers[i % WORLD_CLIENTS].end.reads = does;
}

const char *world_client_mark(unsigned i)
{
	struct talker *k = &talkers[i % WORLD_CLIENTS];

	return client_connect(k) ? k->mark : "";
}

/* ---- workers ---- */

static void note_mark(struct server *s)
{
	const struct http_head *h = &s->end.heard.feed.head;
	const char *base = s->end.heard.buf + s->end.heard.feed.pos - h->head_len;
	const char *at = memmem(base, h->head_len, "Mk", 2);

	s->mark[0] = '\0';
	if (at != NULL && at + 7 <= base + h->head_len)
		snprintf(s->mark, sizeof(s->mark), "%.7s", at);
}

static void worker_hears(struct server *s, const char *bytes, size_t n)
{
	struct heard *h = &s->end.heard;

	tell_bytes("worker hears", (size_t)(s - servers), bytes, n);
	if (h->is_off)
		return;
	heard_add(h, bytes, n);
	while (heard_has_more(h)) {
		if (heard_step(h))
			note_mark(s);
	}
	MUST(h->feed.at != FEED_OVER || h->shown == h->len);
	MUST(h->feed.why == FAIL_NONE);
}

static void server_leaves(struct server *s)
{
	end_close(&s->end);
	heard_free(&s->end.heard);
}

static void worker_reads(struct server *s)
{
	char bytes[16384];
	size_t n;

	if (s->hangs)
		return;
	while ((n = end_read(&s->end, bytes, sizeof(bytes))) > 0)
		worker_hears(s, bytes, n);
	if (s->end.fd >= 0 && s->end.saw_end)
		tell("worker", (size_t)(s - servers), "sees the end");
	if (s->end.fd >= 0 && s->end.saw_end)
		server_leaves(s);
}

static struct server *newest(unsigned i)
{
	for (unsigned at = n_servers; at-- > 0;) {
		if (servers[at].end.fd >= 0 && i-- == 0)
			return &servers[at];
	}
	return NULL;
}

void world_worker_say(unsigned i, struct span bytes, size_t cut)
{
	struct server *s = newest(i);

	if (s == NULL || s->hangs || spells_mark(bytes, world_worker_mark(i)))
		return;
	tell_bytes("worker says", (size_t)(s - servers), bytes.p, bytes.n);
	cut = cut == 0 ? bytes.n : cut;
	for (size_t at = 0; at < bytes.n; at += cut) {
		size_t n = MIN(cut, bytes.n - at);

		if (s->end.fd < 0 ||
			send(s->end.fd, bytes.p + at, n, MSG_NOSIGNAL) != (ssize_t)n)
			return;
		if (cut < bytes.n)
			world_turns();
	}
}

void world_worker_fin(unsigned i)
{
	struct server *s = newest(i);

	if (s != NULL)
		tell("worker", (size_t)(s - servers), "sends FIN");
	if (s != NULL)
		(void)shutdown(s->end.fd, SHUT_WR);
}

void world_worker_reset(unsigned i)
{
	struct server *s = newest(i);

	if (s == NULL)
		return;
	tell("worker", (size_t)(s - servers), "resets");
	end_reset(&s->end);
	heard_free(&s->end.heard);
}

void world_worker_reads(unsigned i, bool does)
{
	struct server *s = newest(i);

	if (s != NULL)
		s->end.reads = does;
}

const char *world_worker_mark(unsigned i)
{
	struct server *s = newest(i);

	/* One that does not read knows of an earlier request at most. */
	return s != NULL && s->end.reads ? s->mark : "";
}

void world_connects(enum world_connect how)
{
	connects = how;
}

void world_connect_now(void)
{
	for (unsigned i = 0; i < n_servers; i++) {
		if (servers[i].end.fd >= 0)
			drain_filling(&servers[i]);
	}
}

/* The i-th of all pools. */
static struct worker *worker_at(unsigned i, struct pool **pool)
{
	for (size_t p = 0; p < site->n_pools; p++) {
		struct worker *w;

		for (size_t at = 0; (w = pool_worker_at(site->pools[p], at)) != NULL;
			at++) {
			*pool = site->pools[p];
			if (i-- == 0)
				return w;
		}
	}
	return NULL;
}

static void serve_all(const struct site *of)
{
	for (size_t i = 0; i < of->n_pools; i++)
		pool_serve(of->pools[i], now_ms);
}

void world_worker_state(unsigned i, unsigned state)
{
	struct pool *pool;
	struct worker *w = worker_at(i, &pool);

	if (w == NULL)
		return;
	if (state % 16 == 15)
		atomic_store(&w->is_draining, true);
	else if (state % 16 == 14)
		atomic_store(&w->is_draining, false);
	else
		atomic_store(&w->health, (int)(state % WORKER_STATE_MAX));
	serve_all(site);
}

/* ---- configurations, the end of the daemon ---- */

static void on_worker_add(void *arg UNUSED, struct pool *p UNUSED, struct worker *w)
{
	atomic_store(&w->health, WORKER_HEALTHY);
}

static void on_worker_remove(void *arg UNUSED, struct pool *p UNUSED, struct worker *w)
{
	response_map_forget(process.responses, w->host_id);
	if (io != NULL)
		upstream_idle_tidy(io->idle);
}

static const struct pool_ops pool_ops = {NULL, on_worker_add, on_worker_remove};

static struct site *new_site(unsigned conf, struct site *old)
{
	struct site_opts o = {
		.boot_secret = {1, 2}, .pool_ops = &pool_ops, .now_ms = now_ms};
	struct site *s = site_new(confs[conf % ARRAY_LEN(confs)], old, &o);
	struct worker *w;

	MUST(s != NULL);
	for (size_t p = 0; p < s->n_pools; p++) {
		pool_seed(s->pools[p], 1);
		for (size_t i = 0; (w = pool_worker_at(s->pools[p], i)) != NULL; i++)
			pool_set_engine(s->pools[p], w, SPAN_LIT("engine"));
	}
	return s;
}

void world_reload(unsigned conf)
{
	struct site *old = site;

	if (is_draining)
		return;
	site = new_site(conf, old);
	io_thread_set_site(io, site);
	site_retire(old, site);
	serve_all(old);
	site_unref(old);
}

static void on_empty(void *arg UNUSED)
{
	is_empty = true;
}

void world_drain(unsigned way)
{
	if (is_draining && keeps_listening) {
		if (!is_empty)
			return;
		keeps_listening = false;
		conn_drain_late(io);
		return;
	}
	keeps_listening = !is_draining && way % 3 == 2;
	io->on_last_conn = on_empty;
	atomic_store(&process.is_draining, true);
	conn_drain_all(io, !is_draining && way % 3 == 1, keeps_listening);
	is_draining = true;
}

void world_cut(void)
{
	if (!is_draining)
		return;
	keeps_listening = io->keeps_listening = false;
	conn_close_all(io);
}

/* ---- time ---- */

static void all_read(void)
{
	for (unsigned i = 0; i < WORLD_CLIENTS; i++)
		client_reads(&talkers[i]);
	for (unsigned i = 0; i < n_servers; i++)
		worker_reads(&servers[i]);
}

void world_turns(void)
{
	for (unsigned i = 0; i < TURNS; i++) {
		loop_turn(loop, 0);
		all_read();
	}
}

static void sweep(void)
{
	if (now_ms < swept_ms + 1000)
		return;
	swept_ms = now_ms;
	for (size_t i = 0; i < site->n_pools; i++)
		pool_sweep(site->pools[i], now_ms);
}

/* From one deadline to the next. */
void world_pass(uint64_t ms)
{
	uint64_t until_ms = now_ms + ms;

	do {
		uint64_t wake_ms = wheel_wake_ms(io->wheel);
		uint64_t least_ms = now_ms + MAX(ms / 32, (uint64_t)WHEEL_TICK_MS);

		now_ms = MAX(wake_ms, least_ms);
		now_ms = MIN(now_ms, until_ms);
		clock_set(now_ms);
		sweep();
		world_turns();
	} while (now_ms < until_ms);
}

/* ---- begin and end ---- */

/* The daemon's own answers are control's: here a short text, or none for want of memory. */
static int answer_local(void *arg UNUSED, struct io_thread *t UNUSED,
	const struct local_asked *asked, char **body, size_t *n)
{
	*body = strdup("{\"object\":\"list\",\"data\":[]}");
	MUST(*body != NULL);
	*n = strlen(*body);
	return asked->what == LOCAL_READINESS && atomic_load(&process.is_draining) ? 503
										   : 200;
}

void world_prepare(void)
{
	tells = getenv("FUZZ_TELL") != NULL;
	own_answer_set_local(answer_local, NULL);
	metric_thread_start();
	log_open(open("/dev/null", O_WRONLY | O_CLOEXEC), false);
	for (size_t i = 0; i < ARRAY_LEN(confs); i++)
		confs[i] = fuzz_conf(conf_texts[i]);
}

unsigned world_confs(void)
{
	return ARRAY_LEN(confs);
}

void world_begin(unsigned conf, bool small_buffers)
{
	now_ms = swept_ms = START_MS;
	clock_set(now_ms);
	secret_seed = n_marks = n_servers = 0;
	connects = CONNECT_WORKS;
	has_small_buffers = small_buffers;
	is_draining = keeps_listening = is_empty = false;
	guards_before = metric_total(METRIC_GUARDS_TAKEN);
	memset(&process, 0, sizeof(process));
	process.max_connections = 100;
	pthread_mutex_init(&process.dial_lock, NULL);
	LIST_INIT(&process.dial_lines);
	process.responses = response_map_new(64);
	loop = loop_new();
	site = new_site(conf, NULL);
	MUST(loop != NULL && process.responses != NULL);
	io = io_thread_new(0, loop, &process, site);
	MUST(io != NULL);
	io->mailbox = mailbox_new(loop);
	MUST(io->mailbox != NULL);
	for (unsigned i = 0; i < WORLD_CLIENTS; i++)
		talkers[i].end.fd = talkers[i].end.router_fd = -1;
}

static bool is_over(void)
{
	return io->n_conns == 0 && io->n_cleanups == 0 &&
	       atomic_load(&process.slots.taken) == 0;
}

static void check_accounts(void)
{
	struct pool *pool;
	struct worker *w;

	MUST(is_over());
	MUST(metric_total(METRIC_GUARDS_TAKEN) == metric_total(METRIC_GUARDS_DROPPED));
	MUST(metric_total(METRIC_QUEUE_DEPTH) == 0);
	MUST(atomic_load(&process.body_memory) == 0);
	MUST(atomic_load(&process.queued) == 0);
	MUST(atomic_load(&process.connections) == 0);
	for (unsigned i = 0; (w = worker_at(i, &pool)) != NULL; i++) {
		MUST(worker_load(w) == 0 && worker_streams(w) == 0);
		MUST(worker_queued_blocks(w) == 0);
		MUST(atomic_load(&w->relay.held) == 0);
		MUST(pool_waiting(pool) == 0);
	}
}

static bool is_open(int fd)
{
	return fd >= 0 && fcntl(fd, F_GETFD) >= 0;
}

/* Connections to workers are idle for upstream_idle at most. */
static void check_descriptors(void)
{
	world_pass(5000);
	for (unsigned i = 0; i < WORLD_CLIENTS; i++)
		MUST(!is_open(talkers[i].end.router_fd));
	for (unsigned i = 0; i < n_servers; i++)
		MUST(!is_open(servers[i].end.router_fd));
}

static void free_all(void)
{
	cleanup_cancel_all(io);
	loop_turn(loop, 0);
	loop_turn(loop, 0);
	mailbox_free(io->mailbox);
	io_thread_free(io);
	io = NULL;
	site_retire(site, NULL);
	site_unref(site);
	response_map_free(process.responses);
	loop_free(loop);
	for (unsigned i = 0; i < WORLD_CLIENTS; i++)
		client_leaves(&talkers[i]);
	for (unsigned i = 0; i < n_servers; i++)
		server_leaves(&servers[i]);
	pthread_mutex_destroy(&process.dial_lock);
}

/* Requests of one connection, which are answered one after another. */
static unsigned pipelined(void)
{
	unsigned most = 0;

	for (unsigned i = 0; i < WORLD_CLIENTS; i++)
		most = MAX(most, talkers[i].n_asked - talkers[i].n_answered);
	return most;
}

void world_end(void)
{
	uint64_t until_ms;

	world_turns();
	until_ms = now_ms + (1 + pipelined()) * (uint64_t)ENDS_WITHIN_MS;
	while (!is_over() && now_ms < until_ms)
		world_pass(1000);
	check_accounts();
	check_descriptors();
	free_all();
}
