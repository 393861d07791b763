/* KVX/1 as bytes: golden frames, everything that is written is read again, nothing
 * damaged or short is. */
#include "base/crc32c.h"
#include "base/err.h"
#include "base/rng.h"
#include "kvx/kvx_frame.h"
#include "unit.h"

static unsigned char room[16384];

static struct kvx_out start(void)
{
	return (struct kvx_out){room, 0, sizeof(room), false};
}

static struct span payload_of(const struct kvx_out *o)
{
	ck_assert(!o->is_full);
	return span_make((const char *)o->p, o->n);
}

static void assert_hex(const void *bytes, size_t n, const char *hex)
{
	char text[512];

	ck_assert_uint_lt(2 * n, sizeof(text));
	text[0] = '\0';
	for (size_t i = 0; i < n; i++)
		(void)snprintf(
			text + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
	ck_assert_str_eq(text, hex);
}

/* The check values of the catalogue of CRCs and of RFC 3720 B.4. */
START_TEST(sums)
{
	unsigned char bytes[4096];
	struct rng rng;

	ck_assert_uint_eq(crc32c(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, 32);
	ck_assert_uint_eq(crc32c(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, 32);
	ck_assert_uint_eq(crc32c(0, bytes, 32), 0x62a8ab43);
	ck_assert_uint_eq(crc32c(0, NULL, 0), 0);
	rng_seed(&rng, 1);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)rng_next(&rng);
	for (size_t n = 0; n < 200; n++) {
		size_t from = rng_below(&rng, 64), cut = n > 0 ? rng_below(&rng, n) : 0;
		uint32_t sum = crc32c(0, bytes + from, n);

		ck_assert_uint_eq(sum, crc32c_by_tables(0, bytes + from, n));
		ck_assert_uint_eq(sum, crc32c(crc32c(0, bytes + from, cut),
					       bytes + from + cut, n - cut));
	}
}
END_TEST

START_TEST(golden_header)
{
	struct kvx_header h = {KVX_PULL, 0x01020304, 3, 0x364b3fb7, 0x1122334455667788},
			  back;
	unsigned char bytes[KVX_HEADER_BYTES], again[KVX_HEADER_BYTES];

	ck_assert_uint_eq(crc32c(0, "abc", 3), h.crc);
	kvx_header_write(&h, bytes);
	assert_hex(bytes, 28,
		"4b56583103000000"
		"04030201"
		"03000000"
		"b73f4b36"
		"8877665544332211");
	ck_assert_int_eq(kvx_header_read(bytes, 3, &back), 0);
	kvx_header_write(&back, again);
	ck_assert_mem_eq(again, bytes, sizeof(bytes));
	ck_assert_uint_eq(back.crc, h.crc);
	ck_assert(kvx_payload_fits(&back, SPAN_LIT("abc")));
	ck_assert(!kvx_payload_fits(&back, SPAN_LIT("abd")));
	ck_assert(!kvx_payload_fits(&back, SPAN_LIT("ab")));
	ck_assert_int_eq(kvx_header_read(bytes, 2, &back), ERR_LIMIT);
}
END_TEST

/* Each bit counts; types and reserved bytes that mean nothing are no frames. */
START_TEST(damaged_headers)
{
	struct kvx_header h = {.type = KVX_BLOCK, .stream = 7, .len = 152, .crc = 5},
			  back;
	unsigned char bytes[KVX_HEADER_BYTES];

	for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
		kvx_header_write(&h, bytes);
		bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
		ck_assert_int_eq(kvx_header_read(bytes, UINT32_MAX, &back), ERR_PARSE);
	}
	for (unsigned type = 0; type < 256; type++) {
		bool is_known = (type >= 1 && type <= 13) || type == 15;

		h.type = (uint8_t)type;
		kvx_header_write(&h, bytes);
		ck_assert_int_eq(kvx_header_read(bytes, UINT32_MAX, &back),
			is_known ? 0 : ERR_PARSE);
	}
	h = (struct kvx_header){.type = KVX_PING, .len = KVX_SMALL_MAX + 1};
	kvx_header_write(&h, bytes);
	ck_assert_int_eq(kvx_header_read(bytes, UINT32_MAX, &back), ERR_LIMIT);
	h.type = KVX_BLOCK;
	kvx_header_write(&h, bytes);
	ck_assert_int_eq(kvx_header_read(bytes, UINT32_MAX, &back), 0);
}
END_TEST

START_TEST(golden_payloads)
{
	struct kvx_hello hello = {.version = 1,
		.role = 2,
		.engine_id = "ab",
		.block_bytes = 144,
		.block_tokens = 16,
		.max_frame = 152,
		.caps = 1};
	struct kvx_pull_frame pull = {
		.request = SPAN_LIT("cmpl-1"), .skip = 3, .credit = 64};
	struct kvx_pull_ok ok = {4, 60, 30000, 9};
	struct kvx_end end = {4, 0x0102030405060708};
	struct kvx_out o = start();

	kvx_put_hello(&o, &hello);
	ck_assert_uint_eq(o.n, 4 + 36 + 32 + 8 + 2 + 2 + 8);
	assert_hex(room, 8, "0100020061620000");
	assert_hex(room + 72, 20,
		"9000000000000000"
		"1000"
		"0000"
		"98000000"
		"01000000");
	o = start();
	kvx_put_pull(&o, &pull);
	assert_hex(room, 8, "0600636d706c2d31");
	assert_hex(room + 8 + 32, 8, "0300000040000000");
	o = start();
	kvx_put_pull_ok(&o, &ok);
	assert_hex(room, o.n, "040000003c000000307500000900000000000000");
	o = start();
	kvx_put_end(&o, &end);
	assert_hex(room, o.n, "040000000807060504030201");
	o = start();
	kvx_put_err(&o, KVX_E_LEASE_GONE, "gone");
	assert_hex(room, o.n,
		"0400"
		"0400"
		"676f6e65");
}
END_TEST

START_TEST(hello_and_back)
{
	struct kvx_hello h = {.version = 1,
				 .role = 1,
				 .block_bytes = UINT64_MAX,
				 .block_tokens = 16,
				 .dtype = 3,
				 .layout = 4,
				 .max_frame = 5,
				 .caps = 6},
			 back;
	struct kvx_out o = start();
	struct span p;

	memset(h.engine_id, 'e',
		KVX_ENGINE_ID_BYTES); /* as long as may be: no NUL travels */
	memset(h.compat, 0xc3, sizeof(h.compat));
	kvx_put_hello(&o, &h);
	p = payload_of(&o);
	ck_assert_int_eq(kvx_get_hello(p, &back), 0);
	ck_assert_str_eq(back.engine_id, h.engine_id);
	ck_assert_mem_eq(back.compat, h.compat, sizeof(h.compat));
	ck_assert(back.version == 1 && back.role == 1 && back.block_bytes == UINT64_MAX &&
		  back.block_tokens == 16 && back.dtype == 3 && back.layout == 4 &&
		  back.max_frame == 5 && back.caps == 6);
	for (size_t n = 0; n < p.n; n++)
		ck_assert_int_eq(kvx_get_hello(span_make(p.p, n), &back), ERR_PARSE);
	ck_assert_int_eq(kvx_get_hello(span_make(p.p, p.n + 1), &back), ERR_PARSE);
}
END_TEST

START_TEST(pull_and_release_and_back)
{
	struct kvx_pull_frame pull = {.request = SPAN_LIT("r"), .skip = 1, .credit = 2},
			      pulled;
	struct kvx_release release = {.request = SPAN_LIT("another"),
				   .reason = KVX_ABORTED},
			   released;
	char long_id[KVX_REQUEST_MAX + 1];
	struct kvx_out o = start();
	struct span p;

	memset(pull.token, 1, sizeof(pull.token));
	memset(release.token, 2, sizeof(release.token));
	kvx_put_pull(&o, &pull);
	p = payload_of(&o);
	ck_assert_int_eq(kvx_get_pull(p, &pulled), 0);
	ck_assert(span_is(pulled.request, "r") && pulled.skip == 1 && pulled.credit == 2);
	ck_assert_mem_eq(pulled.token, pull.token, sizeof(pull.token));
	for (size_t n = 0; n < p.n; n++)
		ck_assert_int_eq(kvx_get_pull(span_make(p.p, n), &pulled), ERR_PARSE);
	o = start();
	kvx_put_release(&o, &release);
	p = payload_of(&o);
	ck_assert_int_eq(kvx_get_release(p, &released), 0);
	ck_assert(span_is(released.request, "another") && released.reason == KVX_ABORTED);
	for (size_t n = 0; n < p.n; n++)
		ck_assert_int_eq(
			kvx_get_release(span_make(p.p, n), &released), ERR_PARSE);
	memset(long_id, 'x', sizeof(long_id));
	pull.request = span_make(long_id, sizeof(long_id));
	o = start();
	kvx_put_pull(&o, &pull);
	ck_assert_int_eq(kvx_get_pull(payload_of(&o), &pulled), ERR_PARSE);
}
END_TEST

START_TEST(heartbeats_and_back)
{
	struct kvx_beat beats[KVX_HEARTBEAT_MAX], beat = {.request = SPAN_LIT("id")};
	uint32_t left[KVX_HEARTBEAT_MAX];
	struct kvx_out o = start();
	size_t n = 0;

	kvx_put_u16(&o, KVX_HEARTBEAT_MAX);
	for (unsigned i = 0; i < KVX_HEARTBEAT_MAX; i++) {
		memset(beat.token, (int)i, sizeof(beat.token));
		kvx_put_beat(&o, &beat);
	}
	ck_assert_int_eq(kvx_get_heartbeat(payload_of(&o), beats, &n), 0);
	ck_assert_uint_eq(n, KVX_HEARTBEAT_MAX);
	ck_assert(span_is(beats[KVX_HEARTBEAT_MAX - 1].request, "id"));
	ck_assert_mem_eq(
		beats[KVX_HEARTBEAT_MAX - 1].token, beat.token, sizeof(beat.token));
	ck_assert_int_eq(kvx_get_heartbeat(span_make((char *)room, o.n - 1), beats, &n),
		ERR_PARSE);
	kvx_put_beat(&o, &beat);
	ck_assert_int_eq(kvx_get_heartbeat(payload_of(&o), beats, &n), ERR_PARSE);
	o = start();
	kvx_put_u16(&o, KVX_HEARTBEAT_MAX + 1);
	for (unsigned i = 0; i <= KVX_HEARTBEAT_MAX; i++)
		kvx_put_beat(&o, &beat);
	ck_assert_int_eq(kvx_get_heartbeat(payload_of(&o), beats, &n), ERR_PARSE);
	o = start();
	kvx_put_u16(&o, 2);
	kvx_put_u32(&o, 0);
	kvx_put_u32(&o, 77);
	ck_assert_int_eq(kvx_get_heartbeat_ok(payload_of(&o), left, &n), 0);
	ck_assert(n == 2 && left[0] == 0 && left[1] == 77);
	ck_assert_int_eq(
		kvx_get_heartbeat_ok(span_make((char *)room, 9), left, &n), ERR_PARSE);
}
END_TEST

START_TEST(the_rest_and_back)
{
	struct kvx_block_head head = {9, 16}, head_back;
	struct kvx_out o = start();
	enum kvx_code code;
	struct span block, text;
	uint32_t n;

	kvx_put_block_head(&o, &head);
	memcpy(room + o.n, "bytes", 5);
	ck_assert_int_eq(
		kvx_get_block(span_make((char *)room, o.n + 5), &head_back, &block), 0);
	ck_assert(head_back.index == 9 && head_back.tokens == 16 &&
		  span_is(block, "bytes"));
	ck_assert_int_eq(
		kvx_get_block(span_make((char *)room, 7), &head_back, &block), ERR_PARSE);
	o = start();
	kvx_put_credit(&o, 5);
	ck_assert_int_eq(kvx_get_credit(payload_of(&o), &n), 0);
	ck_assert_uint_eq(n, 5);
	for (unsigned k = 0; k <= KVX_E_MAX; k++) {
		o = start();
		kvx_put_err(&o, (enum kvx_code)k, "why");
		ck_assert_int_eq(kvx_get_err(payload_of(&o), &code, &text),
			k > 0 && k < KVX_E_MAX ? 0 : ERR_PARSE);
	}
	o = (struct kvx_out){room, 0, 3, false};
	kvx_put_u32(&o, 1);
	ck_assert(o.is_full && o.n == 0);
	kvx_put_u16(&o, 1); /* what does not fit is no hole */
	ck_assert_uint_eq(o.n, 0);
}
END_TEST

static Suite *frame_suite(void)
{
	Suite *suite = suite_create("kvx_frame");
	TCase *tc = tcase_create("kvx_frame");

	tcase_add_test(tc, sums);
	tcase_add_test(tc, golden_header);
	tcase_add_test(tc, damaged_headers);
	tcase_add_test(tc, golden_payloads);
	tcase_add_test(tc, hello_and_back);
	tcase_add_test(tc, pull_and_release_and_back);
	tcase_add_test(tc, heartbeats_and_back);
	tcase_add_test(tc, the_rest_and_back);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(frame_suite())
