/*
 * The main of every Check program, and the folder of shared test material.
 * UNIT_MAIN(span_suite()) runs the suite, prints Check's summary line and exits 0 or 1.
 * Tests run in one process, so that sanitizers and debuggers see everything; with CK_FORK
 * in the environment each runs in its own.
 * A test of a death (tcase_add_test_raise_signal) needs that: add it under
 * unit_can_fork().
 */
#ifndef UNIT_UNIT_H
#define UNIT_UNIT_H

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Whether each test has a process of its own (CK_FORK is set, and not "no"). */
static inline bool unit_can_fork(void)
{
	const char *fork_word = getenv("CK_FORK");

	return fork_word != NULL && fork_word[0] != 'n';
}

/*
 * Puts the path of a file of the shared material (KVSTEER_SHARED, else ../shared beside
 * the source tree) into out. False, with a message that names what is skipped, where the
 * file is absent.
 */
static inline bool unit_shared(const char *file, char *out, size_t n)
{
	const char *folder = getenv("KVSTEER_SHARED"), *source = getenv("srcdir");
	int len;

	if (folder != NULL)
		len = snprintf(out, n, "%s/%s", folder, file);
	else
		len = snprintf(
			out, n, "%s/../shared/%s", source != NULL ? source : ".", file);
	if (len > 0 && (size_t)len < n && access(out, R_OK) == 0)
		return true;
	printf("skipped: %s is absent (KVSTEER_SHARED names its folder)\n", file);
	return false;
}

static inline int unit_run(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	int failed;

	if (!unit_can_fork())
		srunner_set_fork_status(runner, CK_NOFORK);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#define UNIT_MAIN(suite)                \
	int main(void)                  \
	{                               \
		return unit_run(suite); \
	}

/* ck_assert() allocates. This does not, for a test in which allocations fail. */
#define unit_must(condition)                                                       \
	do {                                                                       \
		if (!(condition)) {                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, \
				#condition);                                       \
			abort();                                                   \
		}                                                                  \
	} while (0)

#endif
