/*
 * The fields of a form (multipart/form-data, RFC 7578 and 2046 section 5.1) as its body
 * arrives, in one pass: files among them are run over, however long they are. Nothing is
 * copied; all is offsets into the body, whose start may move. Pure. Used by route_scan.c.
 */
#ifndef ROUTE_FORM_SCAN_H
#define ROUTE_FORM_SCAN_H

#include "base/base.h"
#include "base/span.h"

#define FORM_BOUNDARY_MAX 70 /* RFC 2046 */

struct form_scan {
	char mark[4 + FORM_BOUNDARY_MAX]; /* "\r\n--" and the boundary */
	size_t n_mark;
	size_t at; /* all before it is done */
	enum form_state {
		FORM_PREAMBLE, /* before the first boundary */
		FORM_BOUNDARY, /* behind one: its line's end, or that of the form */
		FORM_HEAD,     /* of a part */
		FORM_VALUE,
		FORM_END, /* or broken: nothing more is read */
	} state;
	size_t head, value; /* where those of the part in hand begin */
};

/* A part that is complete. */
struct form_field {
	struct span name; /* as spelled between its quotes; empty: it has none */
	bool is_file;     /* it has a file's name */
	size_t value, end;
};

/* Begins with the value of Content-Type. False: that is no form, or has no boundary. */
bool form_scan_begin(struct form_scan *f, struct span content_type) MUST_CHECK;
/* The next field of the body's first `to` bytes; *out points into it until base moves.
 * False: more bytes must come first, or there is none any more. */
bool form_scan_next(
	struct form_scan *f, const char *base, size_t to, struct form_field *out);

#endif
