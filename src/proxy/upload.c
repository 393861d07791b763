/*
 * A body that goes to the worker as it comes. See upload.h.
 */
#include "proxy/upload.h"

#include "base/err.h"
#include "proxy/body.h"
#include "proxy/client.h"
#include "proxy/upstream.h"

#define TURN_PIECES 8 /* of BODY_WINDOW, before other connections get a turn */

void upload_start(struct upload *u, struct body *b)
{
	*u = (struct upload){.is_on = true};
	body_stream(b);
}

void upload_rewind(struct upload *u)
{
	u->is_given = u->is_ended = u->is_begun = false;
	u->offset = 0;
}

bool upload_is_repeatable(const struct upload *u, const struct body *b)
{
	return !u->is_on || !b->has_dropped;
}

/* The worker has taken the last piece, or was given none: the next bytes may be read.
 * ERR_AGAIN: there are none for now, or all have come. */
static int read_more(struct upload *u, struct body *b, struct client *c,
	struct budget *budget, enum fail *why)
{
	int err;

	if (u->is_given) {
		u->offset = b->is_inline ? b->len : 0;
		body_drop(b);
		u->is_given = false;
	}
	err = body_read(b, c, budget, why);
	return err == 0 ? ERR_AGAIN : err;
}

static bool has_piece(const struct upload *u, const struct body *b)
{
	return b->len > u->offset || (b->is_complete && !u->is_ended);
}

static void give(struct upload *u, const struct body *b, const struct client *c,
	struct exchange *ex)
{
	struct span held = body_bytes(b, c);
	struct exchange_piece p = {.last = b->is_complete};

	p.data = span_make(held.p + u->offset, held.n - u->offset);
	if (b->framing == HTTP_BODY_CHUNKED && p.data.n > 0) {
		p.before = span_make(u->line, http_chunk_line(p.data.n, u->line));
		p.after = p.last ? SPAN_LIT("\r\n0\r\n\r\n") : SPAN_LIT("\r\n");
	} else if (b->framing == HTTP_BODY_CHUNKED) {
		p.after = SPAN_LIT("0\r\n\r\n");
	}
	u->is_given = u->is_begun = true;
	u->is_ended = p.last;
	exchange_piece(ex, &p);
}

/* The client may send while there is room for its bytes, or will be at the next run. */
static void turn_client(struct upload *u, const struct body *b, struct client *c,
	const struct exchange *ex)
{
	if (u->is_given)
		u->awaits_client = !b->is_complete && exchange_wants_piece(ex);
	else
		u->awaits_client = body_has_room(b);
	if (u->awaits_client || b->is_complete)
		stream_resume(&c->stream);
	else
		stream_pause(&c->stream);
}

int upload_run(struct upload *u, struct body *b, struct client *c, struct exchange *ex,
	struct budget *budget, enum fail *why)
{
	unsigned left = TURN_PIECES;
	int err = 0;

	while (!u->is_ended && left-- > 0) {
		if (!u->is_given || exchange_wants_piece(ex))
			err = read_more(u, b, c, budget, why);
		if (err != 0 && err != ERR_AGAIN)
			return err;
		if (!has_piece(u, b) || !exchange_wants_piece(ex))
			break;
		give(u, b, c, ex);
	}
	/* The head goes without a body then. */
	if (!u->is_begun && exchange_wants_piece(ex)) {
		u->is_begun = true;
		exchange_piece(ex, &(struct exchange_piece){.last = false});
	}
	turn_client(u, b, c, ex);
	return 0;
}

void upload_pause(struct upload *u, struct client *c)
{
	if (!u->is_on)
		return;
	u->awaits_client = false;
	stream_pause(&c->stream);
}
