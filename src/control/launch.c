/*
 * A process that is no child of this one. See launch.h. This process has threads: between
 * fork and exec only async-signal-safe code runs, so all allocations happen before.
 */
#include "control/launch.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "control/inherit.h"
#include "control/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#	define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

extern char **environ;

/* Variables of this process that are not its successor's: LISTEN_FDS and WATCHDOG_PID
 * name this one. */
static bool is_own(const char *variable)
{
	static const char *const names[] = {"LISTEN_PID=", "LISTEN_FDS=",
		"LISTEN_FDNAMES=", "WATCHDOG_PID=", INHERIT_VARIABLE "=",
		UPGRADE_VARIABLE "="};
	size_t i;

	for (i = 0; i < ARRAY_LEN(names); i++) {
		if (strncmp(variable, names[i], strlen(names[i])) == 0)
			return true;
	}
	return false;
}

/* The strings but for the two given are this process's. NULL: out of memory. */
static char **make_environment(char *sockets, char *upgrade)
{
	size_t i, n = 0;
	char **out;

	for (i = 0; environ != NULL && environ[i] != NULL; i++)
		;
	out = calloc(i + 3, sizeof(*out));
	if (out == NULL)
		return NULL;
	for (i = 0; environ != NULL && environ[i] != NULL; i++) {
		if (!is_own(environ[i]))
			out[n++] = environ[i];
	}
	out[n++] = sockets;
	out[n] = upgrade;
	return out;
}

/* "word NUMBER", without what is not safe here. */
static void say(int channel, const char *word, unsigned long number)
{
	char text[64], digits[24];
	size_t n = strlen(word), k = 0;

	memcpy(text, word, n);
	text[n++] = ' ';
	do
		digits[k++] = (char)('0' + number % 10);
	while ((number /= 10) > 0);
	while (k > 0)
		text[n++] = digits[--k];
	(void)!send(channel, text, n, MSG_NOSIGNAL);
}

static void keep_open(int fd)
{
	(void)fcntl(fd, F_SETFD, 0);
}

/* In the grandchild. */
static _Noreturn void become(const struct launch *l, char **env)
{
	sigset_t none;
	size_t i;

	(void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	for (i = 0; i < l->sockets->n; i++)
		keep_open(l->sockets->fds[i]);
	keep_open(l->channel);
	keep_open(l->state);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	say(l->channel, "hello", (unsigned long)getpid());
	execve(l->path, l->argv, env);
	say(l->channel, "exec", (unsigned long)errno);
	_exit(127);
}

/* In the child, whose end makes the grandchild somebody else's. */
static _Noreturn void fork_again(const struct launch *l, char **env)
{
	pid_t pid = fork();

	if (pid == 0)
		become(l, env);
	_exit(pid > 0 ? 0 : 1);
}

int launch(const struct launch *l)
{
	scoped_free char *sockets = mem_format("%s=%s", INHERIT_VARIABLE,
		l->sockets->text != NULL ? l->sockets->text : "");
	scoped_free char *upgrade =
		mem_format("%s=%d,%d", UPGRADE_VARIABLE, l->channel, l->state);
	char **env = make_environment(sockets, upgrade);
	int status = 1;
	pid_t pid;

	if (sockets == NULL || upgrade == NULL || env == NULL) {
		free(env);
		return ERR_NOMEM;
	}
	pid = fork();
	if (pid == 0)
		fork_again(l, env);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	free(env);
	return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : ERR_IO;
}
