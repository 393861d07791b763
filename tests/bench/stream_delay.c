/*
 * Many event streams at once, and how late each event comes: a worker that paces them and
 * the client that reads them, in one process, since both need one clock. Each event holds
 * the time when it was due; the streams' events are spread evenly over the period. For
 * tests/bench/streams. Not part of the product.
 *
 *   stream_delay STREAMS
 *
 * Prints the worker's port, and then answers lines:
 *   open PORT		opens all streams by way of PORT, 200 at a time; "open" when each has had an event
 *   period US		from now on each stream has an event every US
 *   measure MS		for that long; "EVENTS P50 P90 P99 P999 MAX", times in microseconds from when an event was due to when it was read
 *   close		closes all streams; "closed" when the worker knows
 */
#include "tests/bench/mock_net.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { WAVE = 200, DELAY_MAX_US = 1 << 20, MARK_LEN = 5, CARRY = 32, TICK_US = 100 };

static unsigned n_streams;
static atomic_uint period_us = 1000000;
static atomic_uint n_paced; /* the worker's open streams */

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* The worker */

struct stream {
	int fd;
	size_t n;     /* bytes of the request so far */
	long body_at; /* where its body begins; 0: not known */
	long length;
	unsigned slot; /* its place in the period */
	bool is_paced;
	char head[4096];
};

static int worker_epoll, listener;
static struct stream **slots; /* [n_streams], NULL: free */

static void send_event(int fd, uint64_t due_us)
{
	char data[256], event[300];
	int n = snprintf(data, sizeof(data),
		"data: "
		"{\"id\":\"cmpl-1\",\"object\":\"chat.completion.chunk\",\"model\":\"m\","
		"\"due\":\"%016llx\",\"choices\":[{\"index\":0,\"delta\":"
		"{\"content\":\" token\"},\"finish_reason\":null}]}\n\n",
		(unsigned long long)due_us);

	mock_send(fd, event, mock_event(event, sizeof(event), data, n));
}

static void begin_stream(struct stream *s)
{
	static const char head[] = MOCK_STREAM_HEAD;
	static unsigned next;

	mock_send(s->fd, head, sizeof(head) - 1);
	for (unsigned i = 0; i < n_streams && slots[next] != NULL; i++)
		next = (next + 1) % n_streams;
	if (slots[next] != NULL)
		return; /* more than were asked for */
	s->slot = next;
	s->is_paced = true;
	slots[next] = s;
	atomic_fetch_add(&n_paced, 1);
	send_event(s->fd, now_us());
}

static void answer_probe(struct stream *s)
{
	static const char ok[] =
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
		"55\r\n\r\n"
		"{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\"}]}\n";

	mock_send(s->fd, ok, sizeof(ok) - 1);
	s->n = 0;
	s->body_at = 0;
}

static void drop(struct stream *s)
{
	if (s->is_paced) {
		slots[s->slot] = NULL;
		atomic_fetch_sub(&n_paced, 1);
	}
	close(s->fd);
	free(s);
}

static void worker_read(struct stream *s)
{
	ssize_t n = read(s->fd, s->head + s->n, sizeof(s->head) - 1 - s->n);
	char *end, *length;

	if (n <= 0) {
		if (n == 0 || errno != EAGAIN)
			drop(s);
		return;
	}
	s->n += (size_t)n;
	s->head[s->n] = '\0';
	end = strstr(s->head, "\r\n\r\n");
	if (end == NULL || s->is_paced)
		return;
	length = strcasestr(s->head, "content-length:");
	if ((long)s->n < end + 4 - s->head + (length != NULL ? atol(length + 15) : 0))
		return;
	if (strncmp(s->head, "GET ", 4) == 0)
		answer_probe(s);
	else
		begin_stream(s);
}

static void accept_all(void)
{
	int fd;

	while ((fd = mock_accept(listener)) >= 0) {
		struct stream *s = calloc(1, sizeof(*s));

		if (s == NULL)
			mock_fail("calloc");
		s->fd = fd;
		mock_watch(worker_epoll, fd, s);
	}
}

/* Sends what was due since the last call. */
static void pace(void)
{
	static uint64_t due_us; /* of the next slot */
	static double rest_us;
	static unsigned slot;
	uint64_t now = now_us();
	double step_us = (double)atomic_load(&period_us) / n_streams;

	if (due_us == 0 || now > due_us + 1000000)
		due_us = now; /* it was long away: not what is measured */
	while (due_us <= now) {
		if (slots[slot] != NULL)
			send_event(slots[slot]->fd, due_us);
		slot = (slot + 1) % n_streams;
		rest_us += step_us;
		due_us += (uint64_t)rest_us;
		rest_us -= (double)(uint64_t)rest_us;
	}
}

static void *run_worker(void *arg)
{
	static int timer_mark, listener_mark;
	struct epoll_event ready[256];
	uint64_t ticks;
	int timer = mock_timer(TICK_US);

	(void)arg;
	mock_watch(worker_epoll, timer, &timer_mark);
	mock_watch(worker_epoll, listener, &listener_mark);
	for (;;) {
		int n = epoll_wait(worker_epoll, ready, 256, -1);

		for (int i = 0; i < n; i++) {
			if (ready[i].data.ptr == &listener_mark)
				accept_all();
			else if (ready[i].data.ptr != &timer_mark)
				worker_read(ready[i].data.ptr);
			else if (read(timer, &ticks, sizeof(ticks)) > 0)
				pace();
		}
	}
	return NULL;
}

/* The client */

struct reader {
	int fd;
	unsigned carry_len;
	bool has_event;
	char carry[CARRY];
};

static int client_epoll;
static struct reader *readers;
static unsigned n_open, n_with_event;
static uint32_t delays[DELAY_MAX_US];
static uint64_t n_delays, max_delay;
static bool is_measuring;

static void note(struct reader *r, uint64_t due_us, uint64_t now)
{
	uint64_t delay = now > due_us ? now - due_us : 0;

	if (!r->has_event)
		n_with_event++;
	r->has_event = true;
	if (!is_measuring)
		return;
	delays[delay < DELAY_MAX_US ? delay : DELAY_MAX_US - 1]++;
	n_delays++;
	max_delay = delay > max_delay ? delay : max_delay;
}

/* All "due":"..." in the bytes; what may be half of one is kept for the next. */
static void scan(struct reader *r, char *p, size_t n, uint64_t now)
{
	char *end = p + n, *at;

	while ((at = memmem(p, (size_t)(end - p), "due\":\"", 6)) != NULL &&
		end - at >= 6 + 16) {
		note(r, strtoull(at + 6, NULL, 16), now);
		p = at + 6 + 16;
	}
	r->carry_len = (unsigned)(end - p < CARRY - 8 ? end - p : CARRY - 8);
	memcpy(r->carry, end - r->carry_len, r->carry_len);
}

static void client_read(struct reader *r)
{
	static char buf[CARRY + 65536 + 1];
	ssize_t n;

	memcpy(buf, r->carry, r->carry_len);
	n = read(r->fd, buf + r->carry_len, 65536);
	if (n == 0 || (n < 0 && errno != EAGAIN)) {
		fprintf(stderr,
			"stream_delay: a stream ended (%s), %u of %u have an event; "
			"last: %.*s\n",
			n == 0 ? "EOF" : strerror(errno), n_with_event, n_open,
			(int)r->carry_len, r->carry);
		exit(1);
	}
	if (n < 0)
		return;
	buf[r->carry_len + (size_t)n] = '\0';
	scan(r, buf, r->carry_len + (size_t)n, now_us());
}

static void turn(int wait_ms)
{
	struct epoll_event ready[256];
	int n = epoll_wait(client_epoll, ready, 256, wait_ms);

	for (int i = 0; i < n; i++)
		client_read(ready[i].data.ptr);
}

static void open_one(unsigned port)
{
	static const char request[] =
		"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: "
		"application/json\r\nContent-Length: 74\r\n\r\n"
		"{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\","
		"\"content\":\"hello\"}]}";
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)port)};
	struct reader *r = &readers[n_open++];

	memset(r, 0, sizeof(*r));
	r->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (r->fd < 0 || connect(r->fd, (struct sockaddr *)&a, sizeof(a)) != 0)
		mock_fail("connect");
	mock_send(r->fd, request, sizeof(request) - 1);
	mock_watch(client_epoll, r->fd, r);
}

static void open_streams(unsigned port)
{
	uint64_t end_us = now_us() + 120000000;

	n_with_event = 0;
	while (n_with_event < n_streams) {
		if (n_open < n_streams && n_open - n_with_event < WAVE)
			open_one(port);
		turn(n_open < n_streams && n_open - n_with_event < WAVE ? 0 : 10);
		if (now_us() > end_us) {
			fprintf(stderr,
				"stream_delay: only %u of %u streams have an event after "
				"120 s\n",
				n_with_event, n_open);
			exit(1);
		}
	}
	printf("open\n");
}

static uint64_t rank(double share)
{
	uint64_t want = (uint64_t)(share * (double)n_delays), seen = 0, i = 0;

	while (i < DELAY_MAX_US - 1 && (seen += delays[i]) <= want)
		i++;
	return i;
}

static void measure(unsigned ms)
{
	uint64_t end_us = now_us() + 1000ull * ms;

	memset(delays, 0, sizeof(delays));
	n_delays = max_delay = 0;
	is_measuring = true;
	while (now_us() < end_us)
		turn(1);
	is_measuring = false;
	printf("%llu %llu %llu %llu %llu %llu\n", (unsigned long long)n_delays,
		(unsigned long long)rank(.5), (unsigned long long)rank(.9),
		(unsigned long long)rank(.99), (unsigned long long)rank(.999),
		(unsigned long long)max_delay);
}

static void close_streams(void)
{
	while (n_open > 0)
		close(readers[--n_open].fd);
	while (atomic_load(&n_paced) > 0)
		usleep(1000);
	printf("closed\n");
}

/* Reads lines between turns, so that the streams never stop being read. */
static void run_client(void)
{
	char line[64];
	size_t n = 0;

	for (;;) {
		struct timeval no_wait = {0, 0};
		fd_set in;
		unsigned value = 0;

		turn(1);
		FD_ZERO(&in);
		FD_SET(0, &in);
		if (select(1, &in, NULL, NULL, &no_wait) <= 0)
			continue;
		if (n == sizeof(line) - 1 || read(0, line + n, 1) != 1)
			return;
		if (line[n++] != '\n')
			continue;
		line[n] = '\0';
		n = 0;
		if (sscanf(line, "open %u", &value) == 1)
			open_streams(value);
		else if (sscanf(line, "period %u", &value) == 1)
			atomic_store(&period_us, value);
		else if (sscanf(line, "measure %u", &value) == 1)
			measure(value);
		else if (strcmp(line, "close\n") == 0)
			close_streams();
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	pthread_t thread;

	n_streams = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
	if (n_streams == 0) {
		fprintf(stderr, "usage: stream_delay STREAMS\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	readers = calloc(n_streams, sizeof(*readers));
	slots = calloc(n_streams, sizeof(*slots));
	worker_epoll = epoll_create1(0);
	client_epoll = epoll_create1(0);
	if (readers == NULL || slots == NULL || worker_epoll < 0 || client_epoll < 0)
		mock_fail("start");
	listener = mock_listen();
	if (pthread_create(&thread, NULL, run_worker, NULL) != 0)
		mock_fail("pthread_create");
	run_client();
	return 0;
}
