/*
 * Accepting over loopback: batches, want of descriptors under a lowered limit, want of a
 * place, and that a pause neither spins nor lasts.
 */
#include "base/err.h"
#include "io/accepter.h"
#include "tests/unit/unit_loop.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#define MANY (ACCEPTER_BATCH + 8)

static struct loop *loop;
static struct accepter *accepter;
static union sock_addr address;
static int clients[MANY], accepted[MANY];
static unsigned n_clients, n_accepted, asked, reserved, pauses;
static unsigned places; /* that take_place() has */
static unsigned fails;  /* connections that on_conn() is to refuse for want of memory */
static unsigned stops_after; /* connections, then on_conn() ends accepting */

static int on_conn(void *arg, int fd, const union sock_addr *peer)
{
	ck_assert_ptr_eq(arg, &loop);
	ck_assert(sock_addr_is_inet(peer));
	if (fails > 0) {
		fails--;
		reserved--;
		close(fd);
		return ERR_NOMEM;
	}
	accepted[n_accepted++] = fd;
	if (n_accepted == stops_after)
		accepter_enable(accepter, false);
	return 0;
}

static bool take_place(void *arg)
{
	ck_assert_ptr_eq(arg, &loop);
	asked++;
	if (reserved == places)
		return false;
	reserved++;
	return true;
}

static void leave_place(void *arg)
{
	ck_assert_ptr_eq(arg, &loop);
	reserved--;
}

static void on_pause(void *arg, bool lacks_place)
{
	ck_assert_ptr_eq(arg, &loop);
	ck_assert(lacks_place == (reserved == places));
	pauses++;
}

static const struct accepter_ops ops = {
	on_conn, take_place, leave_place, on_pause, "the test's limit"};

static void set_up(void)
{
	n_clients = n_accepted = asked = reserved = pauses = fails = stops_after = 0;
	places = MANY + 1;
	loop = loop_new();
	accepter = accepter_new(loop, listen_any(&address), &ops, &loop);
	ck_assert_ptr_nonnull(accepter);
}

static void tear_down(void)
{
	/* What was reserved belongs to a connection. */
	ck_assert_uint_eq(reserved, n_accepted);
	accepter_free(accepter);
	while (n_clients > 0)
		close(clients[--n_clients]);
	while (n_accepted > 0)
		close(accepted[--n_accepted]);
	loop_free(loop);
}

static void connect_clients(unsigned n)
{
	while (n-- > 0)
		ck_assert_int_eq(sock_connect(&address, &clients[n_clients++]), 0);
}

static void leave(void)
{
	close(accepted[--n_accepted]);
	reserved--;
}

START_TEST(a_turn_takes_a_batch)
{
	connect_clients(MANY);
	TURN_UNTIL(loop, n_accepted > 0);
	ck_assert_uint_le(n_accepted, ACCEPTER_BATCH);
	TURN_UNTIL(loop, n_accepted == MANY);
	ck_assert_uint_eq(pauses, 0);
}
END_TEST

START_TEST(all_that_wait_are_taken_at_once)
{
	connect_clients(MANY);
	accepter_take_all(accepter);
	ck_assert_uint_eq(n_accepted, MANY);
}
END_TEST

/* One more descriptor than is open now may be; the clients have theirs already. */
static void lower_limit(struct rlimit *was)
{
	struct rlimit now;
	int next = dup(clients[0]);

	ck_assert_int_ge(next, 0);
	close(next);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, was), 0);
	now = *was;
	now.rlim_cur = (rlim_t)next + 1;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
}

START_TEST(out_of_descriptors)
{
	struct rlimit was;

	connect_clients(3);
	lower_limit(&was);
	TURN_UNTIL(loop, pauses > 0);
	ck_assert_uint_eq(n_accepted, 1);
	turn_idle(loop, 5);
	/* Each pause cost one attempt: none spins. */
	ck_assert_uint_eq(asked, n_accepted + pauses);
	TURN_UNTIL(loop, pauses > 2);
	ck_assert_uint_eq(asked, n_accepted + pauses);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	TURN_UNTIL(loop, n_accepted == 3);
}
END_TEST

START_TEST(out_of_memory)
{
	fails = 2;
	connect_clients(3);
	TURN_UNTIL(loop, n_accepted == 1);
	ck_assert_uint_eq(pauses, 2);
}
END_TEST

START_TEST(out_of_places)
{
	places = 2;
	connect_clients(3);
	TURN_UNTIL(loop, pauses > 0);
	ck_assert_uint_eq(n_accepted, 2);
	turn_idle(loop, 5);
	ck_assert_uint_eq(asked, n_accepted + pauses);
	leave();
	accepter_has_place(accepter);
	loop_turn(loop, 0); /* it has not to wait for the pause's end */
	ck_assert_uint_eq(n_accepted, 2);
}
END_TEST

/* Nobody says that a place is free. */
START_TEST(places_are_looked_for)
{
	places = 1;
	connect_clients(2);
	TURN_UNTIL(loop, pauses > 0);
	places = 2;
	TURN_UNTIL(loop, n_accepted == 2);
}
END_TEST

/* A place that is free does not bring descriptors. */
START_TEST(want_of_descriptors_is_no_want_of_places)
{
	struct rlimit was;
	unsigned asked_before;

	connect_clients(2);
	lower_limit(&was);
	TURN_UNTIL(loop, pauses > 0);
	asked_before = asked;
	accepter_has_place(accepter);
	loop_turn(loop, 0);
	ck_assert_uint_eq(asked, asked_before + (pauses - 1));
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	TURN_UNTIL(loop, n_accepted == 2);
}
END_TEST

START_TEST(off_and_on)
{
	stops_after = 2;
	connect_clients(4);
	TURN_UNTIL(loop, n_accepted == 2);
	turn_idle(loop, 5);
	ck_assert_uint_eq(n_accepted, 2);
	accepter_has_place(accepter);
	turn_idle(loop, 5);
	ck_assert_uint_eq(n_accepted, 2);
	accepter_enable(accepter, true);
	TURN_UNTIL(loop, n_accepted == 4);
	ck_assert_uint_eq(pauses, 0);
}
END_TEST

static Suite *accepter_suite(void)
{
	Suite *s = suite_create("accepter");
	TCase *tc = tcase_create("accepter");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, a_turn_takes_a_batch);
	tcase_add_test(tc, all_that_wait_are_taken_at_once);
	tcase_add_test(tc, out_of_descriptors);
	tcase_add_test(tc, out_of_memory);
	tcase_add_test(tc, out_of_places);
	tcase_add_test(tc, places_are_looked_for);
	tcase_add_test(tc, want_of_descriptors_is_no_want_of_places);
	tcase_add_test(tc, off_and_on);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(accepter_suite())
