/*
 * A worker that costs next to nothing, for tests/bench/compare: one thread, epoll,
 * keep-alive. The model is m. Every request is answered with 300 bytes, a chat
 * completion, or with 64 events and [DONE] when its body holds "stream":true; paced ones
 * are sent one event in a write, PACE_US apart. So kvsteer-bench can be used against it,
 * too. Prints its port (the kernel's). Not part of the product.
 *
 *   mock_worker [PACE_US]
 */
#include "tests/bench/mock_net.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#define EVENTS 64
#define ANSWER_SIZE 300
#define HEAD_MAX 65536

struct conn {
	int fd;
	size_t n;                /* of the head so far */
	unsigned long long left; /* of the body */
	bool in_body, is_stream, asks_models;
	int events_left; /* of a paced stream */
	char buf[HEAD_MAX];
};

static int epoll_fd, timer_fd = -1;
static struct conn **streams;
static size_t n_streams, cap_streams;
static char event_text[256];
static size_t event_len;

static void make_event(void)
{
	char data[200];
	int n = snprintf(data, sizeof(data),
		"data: "
		"{\"id\":\"cmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"m\","
		"\"choices\":[{\"index\":0,\"delta\":"
		"{\"content\":\" token\"},\"finish_reason\":null}]}\n\n");

	event_len = mock_event(event_text, sizeof(event_text), data, n);
}

/* [DONE] and the last chunk, in one write. */
static void end_stream(struct conn *c)
{
	static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

	mock_send(c->fd, end, sizeof(end) - 1);
}

static void start_stream(struct conn *c)
{
	static const char head[] = MOCK_STREAM_HEAD;
	int i;

	mock_send(c->fd, head, sizeof(head) - 1);
	if (timer_fd >= 0) {
		if (n_streams == cap_streams) {
			cap_streams = cap_streams ? 2 * cap_streams : 64;
			streams = realloc(streams, cap_streams * sizeof(*streams));
		}
		c->events_left = EVENTS;
		streams[n_streams++] = c;
		return;
	}
	for (i = 0; i < EVENTS; i++)
		mock_send(c->fd, event_text, event_len);
	end_stream(c);
}

/* Its answer is padded to a body of 300 bytes. */
static void make_plain(char *out, size_t n)
{
	static const char before[] =
		"{\"id\":\"cmpl-1\",\"object\":\"chat.completion\",\"model\":\"m\","
		"\"choices\":[{\"index\":0,\"finish_reason\":\"stop\","
		"\"message\":{\"role\":\"assistant\",\"content\":\"";
	static const char after[] = "\"}}],\"usage\":{\"prompt_tokens\":1,\"completion_"
				    "tokens\":1,\"total_tokens\":2}}";
	int pad = ANSWER_SIZE - (int)(sizeof(before) - 1) - (int)(sizeof(after) - 1);

	snprintf(out, n,
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
		"%d\r\n\r\n%s%0*d%s",
		ANSWER_SIZE, before, pad, 1, after);
}

static void answer(struct conn *c)
{
	static const char models[] =
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
		"80\r\n\r\n"
		"{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\","
		"\"owned_by\":\"mock_worker\"}]}\n";
	static char plain[512];

	if (c->asks_models) {
		mock_send(c->fd, models, sizeof(models) - 1);
		return;
	}
	if (c->is_stream) {
		start_stream(c);
		return;
	}
	if (plain[0] == '\0')
		make_plain(plain, sizeof(plain));
	mock_send(c->fd, plain, strlen(plain));
}

static void pace(void)
{
	uint64_t ticks;
	size_t i = 0;

	if (read(timer_fd, &ticks, sizeof(ticks)) < 0)
		return;
	while (i < n_streams) {
		struct conn *c = streams[i];

		mock_send(c->fd, event_text, event_len);
		if (--c->events_left > 0) {
			i++;
			continue;
		}
		end_stream(c);
		streams[i] = streams[--n_streams];
	}
}

static void drop(struct conn *c)
{
	size_t i;

	for (i = 0; i < n_streams; i++) {
		if (streams[i] == c)
			streams[i--] = streams[--n_streams];
	}
	close(c->fd);
	free(c);
}

/* Takes body bytes off the front; true when the request is whole. */
static void take(struct conn *c, const char *p, size_t n)
{
	while (n > 0) {
		char *end, *length;
		size_t k;

		if (c->in_body) {
			k = n < c->left ? n : (size_t)c->left;
			c->is_stream |= memmem(p, k, "\"stream\":true", 13) != NULL;
			c->left -= k;
			p += k;
			n -= k;
		} else {
			k = n < HEAD_MAX - 1 - c->n ? n : HEAD_MAX - 1 - c->n;
			memcpy(c->buf + c->n, p, k);
			c->buf[c->n + k] = '\0';
			end = strstr(c->buf, "\r\n\r\n");
			if (end == NULL) {
				c->n += k;
				return;
			}
			k = (size_t)(end + 4 - c->buf) - c->n;
			end[2] = '\0';
			c->asks_models = strncmp(c->buf, "GET /v1/models", 14) == 0;
			length = strcasestr(c->buf, "content-length:");
			c->left = length != NULL ? strtoull(length + 15, NULL, 10) : 0;
			c->n = 0;
			c->in_body = true;
			c->is_stream = false;
			p += k;
			n -= k;
		}
		if (c->in_body && c->left == 0) {
			c->in_body = false;
			answer(c);
		}
	}
}

static void on_readable(struct conn *c)
{
	static char buf[256 << 10];
	ssize_t n = read(c->fd, buf, sizeof(buf));

	if (n > 0)
		take(c, buf, (size_t)n);
	else if (n == 0 || errno != EAGAIN)
		drop(c);
}

static void on_accept(int listener)
{
	int fd = mock_accept(listener);
	struct conn *c;

	if (fd < 0)
		return;
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		mock_fail("calloc");
	c->fd = fd;
	mock_watch(epoll_fd, fd, c);
}

int main(int argc, char **argv)
{
	static int listener_mark, timer_mark;
	int listener = mock_listen();
	long pace_us = argc > 1 ? atol(argv[1]) : 0;

	signal(SIGPIPE, SIG_IGN);
	make_event();
	epoll_fd = epoll_create1(0);
	mock_watch(epoll_fd, listener, &listener_mark);
	if (pace_us > 0) {
		timer_fd = mock_timer(pace_us);
		mock_watch(epoll_fd, timer_fd, &timer_mark);
	}
	for (;;) {
		struct epoll_event ready[256];
		int i, n = epoll_wait(epoll_fd, ready, 256, -1);

		for (i = 0; i < n; i++) {
			if (ready[i].data.ptr == &listener_mark)
				on_accept(listener);
			else if (ready[i].data.ptr == &timer_mark)
				pace();
			else
				on_readable(ready[i].data.ptr);
		}
	}
}
