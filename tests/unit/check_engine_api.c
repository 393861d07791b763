/*
 * The engine's API over a backend that is not sim: blocks of seven tokens, ids that are
 * bytes, an id that ends a text. What a request asks for reaches the backend, what the
 * backend says reaches the client, and until it is open the client hears that it loads.
 */
#include "api/serve.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "core/engine.h"
#include "core/vocab.h"
#include "io/fetch.h"
#include "io/js.h"
#include "io/loop.h"
#include "io/sock.h"
#include "kvx/kv_handoff.h"
#include "unit.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum {
	FAKE_BLOCKS = 32,
	FAKE_TOKENS = 7,
	FAKE_VOCAB = 300,
	FAKE_END = 256,
	ROWS_MAX = 8
};
enum { WAIT_US = 10000000 };

/* What the fake is to do, and what it saw */

static atomic_bool holds_open; /* open() does not return */
static int open_err;
static uint32_t fake_vocab_size, fake_positions;
static const uint32_t *script; /* the tokens of every answer; 0 is "a" behind its end */
static size_t n_script;
static struct sample_opts seen; /* of the last row */
static uint32_t seen_stop_ids[4], seen_past, seen_prompt;

struct backend {
	struct backend_opts opts;
	uint32_t tokens[ROWS_MAX];
};

static int fake_open(const struct backend_opts *opts, struct backend **out)
{
	while (atomic_load(&holds_open)) {
		if (opts->gives_up(opts->arg))
			return ERR_CLOSED;
		sched_yield();
	}
	if (open_err != 0)
		return open_err;
	*out = calloc(1, sizeof(**out));
	(*out)->opts = *opts;
	return 0;
}

static void fake_close(struct backend *b)
{
	free(b);
}

static void fake_shape(const struct backend *b UNUSED, struct backend_shape *out)
{
	*out = (struct backend_shape){
		.n_blocks = FAKE_BLOCKS,
		.block_tokens = FAKE_TOKENS,
		.block_bytes = 100,
		.vocab = fake_vocab_size,
		.max_positions = fake_positions,
	};
}

static int fake_step(struct backend *b, const struct backend_row *rows, size_t n)
{
	ck_assert_uint_le(n, ROWS_MAX);
	for (size_t i = 0; i < n; i++) {
		const struct backend_row *r = &rows[i];
		size_t k = r->n_past + r->n_new - r->n_prompt;

		ck_assert_uint_eq(r->n_blocks,
			(r->n_past + r->n_new + FAKE_TOKENS - 1) / FAKE_TOKENS);
		b->tokens[i] = k < n_script ? script[k] : 'a';
		seen = *r->sampling;
		seen_past = r->n_past;
		seen_prompt = r->n_prompt;
		for (size_t j = 0; j < MIN(seen.n_stop_ids, 4u); j++)
			seen_stop_ids[j] = seen.stop_ids[j];
	}
	b->opts.on_done(b->opts.arg);
	return 0;
}

static int fake_collect(struct backend *b, struct backend_row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		rows[i].is_broken = false;
		*rows[i].out = (struct sample_out){.token = b->tokens[i]};
	}
	return 0;
}

static void fake_copy(
	struct backend *b UNUSED, const uint32_t (*pairs)[2] UNUSED, size_t n UNUSED)
{
}

static void fake_drop(
	struct backend *b UNUSED, const uint32_t *blocks UNUSED, size_t n UNUSED)
{
}

static int encode(const struct vocab *v UNUSED, struct span text, struct token_list *out)
{
	for (size_t i = 0; i < text.n; i++) {
		if (token_push(out, (unsigned char)text.p[i]) != 0)
			return ERR_NOMEM;
	}
	return 0;
}

static size_t decode(const struct vocab *v UNUSED, uint32_t id, char *out)
{
	ck_assert_uint_ne(id, FAKE_END);
	out[0] = (char)id;
	return id < 256;
}

static int render(const struct vocab *v UNUSED, const struct js *body, struct text *out,
	size_t *answer_from, const char **why)
{
	struct span text;

	if (!js_as_str(js_get(js_at(js_get(body, "messages"), 0), "content"), &text)) {
		*why = "the fake wants a text";
		return ERR_PARSE;
	}
	text_printf(out, "[" SPAN_FMT "]", SPAN_ARG(text));
	*answer_from = out->n;
	return 0;
}

static const struct vocab *fake_vocab(const struct backend *b UNUSED)
{
	static const uint32_t ends[] = {FAKE_END};
	static const struct vocab vocab = {
		.n = FAKE_VOCAB,
		.text_max = 1,
		.ends = ends,
		.n_ends = 1,
		.encode = encode,
		.decode = decode,
		.render = render,
	};

	return &vocab;
}

static const struct backend_ops fake = {
	.name = "fake",
	.open = fake_open,
	.close = fake_close,
	.shape = fake_shape,
	.vocab = fake_vocab,
	.step = fake_step,
	.collect = fake_collect,
	.copy = fake_copy,
	.drop = fake_drop,
};

/* The rig */

static struct loop *loop;
static struct engine *engine;
static struct serve *serve;
static struct fetcher *fetcher;
static struct handoff_opts handoff;
static char base[64];
static int readiness; /* what on_ready() said; 1: nothing yet */

static void on_ready(void *arg UNUSED, int err)
{
	readiness = err == 0 ? serve_ready(serve) : err;
}

static void open_all(void)
{
	struct engine_opts opts = {
		.backend = &fake,
		.sched = {.max_seqs = ROWS_MAX, .max_waiting = 9, .step_tokens = 64},
		.on_ready = on_ready,
	};
	struct serve_opts serve_opts = {.model = "a-model", .handoff = &handoff};
	union sock_addr a;
	socklen_t n = sizeof(a);
	int fd;

	readiness = 1;
	loop = loop_new();
	ck_assert_int_eq(sock_addr_parse("127.0.0.1", 0, &a), 0);
	ck_assert_int_eq(sock_listen(&a, &fd), 0);
	ck_assert_int_eq(getsockname(fd, &a.sa, &n), 0);
	(void)snprintf(
		base, sizeof(base), "http://127.0.0.1:%u", ntohs(sock_addr_port(&a)));
	ck_assert_int_eq(engine_new(loop, &opts, &engine), 0);
	ck_assert_int_eq(serve_new(loop, fd, engine, &serve_opts, &serve), 0);
	fetcher = fetcher_new(loop);
}

static void await_ready(void)
{
	while (readiness == 1)
		loop_turn(loop, -1);
}

static void set_up(void)
{
	atomic_store(&holds_open, false);
	open_err = 0;
	fake_vocab_size = FAKE_VOCAB;
	fake_positions = 0;
	n_script = 0;
}

static void close_all(void)
{
	fetcher_free(fetcher);
	serve_free(serve);
	engine_free(engine);
	loop_free(loop);
}

static int status;
static char answer[65536];

static void on_answer(void *arg UNUSED, const struct fetch_answer *a)
{
	ck_assert_msg(a->result == FETCH_OK, "%s", a->error);
	ck_assert_uint_lt(a->body.n, sizeof(answer));
	memcpy(answer, a->body.p, a->body.n);
	answer[a->body.n] = '\0';
	status = a->status;
}

/* body NULL: GET. Status and body are in `status` and `answer`. */
static void ask(const char *path, const char *body)
{
	char url[256];
	uint64_t end_us = clock_us() + WAIT_US;
	struct fetch_request r = {
		.url = url,
		.method = body != NULL ? "POST" : "GET",
		.body = body != NULL ? span_str(body) : span_make(NULL, 0),
		.max_body = sizeof(answer) - 1,
	};

	(void)snprintf(url, sizeof(url), "%s%s", base, path);
	status = 0;
	ck_assert_ptr_nonnull(fetch_start(fetcher, &r, on_answer, NULL));
	while (status == 0) {
		ck_assert_msg(clock_us() < end_us, "no answer");
		loop_turn(loop, 100);
	}
}

static void says(const char *what)
{
	ck_assert_msg(strstr(answer, what) != NULL, "no %s in %s", what, answer);
}

static void says_not(const char *what)
{
	ck_assert_msg(strstr(answer, what) == NULL, "%s in %s", what, answer);
}

/* Loading */

START_TEST(loading_is_said)
{
	static const char *const paths[] = {"/v1/models", "/server_info", "/metrics"};

	atomic_store(&holds_open, true);
	open_all();
	for (int k = 0; k < 2; k++) {
		ask(k == 0 ? "/health" : "/health?deep=1", NULL);
		ck_assert_int_eq(status, 503);
		says("\"status\":\"loading\"");
	}
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		ask(paths[i], NULL);
		ck_assert_int_eq(status, 503);
		says("\"code\":\"loading\"");
	}
	ask("/v1/completions", "{\"prompt\":\"x\"}");
	ck_assert_int_eq(status, 503);
	says("\"code\":\"loading\"");
	ask("/version", NULL);
	ck_assert_int_eq(status, 200);
	ck_assert_int_eq(readiness, 1);
	atomic_store(&holds_open, false);
	await_ready();
	ck_assert_int_eq(readiness, 0);
	ask("/health?deep=1", NULL);
	ck_assert_int_eq(status, 200);
	says("\"status\":\"ok\"");
	ask("/v1/completions", "{\"prompt\":\"x\"}");
	ck_assert_int_eq(status, 200);
	close_all();
}
END_TEST

/* Whoever ends the engine while it loads waits for open() to give up, and no longer. */
START_TEST(an_end_while_loading)
{
	atomic_store(&holds_open, true);
	open_all();
	loop_turn(loop, 0);
	close_all();
	ck_assert_int_eq(readiness, 1);
}
END_TEST

START_TEST(what_cannot_be_opened_is_said)
{
	open_err = ERR_NOENT;
	open_all();
	await_ready();
	ck_assert_int_eq(readiness, ERR_NOENT);
	ck_assert(!engine_is_ready(engine));
	ask("/health", NULL);
	ck_assert_int_eq(status, 503);
	close_all();
}
END_TEST

/* A model and a tokenizer that do not speak of the same ids. */
START_TEST(the_vocabulary_must_fit)
{
	fake_vocab_size = FAKE_VOCAB - 1;
	open_all();
	await_ready();
	ck_assert_int_eq(readiness, ERR_UNSUPPORTED);
	close_all();
}
END_TEST

/* Shape and tokens */

START_TEST(sizes_are_the_backends)
{
	open_all();
	await_ready();
	ask("/server_info", NULL);
	says("\"backend\":\"fake\"");
	says("\"block_size\":7");
	says("\"num_blocks\":32");
	says("\"max_model_len\":224");
	ask("/v1/models", NULL);
	says("\"id\":\"a-model\"");
	says("\"owned_by\":\"kvsteer-fake\"");
	ask("/metrics", NULL);
	says("block_size=\"7\",num_gpu_blocks=\"32\"");
	close_all();
	fake_positions = 100;
	open_all();
	await_ready();
	ask("/server_info", NULL);
	says("\"max_model_len\":100");
	close_all();
}
END_TEST

START_TEST(tokens_are_the_vocabularys)
{
	open_all();
	await_ready();
	ask("/tokenize", "{\"prompt\":\"ab\"}");
	says("\"tokens\":[97,98]");
	ask("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
	says("\"tokens\":[91,97,93]");
	ask("/tokenize", "{\"messages\":[]}");
	ck_assert_int_eq(status, 400);
	says("the fake wants a text");
	ask("/detokenize", "{\"tokens\":[99,100]}");
	says("\"prompt\":\"cd\"");
	ask("/detokenize", "{\"tokens\":[300]}");
	ck_assert_int_eq(status, 400);
	says("from 0 to 299");
	close_all();
}
END_TEST

/* Sampling */

START_TEST(what_is_asked_reaches_the_row)
{
	open_all();
	await_ready();
	ask("/v1/completions", "{\"prompt\":\"abcdefgh\",\"max_tokens\":3}");
	ck_assert_int_eq(status, 200);
	ck_assert(seen.temperature == 1 && seen.top_p == 1 && seen.min_p == 0 &&
		  seen.top_k == 0 && seen.repetition_penalty == 1 &&
		  seen.presence_penalty == 0 && seen.frequency_penalty == 0 &&
		  !seen.has_seed && !seen.ignores_ends && !seen.wants_logprobs &&
		  seen.n_stop_ids == 0 && seen.min_new == 0 && seen.choice == 0);
	ck_assert(seen_prompt == 8 && seen_past == 9);
	ask("/v1/completions",
		"{\"prompt\":\"a\",\"max_tokens\":5,\"n\":2,\"temperature\":0.25,"
		"\"top_p\":0.5,\"top_k\":40,\"min_p\":0.125,\"seed\":-3,"
		"\"presence_penalty\":1.5,\"frequency_penalty\":-0.5,"
		"\"repetition_penalty\":1.25,\"stop_token_ids\":[7,299],"
		"\"min_tokens\":2,\"ignore_eos\":true,\"logprobs\":4}");
	ck_assert_int_eq(status, 200);
	ck_assert(seen.temperature == 0.25 && seen.top_p == 0.5 && seen.min_p == 0.125 &&
		  seen.top_k == 40 && seen.repetition_penalty == 1.25 &&
		  seen.presence_penalty == 1.5 && seen.frequency_penalty == -0.5);
	ck_assert(seen.has_seed && seen.seed == (uint64_t)-3 && seen.ignores_ends &&
		  seen.wants_logprobs && seen.n_top == 4 && seen.min_new == 2 &&
		  seen.choice == 1);
	ck_assert(
		seen.n_stop_ids == 2 && seen_stop_ids[0] == 7 && seen_stop_ids[1] == 299);
	ask("/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1,"
		"\"logprobs\":true,\"top_logprobs\":20,\"top_k\":-1}");
	ck_assert_int_eq(status, 200);
	ck_assert(seen.wants_logprobs && seen.n_top == 20 && seen.top_k == 0);
	close_all();
}
END_TEST

START_TEST(what_cannot_be_asked)
{
	static const char *const bodies[] = {
		"\"temperature\":-1",
		"\"top_p\":1.5",
		"\"min_p\":2",
		"\"top_k\":-2",
		"\"top_k\":1.5",
		"\"presence_penalty\":3",
		"\"frequency_penalty\":\"x\"",
		"\"repetition_penalty\":0",
		"\"seed\":\"x\"",
		"\"logprobs\":21",
		"\"stop_token_ids\":7",
		"\"stop_token_ids\":[300]",
	};
	char body[256];

	open_all();
	await_ready();
	for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
		(void)snprintf(body, sizeof(body), "{\"prompt\":\"a\",%s}", bodies[i]);
		ask("/v1/completions", body);
		ck_assert_msg(status == 400, "%s: %d", bodies[i], status);
	}
	ask("/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
		"\"top_logprobs\":2}");
	ck_assert_int_eq(status, 400);
	close_all();
}
END_TEST

/* Ends */

START_TEST(an_end_id_ends_the_text)
{
	static const uint32_t ids[] = {'o', 'n', 'e', FAKE_END, 'x'};

	open_all();
	await_ready();
	script = ids;
	n_script = ARRAY_LEN(ids);
	ask("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":9}");
	says("\"text\":\"one\"");
	says("\"finish_reason\":\"stop\"");
	says("\"completion_tokens\":4");
	ask("/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
	says("\"content\":\"one\"");
	says("\"finish_reason\":\"stop\"");
	ask("/v1/completions",
		"{\"prompt\":\"a\",\"max_tokens\":9,\"stop_token_ids\":[110]}");
	says("\"text\":\"on\"");
	says("\"finish_reason\":\"stop\"");
	script = (const uint32_t[]){'o', 'k'};
	n_script = 2;
	ask("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":2}");
	says("\"text\":\"ok\"");
	says("\"finish_reason\":\"length\"");
	close_all();
}
END_TEST

/* Such a token is no text of anything: the answer fails, and its blocks are forgotten. */
START_TEST(a_token_beyond_the_vocabulary)
{
	static const uint32_t ids[] = {'a', FAKE_VOCAB};

	open_all();
	await_ready();
	script = ids;
	n_script = ARRAY_LEN(ids);
	ask("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":3}");
	ck_assert_int_eq(status, 500);
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->broken, 1);
	ask("/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":3}");
	ck_assert_int_eq(status, 200);
	says("\"text\":\"a\"");
	says("data: {\"error\":{\"message\":\"The engine failed.\"");
	says("data: [DONE]\n\n");
	says_not("finish_reason\":\"length");
	ck_assert_uint_eq(sched_counts(engine_sched(engine))->broken, 2);
	close_all();
}
END_TEST

/* UTF-8 */

/* The events of a stream of these bytes, one a token. */
static void stream(const char *bytes, const char *more)
{
	static uint32_t ids[64];
	char body[256];

	n_script = strlen(bytes);
	ck_assert_uint_le(n_script, ARRAY_LEN(ids));
	for (size_t i = 0; i < n_script; i++)
		ids[i] = (unsigned char)bytes[i];
	script = ids;
	(void)snprintf(body, sizeof(body),
		"{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":%zu%s}", n_script,
		more);
	ask("/v1/completions", body);
	ck_assert_int_eq(status, 200);
}

START_TEST(streams_hold_back_half_characters)
{
	open_all();
	await_ready();
	stream("x\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80y", "");
	says("\"text\":\"x\"");
	says("\"text\":\"\xc3\xa9\"");
	says("\"text\":\"\xe2\x82\xac\"");
	says("\"text\":\"\xf0\x9f\x98\x80\"");
	says("\"text\":\"y\"");
	says_not("\xef\xbf\xbd");
	/* nor when a stop string is awaited, whatever it holds back */
	stream("\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f\x98\x80", ",\"stop\":\"zz\"");
	says_not("\xef\xbf\xbd");
	/* what never becomes whole is replaced in the end; what never can be, at once */
	stream("x\xe2\x82", "");
	says("\"text\":\"x\"");
	says("\"text\":\"\xef\xbf\xbd");
	says("\"finish_reason\":\"length\"");
	stream("\xff\x80z", "");
	says("\"text\":\"\xef\xbf\xbd\"");
	says("\"text\":\"z\"");
	close_all();
}
END_TEST

static Suite *api_suite(void)
{
	Suite *suite = suite_create("engine_api");
	TCase *tc = tcase_create("engine_api");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, set_up, NULL);
	tcase_add_test(tc, loading_is_said);
	tcase_add_test(tc, an_end_while_loading);
	tcase_add_test(tc, what_cannot_be_opened_is_said);
	tcase_add_test(tc, the_vocabulary_must_fit);
	tcase_add_test(tc, sizes_are_the_backends);
	tcase_add_test(tc, tokens_are_the_vocabularys);
	tcase_add_test(tc, what_is_asked_reaches_the_row);
	tcase_add_test(tc, what_cannot_be_asked);
	tcase_add_test(tc, an_end_id_ends_the_text);
	tcase_add_test(tc, a_token_beyond_the_vocabulary);
	tcase_add_test(tc, streams_hold_back_half_characters);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(api_suite())
