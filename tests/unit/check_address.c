/*
 * Which addresses a worker may have.
 */
#include "fleet/address.h"
#include "tests/unit/unit.h"

static struct conf_list list_of(char **items)
{
	struct conf_list list = {items, 0};

	while (items[list.n] != NULL)
		list.n++;
	return list;
}

static bool is_allowed(const char *host, char **cidrs)
{
	struct conf_list list = list_of(cidrs);
	union sock_addr a;

	ck_assert_int_eq(sock_addr_parse(host, 80, &a), 0);
	return address_is_allowed(&a, &list);
}

START_TEST(test_anywhere_but_where_nobody_may)
{
	static const char *const good[] = {"127.0.0.1", "10.0.0.1", "192.168.1.1",
		"8.8.8.8", "169.253.255.255", "169.255.0.0", "::1", "fd00::1",
		"2001:db8::1", "223.255.255.255"};
	static const char *const bad[] = {"0.0.0.0", "0.1.2.3", "169.254.169.254",
		"169.254.0.1", "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1",
		"::", "fe80::1", "febf::1", "ff02::1", "fd00:ec2::254",
		"::ffff:169.254.169.254", "::ffff:0.0.0.0"};
	char *none[] = {NULL};
	size_t i;

	for (i = 0; i < ARRAY_LEN(good); i++)
		ck_assert_msg(is_allowed(good[i], none), "%s", good[i]);
	for (i = 0; i < ARRAY_LEN(bad); i++)
		ck_assert_msg(!is_allowed(bad[i], none), "%s", bad[i]);
}
END_TEST

START_TEST(test_inside_the_networks)
{
	char *nets[] = {"10.1.0.0/16", "fd00::/8", "192.0.2.7", NULL};
	char *all[] = {"0.0.0.0/0", "::/0", NULL};

	ck_assert(is_allowed("10.1.255.255", nets));
	ck_assert(is_allowed("::ffff:10.1.0.1", nets));
	ck_assert(is_allowed("fd12::1", nets));
	ck_assert(is_allowed("192.0.2.7", nets));
	ck_assert(!is_allowed("10.2.0.0", nets));
	ck_assert(!is_allowed("192.0.2.8", nets));
	ck_assert(!is_allowed("127.0.0.1", nets));
	ck_assert(!is_allowed("::1", nets));
	ck_assert(!is_allowed("fd00:ec2::254", nets));
	ck_assert(!is_allowed("169.254.169.254", all));
	ck_assert(is_allowed("127.0.0.1", all));
}
END_TEST

static struct addr_list *addresses(const char *const *hosts, size_t n)
{
	struct addr_list *list = malloc(sizeof(*list) + n * sizeof(list->addrs[0]));
	size_t i;

	atomic_init(&list->refs, 1);
	list->n = n;
	for (i = 0; i < n; i++)
		ck_assert_int_eq(sock_addr_parse(hosts[i], 80, &list->addrs[i]), 0);
	return list;
}

START_TEST(test_filter)
{
	static const char *const hosts[] = {"10.0.0.1", "169.254.1.1", "10.0.0.2"};
	struct addr_list *three = addresses(hosts, 3), *two, *one = addresses(hosts, 1),
			 *same;
	struct addr_list *bad = addresses(hosts + 1, 1);
	struct conf_list none = {NULL, 0};
	char text[SOCK_ADDR_TEXT_MAX];

	two = address_filter(three, &none);
	ck_assert_uint_eq(two->n, 2);
	sock_addr_text(&two->addrs[1], true, text, sizeof(text));
	ck_assert_str_eq(text, "10.0.0.2:80");
	same = address_filter(one, &none);
	ck_assert_ptr_eq(same, one);
	ck_assert_ptr_null(address_filter(bad, &none));
	addr_list_unref(two);
	addr_list_unref(same);
	addr_list_unref(one);
	addr_list_unref(bad);
	addr_list_unref(three);
}
END_TEST

static Suite *address_suite(void)
{
	Suite *s = suite_create("address");
	TCase *t = tcase_create("address");

	tcase_add_test(t, test_anywhere_but_where_nobody_may);
	tcase_add_test(t, test_inside_the_networks);
	tcase_add_test(t, test_filter);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(address_suite())
