/*
 * What a configuration says of prefill and decode: good pairs without a word, and every
 * mistake with its line.
 */
#include "conf/conf.h"
#include "conf/conf_flags.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct conf *conf;
static struct conf_errors errors;

static void tear_down(void)
{
	conf_unref(conf);
	conf = NULL;
	conf_errors_free(&errors);
}

static int load(const char *text)
{
	char path[] = "/tmp/kvsteer_roles.XXXXXX";
	int fd = mkstemp(path), err;
	FILE *f;

	tear_down();
	ck_assert_int_ge(fd, 0);
	f = fdopen(fd, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
	err = conf_load(path, NULL, &errors, &conf);
	unlink(path);
	return err;
}

#define P "[worker p]\nurl = http://h:1\nrole = prefill\n"
#define D "[worker d]\nurl = http://h:2\nrole = decode\n"
/* A pair in a group of its own. */
#define P2_D2                                                          \
	"[worker p2]\nurl = http://h:3\nrole = prefill\n[worker d2]\n" \
	"url = http://h:4\nrole = decode\n"
#define POOL "[pool default]\nkv_connector = nixl\n"

static const char *const good[] = {
	POOL P D,
	POOL P "kv_group = a\n" D "kv_group = a\n",
	POOL P "bootstrap_port = 8998\n" D,
	"[pool default]\nkv_connector = mooncake\n" P D,
	"[pool default]\nkv_connector = sglang\npd_min_prefill = 9\n" P D,
	/* transfer sockets on both sides */
	"[pool default]\nkv_connector = p2p_nccl\n" P "bootstrap_port = 1\n" D
	"bootstrap_port = 2\n",
	"[pool default decode]\npd_min_prefill = 9\n" POOL P D,
	"[pool default prefill]\nkv_connector = sglang\n[pool default decode]\n"
	"kv_connector = sglang\n" P D,
	/* set, with no workers that it is for */
	POOL "[worker u]\nurl = http://h:1\n",
};

START_TEST(good_pairs_are_taken)
{
	ck_assert_int_eq(load(good[_i]), 0);
	if (errors.n > 0)
		ck_abort_msg("%s in\n%s", conf_error_text(&errors.items[0]), good[_i]);
}
END_TEST

static const struct mistake {
	const char *text;
	bool is_error;
	unsigned line;
	const char *key; /* NULL: none */
	const char *message, *hint;
} mistakes[] = {
	{POOL P, false, 1, NULL, "has prefill workers but none for decode",
		"role = decode"},
	{POOL D, false, 1, NULL, "has decode workers but none for prefill",
		"role = prefill"},
	{"[pool default]\n" P D, false, 1, "kv_connector", "nixl is used",
		"set kv_connector"},
	{POOL P D "[worker u]\nurl = http://h:3\n", false, 9, "role",
		"worker u is unified in a pool with decode workers", "a pool of its own"},
	{POOL P D "kv_group = a\n[worker d2]\nurl = http://h:4\nrole = decode\n", false,
		9, "kv_group", "worker d is in a group without prefill workers",
		"same kv_group"},
	{POOL P "kv_group = a\n" P2_D2, false, 6, "kv_group",
		"worker p is in a group without decode workers", "same kv_group"},
	{POOL "[worker u]\nurl = http://h:1\nkv_group = a\n", false, 5, "kv_group",
		"only prefill and decode workers have a group", "leave it out"},
	{POOL P D "bootstrap_port = 8998\n", false, 9, "bootstrap_port",
		"worker d is not a prefill worker", "leave it out"},
	{POOL P D "[pool default prefill]\npd_min_prefill = 9\n", false, 10,
		"pd_min_prefill", "no effect here", "[pool NAME decode]"},
	{POOL P D "[pool default decode]\nkv_connector = sglang\n", true, 10,
		"kv_connector", "different connectors", "[pool NAME]"},
	{"[pool default]\n[pool default prefill]\nkv_connector = sglang\n" P D, true, 3,
		"kv_connector", "different connectors", "[pool NAME]"},
	{POOL P D "[pool default decode]\nkv_params = pass\n", true, 10, "kv_params",
		"has its own kv_params", "[pool NAME]"},
	{"[pool default]\nkv_connector = nccl\n" P D, true, 2, "kv_connector",
		"is not known", "none, nixl, mooncake, p2p_nccl, sglang, nixl_push"},
	{"[pool default]\nkv_connector = moriio\n" P D, true, 2, "kv_connector",
		"is not built yet", "nixl"},
	{POOL P "bootstrap_port = x\n" D, true, 6, "bootstrap_port", "number", ""},
	{POOL "[worker p]\nurl = http://h:1\nrole = prefil\n" D, true, 5, "role",
		"not known", "prefill"},
};

START_TEST(mistakes_are_named)
{
	const struct mistake *m = &mistakes[_i];
	const struct conf_error *e;

	ck_assert_int_eq(load(m->text) != 0, m->is_error);
	ck_assert_msg(errors.n >= 1, "nothing is said of\n%s", m->text);
	ck_assert_uint_eq(errors.n_errors, m->is_error ? 1 : 0);
	e = &errors.items[0];
	ck_assert_msg(e->line == m->line, "line %u: %s", e->line, conf_error_text(e));
	if (m->key != NULL)
		ck_assert_str_eq(e->key, m->key);
	ck_assert_msg(strstr(e->message, m->message) != NULL, "%s", e->message);
	ck_assert_msg(
		strstr(e->hint != NULL ? e->hint : "", m->hint) != NULL, "%s", e->hint);
	if (!m->is_error)
		ck_assert_msg(errors.n == 1, "and %s", conf_error_text(&errors.items[1]));
}
END_TEST

/* Two groups of which each lacks one role; one line each, whatever their size. */
START_TEST(groups_are_told_once)
{
	ck_assert_int_eq(load(POOL P "kv_group = a\n[worker p2]\nurl = http://h:5\n"
				     "role = prefill\nkv_group = a\n" D "kv_group = b\n"
				     "[worker d2]\nurl = http://h:6\nrole = decode\n"
				     "kv_group = b\n"),
		0);
	ck_assert_uint_eq(errors.n, 2);
	ck_assert_uint_eq(errors.items[0].line, 6);
	ck_assert_uint_eq(errors.items[1].line, 14);
}
END_TEST

/* Each pool by itself. */
START_TEST(pools_are_not_mixed)
{
	ck_assert_int_eq(
		load("[pool a]\nmodels = a\n[pool b]\n" P "pool = a\n" D "pool = b\n"),
		0);
	ck_assert_uint_eq(errors.n, 2);
	ck_assert_str_eq(errors.items[0].message,
		"pool a has prefill workers but none for decode");
	ck_assert_uint_eq(errors.items[0].line, 1);
	ck_assert_str_eq(errors.items[1].message,
		"pool b has decode workers but none for prefill");
	ck_assert_uint_eq(errors.items[1].line, 3);
}
END_TEST

/* By flags alone the flag is named. */
START_TEST(flags_are_named)
{
	char *argv[] = {"kvsteerd", "--vllm-pd-disaggregation", "--prefill", "http://p:1",
		"--decode", "http://d:1", "--worker-urls", "http://u:1", NULL};
	struct conf_flags flags;
	char *text;

	ck_assert_int_eq(conf_flags_parse(8, argv, &errors, &flags), 0);
	ck_assert_int_eq(conf_load(NULL, &flags, &errors, &conf), 0);
	ck_assert_uint_eq(errors.n, 1);
	text = conf_error_text(&errors.items[0]);
	ck_assert_str_eq(text,
		"warning: --worker-urls http://u:1: worker u:1 is unified in a pool "
		"with decode workers: it gets no requests; give it a role, or a pool of "
		"its own");
	free(text);
	conf_flags_free(&flags);
}
END_TEST

static Suite *conf_roles_suite(void)
{
	Suite *s = suite_create("conf_roles");
	TCase *t = tcase_create("conf_roles");

	tcase_add_checked_fixture(t, NULL, tear_down);
	tcase_add_loop_test(t, good_pairs_are_taken, 0, sizeof(good) / sizeof(good[0]));
	tcase_add_loop_test(
		t, mistakes_are_named, 0, sizeof(mistakes) / sizeof(mistakes[0]));
	tcase_add_test(t, groups_are_told_once);
	tcase_add_test(t, pools_are_not_mixed);
	tcase_add_test(t, flags_are_named);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(conf_roles_suite())
