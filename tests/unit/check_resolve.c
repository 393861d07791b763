/*
 * Look-ups with a getaddrinfo of the test's own: answers, errors, order, cancelling, and
 * a resolver freed while one hangs.
 */
#include "base/err.h"
#include "io/resolve.h"
#include "tests/unit/unit_loop.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
static bool gate_is_open;
static unsigned waiting_at_gate, calls;

static void wait_at_gate(void)
{
	pthread_mutex_lock(&gate_lock);
	waiting_at_gate++;
	pthread_cond_broadcast(&gate_moved);
	while (!gate_is_open)
		pthread_cond_wait(&gate_moved, &gate_lock);
	waiting_at_gate--;
	pthread_cond_broadcast(&gate_moved);
	pthread_mutex_unlock(&gate_lock);
}

static void open_gate(bool is_open)
{
	pthread_mutex_lock(&gate_lock);
	gate_is_open = is_open;
	pthread_cond_broadcast(&gate_moved);
	pthread_mutex_unlock(&gate_lock);
}

static void await_waiting(unsigned n)
{
	pthread_mutex_lock(&gate_lock);
	while (waiting_at_gate != n)
		pthread_cond_wait(&gate_moved, &gate_lock);
	pthread_mutex_unlock(&gate_lock);
}

static unsigned get_calls(void)
{
	unsigned n;

	pthread_mutex_lock(&gate_lock);
	n = calls;
	pthread_mutex_unlock(&gate_lock);
	return n;
}

static struct addrinfo *new_addr(const char *host, struct addrinfo *next)
{
	struct addrinfo *ai = calloc(1, sizeof(*ai));
	union sock_addr *a = calloc(1, sizeof(*a));

	if (host == NULL)
		a->sa.sa_family = AF_UNIX;
	else if (sock_addr_parse(host, 1, a) != 0)
		abort();
	ai->ai_family = a->sa.sa_family;
	ai->ai_addrlen = sock_addr_len(a);
	ai->ai_addr = &a->sa;
	ai->ai_next = next;
	return ai;
}

/* In place of libc's. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
	struct addrinfo **found)
{
	(void)service;
	(void)hints;
	pthread_mutex_lock(&gate_lock);
	calls++;
	pthread_mutex_unlock(&gate_lock);
	if (strncmp(node, "slow", 4) == 0)
		wait_at_gate();
	if (strcmp(node, "one") == 0 || strncmp(node, "slow", 4) == 0)
		*found = new_addr("10.0.0.1", NULL);
	else if (strcmp(node, "two") == 0)
		*found = new_addr(
			"10.0.0.2", new_addr(NULL, new_addr("2001:db8::2", NULL)));
	else if (strcmp(node, "unusable") == 0)
		*found = new_addr(NULL, NULL);
	else
		return EAI_NONAME;
	return 0;
}

void freeaddrinfo(struct addrinfo *ai)
{
	while (ai != NULL) {
		struct addrinfo *next = ai->ai_next;

		free(ai->ai_addr);
		free(ai);
		ai = next;
	}
}

static struct loop *loop;
static struct resolver *resolver;

static void setup(void)
{
	open_gate(false);
	calls = 0;
	loop = loop_new();
	resolver = resolver_new(loop);
	ck_assert_ptr_nonnull(resolver);
}

static void teardown(void)
{
	open_gate(true);
	resolver_free(resolver);
	resolver_free(NULL);
	loop_free(loop);
}

struct answer {
	unsigned n;
	int err;
	struct addr_list *list;
};

static void on_done(void *arg, int err, struct addr_list *list)
{
	struct answer *a = arg;

	a->n++;
	a->err = err;
	addr_list_unref(a->list);
	a->list = list;
}

static void check_addr(const struct addr_list *list, size_t i, const char *want)
{
	char text[SOCK_ADDR_TEXT_MAX];

	ck_assert_ptr_nonnull(list);
	ck_assert_uint_lt(i, list->n);
	sock_addr_text(&list->addrs[i], true, text, sizeof(text));
	ck_assert_str_eq(text, want);
}

START_TEST(a_name_becomes_its_addresses)
{
	struct answer a = {0};

	ck_assert_int_eq(resolver_ask(resolver, "two", 8000, on_done, &a), 0);
	ck_assert_uint_eq(a.n, 0);
	TURN_UNTIL(loop, a.n == 1);
	ck_assert_int_eq(a.err, 0);
	ck_assert_uint_eq(a.list->n, 2);
	check_addr(a.list, 0, "10.0.0.2:8000");
	check_addr(a.list, 1, "[2001:db8::2]:8000");
	turn_idle(loop, 3);
	ck_assert_uint_eq(a.n, 1);
	addr_list_unref(a.list);
}
END_TEST

START_TEST(what_cannot_be_resolved)
{
	static const char *const rows[] = {"nowhere", "unusable", ""};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct answer a = {0};

		ck_assert_int_eq(resolver_ask(resolver, rows[i], 1, on_done, &a), 0);
		TURN_UNTIL(loop, a.n == 1);
		ck_assert_int_eq(a.err, ERR_RESOLVE);
		ck_assert_ptr_null(a.list);
	}
}
END_TEST

START_TEST(a_literal_needs_no_thread)
{
	struct answer slow = {0}, a = {0};

	ck_assert_int_eq(resolver_ask(resolver, "slow", 1, on_done, &slow), 0);
	await_waiting(1);
	ck_assert_int_eq(resolver_ask(resolver, "::1", 80, on_done, &a), 0);
	ck_assert_uint_eq(a.n, 0); /* not from inside the call */
	TURN_UNTIL(loop, a.n == 1);
	check_addr(a.list, 0, "[::1]:80");
	ck_assert_uint_eq(slow.n, 0);
	ck_assert_uint_eq(get_calls(), 1);
	open_gate(true);
	TURN_UNTIL(loop, slow.n == 1);
	addr_list_unref(a.list);
	addr_list_unref(slow.list);
}
END_TEST

START_TEST(many_in_order)
{
	struct answer a[100] = {0};

	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		ck_assert_int_eq(resolver_ask(resolver, i % 2 ? "one" : "nowhere",
					 (uint16_t)i, on_done, &a[i]),
			0);
	TURN_UNTIL(loop, a[99].n == 1);
	for (size_t i = 0; i < ARRAY_LEN(a); i++) {
		ck_assert_uint_eq(a[i].n, 1);
		ck_assert_int_eq(a[i].err, i % 2 ? 0 : ERR_RESOLVE);
		addr_list_unref(a[i].list);
	}
}
END_TEST

START_TEST(cancelled_while_waiting_running_and_answered)
{
	struct answer running = {0}, waiting = {0}, literal = {0}, kept = {0};

	ck_assert_int_eq(resolver_ask(resolver, "slow", 1, on_done, &running), 0);
	await_waiting(1);
	ck_assert_int_eq(resolver_ask(resolver, "one", 1, on_done, &waiting), 0);
	ck_assert_int_eq(resolver_ask(resolver, "two", 1, on_done, &waiting), 0);
	ck_assert_int_eq(resolver_ask(resolver, "one", 1, on_done, &kept), 0);
	ck_assert_int_eq(resolver_ask(resolver, "127.0.0.1", 1, on_done, &literal), 0);
	resolver_cancel(resolver, &running);
	resolver_cancel(resolver, &waiting);
	resolver_cancel(resolver, &literal);
	resolver_cancel(resolver, &literal);
	open_gate(true);
	TURN_UNTIL(loop, kept.n == 1);
	ck_assert_uint_eq(running.n + waiting.n + literal.n, 0);
	addr_list_unref(kept.list);
}
END_TEST

/* The gate stays shut until the resolver is gone: if freeing waited for the thread, this
 * would hang. */
START_TEST(freed_while_a_lookup_hangs)
{
	struct answer a = {0};

	ck_assert_int_eq(resolver_ask(resolver, "slow", 1, on_done, &a), 0);
	ck_assert_int_eq(resolver_ask(resolver, "one", 1, on_done, &a), 0);
	ck_assert_int_eq(resolver_ask(resolver, "127.0.0.1", 1, on_done, &a), 0);
	await_waiting(1);
	resolver_free(resolver);
	resolver = NULL;
	turn_idle(loop, 2);
	open_gate(true);
	await_waiting(0);
	turn_idle(loop, 2);
	ck_assert_uint_eq(a.n, 0);
	ck_assert_uint_eq(get_calls(), 1);
}
END_TEST

START_TEST(freed_with_answers_in_the_mailbox)
{
	struct answer a = {0};

	for (unsigned i = 0; i < 20; i++)
		ck_assert_int_eq(resolver_ask(resolver, "one", 1, on_done, &a), 0);
	while (get_calls() < 10)
		;
	resolver_free(resolver);
	resolver = NULL;
	turn_idle(loop, 2);
	ck_assert_uint_eq(a.n, 0);
}
END_TEST

START_TEST(lists_are_compared_and_counted)
{
	struct addr_list *a = addr_list_literal("10.0.0.1", 80);
	struct addr_list *same = addr_list_literal("10.0.0.1", 80);
	struct addr_list *port = addr_list_literal("10.0.0.1", 81);
	struct addr_list *six = addr_list_literal("::1", 80);
	struct answer two = {0};
	struct addr_list *turned;

	ck_assert_ptr_null(addr_list_literal("localhost", 80));
	ck_assert(addr_list_equal(a, same));
	ck_assert(!addr_list_equal(a, port));
	ck_assert(!addr_list_equal(a, six));
	ck_assert(!addr_list_equal(a, NULL));
	ck_assert(addr_list_equal(NULL, NULL));
	ck_assert_int_eq(resolver_ask(resolver, "two", 80, on_done, &two), 0);
	TURN_UNTIL(loop, two.n == 1);
	turned = malloc(sizeof(*turned) + 2 * sizeof(turned->addrs[0]));
	memcpy(turned, two.list, sizeof(*turned));
	turned->addrs[0] = two.list->addrs[1];
	turned->addrs[1] = two.list->addrs[0];
	ck_assert(addr_list_equal(two.list, turned));
	turned->addrs[0] = turned->addrs[1];
	ck_assert(!addr_list_equal(two.list, turned));
	free(turned);
	ck_assert_ptr_eq(addr_list_ref(a), a);
	addr_list_unref(a);
	check_addr(a, 0, "10.0.0.1:80");
	addr_list_unref(a);
	addr_list_unref(same);
	addr_list_unref(port);
	addr_list_unref(six);
	addr_list_unref(two.list);
	addr_list_unref(NULL);
}
END_TEST

static Suite *resolve_suite(void)
{
	Suite *s = suite_create("resolve");
	TCase *t = tcase_create("resolve");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, a_name_becomes_its_addresses);
	tcase_add_test(t, what_cannot_be_resolved);
	tcase_add_test(t, a_literal_needs_no_thread);
	tcase_add_test(t, many_in_order);
	tcase_add_test(t, cancelled_while_waiting_running_and_answered);
	tcase_add_test(t, freed_while_a_lookup_hangs);
	tcase_add_test(t, freed_with_answers_in_the_mailbox);
	tcase_add_test(t, lists_are_compared_and_counted);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(resolve_suite())
