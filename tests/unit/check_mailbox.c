/*
 * Letters from several threads: none lost, each poster's in order, run on the loop's
 * thread.
 */
#include "base/err.h"
#include "io/mailbox.h"
#include "tests/unit/unit_loop.h"

#include <pthread.h>

enum { POSTERS = 4, LETTERS = 5000 };

static struct loop *loop;
static struct mailbox *box;
static pthread_t loop_thread;

static void setup(void)
{
	loop = loop_new();
	box = mailbox_new(loop);
	loop_thread = pthread_self();
	ck_assert_ptr_nonnull(box);
}

static void teardown(void)
{
	loop_free(loop);
}

struct poster {
	pthread_t thread;
	unsigned posted, received;
	bool is_out_of_order, is_elsewhere;
};

struct numbered {
	struct poster *from;
	unsigned number;
};

static void on_letter(void *arg)
{
	struct numbered *letter = arg;

	letter->from->is_out_of_order |= letter->number != letter->from->received;
	letter->from->is_elsewhere |= !pthread_equal(pthread_self(), loop_thread);
	letter->from->received++;
	free(letter);
}

static void *post_letters(void *arg)
{
	struct poster *p = arg;

	for (unsigned i = 0; i < LETTERS; i++) {
		struct numbered *letter = malloc(sizeof(*letter));

		*letter = (struct numbered){p, i};
		if (mailbox_post(box, on_letter, letter) != 0)
			abort();
		p->posted++;
	}
	return NULL;
}

static unsigned sum_received(const struct poster *p)
{
	unsigned sum = 0;

	for (int i = 0; i < POSTERS; i++)
		sum += p[i].received;
	return sum;
}

START_TEST(several_threads_post)
{
	struct poster p[POSTERS] = {0};

	for (int i = 0; i < POSTERS; i++)
		ck_assert_int_eq(
			pthread_create(&p[i].thread, NULL, post_letters, &p[i]), 0);
	TURN_UNTIL(loop, sum_received(p) == POSTERS * LETTERS);
	for (int i = 0; i < POSTERS; i++) {
		ck_assert_int_eq(pthread_join(p[i].thread, NULL), 0);
		ck_assert_uint_eq(p[i].received, LETTERS);
		ck_assert(!p[i].is_out_of_order);
		ck_assert(!p[i].is_elsewhere);
	}
	mailbox_free(box);
}
END_TEST

static char order[16];

static void note(void *arg)
{
	strcat(order, arg);
}

static void post_more(void *arg)
{
	strcat(order, arg);
	ck_assert_int_eq(mailbox_post(box, note, "c"), 0);
}

START_TEST(a_letter_posts_a_letter)
{
	order[0] = '\0';
	ck_assert_int_eq(mailbox_post(box, post_more, "a"), 0);
	ck_assert_int_eq(mailbox_post(box, note, "b"), 0);
	ck_assert_str_eq(order, "");
	TURN_UNTIL(loop, strlen(order) == 3);
	ck_assert_str_eq(order, "abc");
	mailbox_free(box);
}
END_TEST

START_TEST(freeing_runs_what_is_queued)
{
	order[0] = '\0';
	ck_assert_int_eq(mailbox_post(box, post_more, "a"), 0);
	ck_assert_int_eq(mailbox_post(box, note, "b"), 0);
	mailbox_free(box);
	mailbox_free(NULL);
	ck_assert_str_eq(order, "abc");
	loop_turn(loop, 0);
}
END_TEST

/* One wake-up for many letters, and none left over. */
START_TEST(an_empty_box_does_not_wake)
{
	order[0] = '\0';
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(mailbox_post(box, note, "x"), 0);
	loop_turn(loop, 0);
	ck_assert_str_eq(order, "xxx");
	ck_assert_int_eq(mailbox_post(box, note, "y"), 0);
	loop_turn(loop, 0);
	ck_assert_str_eq(order, "xxxy");
	turn_idle(loop, 3);
	ck_assert_str_eq(order, "xxxy");
	mailbox_free(box);
}
END_TEST

static Suite *mailbox_suite(void)
{
	Suite *s = suite_create("mailbox");
	TCase *t = tcase_create("mailbox");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, several_threads_post);
	tcase_add_test(t, a_letter_posts_a_letter);
	tcase_add_test(t, freeing_runs_what_is_queued);
	tcase_add_test(t, an_empty_box_does_not_wake);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(mailbox_suite())
