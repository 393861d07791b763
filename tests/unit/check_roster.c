/*
 * Workers that leave a running process, by the admin API and by a reload: what the process
 * keeps of them, outside their pool, is gone when the call is answered.
 */
#include "control/roster.h"
#include "pool/response_map.h"
#include "tests/unit/control_rig.h"

#define BEFORE                                              \
	RIG_ROUTER "listen = 127.0.0.1:0\n"                 \
		   "[worker a]\nurl = http://127.0.0.1:1\n" \
		   "[worker b]\nurl = http://127.0.0.1:2\ndp_size = 2\n"
/* One rank of b less, and nothing of a. */
#define AFTER                               \
	RIG_ROUTER "listen = 127.0.0.1:0\n" \
		   "[worker b]\nurl = http://127.0.0.1:2\ndp_size = 1\n"

static uint64_t host_of(const char *worker)
{
	return unit_worker(c->site->pools[0], worker)->host_id;
}

static void put_responses(void)
{
	response_map_put(c->process.responses, SPAN_LIT("resp_a"), host_of("a"));
	response_map_put(c->process.responses, SPAN_LIT("resp_b"), host_of("b@0"));
}

static uint64_t home_of(const char *response)
{
	return response_map_find(c->process.responses, span_str(response));
}

START_TEST(stored_responses_of_a_removed_worker)
{
	put_responses();
	ck_assert_int_eq(rig_ask("DELETE", "workers/a", ""), 202);
	ck_assert_uint_eq(home_of("resp_a"), 0);
	ck_assert_uint_eq(home_of("resp_b"), host_of("b@1"));
	/* The process behind two ranks is there as long as one of them is. */
	ck_assert_int_eq(rig_ask("DELETE", "workers/b@0", ""), 202);
	ck_assert_uint_eq(home_of("resp_b"), host_of("b@1"));
	ck_assert_int_eq(rig_ask("DELETE", "workers/b@1", ""), 202);
	ck_assert_uint_eq(home_of("resp_b"), 0);
}
END_TEST

START_TEST(stored_responses_after_a_reload)
{
	uint64_t ranks;

	put_responses();
	ranks = host_of("b@0");
	rig_write_conf(AFTER);
	ck_assert_int_eq(rig_ask("POST", "reload", ""), 200);
	ck_assert_uint_eq(home_of("resp_a"), 0);
	/* The process that had two ranks is one worker now. */
	ck_assert_uint_eq(host_of("b"), ranks);
	ck_assert_uint_eq(home_of("resp_b"), ranks);
}
END_TEST

static void set_up(void)
{
	rig_boot(BEFORE);
}

static Suite *roster_suite(void)
{
	Suite *s = suite_create("roster");
	TCase *t = tcase_create("roster");

	tcase_add_checked_fixture(t, set_up, rig_close);
	tcase_add_test(t, stored_responses_of_a_removed_worker);
	tcase_add_test(t, stored_responses_after_a_reload);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(roster_suite())
