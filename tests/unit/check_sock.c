/*
 * Addresses, listening and connecting sockets with their options, and what
 * the kernel's errors become.
 */
#include "base/err.h"
#include "io/sock.h"
#include "tests/unit/unit_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

START_TEST(addresses_to_text_and_back)
{
	static const struct {
		const char *host, *with_port;
	} rows[] = {
		{"127.0.0.1", "127.0.0.1:80"},
		{"255.255.255.255", "255.255.255.255:80"},
		{"::1", "[::1]:80"},
		{"2001:db8::ff", "[2001:db8::ff]:80"},
	};
	union sock_addr a;
	char text[SOCK_ADDR_TEXT_MAX];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ck_assert_int_eq(sock_addr_parse(rows[i].host, 80, &a), 0);
		ck_assert_uint_eq(sock_addr_text(&a, true, text, sizeof(text)),
			strlen(rows[i].with_port));
		ck_assert_str_eq(text, rows[i].with_port);
		ck_assert_uint_eq(sock_addr_text(&a, false, text, sizeof(text)),
			strlen(rows[i].host));
		ck_assert_str_eq(text, rows[i].host);
	}
}
END_TEST

START_TEST(the_longest_address_fits_and_a_small_buffer_is_kept)
{
	union sock_addr a;
	char text[SOCK_ADDR_TEXT_MAX], small[4];

	ck_assert_int_eq(sock_addr_parse("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
				 65535, &a),
		0);
	ck_assert_uint_lt(sock_addr_text(&a, true, text, sizeof(text)), sizeof(text) - 1);
	ck_assert_uint_eq(sock_addr_text(&a, true, small, sizeof(small)), 3);
	ck_assert_str_eq(small, "[ff");
	memset(&a, 0, sizeof(a));
	a.sa.sa_family = AF_UNIX;
	sock_addr_text(&a, true, text, sizeof(text));
	ck_assert_str_eq(text, "unix");
}
END_TEST

START_TEST(names_are_no_addresses)
{
	static const char *const rows[] = {"", "localhost", "127.0.0.1:80", "[::1]",
		"127.1", "1.2.3.4.5", "::1%lo", " 127.0.0.1", "256.0.0.1", "0x7f.0.0.1",
		"127.0.0.01"};
	union sock_addr a;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		memset(&a, 0x55, sizeof(a));
		ck_assert_msg(
			sock_addr_parse(rows[i], 1, &a) == ERR_PARSE, "%s", rows[i]);
		ck_assert_msg(a.sa.sa_family == 0x5555, "%s touched the result", rows[i]);
	}
}
END_TEST

static int get_int(int fd, int level, int option)
{
	int value = -1;
	socklen_t n = sizeof(value);

	ck_assert_int_eq(getsockopt(fd, level, option, &value, &n), 0);
	return value;
}

static void check_options(int fd)
{
	ck_assert_int_eq(get_int(fd, IPPROTO_TCP, TCP_NODELAY), 1);
	ck_assert_int_eq(get_int(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
	ck_assert_int_eq(get_int(fd, IPPROTO_TCP, TCP_KEEPIDLE), 30);
	ck_assert_int_eq(get_int(fd, IPPROTO_TCP, TCP_KEEPINTVL), 10);
	ck_assert_int_eq(get_int(fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
	ck_assert_int_eq(get_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 60000);
	ck_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
	ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static int accept_soon(int listener, union sock_addr *peer)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};
	int fd = -1;

	ck_assert_int_eq(poll(&p, 1, 20000), 1);
	ck_assert_int_eq(sock_accept(listener, &fd, peer), 0);
	return fd;
}

START_TEST(connect_accept_and_inherited_options)
{
	union sock_addr a, peer;
	int listener = listen_any(&a), fd, accepted;
	struct pollfd p;

	check_options(listener);
	ck_assert_int_eq(get_int(listener, SOL_SOCKET, SO_REUSEPORT), 1);
	ck_assert_int_eq(sock_accept(listener, &fd, &peer), ERR_AGAIN);
	ck_assert_int_eq(sock_connect(&a, &fd), 0);
	accepted = accept_soon(listener, &peer);
	check_options(accepted);
	check_options(fd);
	/* B7: what the kernel holds of a client that reads nothing. */
	ck_assert_int_eq(
		get_int(accepted, IPPROTO_TCP, TCP_NOTSENT_LOWAT), SOCK_UNSENT_BYTES);
	ck_assert_int_eq(peer.sa.sa_family, AF_INET);
	ck_assert_uint_eq(ntohl(peer.in.sin_addr.s_addr), INADDR_LOOPBACK);
	p = (struct pollfd){.fd = fd, .events = POLLOUT};
	ck_assert_int_eq(poll(&p, 1, 20000), 1);
	ck_assert_int_eq(sock_connect_result(fd), 0);
	close(fd);
	close(accepted);
	close(listener);
}
END_TEST

START_TEST(test_b7_a_listener_of_others_gets_the_options)
{
	union sock_addr a, peer;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int fd, accepted;
	socklen_t len = sizeof(a);

	ck_assert_int_eq(sock_addr_parse("127.0.0.1", 0, &a), 0);
	ck_assert_int_eq(bind(listener, &a.sa, sock_addr_len(&a)), 0);
	ck_assert_int_eq(listen(listener, 1), 0);
	ck_assert_int_eq(getsockname(listener, &a.sa, &len), 0);
	sock_adopt_listener(listener);
	ck_assert_int_eq(sock_connect(&a, &fd), 0);
	accepted = accept_soon(listener, &peer);
	check_options(accepted);
	ck_assert_int_eq(
		get_int(accepted, IPPROTO_TCP, TCP_NOTSENT_LOWAT), SOCK_UNSENT_BYTES);
	close(fd);
	close(accepted);
	close(listener);
}
END_TEST

START_TEST(two_listeners_share_a_port_and_a_foreign_one_does_not)
{
	union sock_addr a;
	int first = listen_any(&a), second = -1, plain;

	ck_assert_int_eq(sock_listen(&a, &second), 0);
	close(first);
	close(second);
	plain = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(plain, &a.sa, sock_addr_len(&a)), 0);
	ck_assert_int_eq(listen(plain, 1), 0);
	second = -7;
	ck_assert_int_eq(sock_listen(&a, &second), ERR_IO);
	ck_assert_int_eq(errno, EADDRINUSE);
	ck_assert_int_eq(second, -7);
	close(plain);
}
END_TEST

START_TEST(v6_only)
{
	union sock_addr a;
	int fd;

	ck_assert_int_eq(sock_addr_parse("::1", 0, &a), 0);
	if (sock_listen(&a, &fd) != 0) {
		printf("skipped: no IPv6 here\n");
		return;
	}
	ck_assert_int_eq(get_int(fd, IPPROTO_IPV6, IPV6_V6ONLY), 1);
	close(fd);
}
END_TEST

START_TEST(refused)
{
	union sock_addr a;
	struct pollfd p;
	int listener = listen_any(&a), fd, err;

	close(listener);
	err = sock_connect(&a, &fd);
	if (err == 0) {
		p = (struct pollfd){.fd = fd, .events = POLLOUT};
		ck_assert_int_eq(poll(&p, 1, 20000), 1);
		err = sock_connect_result(fd);
		close(fd);
	}
	ck_assert_int_eq(err, ERR_REFUSED);
	ck_assert_int_eq(errno, ECONNREFUSED);
}
END_TEST

/* With the limit at what is open already, nothing can be accepted or connected: a limit,
 * not an error of the peer. */
START_TEST(out_of_descriptors)
{
	union sock_addr a, peer;
	int listener = listen_any(&a), fd, probe, client;
	struct rlimit before, none;

	ck_assert_int_eq(sock_connect(&a, &client), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	probe = dup(listener);
	close(probe);
	none = before;
	none.rlim_cur = (rlim_t)probe;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	fd = -7;
	ck_assert_int_eq(sock_accept(listener, &fd, &peer), ERR_LIMIT);
	ck_assert_int_eq(errno, EMFILE);
	ck_assert_int_eq(sock_connect(&a, &fd), ERR_LIMIT);
	ck_assert_int_eq(fd, -7);
	ck_assert_uint_eq(sock_raise_fd_limit(), before.rlim_max);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
	fd = accept_soon(listener, &peer);
	close(fd);
	close(client);
	close(listener);
}
END_TEST

START_TEST(accepting_from_what_does_not_listen)
{
	union sock_addr peer;
	int fd, s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	ck_assert_int_eq(sock_accept(s, &fd, &peer), ERR_IO);
	close(s);
}
END_TEST

START_TEST(abort_on_close)
{
	union sock_addr a, peer;
	int listener = listen_any(&a), fd, accepted;
	struct pollfd p;
	char byte;

	ck_assert_int_eq(sock_connect(&a, &fd), 0);
	accepted = accept_soon(listener, &peer);
	sock_abort_on_close(accepted);
	close(accepted);
	p = (struct pollfd){.fd = fd, .events = POLLIN};
	ck_assert_int_eq(poll(&p, 1, 20000), 1);
	ck_assert_int_eq(recv(fd, &byte, 1, 0), -1);
	ck_assert_int_eq(errno, ECONNRESET);
	close(fd);
	close(listener);
}
END_TEST

static char folder[64], path[96];

static void make_folder(void)
{
	snprintf(folder, sizeof(folder), "/tmp/kvsteer-unit-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/socket", folder);
}

static void remove_folder(void)
{
	unlink(path);
	ck_assert_int_eq(rmdir(folder), 0);
}

static unsigned mode_of(const char *name)
{
	struct stat st;

	ck_assert_int_eq(stat(name, &st), 0);
	return st.st_mode & 07777;
}

static int connect_unix(void)
{
	union sock_addr a;
	struct sockaddr_un *un = (struct sockaddr_un *)(void *)&a;
	int fd;

	memset(&a, 0, sizeof(a));
	un->sun_family = AF_UNIX;
	snprintf(un->sun_path, sizeof(un->sun_path), "%s", path);
	ck_assert_int_eq(sock_connect(&a, &fd), 0);
	return fd;
}

START_TEST(a_unix_listener_and_its_mode)
{
	union sock_addr peer;
	mode_t mask = umask(0077);
	int fd, client, accepted;

	ck_assert_int_eq(sock_listen_unix(path, 0660, &fd), 0);
	ck_assert_uint_eq(mode_of(path), 0660);
	umask(mask);
	client = connect_unix();
	accepted = accept_soon(fd, &peer);
	ck_assert_int_eq(peer.sa.sa_family, AF_UNIX);
	close(accepted);
	close(client);
	close(fd);
}
END_TEST

START_TEST(a_live_unix_socket_is_refused_and_a_dead_one_replaced)
{
	int fd, other = -7, client;

	ck_assert_int_eq(sock_listen_unix(path, 0600, &fd), 0);
	ck_assert_int_eq(sock_listen_unix(path, 0600, &other), ERR_EXISTS);
	ck_assert_int_eq(other, -7);
	client = connect_unix(); /* the live one was not harmed */
	close(client);
	close(fd);
	ck_assert_int_eq(sock_listen_unix(path, 0666, &other), 0);
	ck_assert_uint_eq(mode_of(path), 0666);
	client = connect_unix();
	close(client);
	close(other);
}
END_TEST

START_TEST(what_is_no_socket_stays)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_int_eq(sock_listen_unix(path, 0600, &fd), ERR_EXISTS);
	ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

START_TEST(unix_paths_that_cannot_be)
{
	char longer[200];
	int fd = -7;

	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	ck_assert_int_eq(sock_listen_unix(longer, 0600, &fd), ERR_IO);
	ck_assert_int_eq(errno, ENAMETOOLONG);
	ck_assert_int_eq(sock_listen_unix("", 0600, &fd), ERR_IO);
	ck_assert_int_eq(sock_listen_unix("/nonexistent/x", 0600, &fd), ERR_IO);
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_int_eq(fd, -7);
}
END_TEST

static Suite *sock_suite(void)
{
	Suite *s = suite_create("sock");
	TCase *t = tcase_create("sock"), *u = tcase_create("unix");

	tcase_add_test(t, addresses_to_text_and_back);
	tcase_add_test(t, the_longest_address_fits_and_a_small_buffer_is_kept);
	tcase_add_test(t, names_are_no_addresses);
	tcase_add_test(t, connect_accept_and_inherited_options);
	tcase_add_test(t, test_b7_a_listener_of_others_gets_the_options);
	tcase_add_test(t, two_listeners_share_a_port_and_a_foreign_one_does_not);
	tcase_add_test(t, v6_only);
	tcase_add_test(t, refused);
	tcase_add_test(t, out_of_descriptors);
	tcase_add_test(t, accepting_from_what_does_not_listen);
	tcase_add_test(t, abort_on_close);
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(u, make_folder, remove_folder);
	tcase_add_test(u, a_unix_listener_and_its_mode);
	tcase_add_test(u, a_live_unix_socket_is_refused_and_a_dead_one_replaced);
	tcase_add_test(u, what_is_no_socket_stays);
	tcase_add_test(u, unix_paths_that_cannot_be);
	suite_add_tcase(s, u);
	return s;
}

UNIT_MAIN(sock_suite())
