/*
 * kvsteerctl top: the status once a second, on a screen with keys, or as plain text where
 * -b asks for it. If the daemon does not answer for a while, the screen says so and
 * top continues. Called by ctl.c.
 */
#include "ctl/ctl_top.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf_lex.h"
#include "base/err.h"
#include "ctl/ctl_screen.h"
#include "ctl/ctl_view.h"
#include "io/js.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALL_TIMEOUT_MS = 2000, DELAY_LEAST_MS = 100, DELAY_MOST_MS = 3600000 };

struct top {
	const struct ctl *ctl;
	uint64_t count, delay_ms; /* count 0: no end */
	enum view_order order;
	bool is_reversed;
	struct view *view; /* the newest */
	size_t first;
	uint64_t silent_since_ms; /* 0: the last call was answered */
	char why[200];            /* why it was not */
};

static const char *const order_names[VIEW_ORDERS] = {
	[VIEW_BY_LOAD] = "load",
	[VIEW_BY_HIT] = "hit",
	[VIEW_BY_TTFT] = "ttft",
	[VIEW_BY_ERRORS] = "errors",
	[VIEW_BY_NAME] = "name",
};

/* ---- the command's options ---- */

static bool read_count(const char *text, uint64_t *out)
{
	if (text == NULL || (span_to_u64(span_str(text), out) == 0 && *out > 0))
		return true;
	ctl_complain("-n %s: expected a number from 1", text);
	return false;
}

static bool read_delay(const char *text, uint64_t *out)
{
	const char *hint = NULL;

	if (text == NULL)
		return true;
	if (conf_duration_ms(span_str(text), out, &hint) == 0 && *out >= DELAY_LEAST_MS &&
		*out <= DELAY_MOST_MS)
		return true;
	ctl_complain("-d %s: expected a time from 100ms to 1h", text);
	return false;
}

static bool read_order(const char *text, enum view_order *out)
{
	for (int i = 0; text != NULL && i < VIEW_ORDERS; i++) {
		if (strcmp(text, order_names[i]) != 0)
			continue;
		*out = (enum view_order)i;
		return true;
	}
	if (text == NULL)
		return true;
	ctl_complain("--sort %s: expected load, hit, ttft, errors or name", text);
	return false;
}

/* ---- asking ---- */

/* The next view; the old one stays where there is no answer. */
static enum ctl_exit ask(struct top *t)
{
	struct ctl plain = *t->ctl;
	struct ctl_request req = {
		.method = "GET", .path = "status", .timeout_ms = CALL_TIMEOUT_MS};
	struct ctl_answer a;
	struct view *next;
	enum ctl_exit result;

	plain.as_json = false; /* a refusal is no document of ours */
	result = ctl_call(&plain, &req, &a);
	if (result != CTL_OK)
		return result;
	if (a.document == NULL || !js_is_object(a.document)) {
		ctl_complain(
			"%s: the program at this socket is not kvsteerd", plain.socket);
		ctl_answer_free(&a);
		return CTL_UNREACHABLE;
	}
	if (t->ctl->as_json)
		printf("%s\n", a.text);
	next = view_read(a.document, t->view, clock_us() / 1000);
	view_free(t->view);
	t->view = next;
	ctl_answer_free(&a);
	return CTL_OK;
}

/* ---- plain text ---- */

static void pause_ms(uint64_t ms)
{
	struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		continue;
}

static enum ctl_exit run_batch(struct top *t)
{
	struct view_frame frame = {0};
	enum ctl_exit result = CTL_OK;

	for (uint64_t i = 0; result == CTL_OK && (t->count == 0 || i < t->count); i++) {
		if (i > 0)
			pause_ms(t->delay_ms);
		result = ask(t);
		if (result == CTL_OK && !t->ctl->as_json) {
			view_sort(t->view, t->order, t->is_reversed);
			view_draw(t->view, &frame, stdout);
			printf("\n");
		}
		if (fflush(stdout) != 0) {
			ctl_complain("stdout: %s", strerror(errno));
			result = CTL_REFUSED;
		}
	}
	return result;
}

/* ---- the screen ---- */

static const char *notice_text(const struct top *t, char *room, size_t n)
{
	uint64_t s = (clock_us() / 1000 - t->silent_since_ms) / 1000;
	const char *why = t->why;
	size_t path = strlen(t->ctl->socket);

	if (t->silent_since_ms == 0)
		return NULL;
	/* The line is short, and who looks at it knows whom he asked. */
	if (strncmp(why, t->ctl->socket, path) == 0 && strncmp(why + path, ": ", 2) == 0)
		why += path + 2;
	(void)snprintf(room, n, "no answer for %llus: %s", (unsigned long long)s, why);
	return room;
}

static void keep_in_range(struct top *t, size_t room)
{
	size_t last = t->view->n > room ? t->view->n - room : 0;

	t->first = MIN(t->first, last);
}

static int draw(struct top *t)
{
	struct view_frame frame = {.is_screen = true};
	char keys[128], notice[300], *text = NULL;
	size_t n = 0;
	FILE *to = open_memstream(&text, &n);
	int rc;

	if (to == NULL)
		return ERR_NOMEM;
	(void)snprintf(keys, sizeof(keys),
		"by %s%s | keys: l)oad h)it t)tft e)rrors n)ame r)everse q)uit",
		order_names[t->order], t->is_reversed ? ", reversed" : "");
	screen_size(&frame.columns, &frame.lines);
	frame.keys = keys;
	frame.notice = notice_text(t, notice, sizeof(notice));
	keep_in_range(t, view_room(&frame));
	frame.first = t->first;
	view_sort(t->view, t->order, t->is_reversed);
	view_draw(t->view, &frame, to);
	rc = fclose(to) == 0 ? screen_show(span_make(text, n)) : ERR_NOMEM;
	free(text);
	return rc;
}

/* Moves the top row by n pages, or by n rows. */
static void scroll(struct top *t, int n, bool by_pages)
{
	struct view_frame frame = {.keys = ""};
	size_t step;

	screen_size(&frame.columns, &frame.lines);
	step = by_pages ? view_room(&frame) : 1;
	if (n > 0)
		t->first += step;
	else
		t->first -= MIN(step, t->first);
}

/* False: it was the key to leave by. */
static bool take_key(struct top *t, int key)
{
	switch (key) {
	case 'q':
	case 'Q':
	case 4: /* ^D */
		return false;
	case 'l':
		t->order = VIEW_BY_LOAD;
		break;
	case 'h':
		t->order = VIEW_BY_HIT;
		break;
	case 't':
		t->order = VIEW_BY_TTFT;
		break;
	case 'e':
		t->order = VIEW_BY_ERRORS;
		break;
	case 'n':
		t->order = VIEW_BY_NAME;
		break;
	case 'r':
		t->is_reversed = !t->is_reversed;
		break;
	case 'k':
	case KEY_UP:
		scroll(t, -1, false);
		break;
	case 'j':
	case KEY_DOWN:
		scroll(t, 1, false);
		break;
	case KEY_PAGE_UP:
		scroll(t, -1, true);
		break;
	case KEY_PAGE_DOWN:
		scroll(t, 1, true);
		break;
	default:
		break;
	}
	return true;
}

/* Draws at each key and change of size until the time is up; false: the end. */
static bool wait_a_turn(struct top *t)
{
	uint64_t end_ms = clock_us() / 1000 + t->delay_ms, now_ms;
	int key = 0;

	do {
		if (draw(t) != 0)
			return false;
		now_ms = clock_us() / 1000;
		switch (screen_wait(end_ms > now_ms ? end_ms - now_ms : 0, &key)) {
		case SCREEN_KEY:
			if (!take_key(t, key))
				return false;
			break;
		case SCREEN_END:
			return false;
		case SCREEN_RESIZED:
		case SCREEN_TIME:
			break;
		}
		now_ms = clock_us() / 1000;
	} while (now_ms < end_ms);
	return true;
}

/* Asks while the screen is open: what is wrong becomes a line on it. */
static void ask_quietly(struct top *t)
{
	ctl_complain_into(t->why, sizeof(t->why));
	if (ask(t) == CTL_OK)
		t->silent_since_ms = 0;
	else if (t->silent_since_ms == 0)
		t->silent_since_ms = clock_us() / 1000;
	ctl_complain_into(NULL, 0);
}

static enum ctl_exit run_screen(struct top *t)
{
	enum ctl_exit result;
	uint64_t turns = 1;

	if (!screen_is_possible()) {
		ctl_complain("top: standard input and output must be a terminal; "
			     "top -b prints plain text");
		return CTL_USAGE;
	}
	result = ask(t);
	if (result != CTL_OK)
		return result;
	if (screen_open() != 0) {
		ctl_complain("top: the terminal: %s", strerror(errno));
		return CTL_REFUSED;
	}
	while (wait_a_turn(t) && (t->count == 0 || turns++ < t->count))
		ask_quietly(t);
	screen_close();
	screen_end_by_signal();
	return CTL_OK;
}

enum ctl_exit ctl_top(const struct ctl *ctl)
{
	struct top t = {.ctl = ctl, .delay_ms = 1000};
	enum ctl_exit result;

	if (!read_count(ctl->count, &t.count) || !read_delay(ctl->delay, &t.delay_ms) ||
		!read_order(ctl->sort, &t.order))
		return CTL_USAGE;
	result = ctl->is_batch || ctl->as_json ? run_batch(&t) : run_screen(&t);
	view_free(t.view);
	return result;
}
