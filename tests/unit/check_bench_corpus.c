/*
 * Prompts: sizes by the engine's own tokenizer, what repeats and what does not, traces
 * rebuilt block by block, and conversations that carry the answers on.
 */
#include "backend/token.h"
#include "base/err.h"
#include "bench/corpus.h"
#include "bench/words.h"
#include "io/js.h"
#include "tests/unit/unit.h"

#include <string.h>

static struct corpus_opts opts;
static struct corpus *corpus;
static struct job job;
static struct trace trace;
static struct text answer;

static void set_up(void)
{
	memset(&opts, 0, sizeof(opts));
	memset(&job, 0, sizeof(job));
	memset(&trace, 0, sizeof(trace));
	memset(&answer, 0, sizeof(answer));
	opts = (struct corpus_opts){.kind = CORPUS_COLD,
		.seed = 1,
		.prompt = {100, 100},
		.output = {8, 8},
		.groups = 1,
		.prompts = 4,
		.turns = 3,
		.conversations = 2,
		.tokens_per_word = 1,
		.model = "m"};
	corpus = NULL;
}

static void tear_down(void)
{
	corpus_free(corpus);
	text_free(&job.body);
	text_free(&answer);
	trace_free(&trace);
}

static size_t count_tokens(struct span text)
{
	struct token_list list = {NULL, 0, 0};
	size_t n;

	ck_assert_int_eq(token_encode(&list, text), 0);
	n = list.n;
	token_list_free(&list);
	return n;
}

static struct js *parse(const struct job *j)
{
	const char *why;
	struct js *root = js_parse(text_span(&j->body), &why);

	ck_assert_msg(root != NULL, "%s", why);
	return root;
}

/* The prompt of the next job of a completions corpus, which the caller frees. */
static char *next_prompt(void)
{
	struct js *root;
	struct span text;
	char *copy;

	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	root = parse(&job);
	ck_assert(js_as_str(js_get(root, "prompt"), &text));
	copy = span_dup(text);
	js_free(root);
	corpus_done(corpus, &job, true, span_make(NULL, 0));
	return copy;
}

static size_t common(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] != '\0' && a[n] == b[n])
		n++;
	return n;
}

/* ---- words ---- */

START_TEST(words_are_fixed)
{
	struct text a = {0}, b = {0};

	words_add(&a, 1, 2, 1000);
	words_add(&b, 1, 2, 10);
	ck_assert_uint_eq(a.n, 4000);
	ck_assert_uint_eq(count_tokens(text_span(&a)), 1000);
	ck_assert(memcmp(a.p, b.p, 40) == 0); /* fewer are a prefix */
	text_clear(&b);
	words_add(&b, 1, 3, 1000);
	ck_assert(memcmp(a.p, b.p, 64) != 0);
	text_clear(&b);
	words_add(&b, 2, 2, 1000);
	ck_assert(memcmp(a.p, b.p, 64) != 0);
	text_free(&a);
	text_free(&b);
}
END_TEST

/* Stability: traces replayed by different releases are to be the same prompts. */
START_TEST(words_known)
{
	struct text a = {0};

	words_add(&a, 1, 0, 6);
	text_add(&a, SPAN_LIT("\0"));
	ck_assert_str_eq(a.p, " man its did one box use");
	text_free(&a);
}
END_TEST

START_TEST(words_for_tokens)
{
	ck_assert_uint_eq(words_for(512, 1), 512);
	ck_assert_uint_eq(words_for(512, 2), 256);
	ck_assert_uint_eq(words_for(512, 0.5), 1024);
	ck_assert_uint_eq(words_for(100, 1.3), 77);
	ck_assert_uint_eq(words_for(0, 1), 1);
}
END_TEST

/* ---- kinds ---- */

START_TEST(cold_never_repeats)
{
	char *prompts[50];

	corpus = corpus_new(&opts);
	for (size_t i = 0; i < ARRAY_LEN(prompts); i++) {
		prompts[i] = next_prompt();
		ck_assert_uint_eq(job.prompt_tokens, 100);
		ck_assert_uint_eq(count_tokens(span_str(prompts[i])), 100);
		for (size_t k = 0; k < i; k++) /* not even a block of 16 tokens */
			ck_assert_uint_lt(common(prompts[i], prompts[k]), 64);
	}
	for (size_t i = 0; i < ARRAY_LEN(prompts); i++)
		free(prompts[i]);
}
END_TEST

START_TEST(hot_repeats)
{
	char *prompts[4] = {NULL};
	size_t n = 0;

	opts.kind = CORPUS_HOT;
	corpus = corpus_new(&opts);
	for (int i = 0; i < 200; i++) {
		char *p = next_prompt();
		size_t k;

		for (k = 0; k < n && strcmp(prompts[k], p) != 0; k++)
			;
		ck_assert_uint_lt(k, ARRAY_LEN(prompts));
		if (k == n)
			prompts[n++] = p;
		else
			free(p);
	}
	ck_assert_uint_eq(n, 4); /* all of them come */
	while (n > 0)
		free(prompts[--n]);
}
END_TEST

START_TEST(shared_prefix)
{
	char *first, *p;

	opts.kind = CORPUS_SHARED_PREFIX;
	opts.shared_tokens = 60;
	corpus = corpus_new(&opts);
	first = next_prompt();
	for (int i = 0; i < 20; i++) {
		p = next_prompt();
		ck_assert_uint_ge(common(first, p), 240);
		ck_assert_uint_lt(common(first, p), 240 + 64);
		ck_assert_uint_eq(count_tokens(span_str(p)), 100);
		free(p);
	}
	free(first);
}
END_TEST

START_TEST(shared_prefix_in_groups)
{
	char *prompts[60];
	unsigned alike = 0;

	opts.kind = CORPUS_SHARED_PREFIX;
	opts.shared_tokens = 100; /* nothing of their own */
	opts.groups = 3;
	corpus = corpus_new(&opts);
	for (size_t i = 0; i < ARRAY_LEN(prompts); i++) {
		prompts[i] = next_prompt();
		alike += i > 0 && strcmp(prompts[0], prompts[i]) == 0;
	}
	ck_assert_uint_gt(alike, 5);
	ck_assert_uint_lt(alike, 45);
	for (size_t i = 0; i < ARRAY_LEN(prompts); i++)
		free(prompts[i]);
}
END_TEST

START_TEST(sizes_of_a_range)
{
	uint64_t least = UINT64_MAX, most = 0;

	opts.prompt = (struct size_range){10, 14};
	opts.output = (struct size_range){1, 3};
	corpus = corpus_new(&opts);
	for (int i = 0; i < 200; i++) {
		char *p = next_prompt();

		ck_assert_uint_eq(count_tokens(span_str(p)), job.prompt_tokens);
		ck_assert(job.output_tokens >= 1 && job.output_tokens <= 3);
		least = MIN(least, job.prompt_tokens);
		most = MAX(most, job.prompt_tokens);
		free(p);
	}
	ck_assert_uint_eq(least, 10);
	ck_assert_uint_eq(most, 14);
}
END_TEST

START_TEST(a_seed_fixes_it)
{
	struct corpus *other = corpus_new(&opts);
	struct job j = {.output_tokens = 0};

	corpus = corpus_new(&opts);
	for (int i = 0; i < 5; i++) {
		char *p = next_prompt();

		ck_assert_int_eq(corpus_next(other, &j), 0);
		ck_assert_uint_eq(j.body.n, job.body.n);
		ck_assert(memcmp(j.body.p, job.body.p, j.body.n) == 0);
		corpus_done(other, &j, true, span_make(NULL, 0));
		free(p);
	}
	text_free(&j.body);
	corpus_free(other);
}
END_TEST

/* ---- bodies ---- */

START_TEST(keys_of_a_body)
{
	struct js *root;
	struct span s;
	int64_t n;
	bool on;

	opts.is_chat = opts.is_stream = opts.ignore_eos = true;
	opts.overhead = 8;
	opts.model = "a \"b\"\\\n";
	corpus = corpus_new(&opts);
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	corpus_done(corpus, &job, true, span_make(NULL, 0));
	root = parse(&job);
	ck_assert(js_as_str(js_get(root, "model"), &s) && span_is(s, opts.model));
	ck_assert(js_as_int(js_get(root, "max_tokens"), &n) && n == 8);
	ck_assert(js_as_bool(js_get(root, "stream"), &on) && on);
	ck_assert(js_as_bool(js_get(root, "ignore_eos"), &on) && on);
	ck_assert(js_as_bool(
			  js_get(js_get(root, "stream_options"), "include_usage"), &on) &&
		  on);
	ck_assert_uint_eq(js_len(js_get(root, "messages")), 1);
	ck_assert(js_as_str(js_get(js_at(js_get(root, "messages"), 0), "content"), &s));
	ck_assert_uint_eq(count_tokens(s), 92);
	js_free(root);
}
END_TEST

START_TEST(whole_answers_ask_for_no_stream)
{
	struct js *root;

	corpus = corpus_new(&opts);
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	corpus_done(corpus, &job, true, span_make(NULL, 0));
	root = parse(&job);
	ck_assert_ptr_null(js_get(root, "stream"));
	ck_assert_ptr_null(js_get(root, "stream_options"));
	ck_assert_ptr_null(js_get(root, "ignore_eos"));
	js_free(root);
}
END_TEST

/* ---- traces ---- */

static void read_trace(const char *text)
{
	struct trace_fault fault;

	ck_assert_int_eq(trace_read(span_str(text), &trace, &fault), 0);
	opts.kind = CORPUS_TRACE;
	opts.trace = &trace;
	corpus = corpus_new(&opts);
}

START_TEST(blocks_of_a_trace)
{
	char *a, *b, *c;

	read_trace(
		"{\"timestamp\":0,\"input_length\":1500,\"output_length\":5,\"hash_ids\":"
		"[7,8,9]}\n"
		"{\"timestamp\":1,\"input_length\":1024,\"output_length\":0,\"hash_ids\":"
		"[7,10]}\n"
		"{\"timestamp\":2,\"input_length\":600,\"output_length\":5,\"hash_ids\":"
		"[10,7]}\n");
	a = next_prompt();
	ck_assert_uint_eq(job.output_tokens, 5);
	b = next_prompt();
	ck_assert_uint_eq(job.output_tokens, 1);
	c = next_prompt();
	ck_assert_uint_eq(count_tokens(span_str(a)), 1500);
	ck_assert_uint_eq(count_tokens(span_str(b)), 1024);
	ck_assert_uint_eq(count_tokens(span_str(c)), 600);
	ck_assert_uint_ge(common(a, b), 2048);
	ck_assert_uint_lt(common(a, b), 2048 + 64);
	/* An id is its text wherever it stands, a cut block the beginning of it. */
	ck_assert(memcmp(c, b + 2048, 2048) == 0);
	ck_assert(memcmp(c + 2048, a, 88 * 4) == 0);
	ck_assert_int_eq(corpus_next(corpus, &job), ERR_NOENT);
	free(a);
	free(b);
	free(c);
}
END_TEST

/* Shorter than the template, without ids, and cut below its last block by the template.
 */
START_TEST(small_ones_of_a_trace)
{
	static const size_t want[] = {1, 1, 507};

	opts.is_chat = true;
	opts.overhead = 8;
	read_trace(
		"{\"timestamp\":0,\"input_length\":3,\"output_length\":5,\"hash_ids\":[7]"
		"}\n"
		"{\"timestamp\":1,\"input_length\":0,\"output_length\":5,\"hash_ids\":[]}"
		"\n"
		"{\"timestamp\":2,\"input_length\":515,\"output_length\":5,\"hash_ids\":"
		"[10,7]}\n");
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct js *root;
		struct span s;

		ck_assert_int_eq(corpus_next(corpus, &job), 0);
		root = parse(&job);
		ck_assert(js_as_str(
			js_get(js_at(js_get(root, "messages"), 0), "content"), &s));
		ck_assert_uint_eq(count_tokens(s), want[i]);
		js_free(root);
		corpus_done(corpus, &job, true, span_make(NULL, 0));
	}
}
END_TEST

/* Two tokens for each word: half the words, blocks still apart at the same places. */
START_TEST(a_trace_with_longer_tokens)
{
	char *a, *b;

	opts.tokens_per_word = 2;
	read_trace(
		"{\"timestamp\":0,\"input_length\":1000,\"output_length\":5,\"hash_ids\":"
		"[7,8]}\n"
		"{\"timestamp\":1,\"input_length\":1000,\"output_length\":5,\"hash_ids\":"
		"[7,9]}\n");
	a = next_prompt();
	b = next_prompt();
	ck_assert_uint_eq(strlen(a), 500 * 4);
	ck_assert_uint_ge(common(a, b), 256 * 4);
	ck_assert_uint_lt(common(a, b), 256 * 4 + 64);
	free(a);
	free(b);
}
END_TEST

/* ---- conversations ---- */

static size_t n_messages(struct span *last, struct span *before)
{
	static struct js *root;
	struct js *list;
	size_t n;

	js_free(root);
	root = parse(&job);
	list = js_get(root, "messages");
	n = js_len(list);
	ck_assert(js_as_str(js_get(js_at(list, n - 1), "content"), last));
	if (n > 1)
		ck_assert(js_as_str(js_get(js_at(list, n - 2), "content"), before));
	return n;
}

START_TEST(a_conversation_repeats_the_answers)
{
	static const char said[] = "he said \"no\\\"\n\xc3\xa9";
	struct span last, before;

	opts.kind = CORPUS_CONVERSATIONS;
	opts.conversations = 1;
	opts.is_chat = true;
	corpus = corpus_new(&opts);
	for (size_t turn = 0; turn < 3; turn++) {
		ck_assert_int_eq(corpus_next(corpus, &job), 0);
		ck_assert_uint_eq(job.prompt_tokens, turn == 0 ? 100 : 0);
		ck_assert_uint_eq(n_messages(&last, &before), 2 * turn + 1);
		ck_assert_uint_eq(count_tokens(last), 100);
		if (turn > 0)
			ck_assert(span_is(before, said));
		corpus_done(corpus, &job, true, SPAN_LIT(said));
	}
	ck_assert_int_eq(corpus_next(corpus, &job), 0); /* its turns are over */
	ck_assert_uint_eq(n_messages(&last, &before), 1);
	corpus_done(corpus, &job, true, SPAN_LIT(said));
}
END_TEST

START_TEST(a_failed_turn_ends_it)
{
	struct span last, before;

	opts.kind = CORPUS_CONVERSATIONS;
	opts.conversations = 1;
	opts.is_chat = true;
	corpus = corpus_new(&opts);
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	corpus_done(corpus, &job, false, SPAN_LIT("half an answ"));
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	ck_assert_uint_eq(n_messages(&last, &before), 1);
	corpus_done(corpus, &job, true, SPAN_LIT("x"));
}
END_TEST

START_TEST(conversations_take_turns)
{
	struct span last, before;
	static const size_t want[] = {1, 1, 3, 3, 5, 1, 5, 1, 3};

	opts.kind = CORPUS_CONVERSATIONS;
	opts.is_chat = true;
	corpus = corpus_new(&opts);
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		ck_assert_int_eq(corpus_next(corpus, &job), 0);
		ck_assert_uint_eq(n_messages(&last, &before), want[i]);
		corpus_done(corpus, &job, true, SPAN_LIT("x"));
	}
}
END_TEST

START_TEST(conversations_share_a_system_message)
{
	struct span last, before, first;

	opts.kind = CORPUS_CONVERSATIONS;
	opts.shared_tokens = 30;
	opts.is_chat = true;
	corpus = corpus_new(&opts);
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	ck_assert_uint_eq(n_messages(&last, &first), 2);
	ck_assert_uint_eq(count_tokens(first), 30);
	corpus_done(corpus, &job, true, SPAN_LIT("x"));
	ck_assert_uint_eq(job.prompt_tokens, 0);
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	ck_assert_uint_eq(n_messages(&last, &before), 2);
	corpus_done(corpus, &job, true, SPAN_LIT("x"));
}
END_TEST

START_TEST(conversations_of_completions)
{
	struct js *root;
	struct span s;

	opts.kind = CORPUS_CONVERSATIONS;
	opts.conversations = 1;
	corpus = corpus_new(&opts);
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	corpus_done(corpus, &job, true, SPAN_LIT(" \"an\" swer"));
	ck_assert_int_eq(corpus_next(corpus, &job), 0);
	root = parse(&job);
	ck_assert(js_as_str(js_get(root, "prompt"), &s));
	ck_assert_uint_eq(s.n, 400 + 10 + 400);
	ck_assert(memcmp(s.p + 400, " \"an\" swer", 10) == 0);
	js_free(root);
	corpus_done(corpus, &job, true, SPAN_LIT("x"));
}
END_TEST

static Suite *corpus_suite(void)
{
	Suite *suite = suite_create("bench_corpus");
	TCase *tc = tcase_create("bench_corpus");

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, words_are_fixed);
	tcase_add_test(tc, words_known);
	tcase_add_test(tc, words_for_tokens);
	tcase_add_test(tc, cold_never_repeats);
	tcase_add_test(tc, hot_repeats);
	tcase_add_test(tc, shared_prefix);
	tcase_add_test(tc, shared_prefix_in_groups);
	tcase_add_test(tc, sizes_of_a_range);
	tcase_add_test(tc, a_seed_fixes_it);
	tcase_add_test(tc, keys_of_a_body);
	tcase_add_test(tc, whole_answers_ask_for_no_stream);
	tcase_add_test(tc, blocks_of_a_trace);
	tcase_add_test(tc, small_ones_of_a_trace);
	tcase_add_test(tc, a_trace_with_longer_tokens);
	tcase_add_test(tc, a_conversation_repeats_the_answers);
	tcase_add_test(tc, a_failed_turn_ends_it);
	tcase_add_test(tc, conversations_take_turns);
	tcase_add_test(tc, conversations_share_a_system_message);
	tcase_add_test(tc, conversations_of_completions);
	suite_add_tcase(suite, tc);
	return suite;
}

UNIT_MAIN(corpus_suite())
