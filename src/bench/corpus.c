/*
 * Prompts and the JSON around them. See corpus.h. Called by run.c.
 * A conversation is in the idle list, or belongs to the one job that holds its next turn.
 */
#include "bench/corpus.h"

#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/rng.h"
#include "bench/words.h"

#include <inttypes.h>
#include <stdlib.h>

/* Ids of words of different use lie apart. */
enum { ID_HOT = 1, ID_COLD, ID_SHARED, ID_SYSTEM, ID_TURN };

struct conversation {
	struct text history; /* JSON: what the next turn's body repeats */
	uint64_t turns;      /* begun */
	TAILQ_ENTRY(conversation) link;
};

struct corpus {
	struct corpus_opts o;
	struct rng rng;
	uint64_t n;                      /* jobs given */
	uint64_t n_open;                 /* conversations */
	TAILQ_HEAD(, conversation) idle; /* the longest idle first */
};

struct corpus *corpus_new(const struct corpus_opts *o)
{
	struct corpus *c = xcalloc(1, sizeof(*c));

	c->o = *o;
	rng_seed(&c->rng, o->seed);
	TAILQ_INIT(&c->idle);
	return c;
}

static void end_conversation(struct corpus *c, struct conversation *v)
{
	c->n_open--;
	text_free(&v->history);
	free(v);
}

void corpus_free(struct corpus *c)
{
	struct conversation *v;

	if (c == NULL)
		return;
	while ((v = TAILQ_FIRST(&c->idle)) != NULL) {
		TAILQ_REMOVE(&c->idle, v, link);
		end_conversation(c, v);
	}
	assert(c->n_open == 0);
	free(c);
}

static uint64_t pick(struct corpus *c, struct size_range r)
{
	return r.min + rng_below(&c->rng, r.max - r.min + 1);
}

/* Words of a use, and of its number. */
static void add_words(
	struct corpus *c, struct text *out, unsigned use, uint64_t number, size_t n)
{
	words_add(out, c->o.seed + use * UINT64_C(0x9e3779b97f4a7c15), number, n);
}

/* How many words a single message of that many prompt tokens has. */
static size_t message_words(const struct corpus *c, uint64_t tokens)
{
	uint64_t overhead = c->o.is_chat ? c->o.overhead : 0;

	return words_for(tokens > overhead ? tokens - overhead : 1, c->o.tokens_per_word);
}

/* ---- prompts of one message ---- */

static void add_shared(struct corpus *c, struct text *out, size_t n)
{
	size_t shared = MIN(words_for(c->o.shared_tokens, c->o.tokens_per_word), n);

	add_words(c, out, ID_SHARED, rng_below(&c->rng, c->o.groups), shared);
	add_words(c, out, ID_COLD, c->n, n - shared);
}

/*
 * Each block its own words, the last one cut. An odd number of tokens for each word
 * leaves a rest, which is the last block's.
 */
static void add_blocks(
	struct corpus *c, struct text *out, const struct trace_request *r, size_t n)
{
	size_t of_block = words_for(c->o.trace->block_tokens, c->o.tokens_per_word);

	for (size_t i = 0; i < r->n_ids && n > 0; i++) {
		size_t take = i + 1 < r->n_ids ? MIN(n, of_block) : n;

		words_add(out, c->o.seed, c->o.trace->ids[r->first_id + i], take);
		n -= take;
	}
	if (r->n_ids == 0)
		add_words(c, out, ID_COLD, c->n, n);
}

static void add_prompt(struct corpus *c, struct text *out, struct job *j)
{
	size_t n = message_words(c, j->prompt_tokens);

	if (c->o.kind == CORPUS_TRACE)
		add_blocks(c, out, &c->o.trace->requests[c->n], n);
	else if (c->o.kind == CORPUS_SHARED_PREFIX)
		add_shared(c, out, n);
	else if (c->o.kind == CORPUS_COLD)
		add_words(c, out, ID_COLD, c->n, n);
	else
		add_words(c, out, ID_HOT, rng_below(&c->rng, c->o.prompts), n);
}

/* ---- conversations ---- */

static void open_message(const struct corpus *c, struct text *out, const char *role)
{
	if (c->o.is_chat)
		text_printf(out, "{\"role\":\"%s\",\"content\":\"", role);
}

static void close_message(const struct corpus *c, struct text *out)
{
	if (c->o.is_chat)
		text_add(out, SPAN_LIT("\"}"));
}

static struct conversation *new_conversation(struct corpus *c)
{
	struct conversation *v = calloc(1, sizeof(*v));

	if (v == NULL)
		return NULL;
	c->n_open++;
	if (c->o.shared_tokens > 0) {
		open_message(c, &v->history, "system");
		add_words(c, &v->history, ID_SYSTEM, 0,
			words_for(c->o.shared_tokens, c->o.tokens_per_word));
		close_message(c, &v->history);
	}
	return v;
}

/* The longest idle one once enough are open, else a new one; NULL: no memory. */
static struct conversation *take_conversation(struct corpus *c)
{
	struct conversation *v = TAILQ_FIRST(&c->idle);

	if (v == NULL || c->n_open < c->o.conversations)
		return new_conversation(c);
	TAILQ_REMOVE(&c->idle, v, link);
	return v;
}

static int add_turn(struct corpus *c, struct job *j)
{
	struct conversation *v = take_conversation(c);
	uint64_t tokens = pick(c, c->o.prompt);

	if (v == NULL)
		return ERR_NOMEM;
	if (v->turns++ == 0 && c->o.shared_tokens == 0)
		j->prompt_tokens = tokens;
	if (c->o.is_chat && v->history.n > 0)
		text_add(&v->history, SPAN_LIT(","));
	open_message(c, &v->history, "user");
	add_words(c, &v->history, ID_TURN, c->n, message_words(c, tokens));
	close_message(c, &v->history);
	j->conversation = v;
	text_add(&j->body, text_span(&v->history));
	return v->history.failed ? ERR_NOMEM : 0;
}

/* ---- bodies ---- */

static void open_body(const struct corpus *c, struct text *out)
{
	text_add(out, SPAN_LIT("{\"model\":\""));
	text_add_json(out, span_str(c->o.model));
	text_add(out, c->o.is_chat ? SPAN_LIT("\",\"messages\":[")
				   : SPAN_LIT("\",\"prompt\":\""));
}

static void close_body(const struct corpus *c, struct text *out, uint64_t output_tokens)
{
	text_printf(out, "%s,\"max_tokens\":%" PRIu64 "%s%s}", c->o.is_chat ? "]" : "\"",
		output_tokens,
		c->o.is_stream
			? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"
			: "",
		c->o.ignore_eos ? ",\"ignore_eos\":true" : "");
}

/* The sizes come from the trace or the ranges. A request for no output asks for one
 * token. */
static void choose_sizes(struct corpus *c, struct job *j)
{
	const struct trace_request *r;

	if (c->o.kind != CORPUS_TRACE) {
		j->prompt_tokens =
			c->o.kind == CORPUS_CONVERSATIONS ? 0 : pick(c, c->o.prompt);
		j->output_tokens = pick(c, c->o.output);
		return;
	}
	r = &c->o.trace->requests[c->n];
	j->prompt_tokens = r->input_tokens;
	j->output_tokens = MAX(r->output_tokens, 1u);
}

int corpus_next(struct corpus *c, struct job *j)
{
	int err = 0;

	if (c->o.kind == CORPUS_TRACE && c->n >= c->o.trace->n)
		return ERR_NOENT;
	text_clear(&j->body);
	j->conversation = NULL;
	choose_sizes(c, j);
	open_body(c, &j->body);
	if (c->o.kind == CORPUS_CONVERSATIONS) {
		err = add_turn(c, j);
	} else {
		open_message(c, &j->body, "user");
		add_prompt(c, &j->body, j);
		close_message(c, &j->body);
	}
	close_body(c, &j->body, j->output_tokens);
	c->n++;
	if (err == 0 && !j->body.failed)
		return 0;
	corpus_done(c, j, false, span_make(NULL, 0));
	return ERR_NOMEM;
}

void corpus_done(struct corpus *c, struct job *j, bool ok, struct span answer)
{
	struct conversation *v = j->conversation;

	j->conversation = NULL;
	if (v == NULL)
		return;
	if (!ok || v->turns >= c->o.turns) {
		end_conversation(c, v);
		return;
	}
	if (c->o.is_chat) {
		text_add(&v->history, SPAN_LIT(","));
		open_message(c, &v->history, "assistant");
	}
	text_add_json(&v->history, answer);
	close_message(c, &v->history);
	if (v->history.failed)
		end_conversation(c, v);
	else
		TAILQ_INSERT_TAIL(&c->idle, v, link);
}
