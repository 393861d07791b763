/*
 * base/lru_map against a slow list in order of use: keys of one word and of two, bounds,
 * places that are used again.
 */
#include "base/lru_map.h"
#include "base/rng.h"
#include "tests/unit/unit.h"

#include <string.h>

#define PLACES 13
#define KEYS 40
#define STEPS 20000

struct one {
	struct lru_node node;
	uint64_t key[1];
	uint64_t value;
};

struct two {
	struct lru_node node;
	uint64_t key[2];
	uint64_t value;
};

/* As a list would: the key used last stands last. */
static unsigned list[PLACES], n_list;
static uint64_t values[KEYS];

/* Words are few, so that keys of two share their first one. */
static void make_key(unsigned k, unsigned words, uint64_t key[2])
{
	key[0] = words == 2 ? k % 5 : k;
	key[1] = k / 5;
}

static unsigned number_of(const uint64_t *key, unsigned words)
{
	return (unsigned)(words == 2 ? key[1] * 5 + key[0] : key[0]);
}

static unsigned place_in_list(unsigned k)
{
	unsigned i = 0;

	while (i < n_list && list[i] != k)
		i++;
	return i;
}

static void unlist(unsigned i)
{
	memmove(&list[i], &list[i + 1], (--n_list - i) * sizeof(*list));
}

static uint64_t *value_of(void *entry, unsigned words)
{
	return words == 2 ? &((struct two *)entry)->value : &((struct one *)entry)->value;
}

static const uint64_t *key_of(const void *entry, unsigned words)
{
	return words == 2 ? ((const struct two *)entry)->key
			  : ((const struct one *)entry)->key;
}

static void use_or_add(struct lru_map *m, unsigned words, unsigned k, uint64_t value)
{
	uint64_t key[2];
	void *e;

	make_key(k, words, key);
	e = lru_map_find(m, key);
	ck_assert_int_eq(e != NULL, place_in_list(k) < n_list);
	if (e != NULL) {
		lru_map_use(m, e);
		unlist(place_in_list(k));
	} else {
		ck_assert_int_eq(lru_map_is_full(m), n_list == PLACES);
		if (lru_map_is_full(m)) {
			void *oldest = lru_map_oldest(m);

			ck_assert_uint_eq(
				number_of(key_of(oldest, words), words), list[0]);
			lru_map_drop(m, oldest);
			unlist(0);
		}
		e = lru_map_add(m, key);
	}
	*value_of(e, words) = values[k] = value;
	list[n_list++] = k;
}

static void drop(struct lru_map *m, unsigned words, unsigned k)
{
	uint64_t key[2];
	void *e;

	make_key(k, words, key);
	e = lru_map_find(m, key);
	ck_assert_int_eq(e != NULL, place_in_list(k) < n_list);
	if (e == NULL)
		return;
	lru_map_drop(m, e);
	unlist(place_in_list(k));
}

static void same_as_list(struct lru_map *m, unsigned words)
{
	const void *oldest = lru_map_oldest(m);
	uint64_t key[2];

	ck_assert_uint_eq(lru_map_count(m), n_list);
	ck_assert_int_eq(oldest == NULL, n_list == 0);
	if (n_list > 0)
		ck_assert_uint_eq(number_of(key_of(oldest, words), words), list[0]);
	for (unsigned i = 0; i < n_list; i++) {
		void *e;

		make_key(list[i], words, key);
		e = lru_map_find(m, key);
		ck_assert_ptr_nonnull(e);
		ck_assert_uint_eq(*value_of(e, words), values[list[i]]);
	}
}

START_TEST(as_a_list_would)
{
	unsigned words = (unsigned)_i;
	size_t bytes = words == 2 ? sizeof(struct two) : sizeof(struct one);
	struct lru_map *m = lru_map_new(PLACES, bytes, words, 77);
	struct rng rng;

	ck_assert_ptr_nonnull(m);
	n_list = 0;
	rng_seed(&rng, 1);
	for (unsigned step = 1; step <= STEPS; step++) {
		unsigned k = (unsigned)rng_below(&rng, KEYS);

		if (rng_below(&rng, 4) == 0)
			drop(m, words, k);
		else
			use_or_add(m, words, k, step);
		same_as_list(m, words);
	}
	lru_map_free(m);
}
END_TEST

START_TEST(one_place_is_enough)
{
	struct lru_map *m = lru_map_new(1, sizeof(struct one), 1, 0);

	ck_assert_ptr_nonnull(m);
	ck_assert_ptr_null(lru_map_oldest(m));
	for (uint64_t key = 0; key < 10; key++) {
		ck_assert_ptr_null(lru_map_find(m, &key));
		if (lru_map_is_full(m))
			lru_map_drop(m, lru_map_oldest(m));
		ck_assert_ptr_eq(lru_map_add(m, &key), lru_map_find(m, &key));
	}
	ck_assert_uint_eq(lru_map_count(m), 1);
	lru_map_free(m);
	lru_map_free(NULL);
}
END_TEST

static Suite *lru_map_suite(void)
{
	Suite *s = suite_create("lru_map");
	TCase *tc = tcase_create("lru_map");

	tcase_add_loop_test(tc, as_a_list_would, 1, 3);
	tcase_add_test(tc, one_place_is_enough);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(lru_map_suite())
