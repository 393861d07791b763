/*
 * What the service manager receives, over a path and over an abstract name; silence and
 * errors without one.
 */
#include "base/clock.h"
#include "base/err.h"
#include "io/notify.h"
#include "tests/unit/unit.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static char folder[64], path[96];
static int manager;

static void setup(void)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};

	snprintf(folder, sizeof(folder), "/tmp/kvsteer-unit-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/notify", folder);
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(manager, (struct sockaddr *)&un, sizeof(un)), 0);
	setenv("NOTIFY_SOCKET", path, 1);
}

static void teardown(void)
{
	unsetenv("NOTIFY_SOCKET");
	close(manager);
	unlink(path);
	rmdir(folder);
}

static void receive(char *text, size_t n)
{
	ssize_t got = recv(manager, text, n - 1, MSG_DONTWAIT);

	ck_assert_int_ge(got, 0);
	text[got] = '\0';
}

START_TEST(one_datagram_each)
{
	char text[256];

	ck_assert_int_eq(notify_send("READY=1\nSTATUS=up"), 0);
	ck_assert_int_eq(notify_sendf("STATUS=%d workers", 3), 0);
	receive(text, sizeof(text));
	ck_assert_str_eq(text, "READY=1\nSTATUS=up");
	receive(text, sizeof(text));
	ck_assert_str_eq(text, "STATUS=3 workers");
}
END_TEST

START_TEST(reloading_says_when)
{
	char text[256];
	unsigned long long before = clock_us(), at;

	ck_assert_int_eq(notify_reloading(), 0);
	receive(text, sizeof(text));
	ck_assert_int_eq(sscanf(text, "RELOADING=1\nMONOTONIC_USEC=%llu", &at), 1);
	ck_assert(at >= before && at <= clock_us());
}
END_TEST

START_TEST(an_abstract_name)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	socklen_t n;
	char name[64], text[64];

	snprintf(name, sizeof(name), "@kvsteer-unit-%ld", (long)getpid());
	memcpy(un.sun_path, name, strlen(name));
	un.sun_path[0] = '\0';
	n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
	close(manager);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(manager, (struct sockaddr *)&un, n), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	ck_assert_int_eq(notify_send("STOPPING=1"), 0);
	receive(text, sizeof(text));
	ck_assert_str_eq(text, "STOPPING=1");
}
END_TEST

START_TEST(silent_without_a_manager)
{
	char byte;

	unsetenv("NOTIFY_SOCKET");
	ck_assert_int_eq(notify_send("READY=1"), 0);
	setenv("NOTIFY_SOCKET", "", 1);
	ck_assert_int_eq(notify_send("READY=1"), 0);
	ck_assert_int_eq(recv(manager, &byte, 1, MSG_DONTWAIT), -1);
}
END_TEST

START_TEST(a_manager_that_cannot_be_told)
{
	char longer[300];

	setenv("NOTIFY_SOCKET", "relative", 1);
	ck_assert_int_eq(notify_send("READY=1"), ERR_UNSUPPORTED);
	setenv("NOTIFY_SOCKET", "vsock:2:1", 1);
	ck_assert_int_eq(notify_send("READY=1"), ERR_UNSUPPORTED);
	setenv("NOTIFY_SOCKET", "/nonexistent/x", 1);
	ck_assert_int_eq(notify_send("READY=1"), ERR_IO);
	memset(longer, '/', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	setenv("NOTIFY_SOCKET", longer, 1);
	ck_assert_int_eq(notify_send("READY=1"), ERR_RANGE);
	setenv("NOTIFY_SOCKET", path, 1);
	ck_assert_int_eq(notify_sendf("STATUS=%5000s", "x"), ERR_RANGE);
}
END_TEST

static Suite *notify_suite(void)
{
	Suite *s = suite_create("notify");
	TCase *t = tcase_create("notify");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, one_datagram_each);
	tcase_add_test(t, reloading_says_when);
	tcase_add_test(t, an_abstract_name);
	tcase_add_test(t, silent_without_a_manager);
	tcase_add_test(t, a_manager_that_cannot_be_told);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(notify_suite())
