/*
 * A site: which pool serves a model, and that pools live through reloads by name while
 * those that went are closed; an older snapshot stays whole for requests that began with
 * it.
 */
#include "base/err.h"
#include "tests/unit/site_rig.h"
#include "worker/model_set.h"

static void set_up(void)
{
	n_added = n_removed = 0;
}

/* A reload as the daemon does it. */
static struct site *reload(struct site *old, const char *text)
{
	struct site *s = rig_site(text, old);

	site_retire(old, s);
	site_unref(old);
	return s;
}

static void close_site(struct site *s)
{
	rig_close(s);
	ck_assert_int_eq(
		metric_total(METRIC_GUARDS_TAKEN), metric_total(METRIC_GUARDS_DROPPED));
}

static void pick(struct pool *p, struct guard *g)
{
	struct pool_ask ask = {.role = ROLE_UNIFIED, .now_ms = 1000};
	struct pool_pick out;

	g->worker = NULL;
	ck_assert_int_eq(pool_pick(p, &ask, g, &out), 0);
}

#define TWO_POOLS                                      \
	"[pool small]\nmodels = llama-8* qwen?\n"      \
	"[pool big]\nmodels = llama-*\n"               \
	"[worker s]\nurl = http://s:1\npool = small\n" \
	"[worker b]\nurl = http://b:1\npool = big\n"

START_TEST(first_pool_in_file_order_whose_models_match)
{
	static const struct {
		const char *model, *pool; /* NULL: none */
	} rows[] = {
		{"llama-8b", "small"},
		{"llama-70b", "big"},
		{"qwen2", "small"},
		{"llama-", "big"},
		{"qwen", NULL},
		{"qwen25", NULL},
		{"Llama-8b", NULL},
		{"gpt", NULL},
		{"", NULL},
	};
	struct site *s = rig_site(TWO_POOLS, NULL);

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct pool *p = site_pool_for(s, span_str(rows[i].model));

		if (rows[i].pool == NULL)
			ck_assert_msg(p == NULL, "%s", rows[i].model);
		else
			ck_assert_msg(strcmp(pool_name(p), rows[i].pool) == 0, "%s",
				rows[i].model);
	}
	ck_assert_str_eq(pool_name(site_pool(s, SPAN_LIT("big"))), "big");
	ck_assert_ptr_null(site_pool(s, SPAN_LIT("bi")));
	ck_assert_ptr_null(site_pool(NULL, SPAN_LIT("big")));
	close_site(s);
}
END_TEST

static void list_model(struct site *s, size_t pool, const char *worker, const char *model)
{
	struct worker *w = pool_find(s->pools[pool], span_str(worker));
	uint64_t hash = model_hash(span_str(model));
	struct model_set *set = model_set_new(&hash, 1);

	ck_assert(w != NULL && set != NULL);
	pool_set_models(s->pools[pool], w, set);
	model_set_unref(set);
	worker_unref(w);
}

/* Of several that match, one whose worker lists it; else the first. */
START_TEST(c05_a_pool_that_lists_the_model_comes_first)
{
	struct site *s = rig_site("[pool a]\nmodels = llama-*\n[pool b]\n[pool c]\n"
				  "[worker a]\nurl = http://a:1\npool = a\n"
				  "[worker b]\nurl = http://b:1\npool = b\n"
				  "[worker c]\nurl = http://c:1\npool = c\n",
		NULL);

	list_model(s, 0, "a", "llama-1");
	list_model(s, 2, "c", "llama-2");
	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT("llama-1"))), "a");
	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT("llama-2"))), "c");
	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT("llama-3"))), "a");
	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT("qwen"))), "b");
	close_site(s);
}
END_TEST

/* C06: without a model it must be clear which pool is meant. */
START_TEST(c06_a_request_without_a_model)
{
	struct site *s = rig_site(TWO_POOLS, NULL);

	pool_set_only_model(s->pools[0], SPAN_LIT("llama-8b"));
	ck_assert_ptr_null(site_pool_for(s, SPAN_LIT("")));
	pool_set_only_model(s->pools[1], SPAN_LIT("llama-8c"));
	ck_assert_ptr_null(site_pool_for(s, SPAN_LIT("")));
	pool_set_only_model(s->pools[1], SPAN_LIT("llama-8b"));
	ck_assert_ptr_eq(site_pool_for(s, SPAN_LIT("")), s->pools[0]);
	close_site(s);
	s = rig_site("[pool a]\n[pool b]\n[worker a]\nurl = http://a:1\npool = a\n"
		     "[worker b]\nurl = http://b:1\npool = b\n",
		NULL);
	ck_assert_ptr_null(site_pool_for(s, SPAN_LIT("")));
	close_site(s);
	s = rig_site(
		"[pool a]\nmodels = x\n[worker a]\nurl = http://a:1\npool = a\n", NULL);
	ck_assert_ptr_eq(site_pool_for(s, SPAN_LIT("")), s->pools[0]);
	close_site(s);
}
END_TEST

/* Without a model: one that takes all, wherever it stands. */
START_TEST(a_pool_without_models_takes_all)
{
	struct site *s = rig_site("[pool small]\nmodels = llama-8*\n[pool rest]\n"
				  "[pool never]\nmodels = gpt\n"
				  "[worker s]\nurl = http://s:1\npool = small\n"
				  "[worker r]\nurl = http://r:1\npool = rest\n"
				  "[worker n]\nurl = http://n:1\npool = never\n",
		NULL);

	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT("llama-8b"))), "small");
	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT("gpt"))), "rest");
	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT(""))), "rest");
	close_site(s);
}
END_TEST

START_TEST(the_body_is_scanned_where_someone_reads_it)
{
	static const struct {
		const char *text;
		bool needs;
	} rows[] = {
		{"[pool p]\n[worker a]\nurl = http://a:1\npool = p\n", true},
		{"[pool p]\npolicy = round_robin\n[worker a]\nurl = http://a:1\npool = "
		 "p\n",
			false},
		{"[pool p]\npolicy = random\nmodels = m\n"
		 "[worker a]\nurl = http://a:1\npool = p\n",
			true},
		{"[pool p]\npolicy = random\n"
		 "[worker a]\nurl = http://a:1\npool = p\nmodels = m\n",
			true},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct site *s = rig_site(rows[i].text, NULL);

		ck_assert_msg(s->needs_body_scan == rows[i].needs, "%s", rows[i].text);
		close_site(s);
	}
}
END_TEST

/* Where the head says what pool and policy want to know, the body need not be read. */
START_TEST(the_head_may_say_enough)
{
#define PLAIN "[pool p]\n[worker a]\nurl = http://a:1\npool = p\n"
#define SPREAD "[pool p]\npolicy = random\n[worker a]\nurl = http://a:1\npool = p\n"
#define BY_MODEL                                                         \
	"[pool p]\nmodels = m*\n[pool q]\nmodels = n\npolicy = random\n" \
	"[worker a]\nurl = http://a:1\npool = p\n"
#define OF_WORKER PLAIN "models = m\n"
#define SPLIT                                                                 \
	"[pool p]\nmodels = m*\npolicy = random\n[pool q]\npolicy = random\n" \
	"[worker d]\nurl = http://a:1\npool = p\nrole = decode\n"
	static const struct {
		const char *text;
		enum route_endpoint endpoint;
		bool hashes_sent, is_pinned;
		const char *model;
		bool reads;
	} rows[] = {
		{PLAIN, ENDPOINT_CHAT, false, false, "", true},
		{PLAIN, ENDPOINT_OTHER, false, false, "", false},
		{PLAIN, ENDPOINT_CHAT, true, false, "", false},
		{PLAIN, ENDPOINT_CHAT, false, true, "", false},
		{PLAIN, ENDPOINT_CHAT, false, false, "m", true},
		{SPREAD, ENDPOINT_CHAT, false, false, "", false},
		{BY_MODEL, ENDPOINT_CHAT, true, false, "", true},
		{BY_MODEL, ENDPOINT_CHAT, false, true, "", true},
		{BY_MODEL, ENDPOINT_CHAT, true, false, "m1", false},
		{BY_MODEL, ENDPOINT_CHAT, false, true, "m1", false},
		{BY_MODEL, ENDPOINT_CHAT, false, false, "m1", true},
		{BY_MODEL, ENDPOINT_CHAT, false, false, "n", false},
		{BY_MODEL, ENDPOINT_CHAT, false, false, "x", false}, /* no pool: 404 */
		{BY_MODEL, ENDPOINT_OTHER, false, false, "", false},
		{OF_WORKER, ENDPOINT_CHAT, true, false, "", true},
		{OF_WORKER, ENDPOINT_CHAT, true, false, "m", false},
		/* What goes to prefill and decode is taken apart, whatever it is. */
		{SPLIT, ENDPOINT_CHAT, true, true, "", true},
		{SPLIT, ENDPOINT_CHAT, true, true, "m", true},
		{SPLIT, ENDPOINT_OTHER, false, false, "", true},
		{SPLIT, ENDPOINT_OTHER, false, false, "m1", true},
		{SPLIT, ENDPOINT_CHAT, true, true, "x", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct site *s = rig_site(rows[i].text, NULL);
		struct site_head h = {
			.endpoint = rows[i].endpoint,
			.said.hashes_sent = rows[i].hashes_sent,
			.is_pinned = rows[i].is_pinned,
			.model = span_str(rows[i].model),
		};

		ck_assert_msg(site_reads_body(s, &h) == rows[i].reads, "row %zu", i);
		close_site(s);
	}
}
END_TEST

/* A pool of the same name is the same pool: workers, loads, generation. */
START_TEST(pools_live_through_reloads)
{
	struct site *s = rig_site(TWO_POOLS, NULL);
	struct pool *big = site_pool(s, SPAN_LIT("big"));
	struct worker *b = unit_worker(big, "b");
	struct guard g;

	ck_assert_uint_eq(n_added, 2);
	pick(big, &g);
	pool_bump_generation(big);
	s = reload(s, TWO_POOLS "[worker b2]\nurl = http://b2:1\npool = big\n");
	ck_assert_ptr_eq(site_pool(s, SPAN_LIT("big")), big);
	ck_assert_ptr_eq(unit_worker(big, "b"), b);
	ck_assert_uint_eq(worker_load(b), 1);
	ck_assert_uint_eq(pool_generation(big), 1);
	ck_assert_uint_eq(n_added, 3);
	ck_assert_uint_eq(n_removed, 0);
	guard_drop(&g);
	close_site(s);
}
END_TEST

START_TEST(pools_follow_the_files_order)
{
	struct site *s = rig_site(TWO_POOLS, NULL);
	struct pool *small = site_pool(s, SPAN_LIT("small"));

	ck_assert_ptr_eq(site_pool_for(s, SPAN_LIT("llama-8b")), small);
	s = reload(s, "[pool big]\nmodels = llama-*\n"
		      "[pool small]\nmodels = llama-8* qwen?\n"
		      "[worker s]\nurl = http://s:1\npool = small\n"
		      "[worker b]\nurl = http://b:1\npool = big\n");
	ck_assert_str_eq(pool_name(site_pool_for(s, SPAN_LIT("llama-8b"))), "big");
	ck_assert_ptr_eq(site_pool(s, SPAN_LIT("small")), small);
	ck_assert_uint_eq(n_added, 2);
	close_site(s);
}
END_TEST

/*
 * A pool that went: its workers drain; the request that began with the old site keeps its
 * guard and may ask the old pool, which has none left to give.
 */
START_TEST(a_pool_that_went_is_closed)
{
	struct site *first = rig_site(TWO_POOLS, NULL), *held = site_ref(first);
	struct pool *big = site_pool(first, SPAN_LIT("big"));
	struct pool_ask ask = {.role = ROLE_UNIFIED};
	struct pool_pick out;
	struct guard g, none = {0};
	struct site *s;

	pick(big, &g);
	s = reload(first, "[pool small]\n[worker s]\nurl = http://s:1\npool = small\n");
	ck_assert_uint_eq(n_removed, 1);
	ck_assert_ptr_null(site_pool(s, SPAN_LIT("big")));
	ck_assert_int_eq(worker_state(g.worker), WORKER_DRAINING);
	ck_assert_ptr_eq(site_pool_for(held, SPAN_LIT("llama-70b")), big);
	ck_assert_int_eq(pool_pick(big, &ask, &none, &out), ERR_NOENT);
	/* It comes back as another. */
	s = reload(s, TWO_POOLS);
	ck_assert_ptr_ne(site_pool(s, SPAN_LIT("big")), big);
	ck_assert_uint_eq(
		worker_load(unit_worker(site_pool(s, SPAN_LIT("big")), "b")), 0);
	guard_drop(&g);
	site_unref(held);
	close_site(s);
}
END_TEST

/* Another pool of the file takes a worker: it goes here and comes there. */
START_TEST(a_worker_changes_its_pool)
{
	struct site *s = rig_site(TWO_POOLS, NULL);
	struct guard g;

	pick(site_pool(s, SPAN_LIT("big")), &g);
	s = reload(s, "[pool small]\n[pool big]\n"
		      "[worker b]\nurl = http://b:1\npool = small\n"
		      "[worker c]\nurl = http://c:1\npool = big\n");
	ck_assert_uint_eq(n_added, 4);
	ck_assert_uint_eq(n_removed, 2);
	ck_assert_ptr_ne(unit_worker(site_pool(s, SPAN_LIT("small")), "b"), g.worker);
	ck_assert_int_eq(worker_state(g.worker), WORKER_DRAINING);
	guard_drop(&g);
	close_site(s);
}
END_TEST

START_TEST(retiring_and_releasing_nothing)
{
	site_retire(NULL, NULL);
	site_unref(NULL);
}
END_TEST

static Suite *site_suite(void)
{
	Suite *s = suite_create("site");
	TCase *tc = tcase_create("site");

	tcase_add_checked_fixture(tc, set_up, NULL);
	tcase_add_test(tc, first_pool_in_file_order_whose_models_match);
	tcase_add_test(tc, a_pool_without_models_takes_all);
	tcase_add_test(tc, c05_a_pool_that_lists_the_model_comes_first);
	tcase_add_test(tc, c06_a_request_without_a_model);
	tcase_add_test(tc, the_body_is_scanned_where_someone_reads_it);
	tcase_add_test(tc, the_head_may_say_enough);
	tcase_add_test(tc, pools_live_through_reloads);
	tcase_add_test(tc, pools_follow_the_files_order);
	tcase_add_test(tc, a_pool_that_went_is_closed);
	tcase_add_test(tc, a_worker_changes_its_pool);
	tcase_add_test(tc, retiring_and_releasing_nothing);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(site_suite())
