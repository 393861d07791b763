/*
 * base/mem and base/cleanup: growth that is checked, allocation that dies, pointers
 * handed out of their scope.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "tests/unit/unit.h"

#include <string.h>
#include <sys/wait.h>

START_TEST(grows)
{
	uint32_t *items = NULL;
	size_t cap = 0, moves = 0;

	for (uint32_t i = 0; i < 10000; i++) {
		size_t before = cap;

		ck_assert_int_eq(mem_grow(&items, &cap, i + 1u, sizeof(*items)), 0);
		ck_assert_uint_gt(cap, i);
		moves += cap != before;
		items[i] = i;
	}
	for (uint32_t i = 0; i < 10000; i++)
		ck_assert_uint_eq(items[i], i);
	ck_assert_uint_lt(moves, 20); /* doubling, not one by one */
	free(items);
}
END_TEST

START_TEST(refuses_what_cannot_be)
{
	uint64_t *items = xcalloc(4, sizeof(*items)), *before = items;
	size_t cap = 4;

	items[3] = 99;
	ck_assert_int_eq(mem_grow(&items, &cap, SIZE_MAX, sizeof(*items)), ERR_NOMEM);
	ck_assert_int_eq(
		mem_grow(&items, &cap, SIZE_MAX / 8 + 2, sizeof(*items)), ERR_NOMEM);
	ck_assert_int_eq(
		mem_grow(&items, &cap, (size_t)PTRDIFF_MAX / 8 + 1, sizeof(*items)),
		ERR_NOMEM);
	ck_assert_ptr_eq(items, before);
	ck_assert_uint_eq(cap, 4);
	ck_assert_uint_eq(items[3], 99);
	ck_assert_int_eq(mem_grow(&items, &cap, 3, sizeof(*items)), 0);
	ck_assert_uint_eq(cap, 4);
	free(items);
}
END_TEST

START_TEST(allocates)
{
	scoped_free char *text = xasprintf("%s-%d", "a", 7),
			 *part = xstrndup("abcdef", 3);
	scoped_free char *whole = xstrndup("ab", 100), *copy = xstrdup("");
	scoped_free char *none = xmalloc(0), *zeros = xcalloc(3, 1),
			 *grown = xrealloc(NULL, 0);

	ck_assert_str_eq(text, "a-7");
	ck_assert_str_eq(part, "abc");
	ck_assert_str_eq(whole, "ab");
	ck_assert_str_eq(copy, "");
	ck_assert_ptr_nonnull(none);
	ck_assert_ptr_nonnull(grown);
	ck_assert_int_eq(zeros[0] | zeros[1] | zeros[2], 0);
}
END_TEST

static bool child_survives(void (*run)(size_t), size_t n)
{
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(STDERR_FILENO);
		run(n);
		_exit(0);
	}
	ck_assert_int_gt(pid, 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void *volatile kept; /* so that no allocation is optimised away */

static void take_malloc(size_t n)
{
	kept = xmalloc(n);
}

static void take_calloc(size_t n)
{
	kept = xcalloc(n, 16);
}

static void take_realloc(size_t n)
{
	kept = xrealloc(NULL, n);
}

START_TEST(dies_without_memory)
{
	ck_assert(child_survives(take_malloc, 16));
	ck_assert(!child_survives(take_malloc, SIZE_MAX / 2));
	ck_assert(child_survives(take_calloc, 16));
	ck_assert(!child_survives(take_calloc, SIZE_MAX / 8)); /* the product overflows */
	ck_assert(child_survives(take_realloc, 16));
	ck_assert(!child_survives(take_realloc, SIZE_MAX / 2));
}
END_TEST

static char *hand_out(bool wanted)
{
	scoped_free char *text = xstrdup("text");

	if (!wanted)
		return NULL; /* freed: the leak sanitizer sees it otherwise */
	return take_ptr(text);
}

START_TEST(hands_out)
{
	char *text = hand_out(true);

	ck_assert_str_eq(text, "text");
	free(text);
	ck_assert_ptr_null(hand_out(false));
}
END_TEST

START_TEST(closes_in_scope)
{
	int ends[2], copy;

	ck_assert_int_eq(pipe(ends), 0);
	{
		scoped_fd int reader = ends[0], none = -1;
		scoped_file FILE *writer = fdopen(ends[1], "w"), *no_file = NULL;

		ck_assert_ptr_nonnull(writer);
		(void)reader, (void)none, (void)no_file;
	}
	/* both numbers are free again */
	copy = dup(STDIN_FILENO);
	ck_assert_int_eq(copy, MIN(ends[0], ends[1]));
	close(copy);
}
END_TEST

START_TEST(wipes)
{
	char secret[16] = "secret", zeros[16] = {0};

	mem_wipe(secret, sizeof(secret));
	ck_assert_int_eq(memcmp(secret, zeros, sizeof(secret)), 0);
	mem_wipe(NULL, 0);
}
END_TEST

START_TEST(appends_within_the_room)
{
	char text[8] = "";
	size_t n = mem_append(text, sizeof(text), 0, "%d", 12);

	ck_assert_uint_eq(n, 2);
	n = mem_append(text, sizeof(text), n, "%s", "345");
	ck_assert_uint_eq(n, 5);
	n = mem_append(text, sizeof(text), n, "%s", "6789");
	ck_assert_uint_eq(n, 7);
	ck_assert_str_eq(text, "1234567");
	ck_assert_uint_eq(mem_append(text, sizeof(text), n, "8"), 7);
	ck_assert_str_eq(text, "1234567");
}
END_TEST

static Suite *mem_suite(void)
{
	Suite *suite = suite_create("mem");
	TCase *tc = tcase_create("mem");

	tcase_add_test(tc, grows);
	tcase_add_test(tc, refuses_what_cannot_be);
	tcase_add_test(tc, allocates);
	tcase_add_test(tc, dies_without_memory);
	tcase_add_test(tc, hands_out);
	tcase_add_test(tc, closes_in_scope);
	tcase_add_test(tc, wipes);
	tcase_add_test(tc, appends_within_the_room);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(mem_suite())
