/*
 * Reading, sorting and drawing the figures of a status document. See ctl_view.h.
 */
#include "ctl/ctl_view.h"

#include "base/mem.h"
#include "base/span.h"
#include "ctl/ctl_print.h"
#include "io/js.h"

#include <stdarg.h>
#include <stdlib.h>

#define LINE_MAX_BYTES 512
#define HEAD_LINES 5
/* The columns of a row besides the worker's name and its reason; and those of times, where
 * the screen is so wide. */
#define ROW_FIXED 44
#define ROW_TIMES 14
#define WIDTH_TTFT 76
#define WIDTH_TIME 104
#define NAME_LEAST 8
#define REASON_LEAST 16

/* ---- reading ---- */

static int64_t get_int(const struct js *object, const char *key, int64_t otherwise)
{
	int64_t n;

	return object != NULL && js_as_int(js_get(object, key), &n) ? n : otherwise;
}

static double get_real(const struct js *object, const char *key)
{
	double d;

	return object != NULL && js_as_real(js_get(object, key), &d) ? d : -1;
}

/* A copy that may stand on a screen: nothing but ASCII, and no control characters. */
static char *get_text(const struct js *object, const char *key)
{
	struct span s = {"", 0};
	char *text;

	if (!js_as_str(js_get(object, key), &s))
		s = span_make("", 0);
	text = xstrndup(s.n > 0 ? s.p : "", s.n);
	for (char *c = text; *c != '\0'; c++)
		if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
			*c = '?';
	return text;
}

static double rate_of(int64_t now, int64_t before, uint64_t ms)
{
	return ms == 0 || now < before ? -1 : (double)(now - before) * 1000 / (double)ms;
}

static const struct view_row *find_row(const struct view *v, const char *name)
{
	for (size_t i = 0; v != NULL && i < v->n; i++)
		if (strcmp(v->rows[i].name, name) == 0)
			return &v->rows[i];
	return NULL;
}

/* Why it is in that state, and before that whether its breaker lets requests through. */
static char *reason_of(const struct js *worker)
{
	char *reason = get_text(worker, "reason"), *text;
	char *breaker = ctl_breaker_text(worker, "breaker");

	if (strcmp(breaker, "closed") != 0 && strcmp(breaker, "-") != 0) {
		text = xasprintf("breaker %s; %s", breaker, reason);
		free(reason);
		reason = text;
	}
	free(breaker);
	return reason;
}

static void read_row(const struct js *worker, const struct view *before, uint64_t ms,
	struct view_row *row)
{
	const struct view_row *was;

	row->name = get_text(worker, "name");
	row->state = get_text(worker, "state");
	row->reason = reason_of(worker);
	row->load = get_int(worker, "load", 0);
	row->requests = get_int(worker, "requests", 0);
	row->errors = get_int(worker, "failures", 0);
	row->progress_ms = get_int(worker, "progress_age_ms", -1);
	row->hit = get_real(worker, "hit_share");
	row->slow_ms = get_real(js_get(worker, "ttft"), "p99_ms");
	row->ttft[0] = ctl_latency_text(worker, "ttft", "p50_ms");
	row->ttft[1] = ctl_latency_text(worker, "ttft", "p99_ms");
	row->time[0] = ctl_latency_text(worker, "response_time", "p50_ms");
	row->time[1] = ctl_latency_text(worker, "response_time", "p99_ms");
	was = find_row(before, row->name);
	row->request_rate = was != NULL ? rate_of(row->requests, was->requests, ms) : -1;
}

static void read_daemon(
	const struct js *document, const struct view *before, uint64_t ms, struct view *v)
{
	const struct js *counters = js_get(document, "counters");

	v->version = get_text(document, "version");
	v->state = get_text(document, "state");
	v->uptime_ms = get_int(document, "uptime_ms", 0);
	v->in_flight = get_int(counters, "requests_in_flight", 0);
	v->queued = get_int(js_get(document, "queue"), "depth", 0);
	v->ended = get_int(counters, "requests_ended", 0);
	v->errors = get_int(counters, "requests_errors", 0);
	v->clients = get_int(counters, "connections", 0);
	v->max_clients = get_int(document, "max_connections", 0);
	v->to_workers = get_int(counters, "worker_connections", 0);
	v->hit = get_real(document, "hit_share");
	v->end_rate = before != NULL ? rate_of(v->ended, before->ended, ms) : -1;
	v->error_rate = before != NULL ? rate_of(v->errors, before->errors, ms) : -1;
}

struct view *view_read(
	const struct js *document, const struct view *before, uint64_t now_ms)
{
	const struct js *workers = js_get(document, "workers");
	struct view *v = xcalloc(1, sizeof(*v));
	uint64_t ms = 0;

	v->at_ms = now_ms;
	if (before != NULL && get_int(document, "uptime_ms", 0) >= before->uptime_ms)
		ms = now_ms - before->at_ms;
	read_daemon(document, before, ms, v);
	v->n = workers != NULL ? js_len(workers) : 0;
	v->rows = xcalloc(v->n + 1, sizeof(*v->rows));
	for (size_t i = 0; i < v->n; i++) {
		read_row(js_at(workers, i), before, ms, &v->rows[i]);
		v->healthy += strcmp(v->rows[i].state, "healthy") == 0;
	}
	return v;
}

void view_free(struct view *v)
{
	if (v == NULL)
		return;
	for (size_t i = 0; i < v->n; i++) {
		free(v->rows[i].name);
		free(v->rows[i].state);
		free(v->rows[i].reason);
		for (int j = 0; j < 2; j++) {
			free(v->rows[i].ttft[j]);
			free(v->rows[i].time[j]);
		}
	}
	free(v->rows);
	free(v->version);
	free(v->state);
	free(v);
}

/* ---- sorting ---- */

static int compare_names(const void *a, const void *b)
{
	return strverscmp(
		((const struct view_row *)a)->name, ((const struct view_row *)b)->name);
}

/* Larger ones first. */
static int compare_counts(int64_t a, int64_t b, const void *left, const void *right)
{
	return a != b ? (a < b ? 1 : -1) : compare_names(left, right);
}

static int compare_loads(const void *a, const void *b)
{
	return compare_counts(((const struct view_row *)a)->load,
		((const struct view_row *)b)->load, a, b);
}

static int compare_errors(const void *a, const void *b)
{
	return compare_counts(((const struct view_row *)a)->errors,
		((const struct view_row *)b)->errors, a, b);
}

/* The least first; who had no prompts, last. */
static int compare_hits(const void *a, const void *b)
{
	double left = ((const struct view_row *)a)->hit;
	double right = ((const struct view_row *)b)->hit;

	if ((left < 0) != (right < 0))
		return left < 0 ? 1 : -1;
	if (left != right)
		return left < right ? -1 : 1;
	return compare_names(a, b);
}

/* The slowest first. */
static int compare_ttfts(const void *a, const void *b)
{
	double left = ((const struct view_row *)a)->slow_ms;
	double right = ((const struct view_row *)b)->slow_ms;

	if (left != right)
		return left > right ? -1 : 1;
	return compare_names(a, b);
}

void view_sort(struct view *v, enum view_order order, bool is_reversed)
{
	static int (*const orders[VIEW_ORDERS])(const void *, const void *) = {
		[VIEW_BY_LOAD] = compare_loads,
		[VIEW_BY_HIT] = compare_hits,
		[VIEW_BY_TTFT] = compare_ttfts,
		[VIEW_BY_ERRORS] = compare_errors,
		[VIEW_BY_NAME] = compare_names,
	};

	qsort(v->rows, v->n, sizeof(*v->rows), orders[order]);
	for (size_t i = 0; is_reversed && i < v->n / 2; i++) {
		struct view_row row = v->rows[i];

		v->rows[i] = v->rows[v->n - 1 - i];
		v->rows[v->n - 1 - i] = row;
	}
}

/* ---- drawing ---- */

/* Where lines go, and what they may take. */
struct pen {
	FILE *to;
	const struct view_frame *frame;
	unsigned drawn;
};

static void draw_line(struct pen *pen, bool is_title, const char *fmt, ...)
	PRINTF_LIKE(3, 4);

/* Cut at the screen's width, without blanks at its end; nothing below its last line. */
static void draw_line(struct pen *pen, bool is_title, const char *fmt, ...)
{
	const struct view_frame *f = pen->frame;
	char line[LINE_MAX_BYTES];
	size_t n;
	va_list args;

	if (f->lines > 0 && pen->drawn >= f->lines)
		return;
	va_start(args, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	n = strlen(line);
	if (f->columns > 0)
		n = MIN(n, (size_t)f->columns);
	while (n > 0 && line[n - 1] == ' ')
		n--;
	if (f->is_screen)
		(void)fprintf(pen->to, "%s%s%.*s%s\033[K", pen->drawn > 0 ? "\r\n" : "",
			is_title ? "\033[7m" : "", (int)n, line,
			is_title ? "\033[m" : "");
	else
		(void)fprintf(pen->to, "%.*s\n", (int)n, line);
	pen->drawn++;
}

static const char *rate_text(double rate, char *room, size_t n)
{
	if (rate < 0)
		return "-";
	(void)snprintf(room, n, rate < 100 ? "%.1f" : "%.0f", rate);
	return room;
}

static const char *share_text(double share, char *room, size_t n)
{
	if (share < 0)
		return "-";
	(void)snprintf(room, n, "%.0f%%", share * 100);
	return room;
}

static void draw_head(struct pen *pen, const struct view *v)
{
	char *up = ctl_age_text(v->uptime_ms);
	char ends[32], errors[32], hit[16];

	draw_line(pen, false, "kvsteerd %s %s, up %s, %zu of %zu workers healthy",
		v->version, v->state, up, v->healthy, v->n);
	draw_line(pen, false,
		"%s req/s, %s errors/s, %lld in flight, %lld queued, hit %s",
		rate_text(v->end_rate, ends, sizeof(ends)),
		rate_text(v->error_rate, errors, sizeof(errors)), (long long)v->in_flight,
		(long long)v->queued, share_text(v->hit, hit, sizeof(hit)));
	draw_line(pen, false, "%lld clients (at most %lld), %lld connections to workers",
		(long long)v->clients, (long long)v->max_clients,
		(long long)v->to_workers);
	draw_line(pen, false, "%s", pen->frame->notice != NULL ? pen->frame->notice : "");
	free(up);
}

static bool shows(const struct view_frame *f, unsigned columns)
{
	return f->columns == 0 || f->columns >= columns;
}

/* Names get what is left, but no more than they need. */
static int name_width(const struct view *v, const struct view_frame *f)
{
	size_t longest = NAME_LEAST, room;
	size_t fixed =
		ROW_FIXED + ROW_TIMES * (shows(f, WIDTH_TTFT) + shows(f, WIDTH_TIME));

	for (size_t i = 0; i < v->n; i++)
		longest = MAX(longest, strlen(v->rows[i].name));
	if (f->columns == 0)
		return (int)longest;
	room = f->columns > fixed + NAME_LEAST ? f->columns - fixed : NAME_LEAST;
	if (room > REASON_LEAST + NAME_LEAST)
		room -= REASON_LEAST;
	return (int)MIN(longest, room);
}

/* "   45ms   1.2s", of each pair that the screen has room for. */
static const char *times_text(const struct view_frame *f, char *const ttft[2],
	char *const time[2], char room[4 * ROW_TIMES])
{
	size_t n = 0;

	room[0] = '\0';
	if (shows(f, WIDTH_TTFT))
		n = (size_t)snprintf(
			room, 2 * ROW_TIMES, " %6.6s %6.6s", ttft[0], ttft[1]);
	if (shows(f, WIDTH_TIME))
		(void)snprintf(room + n, 2 * ROW_TIMES, " %6.6s %6.6s", time[0], time[1]);
	return room;
}

static void draw_titles(struct pen *pen, int width)
{
	static char *const ttft[] = {"TTFT50", "TTFT99"}, *const time[] = {
								  "TIME50", "TIME99"};
	const struct view_frame *f = pen->frame;
	char times[4 * ROW_TIMES];

	draw_line(pen, f->is_screen, "%-*s %-9s %5s %6s %4s %6s%s %7s  %s", width,
		"WORKER", "STATE", "LOAD", "REQ/S", "HIT", "ERRORS",
		times_text(f, ttft, time, times), "SILENT", "REASON");
}

static void draw_row(struct pen *pen, const struct view_row *row, int width)
{
	char *age = row->progress_ms >= 0 ? ctl_age_text(row->progress_ms) : xstrdup("-");
	bool is_cut = strlen(row->name) > (size_t)width;
	char rate[32], hit[16], times[4 * ROW_TIMES];

	draw_line(pen, false, "%-*.*s%s %-9s %5lld %6s %4s %6lld%s %7s  %s",
		is_cut ? width - 1 : width, is_cut ? width - 1 : width, row->name,
		is_cut ? "~" : "", row->state, (long long)row->load,
		rate_text(row->request_rate, rate, sizeof(rate)),
		share_text(row->hit, hit, sizeof(hit)), (long long)row->errors,
		times_text(pen->frame, row->ttft, row->time, times), age, row->reason);
	free(age);
}

size_t view_room(const struct view_frame *f)
{
	unsigned taken = HEAD_LINES + (f->keys != NULL);

	if (f->lines == 0)
		return SIZE_MAX;
	return f->lines > taken ? f->lines - taken : 1;
}

void view_draw(const struct view *v, const struct view_frame *f, FILE *to)
{
	struct pen pen = {to, f, 0};
	int width = name_width(v, f);
	size_t room = view_room(f), i;

	if (f->is_screen)
		(void)fputs("\033[H", to);
	draw_head(&pen, v);
	draw_titles(&pen, width);
	for (i = 0; i < room && f->first + i < v->n; i++)
		draw_row(&pen, &v->rows[f->first + i], width);
	for (; f->keys != NULL && f->lines > 0 && i < room; i++)
		draw_line(&pen, false, " ");
	if (f->keys != NULL)
		draw_line(&pen, false, "%s", f->keys);
	if (f->is_screen)
		(void)fputs("\033[J", to);
}
