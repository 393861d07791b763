/*
 * HTTP requests by libcurl: one multi handle a loop, driven by libevent events; or one
 * easy handle, blocking. Always true: a fetch is in `running` (and in the multi handle),
 * in `finished` (taken out, its callback to come), or gone; callbacks run outside of
 * libcurl only, so they may start and cancel. Each request has a connection of its own:
 * nothing is reused, no proxy, no redirect, no cookie. Used by health, discovery,
 * kvsteerctl.
 */
#include "io/fetch.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/mem.h"
#include "io/loop.h"

#include <curl/curl.h>
#include <event2/event.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD_BYTES_MAX 65536

LIST_HEAD(fetch_list, fetch);

struct fetcher {
	struct loop *loop;
	CURLM *multi;
	struct event *timer;
	struct fetch_list running, finished;
	struct reap reap;
};

struct fetch {
	LIST_ENTRY(fetch) link;
	struct fetcher *fetcher; /* NULL: blocking */
	CURL *easy;
	struct curl_slist *headers;
	fetch_done_fn *fn;
	void *arg;
	CURLcode code; /* once finished */
	size_t max_body, head_bytes;
	bool is_too_big, head_is_enough, is_out_of_memory, cuts_body, is_cut;
	char *body;
	size_t body_bytes, body_cap;
	char error[CURL_ERROR_SIZE];
};

const char *fetch_result_text(enum fetch_result r)
{
	static const char *const texts[] = {
		[FETCH_OK] = "ok",
		[FETCH_REFUSED] = "connection refused",
		[FETCH_TIMEOUT] = "timed out",
		[FETCH_RESOLVE] = "name cannot be resolved",
		[FETCH_TOO_BIG] = "answer too big",
		[FETCH_PROTOCOL] = "not valid HTTP",
		[FETCH_TLS] = "TLS error",
		[FETCH_ERROR] = "failed",
	};

	return (size_t)r < ARRAY_LEN(texts) ? texts[r] : "unknown";
}

static void init_curl(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
}

static void init_curl_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init_curl);
}

/* libcurl's write callback: what is not n ends the transfer. */
static size_t on_body(char *p, size_t size, size_t count, void *arg)
{
	struct fetch *f = arg;
	size_t n = size * count;

	if (n > f->max_body - f->body_bytes) {
		f->is_too_big = !f->cuts_body;
		f->is_cut = f->cuts_body;
		if (f->is_too_big)
			return 0;
		n = f->max_body - f->body_bytes;
	}
	if (mem_grow(&f->body, &f->body_cap, f->body_bytes + n + 1, 1) != 0) {
		f->is_out_of_memory = true;
		return 0;
	}
	memcpy(f->body + f->body_bytes, p, n);
	f->body_bytes += n;
	f->body[f->body_bytes] = '\0';
	return f->is_cut ? 0 : n;
}

static bool is_empty_line(const char *p, size_t n)
{
	return (n == 2 && p[0] == '\r' && p[1] == '\n') || (n == 1 && p[0] == '\n');
}

/* libcurl's header callback: one line each call, interim heads and trailers too. */
static size_t on_head_line(char *p, size_t size, size_t count, void *arg)
{
	struct fetch *f = arg;
	size_t n = size * count;
	long status = 0;

	f->head_bytes += n;
	if (f->head_bytes > HEAD_BYTES_MAX) {
		f->is_too_big = true;
		return 0;
	}
	if (f->max_body > 0 || !is_empty_line(p, n))
		return n;
	curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
	f->head_is_enough = status >= 200;
	return f->head_is_enough ? 0 : n;
}

static bool add_header(struct fetch *f, const char *line)
{
	struct curl_slist *longer = curl_slist_append(f->headers, line);

	if (longer == NULL)
		return false;
	f->headers = longer;
	return true;
}

static bool add_headers(struct fetch *f, const struct fetch_request *req)
{
	bool has_type = false;

	for (const char *const *h = req->headers; h != NULL && *h != NULL; h++) {
		has_type |= strncasecmp(*h, "Content-Type:", 13) == 0;
		if (!add_header(f, *h))
			return false;
	}
	if (!has_type && !add_header(f, req->body.n > 0 ? "Content-Type: application/json"
							: "Content-Type:"))
		return false;
	/* no 100-continue, which libcurl would wait for */
	return add_header(f, "Expect:") &&
	       curl_easy_setopt(f->easy, CURLOPT_HTTPHEADER, f->headers) == CURLE_OK;
}

static bool has_body_method(const char *method)
{
	return strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 ||
	       strcmp(method, "PATCH") == 0;
}

static bool set_method(struct fetch *f, const struct fetch_request *req)
{
	const char *method = req->method != NULL ? req->method : "GET";
	CURLcode code;

	if (strcmp(method, "HEAD") == 0)
		return curl_easy_setopt(f->easy, CURLOPT_NOBODY, 1L) == CURLE_OK;
	if (req->body.n > 0 || has_body_method(method)) {
		code = curl_easy_setopt(
			f->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)req->body.n);
		if (code == CURLE_OK)
			code = curl_easy_setopt(f->easy,
				req->body_stays ? CURLOPT_POSTFIELDS
						: CURLOPT_COPYPOSTFIELDS,
				req->body.n > 0 ? req->body.p : "");
		if (code != CURLE_OK)
			return false;
	}
	return curl_easy_setopt(f->easy, CURLOPT_CUSTOMREQUEST, method) == CURLE_OK;
}

static bool set_tls(struct fetch *f, const struct fetch_request *req)
{
	long verify = req->tls_unverified ? 0L : 1L;

	return curl_easy_setopt(f->easy, CURLOPT_SSL_VERIFYPEER, verify) == CURLE_OK &&
	       curl_easy_setopt(f->easy, CURLOPT_SSL_VERIFYHOST, 2 * verify) ==
		       CURLE_OK &&
	       (req->tls_ca == NULL || curl_easy_setopt(f->easy, CURLOPT_CAINFO,
					       req->tls_ca) == CURLE_OK);
}

/* The options that are the same for every request. Only PROXY and the protocols among
 * them can fail for lack of memory. */
static bool set_habits(struct fetch *f)
{
	CURL *e = f->easy;

	curl_easy_setopt(e, CURLOPT_PRIVATE, f);
	curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(e, CURLOPT_WRITEDATA, f);
	curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_head_line);
	curl_easy_setopt(e, CURLOPT_HEADERDATA, f);
	curl_easy_setopt(e, CURLOPT_ERRORBUFFER, f->error);
	curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L);
	curl_easy_setopt(e, CURLOPT_FORBID_REUSE, 1L);
	curl_easy_setopt(e, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
#if CURL_AT_LEAST_VERSION(7, 87, 0)
	/* cancelling does not wait for a look-up in libcurl's thread */
	curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);
#endif
#if CURL_AT_LEAST_VERSION(7, 85, 0)
	if (curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") != CURLE_OK)
		return false;
#else
	curl_easy_setopt(e, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	return curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
	       curl_easy_setopt(e, CURLOPT_USERAGENT, "kvsteer/" KVSTEER_VERSION) ==
		       CURLE_OK;
}

static bool set_request(struct fetch *f, const struct fetch_request *req)
{
	f->max_body = req->max_body;
	f->cuts_body = req->cuts_body;
	curl_easy_setopt(f->easy, CURLOPT_TIMEOUT_MS,
		(long)MIN(req->timeout_ms, (uint64_t)INT32_MAX));
	curl_easy_setopt(f->easy, CURLOPT_CONNECTTIMEOUT_MS,
		(long)MIN(req->connect_timeout_ms, (uint64_t)INT32_MAX));
	return set_habits(f) &&
	       curl_easy_setopt(f->easy, CURLOPT_URL, req->url) == CURLE_OK &&
	       (req->unix_socket == NULL ||
		       curl_easy_setopt(f->easy, CURLOPT_UNIX_SOCKET_PATH,
			       req->unix_socket) == CURLE_OK) &&
	       set_method(f, req) && add_headers(f, req) && set_tls(f, req);
}

static void free_fetch(struct fetch *f)
{
	if (f->easy != NULL)
		curl_easy_cleanup(f->easy);
	curl_slist_free_all(f->headers);
	free(f->body);
	free(f);
}

/* NULL: out of memory. */
static struct fetch *new_fetch(const struct fetch_request *req)
{
	struct fetch *f = calloc(1, sizeof(*f));

	if (f == NULL)
		return NULL;
	f->easy = curl_easy_init();
	if (f->easy != NULL && set_request(f, req))
		return f;
	free_fetch(f);
	return NULL;
}

static enum fetch_result judge_code(const struct fetch *f)
{
	switch (f->code) {
	case CURLE_OK:
		return FETCH_OK;
	case CURLE_COULDNT_CONNECT:
		return FETCH_REFUSED;
	case CURLE_OPERATION_TIMEDOUT:
		return FETCH_TIMEOUT;
	case CURLE_COULDNT_RESOLVE_HOST:
		return FETCH_RESOLVE;
	case CURLE_GOT_NOTHING:
	case CURLE_PARTIAL_FILE:
	case CURLE_WEIRD_SERVER_REPLY:
	case CURLE_UNSUPPORTED_PROTOCOL: /* how libcurl refuses HTTP/0.9 */
	case CURLE_BAD_CONTENT_ENCODING:
		return FETCH_PROTOCOL;
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_CIPHER:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
	case CURLE_SSL_INVALIDCERTSTATUS:
		return FETCH_TLS;
	default:
		return FETCH_ERROR;
	}
}

static enum fetch_result judge(const struct fetch *f)
{
	if (f->is_too_big)
		return FETCH_TOO_BIG;
	if (f->is_out_of_memory)
		return FETCH_ERROR;
	if (f->head_is_enough || f->is_cut)
		return FETCH_OK;
	return judge_code(f);
}

static const char *explain(const struct fetch *f, enum fetch_result r)
{
	if (r == FETCH_OK)
		return "";
	if (r == FETCH_TOO_BIG)
		return fetch_result_text(r);
	if (f->is_out_of_memory)
		return "out of memory";
	return f->error[0] != '\0' ? f->error : curl_easy_strerror(f->code);
}

static void fill_answer(struct fetch *f, struct fetch_answer *a)
{
	long status = 0;

	memset(a, 0, sizeof(*a));
	a->result = judge(f);
	snprintf(a->error, sizeof(a->error), "%s", explain(f, a->result));
	if (a->result != FETCH_OK)
		return;
	curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
	a->status = (int)status;
	a->body = span_make(f->body, f->body_bytes);
	a->is_cut = f->is_cut;
}

/* Takes what libcurl is done with out of it, then calls back, first come first. */
static void finish_all(struct fetcher *r)
{
	struct fetch *f, *last = NULL;
	struct fetch_answer a;
	CURLMsg *m;
	int left;

	while ((m = curl_multi_info_read(r->multi, &left)) != NULL) {
		if (m->msg != CURLMSG_DONE)
			continue;
		f = NULL;
		curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&f);
		f->code = m->data.result;
		curl_multi_remove_handle(r->multi, f->easy);
		LIST_REMOVE(f, link);
		if (last != NULL)
			LIST_INSERT_AFTER(last, f, link);
		else
			LIST_INSERT_HEAD(&r->finished, f, link);
		last = f;
	}
	while ((f = LIST_FIRST(&r->finished)) != NULL) {
		LIST_REMOVE(f, link);
		fill_answer(f, &a);
		f->fn(f->arg, &a);
		free_fetch(f);
	}
}

static void act(struct fetcher *r, curl_socket_t fd, int what)
{
	int running;

	clock_update();
	curl_multi_socket_action(r->multi, fd, what, &running);
	finish_all(r);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	act(arg, CURL_SOCKET_TIMEOUT, 0);
}

/*
 * A socket of libcurl's that it wants watched. We watch a duplicate: libcurl closes some
 * (those that never connected) before it says that it is done with them, and by then the
 * number may belong to a socket of another thread.
 */
struct socket_watch {
	struct fetcher *fetcher;
	curl_socket_t fd;
	int own_fd;
	struct event *ev;
};

static void on_socket(evutil_socket_t own_fd, short what, void *arg)
{
	struct socket_watch *w = arg;
	int curl_what = 0;

	(void)own_fd;
	if (what & EV_READ)
		curl_what |= CURL_CSELECT_IN;
	if (what & EV_WRITE)
		curl_what |= CURL_CSELECT_OUT;
	act(w->fetcher, w->fd, curl_what);
}

static void unwatch(struct socket_watch *w)
{
	if (w == NULL)
		return;
	if (w->ev != NULL)
		event_free(w->ev);
	if (w->own_fd >= 0)
		close(w->own_fd);
	free(w);
}

static struct socket_watch *watch(struct fetcher *r, curl_socket_t fd, short what)
{
	struct socket_watch *w = calloc(1, sizeof(*w));

	if (w == NULL)
		return NULL;
	w->fetcher = r;
	w->fd = fd;
	w->own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (w->own_fd >= 0)
		w->ev = event_new(loop_base(r->loop), w->own_fd, what, on_socket, w);
	if (w->ev == NULL || event_add(w->ev, NULL) != 0) {
		unwatch(w);
		return NULL;
	}
	return w;
}

/* libcurl says what it wants to know of a socket. */
static int set_socket(CURL *easy, curl_socket_t fd, int wanted, void *arg, void *old)
{
	struct fetcher *r = arg;
	short what = EV_PERSIST;

	(void)easy;
	unwatch(old);
	curl_multi_assign(r->multi, fd, NULL);
	if (wanted == CURL_POLL_REMOVE)
		return 0;
	if (wanted & CURL_POLL_IN)
		what |= EV_READ;
	if (wanted & CURL_POLL_OUT)
		what |= EV_WRITE;
	/* unwatched for want of memory or descriptors, the fetch runs into its timeout */
	curl_multi_assign(r->multi, fd, watch(r, fd, what));
	return 0;
}

/* libcurl says when it wants to be called; -1: no more. */
static int set_timer(CURLM *multi, long timeout_ms, void *arg)
{
	struct fetcher *r = arg;
	struct timeval tv = {
		.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};

	(void)multi;
	if (timeout_ms < 0)
		event_del(r->timer);
	else
		(void)event_add(r->timer, &tv);
	return 0;
}

struct fetcher *fetcher_new(struct loop *l)
{
	struct fetcher *r = calloc(1, sizeof(*r));

	if (r == NULL)
		return NULL;
	init_curl_once();
	LIST_INIT(&r->running);
	LIST_INIT(&r->finished);
	r->loop = l;
	r->timer = event_new(loop_base(l), -1, 0, on_timer, r);
	r->multi = curl_multi_init();
	if (r->timer == NULL || r->multi == NULL) {
		if (r->timer != NULL)
			event_free(r->timer);
		free(r);
		return NULL;
	}
	curl_multi_setopt(r->multi, CURLMOPT_SOCKETFUNCTION, set_socket);
	curl_multi_setopt(r->multi, CURLMOPT_SOCKETDATA, r);
	curl_multi_setopt(r->multi, CURLMOPT_TIMERFUNCTION, set_timer);
	curl_multi_setopt(r->multi, CURLMOPT_TIMERDATA, r);
	return r;
}

static void destroy_fetcher(struct reap *r)
{
	free(container_of(r, struct fetcher, reap));
}

void fetcher_free(struct fetcher *r)
{
	struct fetch *f;

	if (r == NULL)
		return;
	while ((f = LIST_FIRST(&r->running)) != NULL ||
		(f = LIST_FIRST(&r->finished)) != NULL)
		fetch_cancel(f);
	curl_multi_cleanup(r->multi);
	event_free(r->timer);
	loop_reap(r->loop, &r->reap, destroy_fetcher); /* finish_all() may be at work */
}

struct fetch *fetch_start(
	struct fetcher *r, const struct fetch_request *req, fetch_done_fn *fn, void *arg)
{
	struct fetch *f = new_fetch(req);

	if (f == NULL)
		return NULL;
	f->fetcher = r;
	f->fn = fn;
	f->arg = arg;
	LIST_INSERT_HEAD(&r->running, f, link);
	if (curl_multi_add_handle(r->multi, f->easy) == CURLM_OK)
		return f;
	LIST_REMOVE(f, link);
	free_fetch(f);
	return NULL;
}

void fetch_cancel(struct fetch *f)
{
	LIST_REMOVE(f, link);
	curl_multi_remove_handle(f->fetcher->multi, f->easy); /* harmless once finished */
	free_fetch(f);
}

void fetch_blocking(const struct fetch_request *req, struct fetch_answer *a)
{
	struct fetch *f;

	init_curl_once();
	f = new_fetch(req);
	if (f == NULL) {
		memset(a, 0, sizeof(*a));
		a->result = FETCH_ERROR;
		snprintf(a->error, sizeof(a->error), "out of memory");
		return;
	}
	f->code = curl_easy_perform(f->easy);
	fill_answer(f, a);
	if (a->body.p != NULL)
		f->body = NULL; /* the caller's now */
	free_fetch(f);
}
