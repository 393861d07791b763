/*
 * The figures of a status document: those of the daemon, and a row for each worker, with
 * rates if there is an earlier view to compare with. Also draws them as lines of text
 * that fit a screen. Used by ctl_top.c.
 */
#ifndef CTL_CTL_VIEW_H
#define CTL_CTL_VIEW_H

#include "base/base.h"

#include <stdio.h>

struct js;

struct view_row {
	char *name, *state, *reason;
	char *ttft[2], *time[2]; /* of late: half took no longer, and 99 of 100 */
	int64_t load, requests, errors;
	int64_t progress_ms; /* since the last byte of an answer; -1: there was none */
	double hit;          /* 0 to 1; below 0: no prompts */
	double request_rate; /* a second; below 0: not known yet */
	double slow_ms; /* what time to first content 99 of 100 have; below 0: none */
};

struct view {
	uint64_t at_ms;
	char *version, *state;
	int64_t uptime_ms, in_flight, queued, ended, errors;
	int64_t clients, max_clients, to_workers;
	double hit, end_rate, error_rate; /* as in the rows */
	struct view_row *rows;
	size_t n, healthy;
};

enum view_order {
	VIEW_BY_LOAD,
	VIEW_BY_HIT,
	VIEW_BY_TTFT,
	VIEW_BY_ERRORS,
	VIEW_BY_NAME,
	VIEW_ORDERS
};

/* A new view; before may be NULL. Rates need one of the same process (its uptime). */
struct view *view_read(
	const struct js *document, const struct view *before, uint64_t now_ms);
void view_free(struct view *v); /* NULL is fine */

/* Most load, least hit share, longest time to the first content, most errors, or names as
 * people count; then by name. */
void view_sort(struct view *v, enum view_order order, bool is_reversed);

struct view_frame {
	unsigned columns, lines; /* 0: as many as it takes */
	size_t first;            /* the row on top */
	const char *notice;      /* a line of its own, or NULL */
	const char *keys;        /* the last line, or NULL */
	bool is_screen;          /* with the sequences of a terminal */
};
/* How many rows fit; at least one. */
size_t view_room(const struct view_frame *f);
void view_draw(const struct view *v, const struct view_frame *f, FILE *to);

#endif
