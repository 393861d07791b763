/*
 * The drawing. See sim_plot.h. Called by simulate.c, once.
 *
 * Four panels beside each other share the rows, one for each policy; each has its own
 * axis below, with ticks at round numbers. A dashed line is the ceiling, a dotted one
 * round robin.
 */
#include "sim/sim_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TOP 64    /* title and legend */
#define BOTTOM 52 /* ticks and axis labels */
#define ROW 22
#define BAR 14
#define PANEL 210
#define GAP 34
#define CHAR 7   /* width of a letter, about */
#define VALUE 46 /* room for a figure behind the longest bar */

struct panel {
	const char *label, *format;
	double (*value)(const struct sim_report *r, const struct sim_result *of);
	double from;      /* where the axis begins */
	bool has_ceiling; /* and a line for it */
	const char *color;
};

static double hit_rate(const struct sim_report *r UNUSED, const struct sim_result *of)
{
	return sim_hit_rate(of);
}

static double ttft_mean(const struct sim_report *r UNUSED, const struct sim_result *of)
{
	return of->ttft.mean_s;
}

static double ttft_p99(const struct sim_report *r UNUSED, const struct sim_result *of)
{
	return of->ttft.p99_s;
}

static double spread(const struct sim_report *r UNUSED, const struct sim_result *of)
{
	return of->work_spread;
}

static const struct panel panels[] = {
	{"block hit rate", "%.3f", hit_rate, 0, true, "#2b7a78"},
	{"TTFT, mean (s)", "%.2f", ttft_mean, 0, true, "#3a5fa8"},
	{"TTFT, 99th percentile (s)", "%.1f", ttft_p99, 0, true, "#7a4fa0"},
	{"work of the busiest worker / mean", "%.2f", spread, 1, false, "#b0641f"},
};

static void add_xml(struct text *out, const char *s)
{
	for (; *s != '\0'; s++) {
		switch (*s) {
		case '<':
			text_add(out, SPAN_LIT("&lt;"));
			break;
		case '>':
			text_add(out, SPAN_LIT("&gt;"));
			break;
		case '&':
			text_add(out, SPAN_LIT("&amp;"));
			break;
		case '"':
			text_add(out, SPAN_LIT("&quot;"));
			break;
		default:
			/* Bytes that XML does not allow, or that need not be UTF-8. */
			text_add(out, (unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e
					      ? SPAN_LIT("?")
					      : span_make(s, 1));
		}
	}
}

static void add_label(struct text *out, double x, double y, const char *anchor,
	const char *class, const char *label)
{
	text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">",
		x, y, anchor, class);
	add_xml(out, label);
	text_add(out, SPAN_LIT("</text>\n"));
}

static void add_line(
	struct text *out, double x1, double y1, double x2, double y2, const char *class)
{
	text_printf(out,
		"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
		x1, y1, x2, y2, class);
}

/* A round step, so that the axis has about four of them. */
static double tick_step(double range)
{
	double raw = range / 4, ten = pow(10, floor(log10(raw)));

	if (raw <= ten)
		return ten;
	if (raw <= 2 * ten)
		return 2 * ten;
	return raw <= 5 * ten ? 5 * ten : 10 * ten;
}

/* The end of the axis. */
static double axis_end(const struct sim_report *r, const struct panel *p)
{
	double most = p->has_ceiling ? p->value(r, &r->ceiling) : p->from;

	for (size_t i = 0; i < r->n; i++)
		most = MAX(most, p->value(r, &r->results[i]));
	return most > p->from ? most : p->from + 1;
}

struct scale {
	double x, from, end;
};

static double place(const struct scale *s, double value)
{
	return s->x + (value - s->from) / (s->end - s->from) * (PANEL - VALUE);
}

static void add_axis(
	struct text *out, const struct panel *p, const struct scale *s, double bottom)
{
	double step = tick_step(s->end - s->from);
	char tick[32];

	for (double at = s->from; at <= s->end + step * 1e-6; at += step) {
		add_line(out, place(s, at), TOP, place(s, at), bottom + 4, "grid");
		(void)snprintf(tick, sizeof(tick), "%g", at);
		add_label(out, place(s, at), bottom + 18, "middle", "tick", tick);
	}
	add_line(out, s->x, TOP, s->x, bottom, "axis");
	add_line(out, s->x, bottom, s->x + PANEL - VALUE, bottom, "axis");
	add_label(out, s->x, bottom + 38, "start", "name", p->label);
}

static void add_mark(struct text *out, const struct scale *s, double value, double bottom,
	const char *class)
{
	if (value >= s->from)
		add_line(out, place(s, value), TOP - 4, place(s, value), bottom, class);
}

static const struct sim_result *round_robin(const struct sim_report *r)
{
	for (size_t i = 0; i < r->n; i++) {
		if (strcmp(r->results[i].spec, "round_robin") == 0)
			return &r->results[i];
	}
	return NULL;
}

static double row_y(size_t i)
{
	return TOP + (double)i * ROW + (ROW - BAR) / 2.0;
}

static void add_bars(struct text *out, const struct sim_report *r, const struct panel *p,
	const struct scale *s)
{
	for (size_t i = 0; i < r->n; i++) {
		double width = place(s, p->value(r, &r->results[i])) - s->x;

		text_printf(out,
			"<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" "
			"fill=\"%s\"/>\n",
			s->x, row_y(i), MAX(width, 0.0), BAR, p->color);
	}
}

static void add_figures(struct text *out, const struct sim_report *r,
	const struct panel *p, const struct scale *s)
{
	char figure[32];

	for (size_t i = 0; i < r->n; i++) {
		double value = p->value(r, &r->results[i]);

		(void)snprintf(figure, sizeof(figure), p->format, value);
		add_label(out, MAX(place(s, value), s->x) + 4, row_y(i) + BAR - 3,
			"start", "figure", figure);
	}
}

static void add_panel(
	struct text *out, const struct sim_report *r, const struct panel *p, double x)
{
	struct scale s = {x, p->from, axis_end(r, p)};
	double bottom = TOP + (double)r->n * ROW;
	const struct sim_result *mark = round_robin(r);

	add_axis(out, p, &s, bottom);
	add_bars(out, r, p, &s);
	if (p->has_ceiling)
		add_mark(out, &s, p->value(r, &r->ceiling), bottom, "ceiling");
	if (mark != NULL)
		add_mark(out, &s, p->value(r, mark), bottom, "robin");
	add_figures(out, r, p, &s);
}

static void add_legend(struct text *out, double x)
{
	add_line(out, x, 46, x + 26, 46, "ceiling");
	add_label(out, x + 32, 50, "start", "tick", "unlimited cache, no waiting");
	add_line(out, x + 220, 46, x + 246, 46, "robin");
	add_label(out, x + 252, 50, "start", "tick", "round robin");
}

static void add_title(struct text *out, const struct sim_report *r)
{
	const struct sim_flags *f = r->flags;
	const char *slash = strrchr(f->trace, '/');
	struct text title = {0};

	text_printf(&title, "%s, %zu requests, %llu workers, ",
		slash != NULL ? slash + 1 : f->trace, r->input->n,
		(unsigned long long)f->workers);
	if (f->kv_tokens > 0)
		text_printf(&title, "%llu tokens of KV each",
			(unsigned long long)f->kv_tokens);
	else
		text_printf(&title, "unlimited KV");
	if (!f->speed_free)
		text_printf(&title, ", prefill %g/s, decode %g/s", f->prefill_rate,
			f->decode_rate);
	text_add(&title, span_make("", 1));
	add_label(out, 12, 24, "start", "title", title.failed ? "" : title.p);
	text_free(&title);
}

static const char style[] =
	"<style>text{font-family:sans-serif;fill:#222}.title{font-size:15px;"
	"font-weight:bold}.policy,.name{font-size:12px}.tick,.figure{font-size:11px}"
	".figure{paint-order:stroke;stroke:#fff;stroke-width:3px}.axis{stroke:#444}.grid{"
	"stroke:#ddd}.ceiling{stroke:#000;stroke-width:1.5;"
	"stroke-dasharray:6 3}.robin{stroke:#c00;stroke-width:1.5;stroke-dasharray:2 3}"
	"</style>\n";

void sim_plot(const struct sim_report *r, struct text *out)
{
	size_t longest = 0;
	double left, width, height = TOP + (double)r->n * ROW + BOTTOM;

	for (size_t i = 0; i < r->n; i++)
		longest = MAX(longest, strlen(r->results[i].spec));
	left = 24 + (double)(longest * CHAR);
	width = left + ARRAY_LEN(panels) * (PANEL + GAP);
	text_printf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
		"height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n%s"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
		width, height, width, height, style);
	add_title(out, r);
	add_legend(out, left);
	for (size_t i = 0; i < r->n; i++)
		add_label(out, left - 8, TOP + (double)i * ROW + ROW - 7, "end", "policy",
			r->results[i].spec);
	for (size_t i = 0; i < ARRAY_LEN(panels); i++)
		add_panel(out, r, &panels[i], left + (double)i * (PANEL + GAP));
	text_add(out, SPAN_LIT("</svg>\n"));
}
