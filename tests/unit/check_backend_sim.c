/* The sim backend by itself: chunks and batches give one text, blocks can be handed over,
 * and what is not the prefix is broken. */
#include "sched_rig.h"

enum { N_BLOCKS = 16 };

static struct backend *backend;
static const struct sample_opts sampling;
static struct sample_out out; /* of the last row */

static void set_up(void)
{
	struct backend_opts opts = {.model = "sim",
		.n_blocks = N_BLOCKS,
		.block_tokens = KV_BLOCK,
		.max_rows = 4,
		.max_new = 1000};

	ck_assert_int_eq(backend_sim.open(&opts, &backend), 0);
}

static void tear_down(void)
{
	backend_sim.close(backend);
}

static void make_ids(uint32_t *ids, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ids[i] = (uint32_t)(i * i + 3);
}

static struct backend_row row_of(
	const uint32_t *ids, uint32_t n_past, uint32_t n_new, const uint32_t *blocks)
{
	return (struct backend_row){
		.ids = ids + n_past,
		.n_past = n_past,
		.n_new = n_new,
		.blocks = blocks,
		.n_blocks = (n_past + n_new + KV_BLOCK - 1) / KV_BLOCK,
		.wants_token = true,
		.sampling = &sampling,
		.out = &out,
	};
}

static void compute(struct backend_row *row)
{
	ck_assert_int_eq(backend_sim.step(backend, row, 1), 0);
	ck_assert_int_eq(backend_sim.collect(backend, row, 1), 0);
}

START_TEST(the_table)
{
	struct backend_opts opts = {.model = "sim",
		.n_blocks = N_BLOCKS,
		.block_tokens = 257,
		.max_rows = 4,
		.max_new = 1000};
	struct backend_shape shape;
	struct backend *other = NULL;

	ck_assert_ptr_eq(backend_find("sim"), &backend_sim);
	ck_assert_ptr_null(backend_find("abacus"));
	ck_assert_int_eq(backend_sim.open(&opts, &other), ERR_UNSUPPORTED);
	ck_assert_ptr_null(other);
	backend_sim.shape(backend, &shape);
	ck_assert_uint_eq(shape.vocab, TOKEN_VOCAB);
	ck_assert_uint_gt(shape.block_bytes, 0);
	backend_sim.close(NULL);
}
END_TEST

START_TEST(words_are_one_token)
{
	for (uint64_t s = 0; s < 64; s++) {
		char text[TOKEN_BYTES_MAX];
		struct token_list list = {NULL, 0, 0};

		ck_assert_uint_eq(sim_next(s, 0), rig_word(s));
		ck_assert_uint_eq(sim_next(s, 3), rig_word(s + 3));
		ck_assert_uint_eq(token_text(sim_next(s, 0), text), 4);
		ck_assert_int_eq(token_encode(&list, span_make(text, 4)), 0);
		ck_assert(list.n == 1 && list.ids[0] == sim_next(s, 0));
		token_list_free(&list);
	}
}
END_TEST

/* Every chunk size, in blocks in any order. */
START_TEST(chunks_give_one_text)
{
	static const uint32_t blocks[] = {9, 2, 14, 0, 5};
	uint32_t ids[75];

	make_ids(ids, ARRAY_LEN(ids));
	for (uint32_t chunk = 1; chunk <= ARRAY_LEN(ids); chunk++) {
		backend_sim.drop(backend, blocks, ARRAY_LEN(blocks));
		for (uint32_t at = 0, n; at < ARRAY_LEN(ids); at += n) {
			struct backend_row row;

			n = MIN(chunk, (uint32_t)ARRAY_LEN(ids) - at);
			row = row_of(ids, at, n, blocks);
			compute(&row);
			REQUIRE(!row.is_broken);
			REQUIRE(out.token == rig_word(rig_state(ids, at + n)));
		}
	}
}
END_TEST

static bool is_broken(uint32_t n_past, const uint32_t *blocks, uint64_t *differs)
{
	uint32_t ids[75];
	struct backend_row row;

	make_ids(ids, ARRAY_LEN(ids));
	row = row_of(ids, n_past, 1, blocks);
	compute(&row);
	*differs = row.is_broken || out.token != rig_word(rig_state(ids, n_past + 1));
	return row.is_broken;
}

/* Each fault in a table is seen: as broken where blocks do not follow one another, as
 * another text where they are another's. */
START_TEST(wrong_tables_show)
{
	uint32_t blocks[] = {1, 2, 3, 4, 5}, others[] = {6, 7, 8, 9, 10}, ids[75],
		 wrong[5];
	struct backend_row rows[2];
	uint64_t differs;

	make_ids(ids, ARRAY_LEN(ids));
	rows[0] = row_of(ids, 0, 70, blocks);
	compute(&rows[0]);
	ids[0]++;
	rows[1] = row_of(ids, 0, 70, others);
	compute(&rows[1]);
	ck_assert(!is_broken(70, blocks, &differs) && !differs);
	for (unsigned i = 0; i < 5; i++) { /* one block of the other */
		memcpy(wrong, blocks, sizeof(wrong));
		wrong[i] = others[i];
		ck_assert(is_broken(70, wrong, &differs));
	}
	for (unsigned i = 0; i + 1 < 5; i++) { /* two in the wrong order */
		memcpy(wrong, blocks, sizeof(wrong));
		wrong[i] = blocks[i + 1];
		wrong[i + 1] = blocks[i];
		ck_assert(is_broken(70, wrong, &differs));
	}
	for (unsigned i = 0; i < 5; i++) { /* one that was dropped, one that never was */
		memcpy(wrong, blocks, sizeof(wrong));
		wrong[i] = 15;
		ck_assert(is_broken(70, wrong, &differs));
	}
	ck_assert(is_broken(73, blocks, &differs)); /* further than was computed */
	ck_assert(!is_broken(70, others, &differs) && differs);
	backend_sim.drop(backend, blocks + 1, 1);
	ck_assert(is_broken(70, blocks, &differs));
}
END_TEST

START_TEST(blocks_are_copied_and_handed_over)
{
	uint32_t blocks[] = {1, 2}, moved[] = {4, 8}, copied[] = {1, 11};
	const uint32_t pairs[1][2] = {{2, 11}};
	struct backend_shape shape;
	uint32_t ids[75];
	struct backend_row row;
	uint64_t differs;
	char *bytes;

	backend_sim.shape(backend, &shape);
	bytes = malloc(2 * shape.block_bytes);
	ck_assert_ptr_nonnull(bytes);
	make_ids(ids, ARRAY_LEN(ids));
	row = row_of(ids, 0, 20, blocks);
	compute(&row);
	backend_sim.copy(backend, pairs, 1);
	ck_assert(!is_broken(20, copied, &differs) && !differs);
	ck_assert(!is_broken(20, blocks, &differs) && !differs);
	ck_assert_int_eq(backend_sim.read(backend, blocks, 2, bytes), 0);
	ck_assert_int_eq(backend_sim.write(backend, moved, 2, bytes), 0);
	ck_assert(!is_broken(20, moved, &differs) && !differs);
	memset(bytes, 0xff, shape.block_bytes);
	ck_assert_int_eq(backend_sim.write(backend, moved, 2, bytes), ERR_PARSE);
	free(bytes);
}
END_TEST

static Suite *backend_sim_suite(void)
{
	Suite *suite = suite_create("backend_sim");
	TCase *tc = tcase_create("backend_sim");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, the_table);
	tcase_add_test(tc, words_are_one_token);
	tcase_add_test(tc, chunks_give_one_text);
	tcase_add_test(tc, wrong_tables_show);
	tcase_add_test(tc, blocks_are_copied_and_handed_over);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(backend_sim_suite())
