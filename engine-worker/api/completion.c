/*
 * Completions and chats, streamed or whole. Each choice is a sequence of the engine; text
 * leaves when it cannot become part of a stop string any more. A streamed answer's client
 * sets the pace: while its queue is full the choices are parked. A prompt that is taken
 * from another worker is loaded first: nothing is said before that, so that its failure
 * can still be an answer. Always true: while a choice is open its sequence exists; n_open
 * counts the open ones; the answer ends when it reaches 0. Called by serve.c; called back
 * by the engine (tokens) and the server (client left, or takes bytes again).
 */
#include "api/completion.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "core/histograms.h"
#include "core/sched.h"
#include "http/http_server.h"
#include "io/js.h"
#include "kvx/kv_handoff.h"
#include "lab/fault.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	COMPLETION_MAGIC = 0x636f6d70,
	MESSAGE_BYTES = 1024,
};

/* The headers of a stream are gone when its engine fails, so that an event says so, and
 * the stream ends as any other, as with vLLM. */
#define BROKEN_EVENT                                            \
	"data: {\"error\":{\"message\":\"The engine failed.\"," \
	"\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n"

struct choice {
	struct completion *completion;
	struct sched_seq *seq; /* NULL: finished */
	unsigned index;
	char *text;
	size_t text_len, text_cap, sent;
	size_t n_tokens;
	uint64_t admitted_us;       /* its prompt began to be computed */
	uint64_t first_us, last_us; /* its first and its last token came */
	size_t stop_from;           /* a stop string counts if it ends behind this */
	const char *finish;         /* NULL: still open */
	bool ends_by_itself;
	/* all of its text was in the request: its one token says no more than that */
	bool is_over;
};

struct completion {
	uint32_t magic;
	LIST_ENTRY(completion) link;
	struct completion_opts opts;
	struct http_call *call;
	struct params params;
	char id[48];
	/* of a streamed answer's events: the envelope without its last brace */
	char *head;
	int64_t created;
	uint64_t begun_us;
	struct choice *choices;
	size_t n_choices, n_open;
	size_t prompt_tokens, cached_tokens, new_tokens;
	bool has_failed;      /* out of memory: the answer cannot be right any more */
	bool is_broken;       /* the backend failed */
	bool is_cut;          /* a fault ends the stream here */
	uint64_t n_events;    /* of the stream */
	bool has_begun;       /* its head was sent */
	bool has_roles;       /* and the events that say who speaks */
	bool has_reserved;    /* room for its prompt, which is kept for another worker, */
	struct js *offer;     /* who needs this */
	bool is_taken;        /* another worker has computed its prompt */
	struct kv_load *load; /* loads its prompt from another worker; else NULL */
	const char *kv_source; /* the line that says what became of that */
};

/* The end */

/* Gives back the room for the prompt that it was to keep. */
static void unreserve(struct completion *c)
{
	if (c->has_reserved)
		handoff_unreserve(c->opts.handoff, c->params.prompts[0].n);
	c->has_reserved = false;
}

static void completion_free(struct completion *c)
{
	kv_load_free(c->load);
	unreserve(c);
	js_free(c->offer);
	for (size_t i = c->n_choices; i-- > 0;) {
		if (c->choices[i].seq != NULL)
			sched_drop(c->choices[i].seq);
		free(c->choices[i].text);
	}
	free(c->choices);
	free(c->head);
	params_free(&c->params);
	LIST_REMOVE(c, link);
	c->opts.all->n--;
	c->magic = 0;
	free(c);
}

static void on_gone(void *arg)
{
	struct completion *c = arg;

	assert(c->magic == COMPLETION_MAGIC);
	completion_free(c);
}

/* JSON */

static struct js *usage_json(const struct completion *c)
{
	struct js *usage = js_object(), *details = js_object();

	js_set_int(details, "cached_tokens", (int64_t)c->cached_tokens);
	js_set_int(usage, "prompt_tokens", (int64_t)c->prompt_tokens);
	js_set_int(usage, "total_tokens", (int64_t)(c->prompt_tokens + c->new_tokens));
	js_set_int(usage, "completion_tokens", (int64_t)c->new_tokens);
	js_set(usage, "prompt_tokens_details", details);
	return usage;
}

static struct js *envelope(const struct completion *c)
{
	bool is_chunk = c->params.is_stream;
	struct js *root = js_object();

	js_set_str(root, "id", c->id);
	js_set_str(root, "object",
		!c->params.is_chat ? "text_completion"
		: is_chunk         ? "chat.completion.chunk"
				   : "chat.completion");
	js_set_int(root, "created", c->created);
	js_set_str(root, "model", c->opts.limits.model);
	return root;
}

static struct js *choice_json(const struct choice *ch)
{
	struct span text = span_make(ch->text, ch->text_len);
	struct js *out = js_object(), *message;

	js_set_int(out, "index", ch->index);
	if (!ch->completion->params.is_chat) {
		js_set(out, "text", js_string(text));
	} else {
		message = js_object();
		js_set_str(message, "role", "assistant");
		js_set(message, "content", js_string(text));
		js_set(out, "message", message);
	}
	js_set(out, "logprobs", js_null());
	js_set_str(out, "finish_reason", ch->finish);
	return out;
}

static struct span kv_source_line(const struct completion *c)
{
	return span_str(c->kv_source);
}

static void begin_stream(struct completion *c)
{
	char lines[128];
	int n = snprintf(lines, sizeof(lines), "Cache-Control: no-cache\r\n%s",
		c->kv_source != NULL ? c->kv_source : "");

	if (!c->has_begun)
		http_call_begin(
			c->call, 200, "text/event-stream", span_make(lines, (size_t)n));
	c->has_begun = true;
}

static void send_bytes(struct completion *c, struct span event)
{
	int err;

	c->is_cut = c->is_cut || faults_take_cut(c->opts.faults, c->n_events++);
	if (c->is_cut)
		return;
	begin_stream(c);
	err = http_call_write(c->call, event);
	for (size_t i = 0; err == ERR_LIMIT && i < c->n_choices; i++) {
		if (c->choices[i].seq != NULL)
			sched_park(c->choices[i].seq, true);
	}
}

/* Sends an event, and frees it; NULL: there was no memory for it. */
static void send_event(struct completion *c, char *event)
{
	if (event == NULL)
		c->has_failed = true;
	else
		send_bytes(c, span_str(event));
	free(event);
}

static void on_writable(void *arg)
{
	struct completion *c = arg;

	assert(c->magic == COMPLETION_MAGIC);
	for (size_t i = 0; i < c->n_choices; i++) {
		if (c->choices[i].seq != NULL)
			sched_park(c->choices[i].seq, false);
	}
}

/* The usage that belongs into an event of a choice, with its comma; NULL: out of memory.
 */
static char *event_usage(const struct completion *c)
{
	struct js *usage;
	char *text, *out = NULL;

	if (!c->params.usage_in_events)
		return strdup(c->params.include_usage ? ",\"usage\":null" : "");
	usage = usage_json(c);
	text = js_print(usage, false);
	js_free(usage);
	if (text != NULL && asprintf(&out, ",\"usage\":%s", text) < 0)
		out = NULL;
	free(text);
	return out;
}

/* Every token makes an event, so only its text goes through the JSON printer. role: the
 * choice's first event, which says who speaks. */
static char *choice_event(const struct choice *ch, struct span text, bool role)
{
	const struct params *p = &ch->completion->params;
	struct js *value = js_string(text);
	char *quoted = js_print(value, false), *usage = event_usage(ch->completion),
	     *event = NULL;
	const char *open = !p->is_chat ? "\"text\":"
			   : role      ? "\"delta\":{\"role\":\"assistant\",\"content\":"
				       : "\"delta\":{\"content\":";
	const char *quote = ch->finish == NULL ? "" : "\"";

	js_free(value);
	if (quoted != NULL && usage != NULL &&
		asprintf(&event,
			"data: %s,\"choices\":[{\"index\":%u,%s%s%s,\"logprobs\":null,"
			"\"finish_reason\":%s%s%s}]%s}\n\n",
			ch->completion->head, ch->index, open, quoted,
			p->is_chat ? "}" : "", quote,
			ch->finish == NULL ? "null" : ch->finish, quote, usage) < 0)
		event = NULL;
	free(quoted);
	free(usage);
	return event;
}

static void send_choice(const struct choice *ch, struct span text)
{
	send_event(ch->completion, choice_event(ch, text, false));
}

/* With the first token of any choice, before its text, as vLLM does. */
static void send_roles(struct completion *c)
{
	if (c->has_roles || !c->params.is_chat || !c->params.is_stream)
		return;
	c->has_roles = true;
	for (size_t i = 0; i < c->n_choices; i++)
		send_event(c, choice_event(&c->choices[i], span_make(NULL, 0), true));
}

static void send_usage(struct completion *c)
{
	struct js *usage = usage_json(c);
	char *text = js_print(usage, false), *event = NULL;

	js_free(usage);
	if (text != NULL && asprintf(&event, "data: %s,\"choices\":[],\"usage\":%s}\n\n",
				    c->head, text) < 0)
		event = NULL;
	free(text);
	send_event(c, event);
}

static void end_stream(struct completion *c)
{
	if (!c->is_broken && !c->has_failed && c->params.include_usage)
		send_usage(c);
	if (c->is_broken || c->has_failed)
		send_bytes(c, SPAN_LIT(BROKEN_EVENT));
	send_bytes(c, SPAN_LIT("data: [DONE]\n\n"));
	if (c->is_cut && c->opts.faults->cuts_by_fin)
		http_call_break(c->call);
	else if (c->is_cut)
		http_call_abort(c->call);
	else
		http_call_end(c->call);
}

/* The text of a whole answer; NULL: out of memory. */
static char *whole_text(struct completion *c)
{
	struct js *root = envelope(c), *choices = js_array();
	char *text;

	for (size_t i = 0; i < c->n_choices; i++)
		js_push(choices, choice_json(&c->choices[i]));
	js_set(root, "choices", choices);
	js_set(root, "usage", usage_json(c));
	js_set(root, "kv_transfer_params", c->offer);
	c->offer = NULL;
	text = js_print(root, false);
	js_free(root);
	return text;
}

static void end_whole(struct completion *c)
{
	char *text = NULL;

	if (!c->is_broken && !c->has_failed)
		text = whole_text(c);
	if (c->is_broken)
		http_call_fail_text(c->call, FAIL_INTERNAL, "The engine failed.");
	else if (text == NULL)
		http_call_fail_text(
			c->call, FAIL_OVERLOADED, "The engine is out of memory.");
	else
		http_call_reply(c->call, 200, "application/json", span_str(text),
			kv_source_line(c));
	free(text);
}

/* Tokens */

/* Finds the first stop string in the text. Looks only where one may have been
 * completed by the last token. */
static char *find_stop(const struct choice *ch)
{
	const struct params *p = &ch->completion->params;
	const struct vocab *vocab = ch->completion->opts.limits.vocab;
	char *first = NULL;

	for (size_t i = 0; i < p->n_stops; i++) {
		size_t n = strlen(p->stops[i]), back = n + vocab->text_max, from;
		char *at;

		from = ch->text_len > back ? ch->text_len - back : 0;
		if (ch->stop_from + 1 > n)
			from = MAX(from, ch->stop_from + 1 - n);
		if (from >= ch->text_len)
			continue;
		at = memmem(ch->text + from, ch->text_len - from, p->stops[i], n);
		if (at != NULL && (first == NULL || at < first))
			first = at;
	}
	return first;
}

/* How many bytes at the end begin a character of UTF-8 that is not whole. */
static size_t open_bytes(const char *p, size_t n)
{
	for (size_t k = 1; k <= MIN(n, (size_t)3); k++) {
		unsigned char b = (unsigned char)p[n - k];
		size_t len = b >= 0xf5 ? 1 : b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;

		if (b < 0x80 || b >= 0xc0)
			return b >= 0xc0 && len > k ? k : 0;
	}
	return 0;
}

/* Sends what is certain: all of it at the end. Before, a stop string may begin in its
 * last bytes, and a character may not be whole. */
static void send_text(struct choice *ch)
{
	const struct completion *c = ch->completion;
	const struct params *p = &c->params;
	size_t held =
		p->stop_bytes_max > 0 && ch->finish == NULL ? p->stop_bytes_max - 1 : 0;
	size_t end = ch->text_len > held ? ch->text_len - held : 0;

	if (ch->finish == NULL && faults_hold(c->opts.faults, c->n_events))
		return;
	if (ch->finish == NULL)
		end -= open_bytes(ch->text, end);
	if (!p->is_stream || (ch->finish == NULL && end <= ch->sent))
		return;
	send_choice(
		ch, span_make(ch->text + ch->sent, end > ch->sent ? end - ch->sent : 0));
	ch->sent = MAX(ch->sent, end);
}

static void observe_token(struct choice *ch)
{
	const struct completion *c = ch->completion;
	uint64_t now_us = clock_us();

	if (ch->n_tokens++ == 0) {
		engine_observe(c->opts.histograms, ENGINE_TTFT, now_us - c->begun_us);
		ch->first_us = now_us;
	} else {
		engine_observe(c->opts.histograms, ENGINE_ITL, now_us - ch->last_us);
	}
	ch->last_us = now_us;
}

/* Observes a choice that has its last token. */
static void observe_choice(const struct choice *ch, const struct sched_seq *seq)
{
	const struct completion *c = ch->completion;
	struct engine_histograms *h = c->opts.histograms;
	size_t n_prompt = c->params.prompts[ch->index / c->params.n].n;

	engine_observe(h, ENGINE_E2E, clock_us() - c->begun_us);
	if (ch->n_tokens == 0)
		return; /* the backend failed */
	engine_observe(h, ENGINE_QUEUE, ch->admitted_us - c->begun_us);
	engine_observe(h, ENGINE_PREFILL, ch->first_us - ch->admitted_us);
	engine_observe(h, ENGINE_DECODE, ch->last_us - ch->first_us);
	engine_observe(h, ENGINE_INFERENCE, ch->last_us - ch->admitted_us);
	if (ch->n_tokens > 1)
		engine_observe(h, ENGINE_TPOT,
			(ch->last_us - ch->first_us) / (ch->n_tokens - 1));
	engine_observe(h, ENGINE_PROMPT_TOKENS, n_prompt);
	engine_observe(h, ENGINE_NEW_TOKENS, ch->n_tokens);
	if (ch->index % c->params.n == 0)
		engine_observe(h, ENGINE_COMPUTED_TOKENS, n_prompt - sched_cached(seq));
}

static void observe_answer(const struct completion *c)
{
	struct engine_histograms *h = c->opts.histograms;
	size_t longest = 0;

	for (size_t i = 0; i < c->n_choices; i++)
		longest = MAX(longest, c->choices[i].n_tokens);
	engine_observe(h, ENGINE_LONGEST_ANSWER, longest);
	engine_observe(h, ENGINE_N_ANSWER, c->params.n);
	if (c->params.max_new > 0)
		engine_observe(h, ENGINE_MAX_TOKENS, c->params.max_new);
}

static void on_begin(void *arg)
{
	struct choice *ch = arg;

	ch->admitted_us = clock_us();
}

static bool is_stop_id(const struct params *p, uint32_t id)
{
	for (size_t i = 0; i < p->stop_ids.n; i++) {
		if (p->stop_ids.ids[i] == id)
			return true;
	}
	return false;
}

/* Appends a token's text. False: out of memory. */
static bool add_text(struct choice *ch, uint32_t id)
{
	const struct completion *c = ch->completion;
	const struct vocab *vocab = c->opts.limits.vocab;

	if (mem_grow(&ch->text, &ch->text_cap, ch->text_len + vocab->text_max, 1) != 0)
		return false;
	ch->text_len += vocab->decode(vocab, id, ch->text + ch->text_len);
	if (ch->n_tokens <= c->params.min_new)
		ch->stop_from = ch->text_len;
	return true;
}

/* Whether the token ends the text. An end id has no text. */
static bool take_id(struct choice *ch, uint32_t id)
{
	struct completion *c = ch->completion;
	char *stop;

	if (vocab_is_end(c->opts.limits.vocab, id) && !c->params.ignores_eos)
		return true;
	if (!add_text(ch, id)) {
		c->has_failed = true;
		return true;
	}
	stop = find_stop(ch);
	if (stop != NULL)
		ch->text_len = (size_t)(stop - ch->text);
	return stop != NULL || is_stop_id(&c->params, id);
}

static void on_token(void *arg, struct sched_seq *seq, const struct sample_out *out)
{
	struct choice *ch = arg;
	struct completion *c = ch->completion;

	if (ch->is_over)
		return;
	if (!faults_hold(c->opts.faults, c->n_events))
		send_roles(c);
	c->new_tokens++;
	observe_token(ch);
	if (take_id(ch, out->token)) {
		sched_stop(seq);
		return;
	}
	send_text(ch);
	if (c->is_cut)
		sched_stop(seq);
}

/* Tokens of a prompt that nobody had to compute. Where another worker has computed it,
 * that one knows; what was taken from it has cost as much as what is computed here. */
static size_t cached_tokens(const struct completion *c, const struct sched_seq *seq)
{
	const struct kv_params *kv = &c->params.kv;

	if (!c->is_taken || kv->cached_tokens == UINT64_MAX)
		return sched_cached(seq);
	return MIN(kv->cached_tokens, (uint64_t)c->params.prompts[0].n);
}

/* Ends the answer, and frees it. */
static void end_completion(struct completion *c)
{
	if (c->has_begun || (c->params.is_stream && c->load == NULL))
		end_stream(c);
	else
		end_whole(c);
	completion_free(c);
}

static void on_end(void *arg, struct sched_seq *seq, enum sched_end end)
{
	struct choice *ch = arg;
	struct completion *c = ch->completion;

	assert(c->magic == COMPLETION_MAGIC && ch->seq == seq);
	if (ch->index % c->params.n == 0)
		c->cached_tokens += cached_tokens(c, seq);
	ch->seq = NULL;
	observe_choice(ch, seq);
	c->is_broken |= end == SCHED_END_ERROR;
	if (!c->is_broken)
		send_roles(c);
	ch->finish = end == SCHED_END_STOP || ch->ends_by_itself ? "stop" : "length";
	if (c->has_reserved) {
		unreserve(c);
		c->offer = handoff_offer(c->opts.handoff, seq, c->id);
	}
	if (!c->is_broken)
		send_text(ch);
	if (--c->n_open > 0 && !c->is_cut && !c->is_broken)
		return;
	observe_answer(c);
	end_completion(c);
}

void completions_break(struct completion_list *all)
{
	struct completion *c, *next;

	LIST_FOREACH_SAFE(c, &all->open, link, next)
	{
		c->is_broken = true;
		end_completion(c);
	}
}

void completions_abort(struct completion_list *all)
{
	struct completion *c, *next;

	LIST_FOREACH_SAFE(c, &all->open, link, next)
	{
		send_roles(c);
		for (size_t i = 0; i < c->n_choices; i++) {
			if (c->choices[i].seq == NULL)
				continue;
			c->choices[i].finish = "abort";
			send_text(&c->choices[i]);
		}
		end_completion(c);
	}
}

/* Prompts of other workers */

static void on_loaded(void *arg, enum kv_loaded how)
{
	static const char *const lines[] = {
		[KV_LOADED_TRANSFERRED] = "X-KV-Source: transferred\r\n",
		[KV_LOADED_LOCAL] = "X-KV-Source: local\r\n",
		[KV_LOADED_RECOMPUTED] = "X-KV-Source: recomputed\r\n",
	};
	struct completion *c = arg;

	assert(c->magic == COMPLETION_MAGIC);
	c->kv_source = lines[how];
	c->is_taken = how != KV_LOADED_RECOMPUTED;
	if (c->params.is_stream)
		begin_stream(c);
}

static void on_load_failed(void *arg, enum kvx_end_why why)
{
	struct completion *c = arg;
	bool is_pair = why == KVX_INCOMPATIBLE;
	char body[MESSAGE_BYTES];
	int n = snprintf(body, sizeof(body),
		"{\"error\":{\"message\":\"The prompt's KV blocks were not loaded: "
		"%s.\",\"type\":"
		"\"server_error\",\"param\":null,\"code\":\"%s\",\"retryable\":%s}}",
		kvx_end_text(why), is_pair ? "kv_incompatible" : "kv_load_failed",
		is_pair ? "false" : "true");

	assert(c->magic == COMPLETION_MAGIC && n > 0 && (size_t)n < sizeof(body));
	assert(!c->has_begun);
	http_call_reply(c->call, is_pair ? 409 : 502, "application/json",
		span_make(body, (size_t)n), span_make(NULL, 0));
	completion_free(c);
}

static void on_load(void *arg, struct sched_seq *seq, size_t found, size_t n)
{
	struct choice *ch = arg;
	struct completion *c = ch->completion;

	kv_load_start(c->load, seq, found, n, c->params.prompts[0].n);
}

static const struct sched_ops seq_ops = {on_begin, on_load, on_token, on_end};

/*
 * Does what its kv_transfer_params ask for one prompt. FAIL_OVERLOADED: too much
 * is kept for others already.
 */
static enum fail begin_handoff(struct completion *c)
{
	static const struct kv_load_ops ops = {on_loaded, on_load_failed};
	struct params *p = &c->params;
	struct handoff *h = c->opts.handoff;

	if (!handoff_is_on(h) || p->n_prompts != 1)
		return FAIL_NONE;
	if (p->kv.unusable != NULL)
		log_warn("kv_transfer_params are of no use, the prompt is computed here: "
			 "%s",
			p->kv.unusable);
	if (p->kv.ask == KV_ASK_TAKE)
		c->load = kv_load_new(h, &p->kv, &ops, c);
	if (p->kv.ask != KV_ASK_KEEP || p->n != 1 || p->is_stream)
		return FAIL_NONE;
	c->has_reserved = handoff_reserve(h, p->prompts[0].n);
	if (!c->has_reserved)
		return FAIL_OVERLOADED;
	p->max_new = 1; /* the other worker computes all tokens, this one again */
	p->min_new = MIN(p->min_new, 1u);
	return FAIL_NONE;
}

/* The beginning */

/* How many tokens a choice gets when the request does not say. */
static uint32_t default_length(
	const struct completion *c, const struct token_list *prompt, struct choice *ch)
{
	const struct vocab *vocab = c->opts.limits.vocab;
	uint64_t n = PARAMS_N_DEFAULT_TOKENS,
		 room = c->opts.limits.max_model_len - prompt->n;
	bool is_natural =
		c->params.is_chat && !c->params.ignores_eos && vocab->answer_left != NULL;

	if (is_natural)
		n = vocab->answer_left(vocab, prompt, &c->params.before);
	else if (c->params.is_chat)
		n = room;
	n = MAX(n, (uint64_t)c->params.min_new);
	ch->is_over = is_natural && n == 0;
	n = MAX(n, (uint64_t)1);
	ch->ends_by_itself = is_natural && n <= room;
	return (uint32_t)MIN(n, room);
}

static int submit(struct completion *c, size_t i)
{
	const struct token_list *prompt = &c->params.prompts[i / c->params.n];
	struct choice *ch = &c->choices[i];
	size_t nth = i % c->params.n;
	struct sched_request r = {
		.prompt = prompt->ids,
		.n_prompt = prompt->n,
		.max_new = c->params.max_new,
		.seed = c->params.seed,
		.priority = c->params.priority,
		.sampling = c->params.sampling,
		.wants_load = c->load != NULL && nth == 0,
		.keeps_prompt = c->has_reserved,
		.fork_of = nth > 0 ? c->choices[i - nth].seq : NULL,
		.ops = &seq_ops,
		.arg = ch,
	};

	r.sampling.choice = nth;
	ch->completion = c;
	ch->index = (unsigned)i;
	if (r.max_new == 0)
		r.max_new = default_length(c, prompt, ch);
	ch->seq = sched_submit(c->opts.sched, &r);
	return ch->seq != NULL ? 0 : ERR_NOMEM;
}

static int submit_all(struct completion *c)
{
	size_t n = c->params.n_prompts * c->params.n;

	c->choices = calloc(n, sizeof(*c->choices));
	if (c->choices == NULL)
		return ERR_NOMEM;
	c->n_choices = n;
	for (size_t i = 0; i < n; i++) {
		int err = submit(c, i);

		if (err != 0)
			return err;
		c->n_open++;
		if (i % c->params.n == 0)
			c->prompt_tokens += c->params.prompts[i / c->params.n].n;
	}
	return 0;
}

static int name_it(struct completion *c)
{
	uint64_t number;
	struct js *root;

	rng_secret(&number, sizeof(number));
	(void)snprintf(c->id, sizeof(c->id), "%s-%016" PRIx64,
		c->params.is_chat ? "chatcmpl" : "cmpl", number);
	c->created = (int64_t)(clock_wall_ms() / 1000);
	if (!c->params.is_stream)
		return 0;
	root = envelope(c);
	c->head = js_print(root, false);
	js_free(root);
	if (c->head == NULL)
		return ERR_NOMEM;
	c->head[strlen(c->head) - 1] = '\0';
	return 0;
}

/* The rank that a router asks for. Each has a cache of its own, as engines' ranks have;
 * what is no number is ignored, as they do. */
static uint64_t data_parallel_rank(const struct http_call *call)
{
	uint64_t rank = 0;

	if (span_to_u64(http_call_field(call, "X-data-parallel-rank"), &rank) != 0)
		rank = 0;
	return rank;
}

/* Others may have room: the client is told to come back, or to go there. */
static void refuse_full(struct http_call *call, enum fail why)
{
	char body[MESSAGE_BYTES];
	int n = snprintf(body, sizeof(body),
		"{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":"
		"\"%s\"}}",
		why == FAIL_QUEUE_FULL ? fail_text(why)
				       : "Too much is kept for other workers.",
		fail_type(why), fail_code(why));

	assert(n > 0 && (size_t)n < sizeof(body));
	http_call_reply(call, fail_status(why), "application/json",
		span_make(body, (size_t)n), SPAN_LIT("Retry-After: 1\r\n"));
}

/* FAIL_NONE: the choices are on their way; else message says why not, and is empty where
 * others may have room. */
static enum fail begin(struct completion *c, bool is_chat, char *message, size_t n)
{
	enum fail why;

	message[0] = '\0';
	c->opts.limits.rank = data_parallel_rank(c->call);
	why = params_read(http_call_body(c->call), is_chat, &c->opts.limits, &c->params,
		message, n);
	if (why != FAIL_NONE)
		return why;
	if (sched_refuse(c->opts.sched, c->params.n_prompts * c->params.n))
		return FAIL_QUEUE_FULL;
	why = begin_handoff(c);
	if (why != FAIL_NONE)
		return why;
	if (name_it(c) == 0 && submit_all(c) == 0)
		return FAIL_NONE;
	(void)snprintf(message, n, "The engine is out of memory.");
	return FAIL_OVERLOADED;
}

void completion_start(
	const struct completion_opts *opts, struct http_call *call, bool is_chat)
{
	char message[MESSAGE_BYTES];
	struct completion *c = calloc(1, sizeof(*c));
	enum fail why;

	if (c == NULL) {
		http_call_fail_text(
			call, FAIL_OVERLOADED, "The engine is out of memory.");
		return;
	}
	c->magic = COMPLETION_MAGIC;
	c->opts = *opts;
	c->call = call;
	c->begun_us = clock_us();
	LIST_INSERT_HEAD(&opts->all->open, c, link);
	opts->all->n++;
	why = begin(c, is_chat, message, sizeof(message));
	if (why != FAIL_NONE) {
		if (message[0] == '\0')
			refuse_full(call, why);
		else
			http_call_fail_text(call, why, message);
		completion_free(c);
		return;
	}
	http_call_watch(call, on_gone, on_writable, c);
	if (c->params.is_stream && c->load == NULL)
		begin_stream(c);
}
