/*
 * termios, the few sequences that every terminal knows, and signals, which are blocked
 * except while screen_wait() waits. See ctl_screen.h.
 */
#include "ctl/ctl_screen.h"

#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Another screen, without a cursor; and the old one. */
#define ENTER "\033[?1049h\033[?25l\033[H\033[2J"
#define LEAVE "\033[m\033[?25h\033[?1049l"

static const int caught[] = {
	SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};

static struct {
	bool is_open;
	struct termios was;
	sigset_t unblocked;
	struct sigaction actions[ARRAY_LEN(caught)];
} screen;

static volatile sig_atomic_t end_signal, stop_came, redraw_came;

static void on_signal(int signo)
{
	if (signo == SIGWINCH || signo == SIGCONT)
		redraw_came = 1;
	else if (signo == SIGTSTP)
		stop_came = 1;
	else
		end_signal = signo;
}

static int write_all(const char *p, size_t n)
{
	while (n > 0) {
		ssize_t wrote = write(STDOUT_FILENO, p, n);

		if (wrote < 0 && errno == EINTR)
			continue;
		if (wrote <= 0)
			return ERR_IO;
		p += wrote;
		n -= (size_t)wrote;
	}
	return 0;
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	sigset_t set;

	sigemptyset(&set);
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < ARRAY_LEN(caught); i++)
		sigaddset(&set, caught[i]);
	(void)sigprocmask(SIG_BLOCK, &set, &screen.unblocked);
	for (size_t i = 0; i < ARRAY_LEN(caught); i++) {
		sigdelset(&screen.unblocked, caught[i]);
		(void)sigaction(caught[i], &action, &screen.actions[i]);
	}
}

static void release_signals(void)
{
	for (size_t i = 0; i < ARRAY_LEN(caught); i++)
		(void)sigaction(caught[i], &screen.actions[i], NULL);
	(void)sigprocmask(SIG_SETMASK, &screen.unblocked, NULL);
}

static int enter(void)
{
	struct termios raw = screen.was;

	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	if (tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw) != 0)
		return ERR_IO;
	return write_all(ENTER, sizeof(ENTER) - 1);
}

static void leave(void)
{
	(void)write_all(LEAVE, sizeof(LEAVE) - 1);
	(void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &screen.was);
}

bool screen_is_possible(void)
{
	return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

int screen_open(void)
{
	if (tcgetattr(STDIN_FILENO, &screen.was) != 0)
		return ERR_IO;
	catch_signals();
	screen.is_open = true;
	if (enter() == 0)
		return 0;
	screen_close();
	return ERR_IO;
}

void screen_close(void)
{
	if (!screen.is_open)
		return;
	leave();
	screen.is_open = false;
	release_signals();
}

void screen_end_by_signal(void)
{
	if (end_signal == 0 || end_signal == SIGINT)
		return;
	(void)signal(end_signal, SIG_DFL);
	(void)raise(end_signal);
}

void screen_size(unsigned *columns, unsigned *lines)
{
	struct winsize size = {0};

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
		size = (struct winsize){0};
	*columns = size.ws_col > 0 ? size.ws_col : 80;
	*lines = size.ws_row > 0 ? size.ws_row : 24;
}

int screen_show(struct span text)
{
	return write_all(text.p, text.n);
}

/* As a shell's job: the terminal is given back while we stand still. */
static void stop_here(void)
{
	stop_came = 0;
	leave();
	(void)raise(SIGSTOP);
	(void)enter();
	redraw_came = 1;
}

/* The next byte of a sequence that the terminal sends for a key; 0: none is there. */
static char next_byte(void)
{
	char c;

	return read(STDIN_FILENO, &c, 1) == 1 ? c : 0;
}

/* Behind ESC: "[A", "OA", "[5~" and the like. */
static int read_sequence(void)
{
	char c = next_byte(), first;

	if (c != '[' && c != 'O')
		return KEY_UNKNOWN;
	first = c = next_byte();
	for (int i = 0; i < 8 && c >= ' ' && c < '@'; i++)
		c = next_byte();
	switch (first) {
	case 'A':
		return KEY_UP;
	case 'B':
		return KEY_DOWN;
	case '5':
		return KEY_PAGE_UP;
	case '6':
		return KEY_PAGE_DOWN;
	default:
		return KEY_UNKNOWN;
	}
}

/* The event of a signal that ended the wait; SCREEN_TIME: none came. */
static enum screen_event signal_event(void)
{
	if (end_signal != 0)
		return SCREEN_END;
	if (stop_came)
		stop_here();
	if (redraw_came) {
		redraw_came = 0;
		return SCREEN_RESIZED;
	}
	return SCREEN_TIME;
}

static enum screen_event read_key(int *key)
{
	char c;

	/* poll() said that there is something: nothing is the terminal's end. */
	if (read(STDIN_FILENO, &c, 1) != 1)
		return SCREEN_END;
	*key = c == '\033' ? read_sequence() : (unsigned char)c;
	return SCREEN_KEY;
}

enum screen_event screen_wait(uint64_t timeout_ms, int *key)
{
	uint64_t end_us = clock_us() + timeout_ms * 1000, now_us;
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

	while ((now_us = clock_us()) < end_us) {
		uint64_t left_us = end_us - now_us;
		struct timespec left = {
			(time_t)(left_us / 1000000), (long)(left_us % 1000000) * 1000};
		int n = ppoll(&in, 1, &left, &screen.unblocked);
		enum screen_event event = signal_event();

		if (event != SCREEN_TIME)
			return event;
		if (n > 0)
			return read_key(key);
		if (n < 0 && errno != EINTR)
			return SCREEN_END;
	}
	return SCREEN_TIME;
}
