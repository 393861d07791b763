/*
 * Fetches against a small scripted server on a thread of its own: answers, caps,
 * deadlines, what is refused, cancelling, unix sockets.
 */
#include "base/err.h"
#include "io/fetch.h"
#include "tests/unit/unit_loop.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

enum { BIG = 1 << 20 };

/* What the server says to a path, and whether it then keeps the connection open until the
 * client leaves. */
struct row {
	const char *path, *says;
	bool hangs;
};

#define HEAD_200 "HTTP/1.1 200 OK\r\n"

static const struct row rows[] = {
	{"/ok", HEAD_200 "Content-Length: 5\r\n\r\nhello", true},
	{"/empty", HEAD_200 "Content-Length: 0\r\n\r\n", true},
	{"/chunked",
		HEAD_200
		"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
		true},
	{"/until-close", "HTTP/1.0 200 OK\r\n\r\nto the end", false},
	{"/404", "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", true},
	{"/redirect", "HTTP/1.1 302 Found\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n",
		true},
	{"/cookie", HEAD_200 "Set-Cookie: a=b\r\nContent-Length: 0\r\n\r\n", true},
	{"/hang", "", true},
	{"/close", "", false},
	{"/head-then-hang", HEAD_200 "Content-Length: 5\r\n\r\n", true},
	{"/interim-then-hang",
		"HTTP/1.1 100 Continue\r\n\r\n" HEAD_200 "Content-Length: 5\r\n\r\n",
		true},
	{"/partial", HEAD_200 "Content-Length: 10\r\n\r\nhello", false},
	{"/garbage", "hello world\n", false},
	{"/garbage-hang", "\x16\x03\x01 nothing HTTP\r\n\r\n", true},
};

struct server {
	int listener;
	union sock_addr addr;
	pthread_t thread;
	pthread_mutex_t lock; /* guards what follows */
	char request[8192];
	unsigned connections, left;
};

static struct loop *loop;
static struct fetcher *fetcher;
static struct server server;

/* The head, and as much body as the client sends at once with Content-Length. */
static size_t read_request(int fd, char *text, size_t cap)
{
	size_t n = 0, want = 0;

	while (n < cap - 1) {
		ssize_t got = recv(fd, text + n, cap - 1 - n, 0);
		char *end, *length;

		if (got <= 0)
			break;
		n += (size_t)got;
		text[n] = '\0';
		end = strstr(text, "\r\n\r\n");
		if (end == NULL)
			continue;
		length = strstr(text, "Content-Length: ");
		want = (size_t)(end + 4 - text);
		if (length != NULL)
			want += strtoul(length + 16, NULL, 10);
		if (n >= want)
			break;
	}
	text[n] = '\0';
	return n;
}

static void send_text(int fd, const char *text, size_t n)
{
	while (n > 0) {
		ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);

		if (sent <= 0)
			return;
		text += sent;
		n -= (size_t)sent;
	}
}

static void send_big(int fd, bool as_head)
{
	static char filler[16384];
	static const char body_head[] = HEAD_200 "Content-Length: 1048576\r\n\r\n";

	memset(filler, 'x', sizeof(filler));
	if (as_head) {
		memcpy(filler, "\r\nX-Filler: ", 12);
		send_text(fd, HEAD_200 "X-First: 1", strlen(HEAD_200 "X-First: 1"));
	} else {
		send_text(fd, body_head, strlen(body_head));
	}
	for (size_t i = 0; i < BIG / sizeof(filler); i++)
		send_text(fd, filler, sizeof(filler));
}

static bool asks_for(const char *request, const char *path)
{
	const char *at = strchr(request, ' ');

	return at != NULL && strncmp(at + 1, path, strlen(path)) == 0 &&
	       at[1 + strlen(path)] == ' ';
}

static void serve(int fd)
{
	char text[sizeof(server.request)], byte;

	if (read_request(fd, text, sizeof(text)) == 0)
		return;
	pthread_mutex_lock(&server.lock);
	memcpy(server.request, text, sizeof(text));
	server.connections++;
	pthread_mutex_unlock(&server.lock);
	if (asks_for(text, "/big") || asks_for(text, "/big-head"))
		send_big(fd, asks_for(text, "/big-head"));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (asks_for(text, rows[i].path)) {
			send_text(fd, rows[i].says, strlen(rows[i].says));
			if (rows[i].hangs)
				while (recv(fd, &byte, 1, 0) > 0)
					;
		}
}

struct visit {
	pthread_t thread;
	int fd;
};

static void *run_visit(void *arg)
{
	struct visit *v = arg;

	serve(v->fd);
	close(v->fd);
	pthread_mutex_lock(&server.lock);
	server.left++;
	pthread_mutex_unlock(&server.lock);
	return NULL;
}

static void *run_server(void *arg)
{
	struct visit visits[64];
	size_t n = 0;

	(void)arg;
	while (n < ARRAY_LEN(visits)) {
		visits[n].fd = accept(server.listener, NULL, NULL);
		if (visits[n].fd < 0 || pthread_create(&visits[n].thread, NULL, run_visit,
						&visits[n]) != 0)
			break;
		n++;
	}
	while (n-- > 0)
		pthread_join(visits[n].thread, NULL);
	return NULL;
}

static void start_server(int listener)
{
	server.listener = listener;
	server.connections = server.left = 0;
	server.request[0] = '\0';
	pthread_mutex_init(&server.lock, NULL);
	ck_assert_int_eq(fcntl(listener, F_SETFL, 0), 0);
	ck_assert_int_eq(pthread_create(&server.thread, NULL, run_server, NULL), 0);
}

static void stop_server(void)
{
	shutdown(server.listener, SHUT_RDWR);
	pthread_join(server.thread, NULL);
	close(server.listener);
	pthread_mutex_destroy(&server.lock);
}

static void setup(void)
{
	loop = loop_new();
	fetcher = fetcher_new(loop);
	ck_assert_ptr_nonnull(fetcher);
	start_server(listen_any(&server.addr));
}

static void teardown(void)
{
	fetcher_free(fetcher);
	stop_server();
	loop_free(loop);
}

static unsigned connections(void)
{
	unsigned n;

	pthread_mutex_lock(&server.lock);
	n = server.connections;
	pthread_mutex_unlock(&server.lock);
	return n;
}

static unsigned left(void)
{
	unsigned n;

	pthread_mutex_lock(&server.lock);
	n = server.left;
	pthread_mutex_unlock(&server.lock);
	return n;
}

static bool was_sent(const char *text)
{
	bool was;

	pthread_mutex_lock(&server.lock);
	was = strstr(server.request, text) != NULL;
	pthread_mutex_unlock(&server.lock);
	return was;
}

static const char *url_of(const char *path)
{
	static char url[2][128];
	static unsigned turn;
	char *out = url[turn++ % 2];

	snprintf(out, sizeof(url[0]), "http://127.0.0.1:%u%s",
		ntohs(server.addr.in.sin_port), path);
	return out;
}

static struct fetch_request get(const char *path)
{
	return (struct fetch_request){
		.url = url_of(path), .timeout_ms = 20000, .max_body = 4096};
}

struct outcome {
	unsigned n;
	struct fetch_answer answer;
	char body[4096];
	struct fetch *victim;
	struct outcome *next;
	bool frees_fetcher;
};

static void on_done(void *arg, const struct fetch_answer *a)
{
	struct outcome *o = arg;

	o->n++;
	o->answer = *a;
	ck_assert_uint_lt(a->body.n, sizeof(o->body));
	if (a->body.n > 0) {
		ck_assert_int_eq(a->body.p[a->body.n], '\0');
		memcpy(o->body, a->body.p, a->body.n);
	}
	o->body[a->body.n] = '\0';
	ck_assert(a->result == FETCH_OK || (a->status == 0 && a->error[0] != '\0'));
	if (o->victim != NULL)
		fetch_cancel(o->victim);
	if (o->next != NULL) {
		struct fetch_request req = get("/ok");

		ck_assert_ptr_nonnull(fetch_start(fetcher, &req, on_done, o->next));
	}
	if (o->frees_fetcher) {
		fetcher_free(fetcher);
		fetcher = NULL;
	}
}

static void fetch(const struct fetch_request *req, struct outcome *o)
{
	memset(o, 0, sizeof(*o));
	ck_assert_ptr_nonnull(fetch_start(fetcher, req, on_done, o));
	ck_assert_uint_eq(o->n, 0);
	TURN_UNTIL(loop, o->n > 0);
	ck_assert_uint_eq(o->n, 1);
}

START_TEST(answers)
{
	static const struct {
		const char *path;
		int status;
		const char *body;
	} want[] = {
		{"/ok", 200, "hello"},
		{"/empty", 200, ""},
		{"/chunked", 200, "abcde"},
		{"/until-close", 200, "to the end"},
		{"/404", 404, "no"},
	};
	struct outcome o;

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct fetch_request req = get(want[i].path);

		fetch(&req, &o);
		ck_assert_int_eq(o.answer.result, FETCH_OK);
		ck_assert_int_eq(o.answer.status, want[i].status);
		ck_assert_str_eq(o.body, want[i].body);
		ck_assert_str_eq(o.answer.error, "");
	}
	/* nothing is reused, or kept open in case it might */
	ck_assert_uint_eq(connections(), ARRAY_LEN(want));
	TURN_UNTIL(loop, left() == ARRAY_LEN(want));
}
END_TEST

START_TEST(failures)
{
	static const struct {
		const char *path;
		enum fetch_result result;
	} want[] = {
		{"/close", FETCH_PROTOCOL},
		{"/partial", FETCH_PROTOCOL},
		{"/garbage", FETCH_PROTOCOL},
		{"/garbage-hang", FETCH_PROTOCOL},
		{"/big", FETCH_TOO_BIG},
		{"/big-head", FETCH_TOO_BIG},
	};
	struct outcome o;

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct fetch_request req = get(want[i].path);

		fetch(&req, &o);
		ck_assert_msg(o.answer.result == want[i].result, "%s: %s (%s)",
			want[i].path, fetch_result_text(o.answer.result), o.answer.error);
		ck_assert_uint_eq(o.answer.body.n, 0);
	}
}
END_TEST

START_TEST(a_body_that_just_fits)
{
	struct fetch_request req = get("/ok");
	struct outcome o;

	req.max_body = 5;
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_OK);
	ck_assert_str_eq(o.body, "hello");
	req.max_body = 4;
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_TOO_BIG);
	ck_assert(!o.answer.is_cut);
	req.cuts_body = true;
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_OK);
	ck_assert_int_eq(o.answer.status, 200);
	ck_assert_str_eq(o.body, "hell");
	ck_assert(o.answer.is_cut);
	req.max_body = 5;
	fetch(&req, &o);
	ck_assert_str_eq(o.body, "hello");
	ck_assert(!o.answer.is_cut);
}
END_TEST

START_TEST(timed_out)
{
	struct fetch_request req = get("/hang");
	struct outcome o;

	req.timeout_ms = 50;
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_TIMEOUT);
	req = get("/head-then-hang");
	req.timeout_ms = 50;
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_TIMEOUT);
}
END_TEST

/* The body never comes, and nobody waits for it. */
START_TEST(the_head_is_enough)
{
	static const char *const paths[] = {
		"/head-then-hang", "/interim-then-hang", "/ok", "/big", "/empty"};
	struct outcome o;

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct fetch_request req = get(paths[i]);

		req.max_body = 0;
		fetch(&req, &o);
		ck_assert_msg(
			o.answer.result == FETCH_OK, "%s: %s", paths[i], o.answer.error);
		ck_assert_int_eq(o.answer.status, 200);
		ck_assert_uint_eq(o.answer.body.n, 0);
	}
}
END_TEST

START_TEST(refused)
{
	union sock_addr a;
	int listener = listen_any(&a);
	struct fetch_request req = get("/ok");
	char url[64];
	struct outcome o;

	snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(a.in.sin_port));
	close(listener);
	req.url = url;
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_REFUSED);
}
END_TEST

START_TEST(what_is_no_url_for_us)
{
	static const char *const urls[] = {"", "http://", "file:///etc/hostname",
		"ftp://127.0.0.1/", "gopher://127.0.0.1:1/x", "nonsense://x/"};
	struct outcome o;

	for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
		struct fetch_request req = get("/");

		req.url = urls[i];
		fetch(&req, &o);
		ck_assert_msg(o.answer.result == FETCH_ERROR ||
				      o.answer.result == FETCH_PROTOCOL,
			"%s: %s", urls[i], fetch_result_text(o.answer.result));
	}
}
END_TEST

/* A label of 70 letters is no name, whatever the name servers here say or do not say. */
START_TEST(a_name_that_cannot_be)
{
	struct fetch_request req = get("/");
	struct outcome o;

	req.url =
		"http://"
		"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/";
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_RESOLVE);
}
END_TEST

START_TEST(a_redirect_is_an_answer)
{
	struct fetch_request req = get("/redirect");
	struct outcome o;

	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_OK);
	ck_assert_int_eq(o.answer.status, 302);
	ck_assert_uint_eq(connections(), 1);
}
END_TEST

START_TEST(the_environment_has_no_say)
{
	struct fetch_request req = get("/ok");
	struct outcome o;

	setenv("http_proxy", "http://127.0.0.1:1/", 1);
	setenv("ALL_PROXY", "http://127.0.0.1:1/", 1);
	fetch(&req, &o);
	unsetenv("http_proxy");
	unsetenv("ALL_PROXY");
	ck_assert_int_eq(o.answer.result, FETCH_OK);
	ck_assert_str_eq(o.body, "hello");
}
END_TEST

START_TEST(no_cookies)
{
	struct fetch_request req = get("/cookie");
	struct outcome o;

	fetch(&req, &o);
	fetch(&req, &o);
	ck_assert(was_sent("GET /cookie HTTP/1.1\r\n"));
	ck_assert(!was_sent("Cookie"));
}
END_TEST

START_TEST(what_is_sent)
{
	static const char *const headers[] = {"Authorization: Bearer k", "X-A: b", NULL};
	static const char *const typed[] = {"content-type: text/plain", NULL};
	struct fetch_request req = get("/ok");
	struct outcome o;
	char *body = malloc(3000);

	memset(body, 'y', 3000);
	req.method = "POST";
	req.headers = headers;
	req.body = span_make(body, 3000);
	memset(&o, 0, sizeof(o));
	ck_assert_ptr_nonnull(fetch_start(fetcher, &req, on_done, &o));
	free(body); /* the request was copied */
	TURN_UNTIL(loop, o.n == 1);
	ck_assert(was_sent("POST /ok HTTP/1.1\r\n"));
	ck_assert(was_sent("\r\nAuthorization: Bearer k\r\n"));
	ck_assert(was_sent("\r\nX-A: b\r\n"));
	ck_assert(was_sent("\r\nContent-Type: application/json\r\n"));
	ck_assert(was_sent("\r\nContent-Length: 3000\r\n"));
	ck_assert(was_sent("\r\n\r\nyyyyyyyyyy"));
	ck_assert(!was_sent("Expect"));
	req.headers = typed;
	req.body = SPAN_LIT("text");
	fetch(&req, &o);
	ck_assert(was_sent("\r\ncontent-type: text/plain\r\n"));
	ck_assert(!was_sent("application/json"));
}
END_TEST

START_TEST(methods)
{
	static const struct {
		const char *method, *line, *length;
	} want[] = {
		{NULL, "GET /empty HTTP/1.1\r\n", NULL},
		{"HEAD", "HEAD /empty HTTP/1.1\r\n", NULL},
		{"DELETE", "DELETE /empty HTTP/1.1\r\n", NULL},
		{"POST", "POST /empty HTTP/1.1\r\n", "\r\nContent-Length: 0\r\n"},
		{"PUT", "PUT /empty HTTP/1.1\r\n", "\r\nContent-Length: 0\r\n"},
	};
	struct outcome o;

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct fetch_request req = get("/empty");

		req.method = want[i].method;
		fetch(&req, &o);
		ck_assert_int_eq(o.answer.status, 200);
		ck_assert_msg(was_sent(want[i].line), "%s", want[i].line);
		ck_assert_int_eq(was_sent("Content-Length"), want[i].length != NULL);
		ck_assert(want[i].length == NULL || was_sent(want[i].length));
		ck_assert(!was_sent("Content-Type"));
	}
}
END_TEST

START_TEST(https_to_what_speaks_none)
{
	struct fetch_request req = get("/garbage");
	char url[64];
	struct outcome o;

	snprintf(url, sizeof(url), "https://127.0.0.1:%u/",
		ntohs(server.addr.in.sin_port));
	req.url = url;
	req.timeout_ms = 20000;
	req.tls_ca = "/nonexistent/ca.pem";
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_TLS);
}
END_TEST

START_TEST(several_at_once)
{
	struct outcome o[20];

	memset(o, 0, sizeof(o));
	for (size_t i = 0; i < ARRAY_LEN(o); i++) {
		struct fetch_request req = get(i % 2 ? "/ok" : "/404");

		ck_assert_ptr_nonnull(fetch_start(fetcher, &req, on_done, &o[i]));
	}
	for (size_t i = 0; i < ARRAY_LEN(o); i++) {
		TURN_UNTIL(loop, o[i].n == 1);
		ck_assert_int_eq(o[i].answer.status, i % 2 ? 200 : 404);
	}
}
END_TEST

START_TEST(cancelled)
{
	struct fetch_request req = get("/hang");
	struct outcome o = {0}, done;
	struct fetch *f = fetch_start(fetcher, &req, on_done, &o);

	fetch_cancel(f); /* before anything happened */
	f = fetch_start(fetcher, &req, on_done, &o);
	TURN_UNTIL(loop, connections() == 1);
	fetch_cancel(f); /* in the midst */
	ck_assert_ptr_nonnull(
		fetch_start(fetcher, &req, on_done, &o)); /* by fetcher_free() */
	req = get("/ok");
	fetch(&req, &done);
	turn_idle(loop, 3);
	ck_assert_uint_eq(o.n, 0);
}
END_TEST

START_TEST(callbacks_cancel_start_and_free)
{
	struct fetch_request req = get("/hang");
	struct outcome hanging = {0}, first = {0}, second = {0};

	first.victim = fetch_start(fetcher, &req, on_done, &hanging);
	first.next = &second;
	second.frees_fetcher = true;
	ck_assert_ptr_nonnull(fetch_start(fetcher, &req, on_done, &hanging));
	req = get("/ok");
	ck_assert_ptr_nonnull(fetch_start(fetcher, &req, on_done, &first));
	TURN_UNTIL(loop, second.n == 1);
	turn_idle(loop, 3);
	ck_assert_uint_eq(first.n, 1);
	ck_assert_uint_eq(hanging.n, 0);
	ck_assert_ptr_null(fetcher);
}
END_TEST

START_TEST(over_a_unix_socket)
{
	char folder[] = "/tmp/kvsteer-unit-XXXXXX", path[64];
	struct fetch_request req = get("/ok");
	struct fetch_answer a;
	struct outcome o;
	int listener;

	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/s", folder);
	ck_assert_int_eq(sock_listen_unix(path, 0600, &listener), 0);
	stop_server();
	start_server(listener);
	req.url = "http://localhost/ok";
	req.unix_socket = path;
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_OK);
	ck_assert_str_eq(o.body, "hello");
	ck_assert(was_sent("\r\nHost: localhost\r\n"));
	fetch_blocking(&req, &a);
	ck_assert_int_eq(a.status, 200);
	free((char *)(uintptr_t)a.body.p);
	unlink(path);
	fetch(&req, &o);
	ck_assert_int_eq(o.answer.result, FETCH_REFUSED);
	rmdir(folder);
}
END_TEST

START_TEST(blocking)
{
	struct fetch_request req = get("/ok");
	struct fetch_answer a;

	fetch_blocking(&req, &a);
	ck_assert_int_eq(a.result, FETCH_OK);
	ck_assert_int_eq(a.status, 200);
	ck_assert_str_eq(a.body.p, "hello");
	free((char *)(uintptr_t)a.body.p);
	req = get("/garbage");
	fetch_blocking(&req, &a);
	ck_assert_int_eq(a.result, FETCH_PROTOCOL);
	ck_assert_ptr_null(a.body.p);
	ck_assert_str_ne(a.error, "");
	req = get("/partial");
	fetch_blocking(&req, &a);
	ck_assert_int_eq(a.result, FETCH_PROTOCOL);
	ck_assert_ptr_null(a.body.p);
}
END_TEST

START_TEST(results_have_texts)
{
	for (enum fetch_result r = FETCH_OK; r <= FETCH_ERROR; r++)
		ck_assert_str_ne(fetch_result_text(r), "unknown");
	ck_assert_str_eq(fetch_result_text((enum fetch_result)99), "unknown");
}
END_TEST

static Suite *fetch_suite(void)
{
	Suite *s = suite_create("fetch");
	TCase *t = tcase_create("fetch");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, answers);
	tcase_add_test(t, failures);
	tcase_add_test(t, a_body_that_just_fits);
	tcase_add_test(t, timed_out);
	tcase_add_test(t, the_head_is_enough);
	tcase_add_test(t, refused);
	tcase_add_test(t, what_is_no_url_for_us);
	tcase_add_test(t, a_name_that_cannot_be);
	tcase_add_test(t, a_redirect_is_an_answer);
	tcase_add_test(t, the_environment_has_no_say);
	tcase_add_test(t, no_cookies);
	tcase_add_test(t, what_is_sent);
	tcase_add_test(t, methods);
	tcase_add_test(t, https_to_what_speaks_none);
	tcase_add_test(t, several_at_once);
	tcase_add_test(t, cancelled);
	tcase_add_test(t, callbacks_cancel_start_and_free);
	tcase_add_test(t, over_a_unix_socket);
	tcase_add_test(t, blocking);
	tcase_add_test(t, results_have_texts);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(fetch_suite())
