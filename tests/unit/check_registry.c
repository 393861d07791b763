/*
 * The registry: merge-join by name, URL and role. Kept ones are the very same objects,
 * order is the list's, workers of the admin API live on, and who comes and goes is told
 * once.
 */
#include "base/err.h"
#include "base/rng.h"
#include "tests/unit/unit_model.h"
#include "worker/registry.h"

#define TOLD_MAX 64

static struct registry reg;
static struct {
	unsigned adds, removes;
	struct worker *last_added, *last_removed; /* never followed after they went */
	bool was_in; /* the worker told of was in the registry, or had been marked */
} told;

static void on_add(void *arg, struct worker *w)
{
	ck_assert_ptr_eq(arg, &told);
	told.adds++;
	told.last_added = w;
	ck_assert_ptr_eq(registry_find(&reg, span_str(w->name)), w);
}

static void on_remove(void *arg, struct worker *w)
{
	ck_assert_ptr_eq(arg, &told);
	told.removes++;
	told.last_removed = w;
	ck_assert(atomic_load(&w->is_draining));
	ck_assert(atomic_load(&w->is_removed));
}

static const struct registry_ops ops = {on_add, on_remove};

static void set_up(void)
{
	reg = (struct registry){0};
	memset(&told, 0, sizeof(told));
}

static void tear_down(void)
{
	registry_free(&reg, &ops, &told);
	ck_assert_uint_eq(reg.n, 0);
	ck_assert_uint_eq(told.adds, told.removes);
}

/* The workers of a configuration text become the registry's. */
static void update(const char *text)
{
	struct conf *conf = unit_conf(text);
	const struct worker_conf *list[TOLD_MAX];
	struct registry_plan *plan;

	ck_assert_uint_le(conf->n_workers, TOLD_MAX);
	for (size_t i = 0; i < conf->n_workers; i++)
		list[i] = &conf->workers[i];
	ck_assert_int_eq(registry_prepare(&reg, list, conf->n_workers, &plan), 0);
	registry_commit(&reg, plan, &ops, &told);
	conf_unref(conf);
}

/* As the admin API would. */
static int add_api(const char *name, const char *url)
{
	struct conf *conf = unit_conf("[pool default]\n");
	struct conf_pair pair = {"url", url};
	struct conf_errors errors = {0};
	struct worker_conf w;
	int err;

	ck_assert_int_eq(conf_worker_make(conf, name, &pair, 1, &errors, &w), 0);
	err = registry_add(&reg, &w, &ops, &told);
	worker_conf_free(&w);
	conf_errors_free(&errors);
	conf_unref(conf);
	return err;
}

/* "a b c" */
static void want_order(const char *names)
{
	struct span rest = span_str(names), word;
	size_t i = 0;

	while (span_next_word(&rest, &word)) {
		ck_assert_uint_lt(i, reg.n);
		ck_assert_msg(span_is(word, reg.items[i]->name), "%s at %zu of %s",
			reg.items[i]->name, i, names);
		i++;
	}
	ck_assert_uint_eq(i, reg.n);
}

static struct worker *get(const char *name)
{
	struct worker *w = registry_find(&reg, span_str(name));

	ck_assert_ptr_nonnull(w);
	return w;
}

#define A "[worker a]\nurl = http://a:1\n"
#define B "[worker b]\nurl = http://b:1\n"
#define C "[worker c]\nurl = http://c:1\n"

START_TEST(order_is_the_lists)
{
	struct worker *a, *b, *c;

	update(A B C);
	want_order("a b c");
	ck_assert_uint_eq(told.adds, 3);
	a = get("a");
	b = get("b");
	c = get("c");
	update(C A B);
	want_order("c a b");
	ck_assert_ptr_eq(get("a"), a);
	ck_assert_ptr_eq(get("b"), b);
	ck_assert_ptr_eq(get("c"), c);
	ck_assert_uint_eq(told.adds, 3);
	ck_assert_uint_eq(told.removes, 0);
	update(C B);
	want_order("c b");
	ck_assert_uint_eq(told.removes, 1);
	ck_assert_ptr_eq(told.last_removed, a);
	update("[pool default]\n");
	want_order("");
}
END_TEST

/* The same object: load, health, id; other options. */
START_TEST(kept_ones_keep_everything)
{
	struct worker *a;
	struct guard g = {0};
	uint64_t id;

	update(A B);
	a = get("a");
	id = a->id;
	atomic_store(&a->health, WORKER_SUSPECT);
	guard_take(&g, a);
	update("[worker a]\nurl = http://a:1\nmax_requests = 7\n" B);
	ck_assert_ptr_eq(get("a"), a);
	ck_assert_uint_eq(a->id, id);
	ck_assert_uint_eq(worker_load(a), 1);
	ck_assert_int_eq(worker_state(a), WORKER_SUSPECT);
	ck_assert_uint_eq(a->conf->max_requests, 7);
	guard_drop(&g);
}
END_TEST

START_TEST(another_url_is_another_worker)
{
	struct worker *a;
	struct guard g = {0};

	update(A B);
	a = get("a");
	guard_take(&g, a);
	update("[worker a]\nurl = http://a:2\n" B);
	want_order("a b");
	ck_assert_ptr_ne(get("a"), a);
	ck_assert_uint_eq(worker_load(get("a")), 0);
	ck_assert(atomic_load(&a->is_removed));
	ck_assert(!worker_is_usable(a));
	ck_assert_uint_eq(told.removes, 1);
	ck_assert_uint_eq(told.adds, 3);
	guard_drop(&g);
}
END_TEST

START_TEST(another_role_is_another_worker)
{
	struct worker *a;

	update("[worker a]\nurl = http://a:1\nrole = prefill\n"
	       "[worker b]\nurl = http://b:1\nrole = decode\n");
	a = get("a");
	update("[worker a]\nurl = http://a:1\nrole = decode\n"
	       "[worker b]\nurl = http://b:1\nrole = prefill\n");
	want_order("a b");
	ck_assert_int_eq(get("a")->role, ROLE_DECODE);
	ck_assert_uint_eq(told.removes, 2);
	(void)a;
}
END_TEST

START_TEST(workers_of_the_api_survive_updates)
{
	struct worker *x;

	update(A);
	ck_assert_int_eq(add_api("x", "http://x:1"), 0);
	ck_assert_int_eq(add_api("y", "http://y:1"), 0);
	x = get("x");
	want_order("a x y");
	update(B A);
	want_order("b a x y");
	ck_assert_ptr_eq(get("x"), x);
	update("[pool default]\n");
	want_order("x y");
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT("x"), &ops, &told), 0);
	update(A);
	want_order("a y");
}
END_TEST

START_TEST(the_file_takes_a_name_from_the_api)
{
	struct worker *x;

	ck_assert_int_eq(add_api("a", "http://elsewhere:1"), 0);
	x = get("a");
	update(A B);
	want_order("a b");
	ck_assert_ptr_ne(get("a"), x);
	ck_assert_uint_eq(told.removes, 1);
	update(B);
	want_order("b");
}
END_TEST

/* Named by the file since, it is the file's: it goes with its section. */
START_TEST(the_file_adopts_a_worker_of_the_api)
{
	struct worker *x;

	ck_assert_int_eq(add_api("a", "http://a:1"), 0);
	x = get("a");
	update(A B);
	ck_assert_ptr_eq(get("a"), x);
	ck_assert_uint_eq(told.removes, 0);
	update(B);
	want_order("b");
}
END_TEST

START_TEST(add_and_remove_one)
{
	struct worker *a;

	update(A B C);
	ck_assert_int_eq(add_api("b", "http://b:2"), ERR_EXISTS);
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT("d"), &ops, &told), ERR_NOENT);
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT(""), &ops, &told), ERR_NOENT);
	ck_assert_ptr_null(registry_find(&reg, SPAN_LIT("aa")));
	ck_assert_uint_eq(told.removes, 0);
	a = get("a");
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT("a"), &ops, &told), 0);
	ck_assert_ptr_eq(told.last_removed, a);
	want_order("b c");
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT("c"), &ops, &told), 0);
	want_order("b");
	ck_assert_int_eq(add_api("a", "http://a:1"), 0);
	ck_assert_ptr_eq(told.last_added, get("a"));
	want_order("b a");
}
END_TEST

/* ---- data-parallel ranks ---- */

#define A2 "[worker a]\nurl = http://a:1\ndp_size = 2\n"
#define A4 "[worker a]\nurl = http://a:1\ndp_size = 4\n"

/* As many workers as ranks, in the place of their section; each tells itself apart. */
START_TEST(ranks_are_workers)
{
	struct worker *a1;

	update(B A4 C);
	want_order("b a@0 a@1 a@2 a@3 c");
	a1 = get("a@1");
	ck_assert_uint_eq(a1->rank, 1);
	ck_assert(a1->has_rank);
	ck_assert_str_eq(a1->group, "a");
	ck_assert_str_eq(a1->stable_id, "http://a:1@1");
	ck_assert(span_is(worker_rank_line(a1), "X-data-parallel-rank: 1\r\n"));
	ck_assert(span_is(a1->host_line, "Host: a:1\r\n"));
	ck_assert_str_eq(get("b")->stable_id, "http://b:1");
	ck_assert(!get("b")->has_rank);
	ck_assert_uint_eq(worker_rank_line(get("b")).n, 0);
	for (size_t i = 1; i < 5; i++) {
		ck_assert_uint_eq(reg.items[i]->host_id, a1->host_id);
		ck_assert_uint_ne(reg.items[i]->id, reg.items[i - 1]->id);
	}
	ck_assert_uint_ne(get("b")->host_id, a1->host_id);
	ck_assert_uint_ne(get("b")->host_id, get("c")->host_id);
}
END_TEST

/* Another dp_size: only the ranks concerned come and go. */
START_TEST(more_and_fewer_ranks)
{
	struct worker *a0, *a1, *a3;
	struct guard g = {0};
	uint64_t host_id;

	update(A2 B);
	a0 = get("a@0");
	a1 = get("a@1");
	guard_take(&g, a1);
	atomic_store(&a0->health, WORKER_SUSPECT);
	update(A4 B);
	want_order("a@0 a@1 a@2 a@3 b");
	ck_assert_ptr_eq(get("a@0"), a0);
	ck_assert_ptr_eq(get("a@1"), a1);
	ck_assert_uint_eq(worker_load(a1), 1);
	ck_assert_uint_eq(get("a@3")->host_id, a0->host_id);
	ck_assert_uint_eq(a0->conf->dp_size, 4);
	ck_assert_uint_eq(told.adds, 5);
	ck_assert_uint_eq(told.removes, 0);
	a3 = get("a@3");
	ck_assert_int_eq(worker_state(a3), WORKER_SUSPECT);
	host_id = a0->host_id;
	update("[worker a]\nurl = http://a:1\ndp_size = 3\n" B);
	want_order("a@0 a@1 a@2 b");
	ck_assert_ptr_eq(told.last_removed, a3);
	ck_assert_uint_eq(told.removes, 1);
	/* One worker without a rank is another one than rank 0 of several. */
	update(A B);
	want_order("a b");
	ck_assert_uint_eq(told.removes, 4);
	ck_assert(!get("a")->has_rank);
	/* But the same process: what is known of it holds. */
	ck_assert_uint_eq(get("a")->host_id, host_id);
	ck_assert_int_eq(worker_state(get("a")), WORKER_SUSPECT);
	guard_drop(&g);
}
END_TEST

/* Ranks of a node that is not the first; one that is in both lists stays. */
START_TEST(test_c11_ranks_from_another_number)
{
	struct worker *a5;

	update("[worker a]\nurl = http://a:1\ndp_size = 3\ndp_start_rank = 4\n" B);
	want_order("a@4 a@5 a@6 b");
	a5 = get("a@5");
	ck_assert_uint_eq(a5->rank, 5);
	ck_assert(span_is(worker_rank_line(a5), "X-data-parallel-rank: 5\r\n"));
	ck_assert_str_eq(a5->stable_id, "http://a:1@5");
	update("[worker a]\nurl = http://a:1\ndp_size = 2\ndp_start_rank = 5\n" B);
	want_order("a@5 a@6 b");
	ck_assert_ptr_eq(get("a@5"), a5);
	/* One rank has a number, too. */
	update("[worker a]\nurl = http://a:1\ndp_start_rank = 1\n" B);
	want_order("a@1 b");
	ck_assert(get("a@1")->has_rank);
	/* As the engine says, and back. */
	worker_number_rank(get("a@1"), 70);
	ck_assert(span_is(worker_rank_line(get("a@1")), "X-data-parallel-rank: 70\r\n"));
	worker_number_rank(get("a@1"), 1);
	ck_assert(span_is(worker_rank_line(get("a@1")), "X-data-parallel-rank: 1\r\n"));
}
END_TEST

/* New ranks of a drained host drain; where one rank alone is drained they do not. */
START_TEST(new_ranks_drain_with_their_host)
{
	update(A2);
	atomic_store(&get("a@0")->is_draining, true);
	update("[worker a]\nurl = http://a:1\ndp_size = 3\n");
	ck_assert(!atomic_load(&get("a@2")->is_draining));
	atomic_store(&get("a@1")->is_draining, true);
	atomic_store(&get("a@2")->is_draining, true);
	update(A4);
	ck_assert(atomic_load(&get("a@3")->is_draining));
}
END_TEST

/* One that was taken out alone comes back with the next reload, to its host. */
START_TEST(one_rank_goes_and_comes)
{
	uint64_t host_id;

	update(A2);
	host_id = get("a@1")->host_id;
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT("a@0"), &ops, &told), 0);
	want_order("a@1");
	update(A2);
	want_order("a@0 a@1");
	ck_assert_uint_eq(get("a@0")->host_id, host_id);
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT("a"), &ops, &told), 0);
	want_order("");
	ck_assert_uint_eq(told.removes, 3);
	ck_assert_int_eq(registry_remove(&reg, SPAN_LIT("a"), &ops, &told), ERR_NOENT);
}
END_TEST

static int add_api_ranks(const char *name, const char *url, const char *dp_size)
{
	struct conf *conf = unit_conf("[pool default]\n");
	struct conf_pair pairs[] = {{"url", url}, {"dp_size", dp_size}};
	struct conf_errors errors = {0};
	struct worker_conf w;
	int err;

	ck_assert_int_eq(conf_worker_make(conf, name, pairs, 2, &errors, &w), 0);
	err = registry_add(&reg, &w, &ops, &told);
	worker_conf_free(&w);
	conf_errors_free(&errors);
	conf_unref(conf);
	return err;
}

/* Names of groups and of ranks are names: all of them come, or none. */
START_TEST(ranks_of_the_api)
{
	update("[worker a@1]\nurl = http://elsewhere:1\n" B);
	ck_assert_int_eq(add_api_ranks("a", "http://a:1", "2"), ERR_EXISTS);
	ck_assert_int_eq(add_api_ranks("b", "http://b:2", "2"), ERR_EXISTS);
	want_order("a@1 b");
	ck_assert_int_eq(add_api_ranks("c", "http://c:1", "3"), 0);
	want_order("a@1 b c@0 c@1 c@2");
	ck_assert(registry_has(&reg, SPAN_LIT("c")));
	ck_assert(registry_has(&reg, SPAN_LIT("c@2")));
	ck_assert(!registry_has(&reg, SPAN_LIT("c@3")));
	ck_assert_int_eq(add_api("c", "http://c:2"), ERR_EXISTS);
	ck_assert_int_eq(add_api("c@1", "http://c:2"), ERR_EXISTS);
	update(B);
	want_order("b c@0 c@1 c@2");
	/* The file gives the group's name to another. */
	update(B C);
	want_order("b c");
}
END_TEST

/*
 * Random lists, random calls of the API, guards held throughout, against what a naive
 * list of (name, url, origin) says.
 */
enum { NAMES = 8, UPDATES = 100 };

struct told_of {
	struct worker *worker; /* NULL: not there */
	unsigned url;
	bool is_api;
};

static void make_text(struct rng *rng, struct told_of *world, char *text, size_t room,
	char *order, bool *in_file)
{
	unsigned at[NAMES];
	size_t len = (size_t)snprintf(text, room, "[pool default]\n");

	for (unsigned i = 0; i < NAMES; i++)
		at[i] = i;
	for (unsigned i = NAMES - 1; i > 0; i--) {
		unsigned k = (unsigned)rng_below(rng, i + 1), was = at[i];

		at[i] = at[k];
		at[k] = was;
	}
	order[0] = '\0';
	for (unsigned i = 0; i < NAMES; i++) {
		unsigned name = at[i];
		/* Mostly as it was: else nothing would ever be kept. */
		unsigned url = rng_below(rng, 8) > 0 ? world[name].url
						     : (unsigned)rng_below(rng, 2);

		in_file[name] = rng_below(rng, 4) > 0;
		if (!in_file[name])
			continue;
		len += (size_t)snprintf(text + len, room - len,
			"[worker w%u]\nurl = http://w%u:%u\n", name, name, 1 + url);
		sprintf(order + strlen(order), "w%u ", name);
		if (world[name].url != url)
			world[name].worker = NULL;
		world[name].url = url;
		world[name].is_api = false;
	}
}

static void append_api_order(char *order, const struct registry *before,
	const struct told_of *world, const bool *in_file)
{
	for (size_t i = 0; i < before->n; i++) {
		unsigned name = (unsigned)(before->items[i]->name[1] - '0');

		if (world[name].is_api && !in_file[name])
			sprintf(order + strlen(order), "w%u ", name);
	}
}

static void update_both(struct rng *rng, struct told_of *world, struct guard *guards)
{
	char text[1024], order[128];
	bool in_file[NAMES];

	make_text(rng, world, text, sizeof(text), order, in_file);
	append_api_order(order, &reg, world, in_file);
	update(text);
	want_order(order);
	for (unsigned i = 0; i < NAMES; i++) {
		char name[8];
		struct worker *w;

		snprintf(name, sizeof(name), "w%u", i);
		w = registry_find(&reg, span_str(name));
		if (!in_file[i] && !world[i].is_api)
			world[i].worker = NULL;
		/* Kept: the same. New: another than any that is held. */
		if (world[i].worker != NULL)
			ck_assert_ptr_eq(w, world[i].worker);
		for (unsigned g = 0; w != world[i].worker && g < NAMES; g++)
			ck_assert_ptr_ne(w, guards[g].worker);
		world[i].worker = w;
	}
}

static void toggle_guard(struct rng *rng, struct guard *guards)
{
	struct guard *g = &guards[rng_below(rng, NAMES)];

	guard_drop(g);
	if (reg.n > 0)
		guard_take(g, reg.items[rng_below(rng, reg.n)]);
	for (unsigned i = 0; i < NAMES; i++) {
		unsigned held = 0;

		for (unsigned k = 0; k < NAMES; k++)
			held += guards[k].worker == guards[i].worker;
		if (guards[i].worker != NULL)
			ck_assert_uint_eq(worker_load(guards[i].worker), held);
	}
}

START_TEST(random_updates_against_a_list)
{
	struct told_of world[NAMES] = {0};
	struct guard guards[NAMES] = {0};
	struct rng rng;

	rng_seed(&rng, (uint64_t)_i + 1);
	for (int step = 0; step < UPDATES; step++) {
		unsigned i = (unsigned)rng_below(&rng, NAMES);
		char name[8], url[16];

		update_both(&rng, world, guards);
		toggle_guard(&rng, guards);
		snprintf(name, sizeof(name), "w%u", i);
		snprintf(url, sizeof(url), "http://w%u:9", i);
		if (world[i].worker == NULL) {
			ck_assert_int_eq(add_api(name, url), 0);
			world[i] = (struct told_of){get(name), 8, true};
		} else if (rng_below(&rng, 4) == 0) {
			ck_assert_int_eq(
				registry_remove(&reg, span_str(name), &ops, &told), 0);
			world[i].worker = NULL;
			world[i].is_api = false;
		}
	}
	for (unsigned i = 0; i < NAMES; i++)
		guard_drop(&guards[i]);
}
END_TEST

static Suite *registry_suite(void)
{
	Suite *s = suite_create("registry");
	TCase *tc = tcase_create("registry");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, order_is_the_lists);
	tcase_add_test(tc, kept_ones_keep_everything);
	tcase_add_test(tc, another_url_is_another_worker);
	tcase_add_test(tc, another_role_is_another_worker);
	tcase_add_test(tc, workers_of_the_api_survive_updates);
	tcase_add_test(tc, the_file_takes_a_name_from_the_api);
	tcase_add_test(tc, the_file_adopts_a_worker_of_the_api);
	tcase_add_test(tc, add_and_remove_one);
	tcase_add_test(tc, ranks_are_workers);
	tcase_add_test(tc, more_and_fewer_ranks);
	tcase_add_test(tc, test_c11_ranks_from_another_number);
	tcase_add_test(tc, new_ranks_drain_with_their_host);
	tcase_add_test(tc, one_rank_goes_and_comes);
	tcase_add_test(tc, ranks_of_the_api);
	tcase_add_loop_test(tc, random_updates_against_a_list, 0, 4);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(registry_suite())
