/*
 * Readers of what workers stream: the text of a stream that may resume (resume_stream),
 * where its content, errors and end are (stream_watch), and the id of what it made
 * (response_reader). The first byte says which, the second how it is cut. What must hold:
 *   - one write and any split give the same text, verdicts and id;
 *   - what a client gets of a stream that is not lost is whole events.
 */
#include "pool/response_map.h"
#include "rewrite/resume_stream.h"
#include "rewrite/stream_watch.h"
#include "tests/fuzz/fuzz.h"

struct got {
	struct text out;
	struct resume_stream s;
};

/* A new block for each piece: readers keep what they need. */
static void feed_resume(
	struct got *g, const char *p, size_t n, size_t cut, bool chat, size_t breaks_at)
{
	*g = (struct got){0};
	resume_stream_init(&g->s, chat);
	for (size_t at = 0; at < n; at += cut) {
		size_t len = MIN(cut, n - at);
		char *piece = fuzz_copy(p + at, len);
		struct span out;

		if (at == breaks_at)
			resume_stream_continue(&g->s);
		MUST(resume_stream_feed(
			     &g->s, span_make(piece, len), at + len == n, &out) == 0);
		MUST(text_add(&g->out, out) == 0);
		free(piece);
	}
}

static void free_got(struct got *g)
{
	resume_stream_free(&g->s);
	text_free(&g->out);
}

static bool same_text(const struct text *a, const struct text *b)
{
	return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

static void try_resume(const char *p, size_t n, size_t cut, bool chat)
{
	struct got whole, pieces;
	struct span end;

	feed_resume(&whole, p, n, n, chat, SIZE_MAX);
	feed_resume(&pieces, p, n, cut, chat, SIZE_MAX);
	MUST(same_text(&whole.out, &pieces.out));
	MUST(whole.s.is_lost == pieces.s.is_lost);
	MUST(whole.s.is_lost || same_text(&whole.s.text, &pieces.s.text));
	MUST(whole.s.is_lost || whole.s.tokens == pieces.s.tokens);
	MUST(whole.s.is_lost || whole.s.is_finished == pieces.s.is_finished);
	if (!pieces.s.is_lost)
		MUST(resume_stream_end(&pieces.s, &end) == 0);
	free_got(&pieces);
	free_got(&whole);
	/* Another worker goes on in the middle. */
	feed_resume(&pieces, p, n, cut, chat, n / 2 / cut * cut);
	free_got(&pieces);
}

static void feed_watch(struct stream_watch *w, const char *p, size_t n, size_t cut,
	enum route_endpoint endpoint)
{
	stream_watch_init(w);
	stream_watch_begin(w, endpoint);
	for (size_t at = 0; at < n; at += cut) {
		char *piece = fuzz_copy(p + at, MIN(cut, n - at));

		stream_watch_feed(w, span_make(piece, MIN(cut, n - at)));
		free(piece);
	}
}

static void try_watch(const char *p, size_t n, size_t cut, enum route_endpoint endpoint)
{
	struct stream_watch whole, pieces;

	feed_watch(&whole, p, n, n, endpoint);
	feed_watch(&pieces, p, n, cut, endpoint);
	MUST(whole.has_content == pieces.has_content);
	MUST(whole.has_error == pieces.has_error);
	MUST(whole.has_end == pieces.has_end);
	MUST(whole.is_strange == pieces.is_strange);
	MUST(stream_watch_is_amid(&whole) == stream_watch_is_amid(&pieces));
	stream_watch_free(&whole);
	stream_watch_free(&pieces);
}

/* An answer that is no stream. */
static void try_object(const char *p, size_t n, size_t cut, enum route_endpoint endpoint)
{
	struct stream_watch w;

	(void)stream_watch_guess(span_make(p, n));
	stream_watch_init(&w);
	stream_watch_begin(&w, endpoint);
	for (size_t at = 0; at < n; at += cut) {
		char *piece = fuzz_copy(p + at, MIN(cut, n - at));

		stream_watch_object(
			&w, span_make(piece, MIN(cut, n - at)), at + cut >= n);
		free(piece);
	}
	stream_watch_free(&w);
}

static void feed_reader(
	struct response_reader *r, const char *p, size_t n, size_t cut, bool is_response)
{
	response_reader_start(r, is_response);
	for (size_t at = 0; at < n; at += cut) {
		char *piece = fuzz_copy(p + at, MIN(cut, n - at));

		response_reader_feed(r, span_make(piece, MIN(cut, n - at)));
		free(piece);
	}
}

static void try_reader(const char *p, size_t n, size_t cut, bool is_response)
{
	struct response_reader whole, pieces;

	feed_reader(&whole, p, n, n, is_response);
	feed_reader(&pieces, p, n, cut, is_response);
	MUST(whole.n <= sizeof(whole.id));
	MUST(whole.n == pieces.n && memcmp(whole.id, pieces.id, whole.n) == 0);
	MUST(whole.is_done == pieces.is_done);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	const char *p = (const char *)bytes + 2;
	size_t n, cut;

	if (size < 3)
		return 0;
	n = size - 2;
	cut = 1 + bytes[1] % 97;
	switch (bytes[0] % 4) {
	case 0:
		try_resume(p, n, cut, bytes[0] & 4);
		break;
	case 1:
		try_watch(p, n, cut, bytes[0] / 4 % ENDPOINT_MAX);
		break;
	case 2:
		try_object(p, n, cut, bytes[0] / 4 % ENDPOINT_MAX);
		break;
	default:
		try_reader(p, n, cut, bytes[0] & 4);
	}
	return 0;
}
