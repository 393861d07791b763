/* The decode side of KVX/1 against a prefill worker made by hand, by a clock of the
 * test's: how often it says that it still wants what is kept for it, and by what right. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "kvx/kvx_client.h"
#include "unit_loop.h"

#include <string.h>

enum { BEGIN_MS = 1000000 };

static const struct kvx_hello self = {.version = KVX_VERSION,
	.block_bytes = 144,
	.block_tokens = 16,
	.caps = KVX_CAP_TCP};

static struct loop *loop;
static struct kvx_client *client;
static union sock_addr addr;
static int listen_fd, fd;
static unsigned char in[65536];
static size_t n_in;

static bool on_block(void *arg UNUSED, uint32_t index UNUSED, struct span bytes UNUSED)
{
	return true;
}

static void on_end(void *arg UNUSED, enum kvx_end_why why)
{
	ck_abort_msg("ended: %s", kvx_end_text(why));
}

static const struct kvx_pull_ops pull_ops = {on_block, on_end};

static struct kvx_pull *pull(const char *request, unsigned char token, uint64_t lease_ms)
{
	struct kvx_source source = {.addr = &addr,
		.request = span_str(request),
		.engine_id = SPAN_LIT("the-engine"),
		.lease_ms = lease_ms};
	struct kvx_pull *p;

	memset(source.token, token, sizeof(source.token));
	p = kvx_pull_new(client, &source, &pull_ops, NULL);
	ck_assert_ptr_nonnull(p);
	return p;
}

/* Whether a whole frame is there; reads what has come. */
static bool has_frame(struct kvx_header *h)
{
	ssize_t n = recv(fd, in + n_in, sizeof(in) - n_in, MSG_DONTWAIT);

	n_in += n > 0 ? (size_t)n : 0;
	return n_in >= KVX_HEADER_BYTES && kvx_header_read(in, sizeof(in), h) == 0 &&
	       n_in >= KVX_HEADER_BYTES + h->len;
}

/* The next frame, of this type; its payload lives until the next one. */
static struct span await(enum kvx_type type)
{
	static unsigned char payload[65536];
	struct kvx_header h;

	TURN_UNTIL(loop, has_frame(&h));
	ck_assert_uint_eq(h.type, type);
	memcpy(payload, in + KVX_HEADER_BYTES, h.len);
	n_in -= KVX_HEADER_BYTES + h.len;
	memmove(in, in + KVX_HEADER_BYTES + h.len, n_in);
	return span_make((const char *)payload, h.len);
}

static void answer_hello(void)
{
	struct kvx_hello hello = self;
	unsigned char room[KVX_HEADER_BYTES + 256];
	struct kvx_out out = {room + KVX_HEADER_BYTES, 0, 256, false};
	struct kvx_header h = {.type = KVX_HELLO_OK};

	strcpy(hello.engine_id, "the-engine");
	kvx_put_hello(&out, &hello);
	h.len = (uint32_t)out.n;
	h.crc = crc32c(0, out.p, out.n);
	kvx_header_write(&h, room);
	ck_assert_int_eq(send(fd, room, KVX_HEADER_BYTES + out.n, 0),
		(int)(KVX_HEADER_BYTES + out.n));
}

static bool has_connected(void)
{
	fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK);
	return fd >= 0;
}

static void set_up(void)
{
	struct kvx_client_opts opts = {&self, 1000000, 1000000};

	clock_set(BEGIN_MS);
	loop = loop_new();
	listen_fd = listen_any(&addr);
	client = kvx_client_new(loop, &opts);
	n_in = 0;
}

static void tear_down(void)
{
	kvx_client_free(client);
	close(fd);
	close(listen_fd);
	loop_free(loop);
	clock_set(0);
}

/* Asserts that nothing is said before ms have passed, and then a sign of life for all n
 * pulls, "0" to "n - 1", with their tokens. */
static void expect_beat(uint64_t *now_ms, uint64_t ms, size_t n)
{
	struct kvx_beat beats[KVX_HEARTBEAT_MAX];
	struct kvx_header h;
	size_t got = 0;

	clock_set(*now_ms + ms - 1);
	for (int k = 0; k < 20; k++)
		loop_turn(loop, 0);
	ck_assert(!has_frame(&h));
	*now_ms += ms;
	clock_set(*now_ms);
	ck_assert_int_eq(kvx_get_heartbeat(await(KVX_HEARTBEAT), beats, &got), 0);
	ck_assert_uint_eq(got, n);
	for (size_t i = 0; i < n; i++) {
		ck_assert(beats[i].request.n == 1 &&
			  beats[i].request.p[0] == (char)('0' + i));
		ck_assert_uint_eq(beats[i].token[0], i + 1);
		ck_assert_uint_eq(beats[i].token[KVX_TOKEN_BYTES - 1], i + 1);
	}
}

/* Whichever pull came first, and whichever goes, a sixth of the shortest lease that is
 * left is between two signs of life. */
START_TEST(the_shortest_lease_counts)
{
	uint64_t now_ms = BEGIN_MS;
	struct kvx_pull *pulls[3];

	pulls[0] = pull("0", 1, 600000);
	TURN_UNTIL(loop, has_connected());
	(void)await(KVX_HELLO);
	answer_hello();
	(void)await(KVX_HEARTBEAT); /* at once */
	expect_beat(&now_ms, 100000, 1);
	pulls[1] = pull("1", 2, 60000);
	expect_beat(&now_ms, 10000, 2);
	pulls[2] = pull("2", 3, 6000);
	expect_beat(&now_ms, 1000, 3);
	expect_beat(&now_ms, 1000, 3);
	kvx_pull_free(pulls[2], 0);
	expect_beat(&now_ms, 1000, 2); /* which was set already */
	expect_beat(&now_ms, 10000, 2);
	kvx_pull_free(pulls[1], 0);
	expect_beat(&now_ms, 10000, 1);
	expect_beat(&now_ms, 100000, 1);
	kvx_pull_free(pulls[0], 0);
}
END_TEST

static Suite *client_suite(void)
{
	Suite *suite = suite_create("kvx_client");
	TCase *tc = tcase_create("kvx_client");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, the_shortest_lease_counts);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(client_suite())
