/*
 * The terminal of an interactive command: keys one at a time, a screen of its own, its
 * size, and the terminal as it was at every end. One at a time in a process. Used by
 * ctl_top.c.
 */
#ifndef CTL_CTL_SCREEN_H
#define CTL_CTL_SCREEN_H

#include "base/base.h"
#include "base/span.h"

/* Standard input and output are a terminal. */
bool screen_is_possible(void);
/*
 * Takes the terminal over; signals that end, stop or resize arrive in screen_wait() from
 * then on. ERR_IO with errno.
 */
int screen_open(void) MUST_CHECK;
/* Gives it back as it was. Harmless when it is not open. */
void screen_close(void);

/* 80 by 24 where the terminal does not say. */
void screen_size(unsigned *columns, unsigned *lines);
/* ERR_IO: the terminal is gone. */
int screen_show(struct span text) MUST_CHECK;

enum screen_event {
	SCREEN_TIME,    /* nothing came */
	SCREEN_KEY,     /* *key: a letter as it is, an arrow or page as enum screen_key */
	SCREEN_RESIZED, /* or continued after a stop: all is to be drawn again */
	SCREEN_END      /* a signal, or the terminal is gone */
};
enum screen_key { KEY_UP = 256, KEY_DOWN, KEY_PAGE_UP, KEY_PAGE_DOWN, KEY_UNKNOWN };
enum screen_event screen_wait(uint64_t timeout_ms, int *key);

/* After screen_close(): ends by the signal that came, as if it had not been caught; comes
 * back where there was none, or it was SIGINT. */
void screen_end_by_signal(void);

#endif
