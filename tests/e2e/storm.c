/*
 * A storm of clients that leave at random points, and the workers that serve them: both
 * sides of the router in one process and one thread, so that 10,000 broken exchanges take
 * seconds. Each request carries in X-Script what the worker is to do with it, so the
 * client knows which answers are right. Everything follows from the seed but the kernel's
 * timing. Run by test_aborts.py:
 *
 *	storm SEED WORKERS	prints "ports P1 P2 ...", then reads commands:
 *	go PORT CYCLES ABREAST	prints "done {json}" when the cycles are over
 *	(end of input)		exits
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PEERS_MAX 2048
#define IN_BYTES (64 * 1024)
#define STALL_MS 150
#define KEPT_BYTES (64 * 1024) /* of an error, while another worker is asked */
#define HANG_MS 20000 /* a client that waits this long for anything has found a hang */

enum script {
	OK_LENGTH,
	OK_CHUNKED,
	OK_EARLY,
	OK_INTERIM,
	OK_UNTIL_CLOSE,
	OK_SURPLUS,
	OK_500,
	/* from here on the answer is broken */
	CUT_HEAD,
	CUT_LENGTH,
	CUT_CHUNKED,
	CUT_SILENT,
	STALL,
	STALL_MIDSTREAM,
	GARBAGE,
	SCRIPT_MAX
};

enum how { LEAVE_FIN, LEAVE_RST, LEAVE_HALF, HOW_MAX };

enum kind { FREE, LISTENER, WORKER, CLIENT };

struct peer {
	enum kind kind;
	int fd;
	uint64_t due_ms; /* 0: no timer */
	/* to send: out[sent..upto), then what comes next */
	char *out;
	size_t sent, upto, n_out;
	bool is_connecting, half_closed;
	/* client */
	enum script script;
	enum how how;
	bool leaves, is_whole, is_head_request;
	bool is_long; /* its body does not fit beside its head, or comes in chunks */
	size_t read_goal, n_read, body_bytes;
	uint64_t began_ms;
	/* both */
	char *in;
	size_t n_in;
	/* worker */
	bool is_answering, dies, dies_by_rst, stalls;
	size_t skip;    /* body bytes of the request still to come */
	bool in_chunks; /* they come in chunks: skip is 1 until the last one */
};

static struct peer peers[PEERS_MAX];
static uint64_t rng_state;
static unsigned router_port, cycles_left, n_clients, abreast, streams;
static bool all_may_be_out; /* breakers are open all the time: 503 is an answer */
static bool
	may_lose_long; /* workers are removed all the time: so it is after a long 500 */
static unsigned n_cycles, n_complete, n_violations, n_left, n_cut, n_eof, statuses[600];
static char violation[512];

static uint64_t rnd(uint64_t below)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31) % below;
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void blame(const struct peer *p, const char *what)
{
	if (n_violations++ == 0)
		snprintf(violation, sizeof(violation),
			"%s (script %d, how %d, leaves %d, whole %d, read %zu)", what,
			p->script, p->how, p->leaves, p->is_whole, p->n_read);
}

static struct peer *peer_new(enum kind kind, int fd)
{
	struct peer *p;

	for (p = peers; p < peers + PEERS_MAX && p->kind != FREE; p++)
		;
	if (p == peers + PEERS_MAX) {
		fprintf(stderr, "storm: out of peers\n");
		exit(1);
	}
	memset(p, 0, sizeof(*p));
	p->kind = kind;
	p->fd = fd;
	p->in = malloc(IN_BYTES);
	if (p->in == NULL)
		die("malloc");
	return p;
}

static void peer_close(struct peer *p, bool by_rst)
{
	struct linger hard = {1, 0};

	if (by_rst)
		setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(p->fd);
	free(p->out);
	free(p->in);
	if (p->kind == CLIENT)
		n_clients--;
	p->kind = FREE;
}

static void set_out(struct peer *p, char *out, size_t n)
{
	free(p->out);
	p->out = out;
	p->n_out = n;
	p->sent = 0;
	p->upto = n;
	p->due_ms = 0;
}

/* Text of n bytes that no framing looks like. */
static void fill(char *to, size_t n)
{
	memset(to, 'x', n);
}

/* ---- workers ---- */

/* 1 to 12 chunks: what the client must read in all is body_bytes. */
static size_t body_size(unsigned seed)
{
	static const size_t sizes[] = {1, 40, 700, 5000, 70000, 300000};

	return sizes[seed % 6];
}

static size_t put_chunks(char *to, size_t n, unsigned seed)
{
	size_t at = 0, step = n / (1 + seed % 7) + 1;

	while (n > 0) {
		size_t part = n < step ? n : step;

		at += (size_t)sprintf(to + at, "%zx\r\n", part);
		fill(to + at, part);
		at += part;
		memcpy(to + at, "\r\n", 2);
		at += 2;
		n -= part;
	}
	return at;
}

static size_t put_head(char *to, const char *status, const char *rest)
{
	return (size_t)sprintf(to,
		"HTTP/1.1 %s\r\nContent-Type: text/event-stream\r\n%s\r\n", status, rest);
}

static void answer(struct peer *p, enum script script, unsigned seed, bool is_head)
{
	size_t body = is_head ? 0 : body_size(seed), n = 0;
	char *out = malloc(body * 2 + 4096), length[64];

	if (out == NULL)
		die("malloc");
	snprintf(length, sizeof(length), "Content-Length: %zu\r\n", body_size(seed));
	switch (script) {
	case OK_INTERIM:
		n += (size_t)sprintf(out,
			"HTTP/1.1 100 Continue\r\n\r\n"
			"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
		/* fallthrough */
	case OK_LENGTH:
	case OK_EARLY:
	case OK_500:
	case OK_SURPLUS:
	case CUT_HEAD:
	case CUT_LENGTH:
		n += put_head(out + n, script == OK_500 ? "500 Oops" : "200 OK", length);
		if (script == CUT_HEAD) {
			n = 1 + seed % (n - 1);
			break;
		}
		fill(out + n, body);
		n += script == CUT_LENGTH && body > 0 ? seed % body : body;
		if (script == OK_SURPLUS)
			n += (size_t)sprintf(out + n, "HTTP/1.1 200 SURPLUS\r\n\r\n");
		break;
	case OK_UNTIL_CLOSE:
		n += put_head(out, "200 OK", "Connection: close\r\n");
		fill(out + n, body);
		n += body;
		break;
	case OK_CHUNKED:
	case CUT_CHUNKED:
	case STALL_MIDSTREAM:
		n += put_head(out, "200 OK", "Transfer-Encoding: chunked\r\n");
		n += put_chunks(out + n, body, seed);
		if (script == OK_CHUNKED && !is_head)
			n += (size_t)sprintf(out + n, "0\r\n\r\n");
		else if (script != OK_CHUNKED && body > 0)
			n -= seed % 3;
		break;
	case GARBAGE:
		n += (size_t)sprintf(out, "\x16\x03\x01 nonsense\r\n\r\n");
		break;
	default:
		break;
	}
	set_out(p, out, n);
	p->is_answering = true;
	p->dies = script == OK_UNTIL_CLOSE || script > OK_500;
	p->dies_by_rst = script > OK_500 && rnd(2) == 0;
	p->stalls = script == STALL || script == STALL_MIDSTREAM;
	/* In pieces, now and then. Not the surplus: if it came late, it would be the
	 * answer to the connection's next request, and nobody could tell. */
	if (rnd(3) == 0 && script != OK_SURPLUS)
		p->upto = n > 0 ? rnd(n) : 0;
}

static void probe_answer(struct peer *p)
{
	char *out = malloc(256);

	if (out == NULL)
		die("malloc");
	set_out(p, out,
		(size_t)sprintf(out,
			"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
			"Content-Length: 2\r\n\r\n{}"));
	p->is_answering = true;
	p->dies = p->stalls = false;
}

static const char *find_field(const char *head, const char *name)
{
	const char *at = strcasestr(head, name);

	return at != NULL ? at + strlen(name) : NULL;
}

/* Drops what lies in p->in of a body in chunks, but for what may be half of its end. */
static void skip_chunks(struct peer *p)
{
	char *end = memmem(p->in, p->n_in, "\r\n0\r\n\r\n", 7);
	size_t gone = end != NULL   ? (size_t)(end + 7 - p->in)
		      : p->n_in > 6 ? p->n_in - 6
				    : 0;

	memmove(p->in, p->in + gone, p->n_in - gone);
	p->n_in -= gone;
	p->in_chunks = end == NULL;
	p->skip = p->in_chunks;
}

/* A whole head lies in p->in: decide. */
static void worker_request(struct peer *p, size_t head_len)
{
	char head[4096];
	const char *length, *script;
	size_t n = head_len < sizeof(head) ? head_len : sizeof(head) - 1, there;
	unsigned what = 0, seed = 0;

	memcpy(head, p->in, n);
	head[n] = '\0';
	length = find_field(head, "\r\ncontent-length: ");
	script = find_field(head, "\r\nx-script: ");
	p->skip = length != NULL ? strtoul(length, NULL, 10) : 0;
	there = p->n_in - head_len;
	if (there > p->skip)
		there = p->skip;
	p->skip -= there;
	memmove(p->in, p->in + head_len + there, p->n_in - head_len - there);
	p->n_in -= head_len + there;
	if (find_field(head, "\r\ntransfer-encoding: chunked") != NULL)
		skip_chunks(p);
	if (script == NULL || sscanf(script, "%u-%u", &what, &seed) != 2) {
		probe_answer(p);
		return;
	}
	answer(p, (enum script)what, seed, strncmp(head, "HEAD ", 5) == 0);
	if (what != OK_EARLY && p->skip > 0)
		p->upto = 0; /* the body first */
}

static void worker_next(struct peer *p)
{
	char *end;

	while (!p->is_answering) {
		end = memmem(p->in, p->n_in, "\r\n\r\n", 4);
		if (end == NULL)
			return;
		worker_request(p, (size_t)(end + 4 - p->in));
	}
}

static void worker_readable(struct peer *p)
{
	ssize_t got;

	if (p->n_in == IN_BYTES)
		return; /* the next request came while it stalls: the timer ends it */
	got = recv(p->fd, p->in + p->n_in, IN_BYTES - p->n_in, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		peer_close(p, false);
		return;
	}
	if (p->in_chunks) {
		p->n_in += (size_t)got;
		got = 0;
		skip_chunks(p);
		if (!p->in_chunks && p->is_answering && p->upto == 0)
			p->upto = p->n_out;
	} else if (p->skip > 0) {
		size_t of_body = (size_t)got < p->skip ? (size_t)got : p->skip;

		p->skip -= of_body;
		memmove(p->in + p->n_in, p->in + p->n_in + of_body,
			(size_t)got - of_body);
		got -= (ssize_t)of_body;
		if (p->skip == 0 && p->is_answering && p->upto == 0)
			p->upto = p->n_out;
	}
	p->n_in += (size_t)got;
	worker_next(p);
}

static void send_some(struct peer *p);

/* The answer, or a piece of it, is out. */
static void worker_wrote(struct peer *p)
{
	if (p->upto < p->n_out) {
		if (p->skip == 0 && p->due_ms == 0)
			p->due_ms = now_ms() + rnd(4);
		return;
	}
	if (p->stalls) {
		if (p->due_ms == 0)
			p->due_ms = now_ms() + STALL_MS;
		return;
	}
	if (p->dies) {
		peer_close(p, p->dies_by_rst);
		return;
	}
	if (p->skip > 0)
		return; /* an early answer: the rest of the body is read first */
	p->is_answering = false;
	worker_next(p);
	if (p->is_answering)
		send_some(p); /* the next request came with the rest of this one */
}

static void worker_timer(struct peer *p)
{
	p->due_ms = 0;
	if (p->upto < p->n_out)
		p->upto += 1 + rnd(p->n_out - p->upto);
	else
		peer_close(p, p->dies_by_rst);
}

/* ---- clients ---- */

static size_t put_body(char *to, size_t text, unsigned seed)
{
	size_t n = (size_t)sprintf(to,
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%u ",
		seed % 50);

	fill(to + n, text);
	n += text;
	return n + (size_t)sprintf(to + n, "\"}]}");
}

/* A request, and the plan of what becomes of it. */
static void plan(struct peer *p)
{
	static const size_t texts[] = {10, 300, 4000, 40000, 200000};
	size_t text = texts[rnd(16) == 0 ? 4 : rnd(4)], n, body;
	char *out = malloc(text * 2 + 8192), *json = malloc(text + 256);
	unsigned seed = (unsigned)rnd(1000), kind = (unsigned)rnd(8);
	bool close_after = rnd(4) == 0;

	if (out == NULL || json == NULL)
		die("malloc");
	p->script = (enum script)rnd(SCRIPT_MAX);
	if (p->script > OK_500 && rnd(2) == 0)
		p->script = (enum script)rnd(OK_500 + 1); /* most workers are well */
	if (p->script == OK_EARLY && text > 4000)
		p->script = OK_LENGTH; /* what is not read yet may be cut by a reset */
	p->is_head_request = false;
	if (kind == 0) {
		p->is_head_request = rnd(2) == 0;
		n = (size_t)sprintf(out,
			"%s /v1/models/m HTTP/1.1\r\nHost: r.test\r\nX-Script: "
			"%d-%u\r\n%s\r\n",
			p->is_head_request ? "HEAD" : "GET", p->script, seed,
			close_after ? "Connection: close\r\n" : "");
	} else {
		body = put_body(json, text, seed);
		n = (size_t)sprintf(out,
			"POST /v1/chat/completions HTTP/1.1\r\nHost: r.test\r\nX-Script: "
			"%d-%u\r\n"
			"Content-Type: application/json\r\n%s",
			p->script, seed, close_after ? "Connection: close\r\n" : "");
		if (kind == 1) {
			n += (size_t)sprintf(out + n,
				"Transfer-Encoding: chunked\r\n\r\n%zx\r\n", body);
			memcpy(out + n, json, body);
			n += body;
			n += (size_t)sprintf(out + n, "\r\n0\r\n\r\n");
		} else {
			n += (size_t)sprintf(
				out + n, "Content-Length: %zu\r\n\r\n", body);
			memcpy(out + n, json, body);
			n += body;
		}
	}
	free(json);
	p->is_long = kind != 0 && (kind == 1 || text > 16000);
	set_out(p, out, n);
	p->body_bytes = p->is_head_request ? 0 : body_size(seed);
	p->how = (enum how)rnd(HOW_MAX);
	p->leaves = rnd(5) > 0;
	p->is_whole = true;
	p->read_goal = 0;
	p->n_read = p->n_in = 0;
	p->half_closed = false;
	p->began_ms = now_ms();
	if (!p->leaves)
		return;
	switch (rnd(4)) {
	case 0: /* somewhere in the request */
		p->n_out = 1 + rnd(n);
		p->is_whole = p->n_out == n;
		break;
	case 1: /* after it, at some moment */
		break;
	default: /* somewhere in the answer, its very end included */
		p->read_goal = rnd(3) == 0   ? 1 + rnd(200)
			       : rnd(3) == 0 ? p->body_bytes + rnd(300)
					     : 1 + rnd(p->body_bytes + 200);
		break;
	}
	p->upto = rnd(2) == 0 ? p->n_out : rnd(p->n_out + 1);
}

static void client_start(void)
{
	struct sockaddr_in a = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)router_port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
	struct peer *p;

	if (fd < 0)
		die("socket");
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0 && errno != EINPROGRESS) {
		close(fd); /* the router has ended */
		n_eof++;
		n_cycles++;
		cycles_left--;
		return;
	}
	p = peer_new(CLIENT, fd);
	p->is_connecting = true;
	n_clients++;
	plan(p);
	cycles_left--;
}

static void client_over(struct peer *p, bool by_rst)
{
	n_cycles++;
	peer_close(p, by_rst);
}

static void client_leave(struct peer *p)
{
	n_left++;
	if (p->how == LEAVE_HALF) {
		shutdown(p->fd, SHUT_WR);
		p->half_closed = true;
		p->due_ms = 0;
		p->read_goal = 0;
		return;
	}
	client_over(p, p->how == LEAVE_RST);
}

/* All that it wants to send is sent. */
static void client_wrote(struct peer *p)
{
	if (p->upto < p->n_out) {
		if (p->due_ms == 0)
			p->due_ms = now_ms() + rnd(4);
		return;
	}
	if (p->leaves && !p->half_closed && p->read_goal == 0) {
		if (rnd(2) == 0)
			client_leave(p);
		else if (p->due_ms == 0)
			p->due_ms = now_ms() + 1 + rnd(20);
	}
}

static void client_timer(struct peer *p)
{
	p->due_ms = 0;
	if (p->upto < p->n_out)
		p->upto += 1 + rnd(p->n_out - p->upto);
	else
		client_leave(p);
}

/*
 * Judged at the end of an answer that was asked for in whole. p->in holds its first and
 * (shifted) its last bytes; n_read counts all.
 */
struct verdict {
	int status;
	size_t head_len, length;
	bool has_length, is_chunked;
};

static bool read_head(const struct peer *p, struct verdict *v)
{
	char head[4096];
	const char *end = memmem(p->in, p->n_in, "\r\n\r\n", 4), *at;
	size_t n;

	if (end == NULL)
		return false;
	v->head_len = n = (size_t)(end + 4 - p->in);
	if (n >= sizeof(head))
		return false;
	memcpy(head, p->in, n);
	head[n] = '\0';
	v->status = atoi(head + 9);
	at = find_field(head, "\r\ncontent-length: ");
	v->has_length = at != NULL;
	v->length = at != NULL ? strtoul(at, NULL, 10) : 0;
	v->is_chunked = find_field(head, "\r\ntransfer-encoding: chunked") != NULL;
	return true;
}

static bool is_complete(const struct peer *p, const struct verdict *v)
{
	if (p->is_head_request)
		return true;
	if (v->has_length)
		return p->n_read >= v->head_len + v->length;
	return v->is_chunked && p->n_in >= 7 &&
	       memcmp(p->in + p->n_in - 7, "\r\n0\r\n\r\n", 7) == 0;
}

/* Its worker's connection was dead, and what it had sent of its body was held no more. */
static bool is_unrepeatable(const struct peer *p, int status)
{
	return (streams && p->is_long && status == 502) ||
	       (all_may_be_out && status == 503) ||
	       (may_lose_long && status == 503 && p->script == OK_500 &&
		       p->body_bytes > KEPT_BYTES);
}

static void judge_complete(struct peer *p, const struct verdict *v)
{
	n_complete++;
	if (v->status >= 100 && v->status < 600)
		statuses[v->status]++;
	if (v->has_length && !p->is_head_request && p->n_read > v->head_len + v->length)
		blame(p, "bytes beyond the answer");
	/* A worker that answers early is heard early, if its body was not awaited. */
	if (!p->is_whole && v->status < 400 && !(streams && p->script == OK_EARLY))
		blame(p, "a good answer to half a request");
	if (p->is_whole && p->script < OK_500 && v->status != 200 &&
		!is_unrepeatable(p, v->status))
		blame(p, "not 200 from a worker that is well");
	if (p->is_whole && p->script == OK_500 && v->status != 500 &&
		!is_unrepeatable(p, v->status))
		blame(p, "not the worker's 500");
	if (p->script > OK_500 && v->status < 400 &&
		!(p->is_head_request && p->script != CUT_HEAD))
		blame(p, "a clean end of a broken answer");
	if (p->is_whole && p->script < OK_500 && v->status == 200 && v->has_length &&
		v->length != p->body_bytes && !p->is_head_request)
		blame(p, "a wrong length");
}

/* True: it goes on, on the same connection. */
static void client_complete(struct peer *p, const struct verdict *v)
{
	bool closes = find_field(p->in, "\r\nconnection: close") != NULL;

	judge_complete(p, v);
	if (closes || p->half_closed || cycles_left == 0 || !p->is_whole ||
		p->upto < p->n_out || p->sent < p->n_out) {
		client_over(p, false);
		return;
	}
	n_cycles++;
	cycles_left--;
	plan(p);
}

static void client_ended(struct peer *p, bool was_reset)
{
	struct verdict v = {0};

	if (!read_head(p, &v) || !is_complete(p, &v)) {
		if (p->n_read > 0 && p->is_whole && p->script <= OK_500 &&
			!p->half_closed && !p->leaves)
			blame(p, was_reset ? "reset in a good answer"
					   : "cut in a good answer");
		if (p->n_read > 0)
			n_cut++;
		else
			n_eof++;
		if (p->n_read == 0 && p->is_whole && !p->leaves)
			blame(p, was_reset ? "reset without an answer"
					   : "EOF without an answer");
	}
	client_over(p, false);
}

static void client_readable(struct peer *p)
{
	struct verdict v = {0};
	size_t keep = 8;
	ssize_t got;

	/* The head and the newest bytes are kept. */
	if (p->n_in > IN_BYTES - 4096) {
		memmove(p->in + 8192, p->in + p->n_in - keep, keep);
		p->n_in = 8192 + keep;
	}
	got = recv(p->fd, p->in + p->n_in, IN_BYTES - p->n_in - 1, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		client_ended(p, got < 0);
		return;
	}
	p->n_in += (size_t)got;
	p->n_read += (size_t)got;
	p->in[p->n_in] = '\0';
	if (p->leaves && p->read_goal > 0 && p->n_read >= p->read_goal) {
		client_leave(p);
		return;
	}
	if (read_head(p, &v) && is_complete(p, &v))
		client_complete(p, &v);
}

/* ---- the loop ---- */

static void send_some(struct peer *p)
{
	while (p->sent < p->upto) {
		ssize_t n =
			send(p->fd, p->out + p->sent, p->upto - p->sent, MSG_NOSIGNAL);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0 && p->kind == WORKER) {
			peer_close(p, false);
			return;
		}
		if (n < 0) { /* refused early: its answer is still there to be read */
			p->upto = p->n_out = p->sent;
			p->is_whole = false;
			return;
		}
		p->sent += (size_t)n;
	}
	if (p->kind == WORKER && p->is_answering)
		worker_wrote(p);
	else if (p->kind == CLIENT)
		client_wrote(p);
}

static void accept_some(struct peer *l)
{
	for (;;) {
		int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC),
		    one = 1;

		if (fd < 0)
			return;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		peer_new(WORKER, fd);
	}
}

static void handle(struct peer *p, short events)
{
	if (p->kind == LISTENER) {
		accept_some(p);
		return;
	}
	p->is_connecting = false;
	if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
		if (p->kind == WORKER)
			worker_readable(p);
		else
			client_readable(p);
	}
	if (p->kind != FREE)
		send_some(p);
}

static void timers(void)
{
	uint64_t now = now_ms();
	struct peer *p;

	for (p = peers; p < peers + PEERS_MAX; p++) {
		if (p->kind == CLIENT && now - p->began_ms > HANG_MS) {
			blame(p, "hangs");
			client_over(p, true);
			continue;
		}
		if (p->kind == FREE || p->due_ms == 0 || p->due_ms > now)
			continue;
		if (p->kind == WORKER)
			worker_timer(p);
		else
			client_timer(p);
		if (p->kind != FREE)
			send_some(p);
	}
}

static short wanted(const struct peer *p)
{
	short events = p->n_in < IN_BYTES ? POLLIN : 0;

	if (p->is_connecting || p->sent < p->upto)
		events |= POLLOUT;
	return events;
}

static void report(void)
{
	unsigned i;

	printf("done {\"cycles\":%u,\"complete\":%u,\"left\":%u,\"cut\":%u,\"eof\":%u,"
	       "\"violations\":%u,\"violation\":\"%s\",\"statuses\":{",
		n_cycles, n_complete, n_left, n_cut, n_eof, n_violations, violation);
	for (i = 100; i < 600; i++) {
		if (statuses[i] > 0)
			printf("\"%u\":%u,", i, statuses[i]);
	}
	printf("\"0\":0}}\n");
	fflush(stdout);
	n_cycles = n_complete = n_left = n_cut = n_eof = n_violations = 0;
	memset(statuses, 0, sizeof(statuses));
}

static bool read_command(void)
{
	char line[128];
	ssize_t n = read(STDIN_FILENO, line, sizeof(line) - 1);

	if (n <= 0)
		return false;
	line[n] = '\0';
	if (sscanf(line, "go %u %u %u %u", &router_port, &cycles_left, &abreast,
		    &streams) != 4) {
		fprintf(stderr, "storm: what is %s", line);
		exit(1);
	}
	all_may_be_out = (streams & 2) != 0;
	may_lose_long = (streams & 4) != 0;
	streams &= 1;
	return true;
}

static void turn(bool *is_running, bool *is_over)
{
	static struct pollfd fds[PEERS_MAX + 1];
	static struct peer *who[PEERS_MAX + 1];
	unsigned n = 0, i;
	struct peer *p;

	while (*is_running && cycles_left > 0 && n_clients < abreast)
		client_start();
	fds[n++] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
	for (p = peers; p < peers + PEERS_MAX; p++) {
		if (p->kind == FREE)
			continue;
		who[n] = p;
		fds[n++] = (struct pollfd){p->fd, wanted(p), 0};
	}
	if (poll(fds, n, 1) < 0 && errno != EINTR)
		die("poll");
	for (i = 1; i < n; i++) {
		/* Its slot may hold another peer by now. */
		if (fds[i].revents != 0 && who[i]->kind != FREE &&
			who[i]->fd == fds[i].fd)
			handle(who[i], fds[i].revents);
	}
	timers();
	if (fds[0].revents != 0) {
		if (read_command())
			*is_running = true;
		else
			*is_over = true;
	}
	if (*is_running && cycles_left == 0 && n_clients == 0) {
		*is_running = false;
		report();
	}
}

int main(int argc, char **argv)
{
	bool is_running = false, is_over = false;
	int i, n = argc > 2 ? atoi(argv[2]) : 0;

	if (n < 1) {
		fprintf(stderr, "usage: storm SEED WORKERS\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	rng_state = strtoul(argv[1], NULL, 10);
	printf("ports");
	for (i = 0; i < n; i++) {
		struct sockaddr_in a = {.sin_family = AF_INET};
		socklen_t len = sizeof(a);
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

		a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) != 0 ||
			listen(fd, 4096) != 0 ||
			getsockname(fd, (struct sockaddr *)&a, &len) != 0)
			die("listen");
		peer_new(LISTENER, fd);
		printf(" %u", ntohs(a.sin_port));
	}
	printf("\n");
	fflush(stdout);
	while (!is_over)
		turn(&is_running, &is_over);
	return 0;
}
