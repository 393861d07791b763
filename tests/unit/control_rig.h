/*
 * The control side of a daemon in one process: booted as kvsteerd boots, asked over its
 * admin socket, with I/O threads that run. For check_control_memory.c and check_roster.c.
 */
#ifndef UNIT_CONTROL_RIG_H
#define UNIT_CONTROL_RIG_H

#include "base/cleanup.h"
#include "control/boot.h"
#include "control/control.h"
#include "control/inherit.h"
#include "tests/unit/unit_loop.h"
#include "tests/unit/unit_model.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A configuration begins with this; %s is the folder of its socket. */
#define RIG_ROUTER \
	"[router]\nthreads = 2\nmetrics_listen = none\nadmin_socket = %s/socket\n"

static char folder[64], conf_path[96], socket_path[96];
static struct control *c;
static int client = -1;

static inline void rig_write_conf(const char *form)
{
	scoped_file FILE *f = fopen(conf_path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_gt(fprintf(f, form, folder), 0);
}

/* text: a form with the folder in it. */
static inline void rig_boot(const char *text)
{
	struct inherited none = {NULL, 0};
	struct conf_errors errors = {0};
	struct conf *conf;

	snprintf(folder, sizeof(folder), "/tmp/kvsteer-check-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(conf_path, sizeof(conf_path), "%s/conf", folder);
	snprintf(socket_path, sizeof(socket_path), "%s/socket", folder);
	rig_write_conf(text);
	c = calloc(1, sizeof(*c));
	ck_assert_ptr_nonnull(c);
	c->flags.conf_file = conf_path;
	ck_assert_int_eq(conf_load(conf_path, NULL, &errors, &conf), 0);
	conf_errors_free(&errors);
	ck_assert_int_eq(boot_prepare(c, conf, &none), 0);
	ck_assert_int_eq(boot_open(c), 0);
	conf_unref(conf);
}

static inline void rig_close(void)
{
	if (client >= 0)
		close(client);
	ck_assert(boot_undo(c)); /* guards taken and dropped balance */
	free(c);
	ck_assert_int_eq(unlink(conf_path), 0);
	ck_assert_int_eq(rmdir(folder), 0);
}

/* ---- the client ---- */

static inline void rig_connect(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char byte;

	turn_idle(c->loop, 2);
	if (client >= 0 && recv(client, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN)
		return; /* the last answer did not end it */
	if (client >= 0)
		close(client);
	client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	memcpy(a.sun_path, socket_path, strlen(socket_path) + 1);
	ck_assert_int_eq(connect(client, (struct sockaddr *)&a, sizeof(a)), 0);
	turn_idle(c->loop, 2);
}

/* The length of the answer that text begins with; 0: it is not whole. */
static inline size_t rig_answer_length(const char *text)
{
	const char *end = strstr(text, "\r\n\r\n"), *length;

	if (end == NULL)
		return 0;
	length = strstr(text, "Content-Length: ");
	unit_must(length != NULL && length < end);
	return (size_t)(end + 4 - text) + strtoul(length + 16, NULL, 10);
}

/* The status of one call; 0: the connection was closed. */
static inline int rig_ask(const char *method, const char *path, const char *body)
{
	static char text[1 << 20];
	size_t used = 0, want = 0;
	uint64_t end_us;
	ssize_t n;

	if (client < 0)
		rig_connect();
	n = snprintf(text, sizeof(text),
		"%s /admin/v1/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
		method, path, strlen(body), body);
	unit_must(write(client, text, (size_t)n) == n);
	for (end_us = clock_us() + UNIT_DEADLINE_US; want == 0 || used < want;) {
		unit_must(clock_us() < end_us);
		loop_turn(c->loop, 10);
		n = read(client, text + used, sizeof(text) - used - 1);
		if (n == 0 || (n < 0 && errno != EAGAIN)) {
			close(client);
			client = -1;
			return 0;
		}
		used += n > 0 ? (size_t)n : 0;
		text[used] = '\0';
		want = rig_answer_length(text);
	}
	return atoi(text + strlen("HTTP/1.1 "));
}

#endif
