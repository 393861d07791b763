/*
 * Which worker made which response: the bound and who goes first, against a plain list;
 * and the reader of ids, over every cut of an answer's first bytes.
 */
#include "pool/response_map.h"

#include "base/rng.h"
#include "tests/unit/unit.h"

#include <string.h>

#define PLACES 50
#define IDS 200
#define WORKERS 97

static struct span id_of(unsigned i)
{
	static char text[32];

	return span_make(text, (size_t)snprintf(text, sizeof(text), "resp_%u", i));
}

/* A list by use, the newest last, that does the same at its ease. */
static struct {
	unsigned id;
	uint64_t worker;
} list[PLACES + 1];
static size_t n_list;

static size_t place_of(unsigned id)
{
	size_t i = 0;

	while (i < n_list && list[i].id != id)
		i++;
	return i;
}

static void take_out(size_t i)
{
	memmove(&list[i], &list[i + 1], (n_list - i - 1) * sizeof(list[0]));
	n_list--;
}

static uint64_t use(unsigned id, uint64_t worker)
{
	size_t i = place_of(id);

	if (i < n_list) {
		worker = worker != 0 ? worker : list[i].worker;
		take_out(i);
	}
	if (worker == 0)
		return 0;
	if (n_list == PLACES)
		take_out(0);
	list[n_list].id = id;
	list[n_list++].worker = worker;
	return worker;
}

static void forget_worker(struct response_map *m, uint64_t worker)
{
	size_t i = 0;

	response_map_forget(m, worker);
	while (i < n_list) {
		if (list[i].worker == worker)
			take_out(i);
		else
			i++;
	}
}

START_TEST(the_longest_unused_goes_first)
{
	struct response_map *m = response_map_new(PLACES);
	struct rng rng;

	n_list = 0;
	rng_seed(&rng, 7);
	for (unsigned i = 0; i < 100000; i++) {
		unsigned id = (unsigned)rng_below(&rng, IDS), what;

		what = (unsigned)rng_below(&rng, 10);
		if (what == 0) {
			size_t at = place_of(id);

			response_map_drop(m, id_of(id));
			if (at < n_list)
				take_out(at);
		} else if (what == 1) {
			forget_worker(m, i % WORKERS + 1);
		} else if (what < 6) {
			response_map_put(m, id_of(id), i % WORKERS + 1);
			use(id, i % WORKERS + 1);
		} else {
			ck_assert_uint_eq(response_map_find(m, id_of(id)), use(id, 0));
		}
	}
	ck_assert_uint_gt(n_list, PLACES / 2);
	for (unsigned id = 0; id < IDS; id++)
		ck_assert_uint_eq(response_map_find(m, id_of(id)), use(id, 0));
	for (unsigned id = 0; id < IDS; id++)
		response_map_drop(m, id_of(id));
	for (unsigned id = 0; id < IDS; id++)
		ck_assert_uint_eq(response_map_find(m, id_of(id)), 0);
	response_map_free(m);
}
END_TEST

START_TEST(one_place_is_enough)
{
	struct response_map *m = response_map_new(1);

	response_map_put(m, id_of(1), 5);
	response_map_put(m, id_of(2), 6);
	ck_assert_uint_eq(response_map_find(m, id_of(1)), 0);
	ck_assert_uint_eq(response_map_find(m, id_of(2)), 6);
	response_map_free(m);
}
END_TEST

START_TEST(without_a_map_nothing_is_known)
{
	response_map_put(NULL, id_of(1), 5);
	response_map_drop(NULL, id_of(1));
	response_map_forget(NULL, 1);
	ck_assert_uint_eq(response_map_find(NULL, id_of(1)), 0);
	response_map_free(NULL);
}
END_TEST

#define LONG64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
	const char *text, *id; /* NULL: none */
} answers[] = {
	{"{\"id\":\"resp_1\",\"object\":\"response\"", "resp_1"},
	{"{ \"object\" : \"response\",\r\n\t\"id\" :\n \"resp_a-B_c.9\" }",
		"resp_a-B_c.9"},
	{"event: response.created\ndata: {\"response\":{\"id\":\"resp_2\",", "resp_2"},
	{"data: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":"
	 "{\"id\":\"resp_3\"",
		"resp_3"},
	/* other ids, and the one that is continued */
	{"{\"output\":[{\"id\":\"msg_1\"},{\"id\":\"rs_2\"}],\"previous_response_id\":"
	 "\"resp_0\",\"id\":\"resp_4\"}",
		"resp_4"},
	{"{\"id\":5,\"id\":null,\"id\":[\"resp_x\"],\"id\":\"resp_5\"}", "resp_5"},
	{"\"\"id\":\"resp_6\"", "resp_6"},
	{"\"i\"id\":\"resp_7\"", "resp_7"},
	/* within a string it stands escaped */
	{"{\"text\":\"\\\"id\\\":\\\"resp_8\\\"\"}", NULL},
	{"{\"id\":\"resp_\\u0041\"}", NULL},
	{"{\"id\":\"resp\"}", NULL},
	{"{\"ID\":\"resp_9\"}", NULL},
	{"{\"id\":\"resp_unended", NULL},
	{"", NULL},
	{"{\"id\":\"resp_" LONG64 LONG64 LONG64 LONG64 "\"}", NULL},
	{"{\"id\":\"resp_" LONG64 LONG64 LONG64 "\"}", "resp_" LONG64 LONG64 LONG64},
};

START_TEST(ids_are_read_however_an_answer_is_cut)
{
	const char *text = answers[_i].text, *id = answers[_i].id;
	size_t n = strlen(text);

	for (size_t cut = 0; cut <= n; cut++) {
		struct response_reader r;

		response_reader_start(&r, true);
		response_reader_feed(&r, span_make(text, cut));
		response_reader_feed(&r, span_make(text + cut, n - cut));
		if (id == NULL) {
			ck_assert_msg(!r.is_done, "%s", text);
			continue;
		}
		ck_assert_msg(r.is_done, "%s at %zu", text, cut);
		ck_assert(span_is(span_make(r.id, r.n), id));
	}
}
END_TEST

static const struct {
	const char *text, *id; /* NULL: none */
} objects[] = {
	{"{\"id\":\"video-1\",\"object\":\"video\"}", "video-1"},
	{" {\n\"object\" : \"file\" ,\"bytes\":[1,{}],\r\n\"id\"\t:\n\"file-2\"}",
		"file-2"},
	{"{\"created\":1,\"usage\":{\"id\":\"x\"},\"data\":[{\"id\":\"y\"}],\"id\":"
	 "\"i3\"}",
		"i3"},
	{"{\"object\":\"id\",\"id\":\"i4\"}", "i4"},
	{"{\"text\":\"\\\"id\\\":\\\"x\\\"\",\"id\":\"i5\"}", "i5"},
	{"{\"t\":\"\\\\\",\"id\":\"i6\"}", "i6"},
	{"{\"ids\":\"x\",\"iid\":\"x\",\"ID\":\"x\",\"id\":\"i7\"}", "i7"},
	{"{\"id\":5,\"id\":null,\"id\":[\"x\"],\"id\":\"i8\"}", "i8"},
	{"\"0f4c-uuid\"", "0f4c-uuid"},
	{"{\"data\":{\"id\":\"x\"}}", NULL},
	{"[{\"id\":\"x\"}]", NULL},
	{"{\"id\":\"a\\u0041\"}", NULL},
	{"{}", NULL},
	{"5", NULL},
	{"]", NULL},
	{"{\"id\":\"unended", NULL},
	{"{\"id\":\"" LONG64 LONG64 LONG64 LONG64 "\"}", LONG64 LONG64 LONG64 LONG64},
	{"{\"id\":\"" LONG64 LONG64 LONG64 LONG64 "x\"}", NULL},
};

START_TEST(ids_of_objects_are_their_own)
{
	const char *text = objects[_i].text, *id = objects[_i].id;
	size_t n = strlen(text);

	for (size_t cut = 0; cut <= n; cut++) {
		struct response_reader r;

		response_reader_start(&r, false);
		response_reader_feed(&r, span_make(text, cut));
		response_reader_feed(&r, span_make(text + cut, n - cut));
		if (id == NULL) {
			ck_assert_msg(!r.is_done || r.n == 0, "%s", text);
			continue;
		}
		ck_assert_msg(r.is_done, "%s at %zu", text, cut);
		ck_assert_msg(span_is(span_make(r.id, r.n), id), "%s", text);
	}
}
END_TEST

START_TEST(it_is_looked_for_in_the_first_bytes)
{
	static char text[RESPONSE_READ_MAX];
	struct response_reader r;

	memset(text, 'x', sizeof(text));
	response_reader_start(&r, true);
	response_reader_feed(&r, span_make(text, sizeof(text) - 1));
	ck_assert(!r.is_done);
	response_reader_feed(&r, SPAN_LIT("\"id\":\"resp_1\""));
	ck_assert(r.is_done);
	ck_assert_uint_eq(r.n, 0);
	response_reader_start(&r, true);
	response_reader_feed(&r, span_make(text, sizeof(text) - 20));
	response_reader_feed(&r, SPAN_LIT("\"id\":\"resp_1\""));
	ck_assert(r.is_done);
	ck_assert_uint_eq(r.n, 6);
}
END_TEST

static Suite *response_map_suite(void)
{
	Suite *s = suite_create("response_map");
	TCase *tc = tcase_create("response_map");

	tcase_add_test(tc, the_longest_unused_goes_first);
	tcase_add_test(tc, one_place_is_enough);
	tcase_add_test(tc, without_a_map_nothing_is_known);
	tcase_add_loop_test(
		tc, ids_are_read_however_an_answer_is_cut, 0, ARRAY_LEN(answers));
	tcase_add_loop_test(tc, ids_of_objects_are_their_own, 0, ARRAY_LEN(objects));
	tcase_add_test(tc, it_is_looked_for_in_the_first_bytes);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(response_map_suite())
