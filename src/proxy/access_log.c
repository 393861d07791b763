/*
 * One line for each finished request. See access_log.h.
 */
#include "proxy/access_log.h"

#include "base/clock.h"
#include "base/log_out.h"
#include "http/http_write.h"
#include "io/loop.h"
#include "io/wheel.h"

#include <stdlib.h>
#include <time.h>

#define BUFFER_BYTES 65536
#define FLUSH_MS 1000
#define FIELD_MAX 512 /* of foreign text */
/* Six such fields, each byte escaped, and what is ours: a line is never cut. */
#define LINE_MAX_BYTES (6 * 6 * FIELD_MAX + 2048)

struct access_log {
	struct loop *loop;
	struct wheel_timer timer;
	time_t stamp_second;
	char stamp[24]; /* of that second */
	size_t len;
	char buf[BUFFER_BYTES];
};

static void on_timer(void *arg)
{
	access_log_flush(arg);
}

struct access_log *access_log_new(struct loop *l)
{
	struct access_log *log = calloc(1, sizeof(*log));

	if (log == NULL)
		return NULL;
	log->loop = l;
	wheel_timer_init(&log->timer, on_timer, log);
	return log;
}

void access_log_free(struct access_log *log)
{
	if (log == NULL)
		return;
	access_log_flush(log);
	wheel_stop(loop_wheel(log->loop), &log->timer);
	free(log);
}

void access_log_flush(struct access_log *log)
{
	log_out(span_make(log->buf, log->len));
	log->len = 0;
}

/* ---- building a line ---- */

struct line {
	char *p;
	size_t n;
	bool is_json, is_first;
};

static void put_bytes(struct line *l, const char *p, size_t n)
{
	n = MIN(n, LINE_MAX_BYTES - 1 - l->n);
	memcpy(l->p + l->n, p, n);
	l->n += n;
}

static void put_str(struct line *l, const char *s)
{
	put_bytes(l, s, strlen(s));
}

static void put_u64(struct line *l, uint64_t v)
{
	char digits[20];

	put_bytes(l, digits, http_write_u64(v, digits));
}

/* " name=" or ',"name":' */
static void put_name(struct line *l, const char *name)
{
	if (!l->is_first)
		put_str(l, l->is_json ? "," : " ");
	l->is_first = false;
	put_str(l, l->is_json ? "\"" : "");
	put_str(l, name);
	put_str(l, l->is_json ? "\":" : "=");
}

static bool is_plain(char c)
{
	return c > 0x20 && c < 0x7f && c != '"' && c != '\\';
}

/* Anything but printable ASCII becomes \u00NN, which is right in JSON and readable in
 * text. */
static void put_escaped(struct line *l, struct span s)
{
	static const char hex[] = "0123456789abcdef";
	size_t i;

	for (i = 0; i < s.n && i < FIELD_MAX; i++) {
		unsigned char c = (unsigned char)s.p[i];
		char esc[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};

		if (is_plain((char)c) || (c == ' ' && l->is_json))
			put_bytes(l, (char *)&c, 1);
		else
			put_bytes(l, esc, sizeof(esc));
	}
}

static void put_text(struct line *l, const char *name, struct span s)
{
	put_name(l, name);
	if (l->is_json)
		put_str(l, "\"");
	else if (s.n == 0)
		put_str(l, "-");
	put_escaped(l, s);
	if (l->is_json)
		put_str(l, "\"");
}

static void put_number(struct line *l, const char *name, uint64_t v)
{
	put_name(l, name);
	put_u64(l, v);
}

/* Milliseconds with three decimals. */
static void put_ms(struct line *l, const char *name, uint64_t us)
{
	char frac[4] = {'.', (char)('0' + us / 100 % 10), (char)('0' + us / 10 % 10),
		(char)('0' + us % 10)};

	put_name(l, name);
	put_u64(l, us / 1000);
	put_bytes(l, frac, sizeof(frac));
}

static void put_stamp(struct access_log *log, struct line *l)
{
	uint64_t wall = clock_wall_ms();
	time_t second = (time_t)(wall / 1000);
	char frac[5] = {'.', (char)('0' + wall / 100 % 10), (char)('0' + wall / 10 % 10),
		(char)('0' + wall % 10), 'Z'};
	struct tm tm;

	if (second != log->stamp_second) {
		log->stamp_second = second;
		gmtime_r(&second, &tm);
		strftime(log->stamp, sizeof(log->stamp), "%Y-%m-%dT%H:%M:%S", &tm);
	}
	put_name(l, "time");
	put_str(l, l->is_json ? "\"" : "");
	put_str(l, log->stamp);
	put_bytes(l, frac, sizeof(frac));
	put_str(l, l->is_json ? "\"" : "");
}

static void put_line(struct line *l, const struct access_line *a)
{
	put_text(l, "id", a->request_id);
	put_text(l, "client", a->client);
	put_text(l, "tenant", span_str(a->tenant));
	put_text(l, "method", a->method);
	put_text(l, "path", a->path);
	put_text(l, "route", span_str(a->route));
	put_text(l, "model", a->model);
	put_text(l, "worker", span_str(a->worker));
	put_text(l, "policy", span_str(a->reason));
	put_number(l, "matched", a->matched);
	put_number(l, "blocks", a->blocks);
	put_number(l, "status", (uint64_t)a->status);
	put_text(l, "end", span_str(fail_code(a->why)));
	put_number(l, "in", a->bytes_in);
	put_number(l, "out", a->bytes_out);
	put_number(l, "retries", a->retries);
	put_ms(l, "queue_ms", a->queue_us);
	put_ms(l, "ttft_ms", a->ttft_us);
	put_ms(l, "total_ms", a->total_us);
	if (a->prefill == NULL)
		return;
	put_text(l, "prefill", span_str(a->prefill));
	put_text(l, "prefill_policy", span_str(a->prefill_reason));
	put_ms(l, "prefill_ms", a->prefill_us);
	if (!a->has_prefill_cached)
		return;
	put_number(l, "prefill_cached", a->prefill_cached);
	if (a->prefill_tokens > 0)
		put_number(l, "prefill_tokens", a->prefill_tokens);
}

void access_log_line(
	struct access_log *log, enum log_format format, const struct access_line *a)
{
	struct line l = {.is_json = format == LOG_FORMAT_JSON, .is_first = true};

	if (log->len + LINE_MAX_BYTES > BUFFER_BYTES)
		access_log_flush(log);
	l.p = log->buf + log->len;
	if (l.is_json)
		put_str(&l, "{");
	put_stamp(log, &l);
	put_line(&l, a);
	if (l.is_json)
		put_str(&l, "}");
	l.p[l.n++] = '\n';
	log->len += l.n;
	if (fail_status(a->why) >= 500)
		access_log_flush(log);
	else if (!wheel_is_set(&log->timer))
		wheel_set(loop_wheel(log->loop), &log->timer, clock_now_ms() + FLUSH_MS);
}
