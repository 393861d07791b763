/*
 * Sessions and routing keys: which header or field wins, and when a policy can do without
 * the body (vLLM router 2.5, origin systems B1; report B36: empty means none).
 */
#include "base/ring.h"
#include "http/http_parse.h"
#include "policy/policy.h"
#include "policy/routing_key.h"
#include "tests/unit/unit.h"

static char raw[4096];
static struct http_head head;

/* lines: "Name: value\r\n"... */
static void read_head(const char *lines)
{
	enum fail why;
	int n = snprintf(
		raw, sizeof(raw), "POST / HTTP/1.1\r\nHost: r.test\r\n%s\r\n", lines);

	ck_assert_int_eq(http_parse_request(raw, (uint32_t)n, &head, &why), 0);
}

static struct conf_list list_of(char **items, size_t n)
{
	return (struct conf_list){.items = items, .n = n};
}

static char *names[] = {"X-Smg-Routing-Key", "X-Session-Id", "Session_id", "X-User-Id",
	"X-Tenant-Id", "X-Correlation-Id", "X-Request-Id", "X-Trace-Id"};

static struct route_key body_key(
	const char *params, const char *user, const char *session, const char *user_id)
{
	struct route_key k;

	route_key_init(&k);
	k.session[SESSION_PARAMS_ID] = span_str(params);
	k.session[SESSION_USER] = span_str(user);
	k.session[SESSION_ID] = span_str(session);
	k.session[SESSION_USER_ID] = span_str(user_id);
	return k;
}

static const struct {
	const char *lines;
	const char *body[4];
	const char *session, *session_name; /* NULL: none */
	const char *any, *any_name;
} rows[] = {
	{"", {0}, NULL, NULL, NULL, NULL},
	{"X-Session-Id: s\r\nX-Smg-Routing-Key: k\r\n", {"p"}, "k", "X-Smg-Routing-Key",
		"k", "X-Smg-Routing-Key"},
	{"x-SESSION-id: s\r\nX-User-Id: u\r\n", {"p"}, "s", "X-Session-Id", "s",
		"X-Session-Id"},
	/* Ids of single requests, users, tenants are no session. */
	{"X-User-Id: u\r\nX-Request-Id: r\r\n", {0}, NULL, NULL, "u", "X-User-Id"},
	{"X-Request-Id: r\r\n", {NULL, "bob"}, "bob", "user", "r", "X-Request-Id"},
	{"x-user-id: u\r\nsession_ID: s\r\n", {"p"}, "s", "Session_id", "s",
		"Session_id"},
	{"X-Request-Id: r\r\nX-Correlation-Id: c\r\n", {0}, NULL, NULL, "c",
		"X-Correlation-Id"},
	{"X-Trace-Id: t\r\n", {0}, NULL, NULL, "t", "X-Trace-Id"},
	/* B36 (d): empty means none. */
	{"X-Session-Id:\r\nX-Tenant-Id: t\r\n", {"p"}, "p", "session_params.session_id",
		"t", "X-Tenant-Id"},
	{"X-Smg-Routing-Key: \t \r\nX-Session-Id: a, b\r\n", {0}, "a, b", "X-Session-Id",
		"a, b", "X-Session-Id"},
	/* The first of a name that is there twice. */
	{"X-Session-Id: one\r\nX-Session-Id: two\r\n", {0}, "one", "X-Session-Id", "one",
		"X-Session-Id"},
	/* Body fields in their order. */
	{"", {"p", "u", "s", "i"}, "p", "session_params.session_id", "p",
		"session_params.session_id"},
	{"", {"", "u", "s", "i"}, "s", "session_id", "u", "user"},
	{"", {"", "u", "", "i"}, "i", "user_id", "u", "user"},
	{"", {NULL, NULL, "s", "i"}, "s", "session_id", "s", "session_id"},
	{"", {NULL, NULL, NULL, "i"}, "i", "user_id", "i", "user_id"},
};

static void compare(
	bool found, const struct routing_key *got, const char *value, const char *name)
{
	ck_assert_int_eq(found, value != NULL);
	ck_assert_int_eq(got->from != ROUTING_NONE, value != NULL);
	if (value == NULL)
		return;
	ck_assert_msg(span_is(got->value, value), SPAN_FMT, SPAN_ARG(got->value));
	ck_assert_msg(span_is(got->name, name), SPAN_FMT, SPAN_ARG(got->name));
}

START_TEST(first_that_is_not_empty)
{
	struct conf_list list = list_of(names, ARRAY_LEN(names));
	const char *const *b = rows[_i].body;
	struct route_key key = body_key(b[0], b[1], b[2], b[3]);
	struct routing_key out;
	bool found;

	read_head(rows[_i].lines);
	found = routing_key_session(&list, raw, &head, &key, &out);
	compare(found, &out, rows[_i].session, rows[_i].session_name);
	found = routing_key_any(&list, raw, &head, &key, &out);
	compare(found, &out, rows[_i].any, rows[_i].any_name);
}
END_TEST

/* C15: each field alone, and before all that follow it. */
START_TEST(fields_in_their_order)
{
	static const char *const order[SESSION_MAX] = {"session_params.session_id",
		"session_id", "prompt_cache_key", "metadata.session_id",
		"safety_identifier", "metadata.user_id", "user_id", "user"};
	struct conf_list none = {0};
	struct routing_key out;
	struct route_key key;

	route_key_init(&key);
	for (unsigned i = SESSION_MAX; i-- > 0;) {
		key.session[i] = span_str(order[i]);
		compare(routing_key_session(&none, NULL, NULL, &key, &out), &out,
			order[i], order[i]);
	}
}
END_TEST

START_TEST(the_list_is_the_operators)
{
	static char *own[] = {"X-Trace-Id", "X-Conversation"};
	struct conf_list list = list_of(own, 2), none = {0};
	struct route_key key = body_key(NULL, "u", NULL, NULL);
	struct routing_key out;

	read_head("X-Session-Id: s\r\nX-Conversation: c\r\nX-Trace-Id: t\r\n");
	compare(routing_key_any(&list, raw, &head, &key, &out), &out, "t", "X-Trace-Id");
	compare(routing_key_any(&none, raw, &head, &key, &out), &out, "u", "user");
	compare(routing_key_any(&none, raw, &head, NULL, &out), &out, NULL, NULL);
	compare(routing_key_any(&list, NULL, NULL, &key, &out), &out, "u", "user");
	compare(routing_key_session(&list, NULL, NULL, NULL, &out), &out, NULL, NULL);
	compare(routing_key_session(&list, raw, &head, &key, &out), &out, "c",
		"X-Conversation");
	compare(routing_key_session(&none, raw, &head, &key, &out), &out, "u", "user");
}
END_TEST

/* ---- as policies get it ---- */

static const struct {
	const char *lines, *user;
	const char *text; /* NULL: no key */
} texts[] = {
	{"", NULL, NULL},
	{"", "bob", "user:bob"},
	{"X-SESSION-ID: Conv-1\r\n", "bob", "header:x-session-id:Conv-1"},
	{"x-smg-routing-key: k v\r\n", NULL, "header:x-smg-routing-key:k v"},
	{"X-Trace-Id: t\r\n", NULL, "header:x-trace-id:t"},
};

START_TEST(spelled_as_the_vllm_router_does)
{
	struct conf_list list = list_of(names, ARRAY_LEN(names));
	struct route_key key = body_key(NULL, texts[_i].user, NULL, NULL);
	struct routing out;

	read_head(texts[_i].lines);
	ck_assert_ptr_null(routing_find(0, &list, raw, &head, &key, &out));
	ck_assert_ptr_null(
		routing_find(POLICY_WANTS_PROMPT, &list, raw, &head, &key, &out));
	ck_assert_ptr_eq(
		routing_find(POLICY_WANTS_KEY, &list, raw, &head, &key, &out), &out);
	ck_assert_int_eq(out.session.from, ROUTING_NONE);
	ck_assert_int_eq(out.any.from == ROUTING_NONE, texts[_i].text == NULL);
	if (texts[_i].text == NULL)
		return;
	ck_assert(span_is(span_make(out.text, out.text_len), texts[_i].text));
	ck_assert(out.point == ring_hash(span_str(texts[_i].text)));
}
END_TEST

START_TEST(body_fields_by_their_kind)
{
	static const char *const want[] = {"session:p", "user:u", "session:s", "user:i"};
	struct conf_list none = {0};

	for (unsigned i = 0; i < ARRAY_LEN(want); i++) {
		struct route_key key = body_key(
			i > 0 ? NULL : "p", i > 1 ? NULL : "u", i > 2 ? NULL : "s", "i");
		struct routing out;

		routing_find(POLICY_WANTS_KEY, &none, NULL, NULL, &key, &out);
		ck_assert(span_is(span_make(out.text, out.text_len), want[i]));
	}
}
END_TEST

/* B36 (d): up to the room as it is, beyond it by its hash; one byte tells two apart. */
START_TEST(long_keys_by_their_hash)
{
	static char text[ROUTING_TEXT_MAX + 8];
	struct conf_list none = {0};
	struct routing fits, a, b;
	size_t room = ROUTING_TEXT_MAX - strlen("user:");
	struct route_key key;

	memset(text, 'x', sizeof(text) - 1);
	key = body_key(NULL, text, NULL, NULL);
	key.session[SESSION_USER].n = room;
	routing_find(POLICY_WANTS_KEY, &none, NULL, NULL, &key, &fits);
	ck_assert_uint_eq(fits.text_len, ROUTING_TEXT_MAX);
	key.session[SESSION_USER].n = room + 1;
	routing_find(POLICY_WANTS_KEY, &none, NULL, NULL, &key, &a);
	ck_assert_uint_eq(a.text_len, strlen("user:") + 16);
	text[room] = 'y';
	routing_find(POLICY_WANTS_KEY, &none, NULL, NULL, &key, &b);
	ck_assert(a.point != b.point);
}
END_TEST

/* What is decided must not depend on who else has read the body. */
START_TEST(sent_hashes_stand_for_the_bodys_fields)
{
	struct conf_list list = list_of(names, ARRAY_LEN(names));
	struct route_key key = body_key(NULL, "bob", NULL, NULL);
	unsigned affinity = POLICY_WANTS_SESSION | POLICY_WANTS_PREFIX;
	struct routing out;

	read_head("");
	key.hashes_sent = true;
	routing_find(affinity, &list, raw, &head, &key, &out);
	ck_assert_int_eq(out.session.from, ROUTING_NONE);
	/* Where the hashes serve nobody they do not. */
	routing_find(POLICY_WANTS_SESSION, &list, raw, &head, &key, &out);
	ck_assert_int_eq(out.session.from, ROUTING_BODY);
	routing_find(POLICY_WANTS_KEY, &list, raw, &head, &key, &out);
	ck_assert_int_eq(out.any.from, ROUTING_BODY);
	read_head("X-Session-Id: s\r\n");
	routing_find(affinity, &list, raw, &head, &key, &out);
	ck_assert_int_eq(out.session.from, ROUTING_HEADER);
	ck_assert(out.session_hash == routing_session_hash(SPAN_LIT("s")));
}
END_TEST

START_TEST(windows_in_blocks)
{
	ck_assert_uint_eq(routing_prefix_blocks(4096, 'b', 128), 128);
	ck_assert_uint_eq(routing_prefix_blocks(4096, 't', 32), 128);
	ck_assert_uint_eq(routing_prefix_blocks(4096, 'b', 2048), 8);
	ck_assert_uint_eq(routing_prefix_blocks(10, 'b', 128), 1); /* at least one */
	ck_assert_uint_eq(routing_prefix_blocks(1000000000, 'b', 16), 250000000);
}
END_TEST

/* ---- who needs the body ---- */

#define PROMPT POLICY_WANTS_PROMPT
#define PREFIX POLICY_WANTS_PREFIX
#define SESSION POLICY_WANTS_SESSION
#define KEY POLICY_WANTS_KEY

static const struct {
	unsigned wants;
	/* Index: hashes sent 1, has session 2, has key 4. */
	bool needs[8];
} needs[] = {
	{0, {0, 0, 0, 0, 0, 0, 0, 0}},
	{PROMPT, {1, 0, 1, 0, 1, 0, 1, 0}},
	{SESSION, {1, 1, 0, 0, 1, 1, 0, 0}},
	{KEY, {1, 1, 1, 1, 0, 0, 0, 0}},
	{SESSION | PREFIX, {1, 0, 0, 0, 1, 0, 0, 0}},
	/* A fallback on cache_aware: the index must learn what goes where. */
	{SESSION | PREFIX | PROMPT, {1, 0, 1, 0, 1, 0, 1, 0}},
	/* On consistent_hash: reached only where neither session nor prefix is. */
	{SESSION | PREFIX | KEY, {1, 0, 0, 0, 1, 0, 0, 0}},
	{SESSION | KEY, {1, 1, 0, 0, 1, 1, 0, 0}},
};

START_TEST(body_is_needed_where_the_head_does_not_say_it)
{
	for (unsigned i = 0; i < 8; i++) {
		struct policy_head h = {(i & 1) != 0, (i & 2) != 0, (i & 4) != 0};

		ck_assert_msg(
			policy_needs_body(needs[_i].wants, &h) == needs[_i].needs[i],
			"wants %x, head %u", needs[_i].wants, i);
	}
}
END_TEST

static Suite *routing_key_suite(void)
{
	Suite *s = suite_create("routing_key");
	TCase *tc = tcase_create("routing_key");

	tcase_add_loop_test(tc, first_that_is_not_empty, 0, ARRAY_LEN(rows));
	tcase_add_test(tc, fields_in_their_order);
	tcase_add_test(tc, the_list_is_the_operators);
	tcase_add_loop_test(tc, spelled_as_the_vllm_router_does, 0, ARRAY_LEN(texts));
	tcase_add_test(tc, body_fields_by_their_kind);
	tcase_add_test(tc, long_keys_by_their_hash);
	tcase_add_test(tc, sent_hashes_stand_for_the_bodys_fields);
	tcase_add_test(tc, windows_in_blocks);
	tcase_add_loop_test(
		tc, body_is_needed_where_the_head_does_not_say_it, 0, ARRAY_LEN(needs));
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(routing_key_suite())
