/*
 * A request's body. See body.h.
 */
#include "proxy/body.h"

#include "base/err.h"
#include "proxy/budget.h"
#include "proxy/client.h"
#include "proxy/io_thread.h"

#include <stdlib.h>

#define READ_BYTES (256u << 10) /* at most, before other connections get a turn */
#define EXACT_BYTES \
	(4u << 20) /* up to here the memory is taken at once, as the length says */
#define CHUNKED_BYTES (64u << 10) /* first memory of a chunked body */
#define COUNT_STEP (64u << 10)

enum fail body_start(struct body *b, const struct http_head *h, uint64_t limit)
{
	*b = (struct body){
		.framing = h->framing, .limit = limit, .head_len = h->head_len};
	if (h->framing == HTTP_BODY_NONE) {
		b->is_inline = b->is_complete = true;
		return FAIL_NONE;
	}
	if (h->framing == HTTP_BODY_CHUNKED) {
		http_chunk_start(&b->chunk, false, limit);
		return FAIL_NONE;
	}
	b->expected = h->content_length;
	b->is_inline =
		b->expected <= IO_IN_BYTES && h->head_len + b->expected <= IO_IN_BYTES;
	return b->expected > limit ? FAIL_MAX_BODY_SIZE : FAIL_NONE;
}

void body_discard(struct body *b)
{
	b->is_discarded = true;
}

void body_stream(struct body *b)
{
	b->is_streamed = true;
}

void body_drop(struct body *b)
{
	assert(b->is_streamed);
	if (b->is_inline || b->len == 0)
		return;
	b->len = 0;
	b->has_dropped = true;
}

bool body_has_room(const struct body *b)
{
	return !b->is_complete && (b->is_inline || b->len < BODY_WINDOW);
}

/* Memory is counted in steps as it fills; over the limit the request is refused, not the
 * process killed. */
static int count_memory(struct body *b, struct budget *budget, enum fail *why)
{
	size_t want = (b->len + COUNT_STEP - 1) / COUNT_STEP * COUNT_STEP;
	size_t more = want > b->counted ? want - b->counted : 0;

	b->counted += more;
	if (more == 0 || budget_hold(budget, more))
		return 0;
	*why = FAIL_BODY_MEMORY;
	return ERR_PARSE;
}

static int grow(struct body *b, struct io_thread *t, size_t want, enum fail *why)
{
	size_t cap = b->cap > 0 ? b->cap : CHUNKED_BYTES;
	char *p;

	if (want <= b->cap)
		return 0;
	while (cap < want)
		cap *= 2;
	if (b->framing == HTTP_BODY_LENGTH && !b->is_streamed) {
		cap = MAX(cap, (size_t)EXACT_BYTES);
		cap = (size_t)MIN((uint64_t)cap, b->expected);
	}
	p = b->own == NULL ? io_body_get(t, cap, &cap) : realloc(b->own, cap);
	if (p == NULL) {
		*why = FAIL_OVERLOADED;
		return ERR_PARSE;
	}
	b->own = p;
	b->cap = cap;
	return 0;
}

static int append(
	struct body *b, struct io_thread *t, const char *p, size_t n, enum fail *why)
{
	if (n == 0)
		return 0;
	if (grow(b, t, b->len + n, why) != 0)
		return ERR_PARSE;
	memcpy(b->own + b->len, p, n);
	b->len += n;
	return 0;
}

static int client_error(ssize_t got, enum fail *why)
{
	if (got == ERR_AGAIN || got == ERR_CLOSED)
		return (int)got;
	*why = FAIL_OVERLOADED;
	return ERR_PARSE;
}

/* In the client's buffer, behind the head. */
static int read_inline(struct body *b, struct client *c, enum fail *why)
{
	int err = client_reserve(c, IO_IN_BYTES) == 0 ? 0 : ERR_NOMEM;

	while (err == 0 && c->len - b->head_len < b->expected) {
		ssize_t got = client_fill(c);

		if (got <= 0)
			err = client_error(got, why);
	}
	b->len = (size_t)MIN(c->len - b->head_len, b->expected);
	b->is_complete = b->len == b->expected;
	return err == ERR_NOMEM ? client_error(err, why) : err;
}

/* By length, straight into its own memory: never a byte beyond the body is asked for. */
static int read_length(struct body *b, struct client *c, enum fail *why)
{
	size_t there = MIN(c->len - b->head_len, (size_t)(b->expected - b->len));
	size_t want;
	ssize_t got;

	if (there > 0) {
		if (append(b, c->t, c->buf + b->head_len, there, why) != 0)
			return ERR_PARSE;
		client_cut(c, b->head_len, there);
	}
	b->is_complete = b->len == b->expected;
	if (b->is_complete)
		return 0;
	want = (size_t)MIN(b->expected - b->len, (uint64_t)READ_BYTES);
	if (grow(b, c->t, b->len + want, why) != 0)
		return ERR_PARSE;
	got = client_read(c, b->own + b->len, want);
	if (got <= 0)
		return client_error(got, why);
	b->len += (size_t)got;
	b->is_complete = b->len == b->expected;
	return b->is_complete ? 0 : ERR_AGAIN;
}

/* By length, into the window: first the bytes that were read with the head. */
static int stream_length(struct body *b, struct client *c, enum fail *why)
{
	uint64_t room = MIN(b->expected - b->total, (uint64_t)(BODY_WINDOW - b->len));
	size_t there = MIN(c->len - b->head_len, (size_t)room);
	size_t want = (size_t)room - there;
	ssize_t got = 0;

	if (append(b, c->t, c->buf + b->head_len, there, why) != 0)
		return ERR_PARSE;
	client_cut(c, b->head_len, there);
	b->total += there;
	if (want > 0) {
		if (grow(b, c->t, b->len + want, why) != 0)
			return ERR_PARSE;
		got = client_read(c, b->own + b->len, want);
	}
	if (got < 0)
		return there > 0 ? ERR_AGAIN : client_error(got, why);
	b->len += (size_t)got;
	b->total += (uint64_t)got;
	b->is_complete = b->total == b->expected;
	return b->is_complete ? 0 : ERR_AGAIN;
}

/* Decodes the bytes behind the head: data goes to its own memory, framing is cut out. */
static int decode(struct body *b, struct client *c, enum fail *why)
{
	char *at = c->buf + b->head_len;
	size_t n = c->len - b->head_len, data_len = 0, used = 0;
	int err;

	if (n == 0)
		return ERR_AGAIN;
	err = http_chunk_decode(&b->chunk, at, n, &data_len, &used, why);
	if (err == ERR_PARSE) {
		if (*why == FAIL_BODY_TOO_LARGE)
			*why = FAIL_MAX_BODY_SIZE;
		return err;
	}
	if (b->is_discarded)
		b->len += data_len;
	else if (append(b, c->t, at, data_len, why) != 0)
		return ERR_PARSE;
	client_cut(c, b->head_len, used);
	b->is_complete = err == 0;
	return err;
}

/* Reads behind the head. > 0, or what client_error() makes of it. */
static ssize_t fill_behind_head(struct body *b, struct client *c, enum fail *why)
{
	ssize_t got;

	/* A head that fills its buffer leaves no room to read behind it. */
	if (c->cap - c->len < IO_IN_BYTES / 4 &&
		client_reserve(c, b->head_len + IO_IN_BYTES) != 0)
		return client_error(ERR_NOMEM, why);
	got = client_fill(c);
	return got > 0 ? got : client_error(got, why);
}

/* In chunks, into the window: all of one read is decoded, since no event would come for
 * bytes that stayed behind. */
static int stream_chunked(struct body *b, struct client *c, enum fail *why)
{
	size_t before = b->len;
	int err = decode(b, c, why);

	if (err == ERR_AGAIN && b->len == before) {
		ssize_t got = fill_behind_head(b, c, why);

		err = got > 0 ? decode(b, c, why) : (int)got;
	}
	b->total += b->len - before;
	return err;
}

static int read_chunked(struct body *b, struct client *c, enum fail *why)
{
	size_t budget = READ_BYTES;
	int err = decode(b, c, why);

	while (err == ERR_AGAIN && budget > 0) {
		ssize_t got = fill_behind_head(b, c, why);

		if (got <= 0)
			return (int)got;
		budget -= MIN(budget, (size_t)got);
		err = decode(b, c, why);
	}
	return err;
}

/* A refused request by length: its bytes are counted and dropped. */
static int skip_length(struct body *b, struct client *c, enum fail *why)
{
	for (;;) {
		size_t there = MIN(c->len - b->head_len, (size_t)(b->expected - b->len));
		ssize_t got;

		client_cut(c, b->head_len, there);
		b->len += there;
		b->is_complete = b->len == b->expected;
		if (b->is_complete)
			return 0;
		got = client_fill(c);
		if (got <= 0)
			return client_error(got, why);
	}
}

int body_read(struct body *b, struct client *c, struct budget *budget, enum fail *why)
{
	int err;

	if (b->is_complete)
		return 0;
	if (b->is_streamed && !body_has_room(b))
		return ERR_AGAIN;
	if (b->is_streamed && !b->is_inline)
		err = b->framing == HTTP_BODY_CHUNKED ? stream_chunked(b, c, why)
						      : stream_length(b, c, why);
	else if (b->framing == HTTP_BODY_CHUNKED)
		err = read_chunked(b, c, why);
	else if (b->is_inline)
		err = read_inline(b, c, why);
	else if (b->is_discarded)
		err = skip_length(b, c, why);
	else
		err = read_length(b, c, why);
	if (!b->is_streamed || b->is_inline)
		b->total = b->len;
	if (b->is_discarded && b->len > BODY_DISCARD_MAX)
		return ERR_CLOSED;
	if (b->own != NULL && (err == 0 || err == ERR_AGAIN)) {
		int over = count_memory(b, budget, why);

		if (over != 0)
			return over;
	}
	return err;
}

struct span body_bytes(const struct body *b, const struct client *c)
{
	if (b->own != NULL)
		return span_make(b->own, b->len);
	return b->is_inline && c->buf != NULL ? span_make(c->buf + b->head_len, b->len)
					      : span_make(NULL, 0);
}

char *body_memory(struct body *b, struct client *c)
{
	return b->own != NULL ? b->own : c->buf + b->head_len;
}

/* One behind its head goes to memory of its own: what follows it is the next request. */
static int own_with_room(struct body *b, struct client *c, size_t want)
{
	char *p;

	if (b->own != NULL) {
		p = want > b->cap ? realloc(b->own, want) : b->own;
		b->cap = p != NULL ? MAX(b->cap, want) : b->cap;
	} else {
		p = io_body_get(c->t, want, &b->cap);
		if (p != NULL && b->len > 0)
			memcpy(p, c->buf + b->head_len, b->len);
	}
	if (p == NULL)
		return ERR_NOMEM;
	b->own = p;
	return 0;
}

int body_replace(struct body *b, struct client *c, struct budget *budget, size_t at,
	size_t n, struct span text, enum fail *why)
{
	size_t behind = at + n;

	assert(b->is_complete && behind <= b->len);
	if (own_with_room(b, c, b->len + text.n) != 0) {
		*why = FAIL_OVERLOADED;
		return ERR_PARSE;
	}
	memmove(b->own + at + text.n, b->own + behind, b->len - behind);
	memcpy(b->own + at, text.p, text.n);
	b->len += text.n - n;
	return count_memory(b, budget, why);
}

size_t body_used(const struct body *b)
{
	return b->head_len + (b->is_inline ? (size_t)b->total : 0);
}

void body_free(struct body *b, struct io_thread *t, struct budget *budget)
{
	io_body_put(t, b->own, b->cap);
	b->own = NULL;
	b->cap = 0;
	budget_let_go(budget, b->counted);
	b->counted = 0;
}
