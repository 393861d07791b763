/*
 * The reader of event streams. See sse.h. Called by run.c.
 */
#include "bench/sse.h"

#include "base/err.h"

static int end_event(struct sse *s, sse_event_fn *on_event, void *arg)
{
	struct span data = text_span(&s->data);

	if (!s->has_data)
		return 0;
	s->has_data = false;
	s->data.n = 0;
	return on_event(arg, data);
}

static int take_line(struct sse *s, struct span line, sse_event_fn *on_event, void *arg)
{
	static const struct span field = {"data:", 5};

	if (line.n == 0)
		return end_event(s, on_event, arg);
	if (!span_starts(line, field) && !span_is(line, "data"))
		return 0;
	line = span_make(line.p + MIN(line.n, field.n), line.n - MIN(line.n, field.n));
	if (line.n > 0 && line.p[0] == ' ')
		line = span_make(line.p + 1, line.n - 1);
	if (s->has_data)
		text_add(&s->data, SPAN_LIT("\n"));
	s->has_data = true;
	text_add(&s->data, line);
	if (s->data.failed)
		return ERR_NOMEM;
	return s->data.n > SSE_EVENT_MAX ? ERR_LIMIT : 0;
}

/* The line that ends in rest: what was kept of it, and the bytes given. */
static int end_line(struct sse *s, struct span rest, sse_event_fn *on_event, void *arg)
{
	int err;

	if (s->line.n == 0)
		return take_line(s, rest, on_event, arg);
	text_add(&s->line, rest);
	err = s->line.failed ? ERR_NOMEM
			     : take_line(s, text_span(&s->line), on_event, arg);
	s->line.n = 0;
	return err;
}

static size_t line_len(struct span bytes)
{
	size_t n = 0;

	while (n < bytes.n && bytes.p[n] != '\n' && bytes.p[n] != '\r')
		n++;
	return n;
}

int sse_feed(struct sse *s, struct span bytes, sse_event_fn *on_event, void *arg)
{
	int err = 0;

	while (bytes.n > 0 && err == 0) {
		size_t n;

		if (s->after_cr && bytes.p[0] == '\n') { /* of a CR LF */
			bytes = span_make(bytes.p + 1, bytes.n - 1);
			s->after_cr = false;
			continue;
		}
		s->after_cr = false;
		n = line_len(bytes);
		if (s->line.n + n > SSE_EVENT_MAX)
			return ERR_LIMIT;
		if (n == bytes.n) {
			text_add(&s->line, bytes);
			return s->line.failed ? ERR_NOMEM : 0;
		}
		s->after_cr = bytes.p[n] == '\r';
		err = end_line(s, span_make(bytes.p, n), on_event, arg);
		bytes = span_make(bytes.p + n + 1, bytes.n - n - 1);
	}
	return err;
}

void sse_clear(struct sse *s)
{
	text_clear(&s->line);
	text_clear(&s->data);
	s->has_data = s->after_cr = false;
}

void sse_free(struct sse *s)
{
	text_free(&s->line);
	text_free(&s->data);
}
