/*
 * Request bodies, one after another: prompts that repeat (hot), never do (cold), begin
 * alike (shared-prefix), grow by the server's answers (conversations), or follow a trace.
 * A seed fixes all of them. Pure.
 */
#ifndef BENCH_CORPUS_H
#define BENCH_CORPUS_H

#include "base/text.h"
#include "bench/trace.h"

enum corpus_kind {
	CORPUS_HOT,
	CORPUS_COLD,
	CORPUS_SHARED_PREFIX,
	CORPUS_CONVERSATIONS,
	CORPUS_TRACE
};

struct size_range {
	uint64_t min, max; /* tokens; uniform between them, both included */
};

struct corpus_opts {
	enum corpus_kind kind;
	uint64_t seed;
	struct size_range prompt, output;
	uint64_t shared_tokens; /* shared-prefix, conversations: what all begin with */
	uint64_t groups;        /* shared-prefix: different beginnings; at least 1 */
	uint64_t prompts;       /* hot: different prompts; at least 1 */
	uint64_t turns;         /* conversations: of each; at least 1 */
	uint64_t conversations; /* conversations: open at a time; at least 1 */
	double tokens_per_word; /* above 0 */
	uint64_t overhead;      /* tokens that the chat template adds to one message */
	bool is_chat, is_stream, ignore_eos;
	const char *model;         /* borrowed */
	const struct trace *trace; /* borrowed; CORPUS_TRACE */
};

struct corpus;
struct conversation;

/* One request to send. */
struct job {
	struct text body;
	uint64_t prompt_tokens; /* asked for, template included; 0: not known */
	uint64_t output_tokens;
	struct conversation *conversation; /* NULL, but for CORPUS_CONVERSATIONS */
};

struct corpus *corpus_new(const struct corpus_opts *o); /* dies without memory */
void corpus_free(struct corpus *c); /* jobs must be done; NULL is fine */
/*
 * The next request, into *j, whose memory is used again. ERR_NOENT: the trace has ended.
 * ERR_NOMEM. Each job that it gave is handed back by corpus_done().
 */
int corpus_next(struct corpus *c, struct job *j) MUST_CHECK;
/* It ended: answer is its text, which a conversation goes on with; when not ok it ends.
 */
void corpus_done(struct corpus *c, struct job *j, bool ok, struct span answer);

#endif
