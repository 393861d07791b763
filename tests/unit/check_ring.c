/*
 * The vLLM router's hash and ring: literal values (worked out by tests/e2e/vllm_ring.py,
 * a second implementation, which an end-to-end test compares again), how keys move, and
 * that the order of the workers does not matter.
 */
#include "base/ring.h"
#include "base/rng.h"
#include "tests/unit/unit.h"

#include <string.h>

#define NODES_MAX 32

static char texts[NODES_MAX][64];
static struct span ids[NODES_MAX];

static void set_up(void)
{
	for (unsigned i = 0; i < NODES_MAX; i++) {
		snprintf(texts[i], sizeof(texts[i]), "http://10.0.0.%u:8000", i + 1);
		ids[i] = span_str(texts[i]);
	}
}

static const struct {
	const char *text;
	uint64_t hash;
} golden[] = {
	{"", UINT64_C(0xc0663e029346e424)},
	{"a", UINT64_C(0x29d1ab12ec5fea11)},
	{"header:x-session-id:abc", UINT64_C(0x543d9eea8d6f5317)},
	{"session:conv-1", UINT64_C(0x960a2458eeb99663)},
	{"user:bob", UINT64_C(0xe768ec8e7016b502)},
	{"http://10.0.0.1:8000:0", UINT64_C(0xe2826015ce42f29a)},
	{"http://10.0.0.1:8000:159", UINT64_C(0x3c6293233b7b8aa1)},
	{"header:x-session-id:\xc3\xa9", UINT64_C(0x25842290dc75d3ac)},
	{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
	 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
		UINT64_C(0xd141f2c1393bdbf4)},
	/* One in four millions: the number is 1, or 0. */
	{"k556710", UINT64_C(0x2bc9a566104875d8)},
	{"k3531329", UINT64_C(0x2bc9a566104875d8)},
	{"k6029123", UINT64_C(0x6fbc031ec8190908)},
	{"k10973064", UINT64_C(0x2bc9a566104875d8)},
	{"k12149045", UINT64_C(0x6fbc031ec8190908)},
};

START_TEST(golden_values)
{
	for (size_t i = 0; i < ARRAY_LEN(golden); i++)
		ck_assert_msg(ring_hash(span_str(golden[i].text)) == golden[i].hash,
			"%s: %016llx", golden[i].text,
			(unsigned long long)ring_hash(span_str(golden[i].text)));
}
END_TEST

static struct ring *ring_of(const struct span *list, size_t n)
{
	struct ring *r = ring_new(list, n);

	ck_assert_ptr_nonnull(r);
	return r;
}

static uint64_t owner_of(const struct ring *r, unsigned key)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "header:x-session-id:%u", key);

	return ring_owner(r, ring_first(r, ring_hash(span_make(text, (size_t)n))));
}

/* As the second implementation has them. */
START_TEST(owners_of_four)
{
	static const unsigned owners[] = {3, 4, 3, 3, 2, 4, 4, 4};
	struct ring *r = ring_of(ids, 4);

	ck_assert_uint_eq(ring_points(r), 640);
	for (unsigned k = 0; k < ARRAY_LEN(owners); k++)
		ck_assert(owner_of(r, k) == ring_id(ids[owners[k] - 1]));
	ring_free(r);
}
END_TEST

START_TEST(first_point_at_or_after)
{
	struct ring *r = ring_of(ids, 4);
	uint64_t lowest = UINT64_C(0x7f7337c4a763fc);

	ck_assert_uint_eq(ring_first(r, 0), 0);
	ck_assert_uint_eq(ring_first(r, lowest), 0);
	ck_assert_uint_eq(ring_first(r, lowest + 1), 1);
	ck_assert_uint_eq(ring_first(r, UINT64_MAX), 0); /* round the end */
	ring_free(r);
	r = ring_of(NULL, 0);
	ck_assert_uint_eq(ring_points(r), 0);
	ring_free(r);
	ring_free(NULL);
}
END_TEST

START_TEST(order_of_the_file_does_not_matter)
{
	struct ring *a = ring_of(ids, 12), *b;
	struct span turned[12];

	for (unsigned i = 0; i < 12; i++)
		turned[i] = ids[(i * 5 + 3) % 12];
	b = ring_of(turned, 12);
	ck_assert_uint_eq(ring_points(a), ring_points(b));
	for (size_t i = 0; i < ring_points(a); i++)
		ck_assert(ring_owner(a, i) == ring_owner(b, i));
	ring_free(a);
	ring_free(b);
}
END_TEST

#define KEYS 4000

/* Of one that leaves only its own keys move, of one that comes only those it takes: about
 * an nth. */
START_TEST(few_keys_move)
{
	struct ring *all = ring_of(ids, 8), *fewer = ring_of(ids, 7);
	unsigned moved = 0;

	for (unsigned k = 0; k < KEYS; k++) {
		uint64_t was = owner_of(all, k), is = owner_of(fewer, k);

		if (was != ring_id(ids[7]))
			ck_assert(was == is);
		else
			ck_assert(was != is);
		moved += was != is;
	}
	ck_assert_uint_ge(moved, KEYS / 8 * 6 / 10);
	ck_assert_uint_le(moved, KEYS / 8 * 15 / 10);
	ring_free(all);
	ring_free(fewer);
}
END_TEST

START_TEST(keys_spread)
{
	struct ring *r = ring_of(ids, 8);
	unsigned count[8] = {0};

	for (unsigned k = 0; k < KEYS; k++) {
		uint64_t owner = owner_of(r, k);

		for (unsigned i = 0; i < 8; i++)
			count[i] += owner == ring_id(ids[i]);
	}
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_ge(count[i], KEYS / 8 / 2);
		ck_assert_uint_le(count[i], KEYS / 8 * 2);
	}
	ring_free(r);
}
END_TEST

static Suite *ring_suite(void)
{
	Suite *s = suite_create("ring");
	TCase *tc = tcase_create("ring");

	tcase_add_checked_fixture(tc, set_up, NULL);
	tcase_add_test(tc, golden_values);
	tcase_add_test(tc, owners_of_four);
	tcase_add_test(tc, first_point_at_or_after);
	tcase_add_test(tc, order_of_the_file_does_not_matter);
	tcase_add_test(tc, few_keys_move);
	tcase_add_test(tc, keys_spread);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(ring_suite())
