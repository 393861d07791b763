/* Leases by a clock of the test's: who may have them, how long they last, how much they
 * may be. */
#include "base/digest.h"
#include "kvx/lease.h"
#include "unit.h"

static unsigned dropped;
static struct leases *leases;

static void drop(void *arg, void *held)
{
	ck_assert_ptr_eq(arg, &dropped);
	++*(unsigned *)held;
	dropped++;
}

static void set_up(void)
{
	struct leases_opts opts = {
		.ttl_ms = 30000, .max_blocks = 10, .drop = drop, .arg = &dropped};

	dropped = 0;
	leases = leases_new(&opts);
	ck_assert_ptr_nonnull(leases);
}

static void tear_down(void)
{
	leases_free(leases);
	leases_free(NULL);
}

/* RFC 4231's keys are shorter or longer than ours; but for the first, which zeros make as
 * long. */
START_TEST(hmac)
{
	static const unsigned char want[32] = {0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38,
		0x53, 0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b, 0x88, 0x1d, 0xc2,
		0x00, 0xc9, 0x83, 0x3d, 0xa7, 0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf,
		0xf7};
	unsigned char key[LEASE_KEY_BYTES] = {0}, out[LEASE_TOKEN_BYTES];
	struct digester *d = digester_new();
	char text[257] = "";

	memset(key, 0x0b, 20);
	ck_assert(lease_hmac(d, key, SPAN_LIT("Hi There"), out));
	ck_assert_mem_eq(out, want, sizeof(want));
	ck_assert(lease_hmac(d, key, span_make(text, 256), out));
	ck_assert(!lease_hmac(d, key, span_make(text, 257), out));
	digester_free(d);
}
END_TEST

START_TEST(tokens_are_of_an_id_and_a_process)
{
	unsigned held[2] = {0, 0};
	unsigned char token[LEASE_TOKEN_BYTES];
	const struct lease *a = lease_new(leases, "a", &held[0], 1, 1, 0);
	const struct lease *b = lease_new(leases, "b", &held[1], 1, 1, 0);

	ck_assert(lease_token_is_ours(leases, SPAN_LIT("a"), a->token));
	ck_assert(!lease_token_is_ours(leases, SPAN_LIT("a"), b->token));
	ck_assert(!lease_token_is_ours(leases, SPAN_LIT(""), a->token));
	memcpy(token, a->token, sizeof(token));
	for (unsigned bit = 0; bit < 8 * sizeof(token); bit++) {
		token[bit / 8] ^= (unsigned char)(1 << bit % 8);
		ck_assert(!lease_token_is_ours(leases, SPAN_LIT("a"), token));
		token[bit / 8] ^= (unsigned char)(1 << bit % 8);
	}
	lease_end(leases, a);
	ck_assert(lease_token_is_ours(leases, SPAN_LIT("a"), token)); /* gone, but ours */
	leases_reset(leases);
	ck_assert(!lease_token_is_ours(leases, SPAN_LIT("a"), token));
	ck_assert(held[0] == 1 && held[1] == 1 && dropped == 2);
}
END_TEST

START_TEST(found_by_id)
{
	unsigned held = 0;
	const struct lease *a = lease_new(leases, "a", &held, 3, 40, 0);

	ck_assert_ptr_eq(lease_find(leases, SPAN_LIT("a")), a);
	ck_assert(a->held == &held && a->n_blocks == 3 && a->n_tokens == 40);
	ck_assert_ptr_null(lease_find(leases, SPAN_LIT("b")));
	ck_assert_ptr_null(lease_find(leases, span_make("a\0b", 3)));
	ck_assert_ptr_null(lease_find(leases, span_make(NULL, 0)));
	lease_end(leases, a);
	ck_assert_ptr_null(lease_find(leases, SPAN_LIT("a")));
	ck_assert_uint_eq(held, 1);
}
END_TEST

/* The table's fake clock: 30 s without a word; a word at any time makes it 20 s from
 * then, if that is more. */
START_TEST(time_ends_them)
{
	unsigned held[2] = {0, 0};
	const struct lease *silent = lease_new(leases, "silent", &held[0], 1, 1, 1000),
			   *alive;

	alive = lease_new(leases, "alive", &held[1], 1, 1, 1000);
	ck_assert_uint_eq(leases_wake_ms(leases), 31000);
	ck_assert_uint_eq(lease_renew(leases, alive, 6000), 25000);
	ck_assert_uint_eq(lease_renew(leases, alive, 11000), 20000);
	ck_assert_uint_eq(lease_renew(leases, alive, 16000), 20000);
	ck_assert_uint_eq(leases_expire(leases, 30999), 0);
	ck_assert_ptr_eq(lease_find(leases, SPAN_LIT("silent")), silent);
	ck_assert_uint_eq(leases_expire(leases, 31000), 1);
	ck_assert(held[0] == 1 && held[1] == 0);
	ck_assert_uint_eq(leases_wake_ms(leases), 36000);
	ck_assert_uint_eq(leases_expire(leases, 40000), 1);
	ck_assert_uint_eq(leases_counts(leases)->expired, 2);
	ck_assert_uint_eq(leases_wake_ms(leases), UINT64_MAX);
	ck_assert_uint_eq(leases_counts(leases)->n + leases_counts(leases)->blocks, 0);
}
END_TEST

START_TEST(room_is_bounded)
{
	unsigned held = 0;
	const struct lease *a = lease_new(leases, "a", &held, 6, 90, 0);

	ck_assert(!leases_reserve(leases, 5));
	ck_assert(leases_reserve(leases, 3));
	ck_assert_ptr_null(
		lease_new(leases, "b", &held, 2, 20, 0)); /* that is reserved */
	ck_assert_ptr_nonnull(lease_new(leases, "c", &held, 1, 10, 0));
	leases_unreserve(leases, 3);
	ck_assert_ptr_nonnull(lease_new(leases, "b", &held, 3, 40, 0));
	ck_assert(!leases_reserve(leases, 1));
	ck_assert_uint_eq(leases_counts(leases)->blocks, 10);
	lease_end(leases, a);
	ck_assert(leases_reserve(leases, 6));
	leases_unreserve(leases, 6);
	ck_assert_uint_eq(held, 1);
}
END_TEST

static Suite *lease_suite(void)
{
	Suite *suite = suite_create("lease");
	TCase *tc = tcase_create("lease");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, hmac);
	tcase_add_test(tc, tokens_are_of_an_id_and_a_process);
	tcase_add_test(tc, found_by_id);
	tcase_add_test(tc, time_ends_them);
	tcase_add_test(tc, room_is_bounded);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(lease_suite())
