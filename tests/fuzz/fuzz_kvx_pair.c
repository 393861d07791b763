/*
 * Both sides of KVX/1 over socket pairs, in virtual time: a client that pulls blocks, a
 * server that has leases, and between them whoever cuts, damages, forges or holds up
 * bytes. The input is a program: steps of two bytes, and the bytes of a step that forges.
 * What must hold: a pull ends once, and in time; one that ends well has had each block,
 * in order, as the server has it, unless bytes were forged; every lease is let go of once;
 * no descriptor stays open.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/ip.h"
#include "base/log.h"
#include "base/metric.h"
#include "io/loop.h"
#include "io/sock.h"
#include "kvx/kvx_client.h"
#include "kvx/kvx_server.h"
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>

enum {
	PULLS = 3,
	LEASES = 3,
	BLOCKS = 9,
	BLOCK_BYTES = 144,
	LINKS_MAX = 64,
	STEPS_MAX = 200,
	TURNS = 3,
	ENDS_WITHIN_MS = 60000
};

enum { START_MS = 1000000 };

/* Between a connection of the client and one of the server. */
struct middle {
	int client, server; /* -1: closed */
};

struct puller {
	struct kvx_pull *pull;
	unsigned lease;
	uint32_t skip, n, got;
	bool is_started, has_ended;
};

static const struct kvx_hello server_self = {.version = KVX_VERSION,
	.role = 1,
	.engine_id = "the-engine",
	.block_bytes = BLOCK_BYTES,
	.block_tokens = 16,
	.caps = KVX_CAP_TCP};
static const struct kvx_hello client_self = {.version = KVX_VERSION,
	.role = 2,
	.engine_id = "another",
	.block_bytes = BLOCK_BYTES,
	.block_tokens = 16,
	.caps = KVX_CAP_TCP};

static struct loop *loop;
static struct kvx_client *client;
static struct kvx_server *server;
static struct leases *leases;
static struct middle middles[LINKS_MAX];
static unsigned n_middles;
static int waiting_fd; /* to be accepted; -1: none */
static struct puller pullers[PULLS];
static int held[LEASES]; /* leases there are, of each id */
static bool has_forged;
static uint64_t now_ms;
static unsigned char fill_from;

/* ---- wrapped ---- */

int __wrap_sock_connect(const union sock_addr *a, int *fd);
int __wrap_sock_accept(int listen_fd, int *fd, union sock_addr *peer);
void __wrap_rng_secret(void *out, size_t n);

static void make_pair(int fds[2])
{
	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) ==
		0);
}

int __wrap_sock_connect(const union sock_addr *a UNUSED, int *fd)
{
	struct middle *m = &middles[n_middles];
	int near[2], far[2];

	if (n_middles == LINKS_MAX || waiting_fd >= 0)
		return ERR_REFUSED;
	make_pair(near);
	make_pair(far);
	*fd = near[0];
	*m = (struct middle){near[1], far[1]};
	waiting_fd = far[0];
	n_middles++;
	return 0;
}

int __wrap_sock_accept(int listen_fd UNUSED, int *fd, union sock_addr *peer)
{
	if (waiting_fd < 0)
		return ERR_AGAIN;
	*fd = waiting_fd;
	waiting_fd = -1;
	return sock_addr_parse("127.0.0.1", 1, peer);
}

void __wrap_rng_secret(void *out, size_t n)
{
	memset(out, 7, n);
}

/* ---- the server's blocks ---- */

static void fill_block(unsigned lease, uint32_t index, unsigned char *out)
{
	for (unsigned i = 0; i < BLOCK_BYTES; i++)
		out[i] = (unsigned char)(fill_from + lease * 31 + index * 7 + i);
}

static int read_block(void *arg UNUSED, const struct lease *lease, uint32_t i, void *dst)
{
	fill_block((unsigned)(lease->id[0] - '0'), i, dst);
	return 0;
}

static void on_leases(void *arg UNUSED)
{
}

static void on_drop(void *arg UNUSED, void *of)
{
	--*(int *)of;
}

static void new_lease(unsigned i)
{
	char id[2] = {(char)('0' + i), '\0'};

	if (lease_find(leases, span_str(id)) == NULL &&
		lease_new(leases, id, &held[i], BLOCKS, BLOCKS * 16, now_ms) != NULL)
		held[i]++;
}

/* ---- the client's pulls ---- */

static bool on_block(void *arg, uint32_t index, struct span bytes)
{
	struct puller *p = arg;
	unsigned char want[BLOCK_BYTES];

	MUST(!p->has_ended && index == p->skip + p->got && index < p->n);
	fill_block(p->lease, index, want);
	MUST(has_forged ||
		(bytes.n == BLOCK_BYTES && memcmp(bytes.p, want, BLOCK_BYTES) == 0));
	p->got++;
	return true;
}

static void on_end(void *arg, enum kvx_end_why why)
{
	struct puller *p = arg;

	MUST(p->is_started && !p->has_ended);
	MUST(why != KVX_OK || p->got == p->n - p->skip);
	p->has_ended = true;
}

static const struct kvx_pull_ops pull_ops = {on_block, on_end};

static void begin_pull(struct puller *p, unsigned lease, bool with_token)
{
	char id[2] = {(char)('0' + lease), '\0'};
	const struct lease *there = lease_find(leases, span_str(id));
	union sock_addr addr;
	struct kvx_source source = {.addr = &addr,
		.request = span_str(id),
		.engine_id = SPAN_LIT("the-engine"),
		.lease_ms = 6000};

	MUST(sock_addr_parse("10.0.0.1", 9, &addr) == 0);
	if (there != NULL && with_token)
		memcpy(source.token, there->token, sizeof(source.token));
	*p = (struct puller){.lease = lease};
	p->pull = kvx_pull_new(client, &source, &pull_ops, p);
	MUST(p->pull != NULL);
}

/* Begins, then starts, then frees it. */
static void step_pull(unsigned arg)
{
	struct puller *p = &pullers[arg % PULLS];

	if (p->pull == NULL) {
		begin_pull(p, arg / PULLS % LEASES, arg < 200);
	} else if (!p->is_started) {
		p->is_started = true;
		p->n = 1 + arg / PULLS % BLOCKS;
		p->skip = arg / 64 % p->n;
		kvx_pull_start(p->pull, p->skip, p->n, p->n * 16);
	} else {
		kvx_pull_free(p->pull, arg % 5);
		*p = (struct puller){.pull = NULL};
	}
}

/* ---- between them ---- */

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_middle(struct middle *m)
{
	close_end(&m->client);
	close_end(&m->server);
}

/* damage: the byte at that place is another; SIZE_MAX: none. An end is passed on. */
static void pass(struct middle *m, bool to_server, size_t most, size_t damage)
{
	static char bytes[1 << 16];
	int *from = to_server ? &m->client : &m->server;
	int *to = to_server ? &m->server : &m->client;
	ssize_t n = *from >= 0 ? read(*from, bytes, MIN(most, sizeof(bytes))) : -1;

	if (n > 0) {
		if (damage < (size_t)n)
			bytes[damage] ^= 1;
		if (*to >= 0)
			(void)!send(*to, bytes, (size_t)n, MSG_NOSIGNAL);
	} else if (*from >= 0 && (n == 0 || errno != EAGAIN)) {
		close_middle(m);
	}
}

static void pass_all(bool to_server, size_t most, size_t damage)
{
	for (unsigned i = 0; i < n_middles; i++)
		pass(&middles[i], to_server, most, damage);
}

static void forge(bool to_server, const char *p, size_t n)
{
	struct middle *m = n_middles > 0 ? &middles[n_middles - 1] : NULL;
	int fd = m == NULL ? -1 : to_server ? m->server : m->client;

	has_forged |= !to_server;
	if (fd >= 0)
		(void)!send(fd, p, n, MSG_NOSIGNAL);
}

static void turns(bool passes)
{
	for (unsigned i = 0; i < TURNS; i++) {
		loop_turn(loop, 0);
		if (passes) {
			pass_all(true, SIZE_MAX, SIZE_MAX);
			pass_all(false, SIZE_MAX, SIZE_MAX);
		}
	}
}

static void wait_ms(uint64_t ms, bool passes)
{
	now_ms += ms;
	clock_set(now_ms);
	(void)leases_expire(leases, now_ms);
	turns(passes);
}

static void step_cut(unsigned arg)
{
	struct middle *m = n_middles > 0 ? &middles[arg / 4 % n_middles] : NULL;

	if (arg % 4 == 3)
		kvx_server_cut(server);
	else if (m != NULL && arg % 4 == 2)
		close_middle(m);
	else if (m != NULL)
		close_end(arg % 2 == 0 ? &m->client : &m->server);
}

static void step_lease(unsigned arg)
{
	char id[2] = {(char)('0' + arg % LEASES), '\0'};
	const struct lease *there = lease_find(leases, span_str(id));

	if (arg < 128)
		new_lease(arg % LEASES);
	else if (there != NULL)
		lease_end(leases, there);
}

/* Returns the bytes of the step. */
static size_t run_step(const uint8_t *p, size_t n, bool passes)
{
	unsigned arg = p[1];
	size_t len = 0;

	switch (p[0] % 8) {
	case 0:
	case 1:
		pass_all(p[0] % 8 == 0, arg == 0 ? SIZE_MAX : arg, SIZE_MAX);
		break;
	case 2:
		pass_all(p[0] & 8, SIZE_MAX, arg);
		break;
	case 3:
		len = MIN((size_t)arg, n - 2);
		forge(p[0] & 8, (const char *)p + 2, len);
		break;
	case 4:
		wait_ms((uint64_t)arg * arg + 1, passes);
		break;
	case 5:
		step_pull(arg);
		break;
	case 6:
		step_lease(arg);
		break;
	default:
		step_cut(arg);
	}
	turns(passes);
	return 2 + len;
}

/* ---- begin and end ---- */

static void set_up(void)
{
	static struct ip_net all;
	struct leases_opts l = {6000, 1000, on_drop, NULL};
	struct kvx_server_opts s = {.self = &server_self,
		.peers = &all,
		.n_peers = 1,
		.read = read_block,
		.on_leases = on_leases};
	struct kvx_client_opts c = {&client_self, 1000, 2000};

	now_ms = START_MS;
	clock_set(now_ms);
	n_middles = 0;
	waiting_fd = -1;
	has_forged = false;
	MUST(ip_net_parse(SPAN_LIT("127.0.0.0/8"), &all) == 0);
	loop = loop_new();
	s.leases = leases = leases_new(&l);
	MUST(loop != NULL && leases != NULL);
	/* Always readable: there is somebody to accept, or nobody. */
	server = kvx_server_new(loop, eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC), &s);
	client = kvx_client_new(loop, &c);
	MUST(server != NULL && client != NULL);
	for (unsigned i = 0; i < LEASES; i++)
		new_lease(i);
}

static bool are_over(void)
{
	for (unsigned i = 0; i < PULLS; i++) {
		if (pullers[i].is_started && !pullers[i].has_ended)
			return false;
	}
	return true;
}

static void tear_down(void)
{
	uint64_t until_ms = now_ms + ENDS_WITHIN_MS;

	while (!are_over() && now_ms < until_ms)
		wait_ms(500, true);
	MUST(are_over());
	for (unsigned i = 0; i < PULLS; i++) {
		if (pullers[i].pull != NULL)
			kvx_pull_free(pullers[i].pull, 0);
		pullers[i] = (struct puller){.pull = NULL};
	}
	kvx_client_free(client);
	kvx_server_free(server);
	loop_turn(loop, 0);
	loop_turn(loop, 0);
	leases_free(leases);
	loop_free(loop);
	close_end(&waiting_fd);
	for (unsigned i = 0; i < n_middles; i++)
		close_middle(&middles[i]);
	for (unsigned i = 0; i < LEASES; i++)
		MUST(held[i] == 0);
}

int LLVMFuzzerInitialize(int *argc UNUSED, char ***argv UNUSED)
{
	signal(SIGPIPE, SIG_IGN);
	metric_thread_start();
	log_open(open("/dev/null", O_WRONLY | O_CLOEXEC), false);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	size_t at = 1;

	if (size < 3)
		return 0;
	fill_from = bytes[0];
	set_up();
	for (unsigned i = 0; i < STEPS_MAX && at + 2 <= size; i++)
		at += run_step(bytes + at, size - at, bytes[0] & 1);
	tear_down();
	return 0;
}
