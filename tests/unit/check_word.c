/*
 * base/word: edits between words, and which are near enough to be meant.
 */
#include "base/word.h"
#include "tests/unit/unit.h"

static unsigned distance(const char *a, const char *b)
{
	unsigned there = word_distance(span_str(a), span_str(b));

	ck_assert_uint_eq(there, word_distance(span_str(b), span_str(a)));
	return there;
}

static bool is_near(const char *a, const char *b)
{
	return word_is_near(span_str(a), span_str(b), distance(a, b));
}

START_TEST(distances)
{
	ck_assert_uint_eq(distance("", ""), 0);
	ck_assert_uint_eq(distance("", "abc"), 3);
	ck_assert_uint_eq(distance("port", "port"), 0);
	ck_assert_uint_eq(distance("port", "prt"), 1);
	ck_assert_uint_eq(distance("port", "sport"), 1);
	ck_assert_uint_eq(distance("port", "part"), 1);
	ck_assert_uint_eq(distance("port", "prot"), 1);
	ck_assert_uint_eq(distance("port", "trop"), 3);
	ck_assert_uint_eq(distance("kitten", "sitting"), 3);
}
END_TEST

START_TEST(near_ones)
{
	ck_assert(is_near("port", "prot"));
	ck_assert(is_near("max_num_seqs", "max_nun_sqes"));
	ck_assert(!is_near("port", "host"));
	ck_assert(!is_near("ab", "a"));
	ck_assert(!is_near("threads", "timeout"));
}
END_TEST

/* Up to the row's length words are compared, beyond it they are far from anything. */
START_TEST(long_words)
{
	char row[65], longer[66];

	memset(row, 'a', sizeof(row) - 1);
	memset(longer, 'a', sizeof(longer) - 1);
	row[64] = longer[65] = '\0';
	ck_assert_uint_eq(distance(row, row), 0);
	ck_assert_uint_eq(distance(row, ""), 64);
	ck_assert_uint_eq(distance(longer, longer), 64);
	ck_assert(!is_near(longer, longer));
}
END_TEST

/* A search gives words up early: it must find what comparing them in full finds. */
START_TEST(a_search_is_as_good_as_all_distances)
{
	static const char *const words[] = {"", "a", "ab", "listen", "listne", "lisetn",
		"silent", "tinsel", "queue_size", "queue_sizes", "queue_timeout",
		"queuesize", "eueu_size", "max_requests", "max_request", "ma_xrequests"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		for (size_t j = 0; j < ARRAY_LEN(words); j++) {
			struct word_search search = {.wanted = span_str(words[i])};

			ck_assert_int_eq(word_is_nearest(&search, span_str(words[j])),
				is_near(words[i], words[j]));
		}
	}
}
END_TEST

static Suite *word_suite(void)
{
	Suite *suite = suite_create("word");
	TCase *tc = tcase_create("word");

	tcase_add_test(tc, distances);
	tcase_add_test(tc, near_ones);
	tcase_add_test(tc, long_words);
	tcase_add_test(tc, a_search_is_as_good_as_all_distances);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(word_suite())
