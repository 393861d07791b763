/*
 * Bodies of requests that two legs serve: which can be, byte for byte what becomes of
 * them for each connector and endpoint, that nothing of what a client may not say is left
 * in any of them, and random ones, where a JSON library sees that nothing else changed.
 * In the tables ' stands for ".
 */
#include "base/err.h"
#include "base/rng.h"
#include "io/js.h"
#include "rewrite/kv_transfer.h"
#include "tests/unit/unit.h"

#include <string.h>

/* ---- no memory: the linker wraps the two that the model asks ---- */

static bool is_armed;
static unsigned until_failure; /* 0: the next one fails */

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
	return is_armed && until_failure-- == 0 ? NULL : __real_malloc(n);
}

void *__wrap_realloc(void *p, size_t n)
{
	return is_armed && until_failure-- == 0 ? NULL : __real_realloc(p, n);
}

/* ---- helpers ---- */

/* A copy of its exact size with every ' a ", so that a sanitizer sees what reads on. */
static char *quoted(const char *text, struct span *out)
{
	size_t n = strlen(text), i;
	char *copy = malloc(n > 0 ? n : 1);

	for (i = 0; i < n; i++)
		copy[i] = text[i] == '\'' ? '"' : text[i];
	*out = span_make(copy, n);
	return copy;
}

static struct kv_pair a_pair(void)
{
	return (struct kv_pair){.prefill_host = SPAN_LIT("10.0.0.7"),
		.room = 4611686018427387903,
		.transfer_id = SPAN_LIT("xfer-1"),
		.engine_id = SPAN_LIT("eng-a")};
}

enum leg { PREFILL, DECODE, WHOLE };

/* Without blanks: bodies here have none in their strings that matter. */
static size_t squeeze(char *p, size_t n)
{
	size_t at = 0, i;

	for (i = 0; i < n; i++) {
		if (strchr(" \n\r\t", p[i]) == NULL || p[i] == '\0')
			p[at++] = p[i];
	}
	return at;
}

/* B6: in place, the same as the body made anew, but for blanks. */
static void check_blank(
	const struct kv_request *k, struct span body, const char *made, size_t n)
{
	char *copy = malloc(body.n + 1), *whole = malloc(n + 1);
	size_t left;

	memcpy(copy, body.p, body.n);
	memcpy(whole, made, n);
	kv_request_blank(k, copy);
	left = squeeze(copy, body.n);
	n = squeeze(whole, n);
	ck_assert_msg(left == n && memcmp(copy, whole, n) == 0,
		"blanked: %.*s\nwhole: %.*s", (int)left, copy, (int)n, whole);
	free(copy);
	free(whole);
}

/* The body of that leg; of WHOLE the same where nothing is to be changed. free() it. */
static char *made(const struct kv_request *k, struct span body, enum leg leg,
	const struct kv_pair *pair, struct span params, size_t *n)
{
	char *out = NULL;
	int err;

	if (leg == PREFILL)
		err = kv_request_prefill(k, body, pair, &out, n);
	else if (leg == DECODE)
		err = kv_request_decode(k, body, pair, params, &out, n);
	else
		err = kv_request_whole(k, body, &out, n);
	ck_assert_int_eq(err, 0);
	ck_assert(leg == WHOLE || out != NULL);
	if (leg == WHOLE)
		check_blank(
			k, body, out != NULL ? out : body.p, out != NULL ? *n : body.n);
	if (out != NULL)
		return out;
	*n = body.n;
	out = malloc(body.n + 1);
	memcpy(out, body.p, body.n);
	return out;
}

static void check_bytes(const char *body, const char *got, size_t n, const char *wanted)
{
	struct span w;
	char *copy = quoted(wanted, &w);

	ck_assert_msg(span_eq(span_make(got, n), w), "of %s\ncame %.*s\nnot  %.*s", body,
		(int)n, got, (int)w.n, w.p);
	free(copy);
}

/* ---- which ---- */

#define NIXL CONNECTOR_NIXL
#define MOON CONNECTOR_MOONCAKE
#define P2P CONNECTOR_P2P_NCCL
#define SGL CONNECTOR_SGLANG
#define CHAT ENDPOINT_CHAT
#define COMP ENDPOINT_COMPLETIONS
#define RESP ENDPOINT_RESPONSES
#define MESS ENDPOINT_MESSAGES
#define GEN ENDPOINT_GENERATE
#define INF ENDPOINT_INFERENCE_GENERATE

static const struct verdict_case {
	enum route_endpoint endpoint;
	const char *body;
	enum kv_verdict nixl, sglang; /* mooncake as nixl; p2p_nccl as sglang */
} verdicts[] = {
	{CHAT, "{'messages':[{'role':'user','content':'x'}]}", KV_SPLIT, KV_SPLIT},
	{COMP, " { 'prompt' : 'x' } \r\n", KV_SPLIT, KV_SPLIT},
	{COMP, "{}", KV_SPLIT, KV_SPLIT},
	{COMP, "{'prompt':[1,2,3]}", KV_SPLIT, KV_SPLIT},
	{COMP, "{'prompt':['x']}", KV_SPLIT, KV_SPLIT},
	{COMP, "{'prompt':[[1,2]]}", KV_SPLIT, KV_SPLIT},
	{RESP, "{'input':'x','previous_response_id':null,'background':false}", KV_SPLIT,
		KV_SPLIT},
	{MESS, "{'max_tokens':8,'messages':[]}", KV_SPLIT, KV_SPLIT},
	{GEN, "{'text':'x','sampling_params':{'n':1}}", KV_SPLIT, KV_SPLIT},
	{GEN, "{'input_ids':[1,2]}", KV_SPLIT, KV_SPLIT},
	{INF, "{'token_ids':[1,2],'sampling_params':{}}", KV_SPLIT, KV_SPLIT},
	{INF, "{'token_ids':[1,2]}", KV_SPLIT, KV_SPLIT},
	{INF, "{'sampling_params':null}", KV_SPLIT, KV_SPLIT},
	{INF, "{'sampling_params':{'extra_args':null}}", KV_SPLIT, KV_SPLIT},
	{CHAT,
		"{'n':1,'best_of':null,'echo':false,'prompt_logprobs':null,"
		"'use_beam_search':false,'logprobs':true,'top_logprobs':5,'tools':[{}]}",
		KV_SPLIT, KV_SPLIT},
	/* a name of another endpoint says nothing */
	{CHAT, "{'prompt':['a','b'],'input_ids':[[1],[2]]}", KV_SPLIT, KV_SPLIT},
	{CHAT, "{'sampling_params':{'n':2}}", KV_SPLIT, KV_SPLIT},
	/* an engine takes the last of two, and both are changed */
	{CHAT, "{'max_tokens':5,'max_tokens':6,'stream':true,'stream':false}", KV_SPLIT,
		KV_SPLIT},
	/* several texts */
	{CHAT, "{'n':2}", KV_WHOLE, KV_SPLIT},
	{CHAT, "{'\\u006e':2}", KV_WHOLE, KV_SPLIT},
	{CHAT, "{'n':1,'n':3}", KV_WHOLE, KV_SPLIT},
	{CHAT, "{'n':'2'}", KV_WHOLE, KV_SPLIT},
	{CHAT, "{'n':1.0}", KV_WHOLE, KV_SPLIT},
	{COMP, "{'best_of':3}", KV_WHOLE, KV_SPLIT},
	{COMP, "{'use_beam_search':true}", KV_WHOLE, KV_SPLIT},
	{COMP, "{'prompt':['a','b']}", KV_WHOLE, KV_SPLIT},
	{COMP, "{'prompt':[[1],[2]]}", KV_WHOLE, KV_SPLIT},
	{COMP, "{'prompt':[]}", KV_WHOLE, KV_SPLIT},
	{GEN, "{'text':['a','b']}", KV_WHOLE, KV_SPLIT},
	{GEN, "{'input_ids':[[1],[2]]}", KV_WHOLE, KV_SPLIT},
	{GEN, "{'sampling_params':{'n':2}}", KV_WHOLE, KV_SPLIT},
	{GEN, "{'sampling_params':[{},{}]}", KV_WHOLE, KV_SPLIT},
	{INF, "{'sampling_params':{'n':2}}", KV_WHOLE, KV_SPLIT},
	/* what only the leg that computes the prompt can tell */
	{COMP, "{'prompt':'a','echo':true}", KV_WHOLE, KV_SPLIT},
	{COMP, "{'prompt_logprobs':0}", KV_WHOLE, KV_SPLIT},
	{INF, "{'sampling_params':{'prompt_logprobs':1}}", KV_WHOLE, KV_SPLIT},
	{GEN, "{'return_logprob':true}", KV_WHOLE, KV_SPLIT},
	{COMP, "{'prompt_embeds':'AAAA'}", KV_WHOLE, KV_SPLIT},
	{GEN, "{'input_embeds':[[0.5]]}", KV_WHOLE, KV_SPLIT},
	/* what one worker keeps */
	{RESP, "{'previous_response_id':'resp_1'}", KV_WHOLE, KV_SPLIT},
	{RESP, "{'conversation':{'id':'c'}}", KV_WHOLE, KV_SPLIT},
	{RESP, "{'background':true}", KV_WHOLE, KV_SPLIT},
	/* nothing is generated, or nobody knows */
	{ENDPOINT_EMBEDDINGS, "{'input':'x'}", KV_WHOLE, KV_WHOLE},
	{ENDPOINT_TOKENIZE, "{'prompt':'x'}", KV_WHOLE, KV_WHOLE},
	{ENDPOINT_RERANK, "{}", KV_WHOLE, KV_WHOLE},
	{ENDPOINT_OTHER, "--b\r\nContent-Disposition: form-data; name='bootstrap_'",
		KV_WHOLE, KV_WHOLE},
	{CHAT, "", KV_WHOLE, KV_WHOLE},
	/* no JSON object: the engine says so, but where it might read one */
	{CHAT, "[]", KV_WHOLE, KV_UNSAFE},
	{CHAT, "x", KV_WHOLE, KV_UNSAFE},
	{CHAT, "{'a':1", KV_WHOLE, KV_UNSAFE},
	{CHAT, "{'a':1}}", KV_WHOLE, KV_UNSAFE},
	{CHAT, "{'a':1,}", KV_WHOLE, KV_UNSAFE},
	{CHAT, "{'temperature':NaN,'messages':[{'content':'caf\\u00e9'}]}", KV_WHOLE,
		KV_UNSAFE},
	{CHAT, "{'temperature':NaN,'kv_transfer_params':{}}", KV_UNSAFE, KV_UNSAFE},
	{CHAT, "{'temperature':NaN,'bootstrap_host':'x'}", KV_UNSAFE, KV_UNSAFE},
	{CHAT, "{'temperature':NaN,'\\u006bv_transfer_params':{}}", KV_UNSAFE, KV_UNSAFE},
	{CHAT, "{'temperature':NaN,'kv_transfer\\u005Fparams':{}}", KV_UNSAFE, KV_UNSAFE},
	{CHAT, "\xef\xbb\xbf{'kv_transfer_params':{}}", KV_UNSAFE, KV_UNSAFE},
	{CHAT, "\xef\xbb\xbf{'messages':[]}", KV_WHOLE, KV_UNSAFE},
};

static void check_verdict(enum kv_connector connector, enum route_endpoint endpoint,
	struct span body, enum kv_verdict wanted)
{
	struct kv_request k;

	ck_assert_int_eq(kv_request_read(&k, connector, endpoint, body), 0);
	ck_assert_msg(k.verdict == wanted, "connector %d: %d for %.*s", connector,
		k.verdict, (int)body.n, body.p);
	kv_request_free(&k);
}

START_TEST(some_can_be_split)
{
	const struct verdict_case *c = &verdicts[_i];
	struct span body;
	char *copy = quoted(c->body, &body);

	check_verdict(CONNECTOR_NONE, c->endpoint, body, c->nixl);
	check_verdict(NIXL, c->endpoint, body, c->nixl);
	check_verdict(MOON, c->endpoint, body, c->nixl);
	check_verdict(P2P, c->endpoint, body, c->sglang);
	check_verdict(SGL, c->endpoint, body, c->sglang);
	free(copy);
}
END_TEST

/* The transfer has one place in /inference/v1/generate; sglang's has no need of it. */
static const char *const placeless[] = {
	"{'sampling_params':{},'sampling_params':{}}",
	"{'sampling_params':[]}",
	"{'sampling_params':'x'}",
	"{'sampling_params':{'extra_args':{},'extra_args':{}}}",
	"{'sampling_params':{'extra_args':[]}}",
	"{'sampling_params':{'extra_args':7}}",
};

START_TEST(transfers_have_one_place)
{
	struct span body;
	char *copy = quoted(placeless[_i], &body);

	check_verdict(NIXL, INF, body, KV_WHOLE);
	check_verdict(MOON, INF, body, KV_WHOLE);
	check_verdict(P2P, INF, body, KV_UNSAFE);
	check_verdict(SGL, INF, body, KV_SPLIT);
	check_verdict(NIXL, CHAT, body, KV_SPLIT);
	free(copy);
}
END_TEST

START_TEST(utf_16_is_not_looked_through)
{
	static const char wide[] = "{\0\"\0k\0v\0_\0";

	check_verdict(NIXL, CHAT, span_make(wide, sizeof(wide)), KV_UNSAFE);
}
END_TEST

/* ---- what becomes of them ---- */

#define NIXL_P                                                                     \
	"'kv_transfer_params':{'do_remote_decode':true,'do_remote_prefill':false," \
	"'remote_engine_id':null,'remote_block_ids':null,'remote_host':null,"      \
	"'remote_port':null}"
#define PARAMS "{ 'remote_block_ids':[[4]],'big':123456789012345678901234567890 }"
#define NIXL_D "'kv_transfer_params':" PARAMS
#define MOON_P                                                                     \
	"'kv_transfer_params':{'do_remote_decode':true,'do_remote_prefill':false," \
	"'transfer_id':'xfer-1'}"
#define MOON_D                                                                     \
	"'kv_transfer_params':{'do_remote_decode':false,'do_remote_prefill':true," \
	"'transfer_id':'xfer-1','remote_bootstrap_addr':'http://10.0.0.7:8998',"   \
	"'remote_engine_id':'eng-a'}"
#define SGL_B                                                \
	"'bootstrap_host':'10.0.0.7','bootstrap_port':8998," \
	"'bootstrap_room':4611686018427387903"

static const struct made_case {
	enum kv_connector connector;
	enum route_endpoint endpoint;
	const char *body, *prefill, *decode, *whole; /* NULL: as it came */
} cases[] = {
	/* nixl: the example of its protocol */
	{NIXL, COMP, "{'model':'m','prompt':'Hi'}",
		"{'model':'m','prompt':'Hi','max_tokens':1,'stream':false," NIXL_P "}",
		"{'model':'m','prompt':'Hi'," NIXL_D "}", NULL},
	/* nixl_push: the same transfer id beside both */
	{CONNECTOR_NIXL_PUSH, CHAT, "{'a':1}",
		"{'a':1,'max_tokens':1,'stream':false,'kv_transfer_params':{"
		"'do_remote_decode':true,'do_remote_prefill':false,'remote_engine_id':"
		"null,'remote_block_ids':null,'remote_host':null,'remote_port':null,"
		"'transfer_id':'xfer-1'}}",
		"{'a':1,'kv_transfer_params':{'transfer_id':'xfer-1', 'remote_block_ids':"
		"[[4]],'big':123456789012345678901234567890 }}",
		NULL},
	/* blanks, numbers, escapes and order stay */
	{NIXL, CHAT,
		"{ 'model':'m' ,'seed':9007199254740993,'temperature':0.70,'top_p':1e-0,"
		"'bias':1e400,'messages':[{'role':'user','content':'caf\\u00e9 \\/ x'}] "
		"}\n",
		"{ 'model':'m' ,'seed':9007199254740993,'temperature':0.70,'top_p':1e-0,"
		"'bias':1e400,'messages':[{'role':'user','content':'caf\\u00e9 \\/ x'}] "
		",'max_tokens':1,'stream':false," NIXL_P "}\n",
		"{ 'model':'m' ,'seed':9007199254740993,'temperature':0.70,'top_p':1e-0,"
		"'bias':1e400,'messages':[{'role':'user','content':'caf\\u00e9 \\/ x'}] "
		"," NIXL_D "}\n",
		NULL},
	/* limits, streams */
	{NIXL, CHAT,
		"{'stream':true,'stream_options':{'include_usage':true},'max_tokens':400,"
		"'max_completion_tokens':500,'min_tokens':100,'tools':[{}]}",
		"{'stream':false,'max_tokens':1,'max_completion_tokens':1,'min_tokens':1,"
		"'tools':[{}]," NIXL_P "}",
		"{'stream':true,'stream_options':{'include_usage':true},'max_tokens':400,"
		"'max_completion_tokens':500,'min_tokens':100,'tools':[{}]," NIXL_D "}",
		NULL},
	{NIXL, CHAT, "{'stream_options':{}, 'max_completion_tokens':null}",
		"{'max_completion_tokens':1,'max_tokens':1,'stream':false," NIXL_P "}",
		"{'stream_options':{}, 'max_completion_tokens':null," NIXL_D "}", NULL},
	{NIXL, CHAT, "{'min_tokens':0,'min_tokens':1,'min_tokens':null}",
		"{'min_tokens':0,'min_tokens':1,'min_tokens':null,'max_tokens':1,'stream'"
		":false," NIXL_P "}",
		"{'min_tokens':0,'min_tokens':1,'min_tokens':null," NIXL_D "}", NULL},
	{NIXL, CHAT, "{'min_tokens':'7','min_tokens':-1,'min_completion_tokens':2}",
		"{'min_tokens':1,'min_tokens':-1,'min_completion_tokens':1,'max_tokens':"
		"1,"
		"'stream':false," NIXL_P "}",
		"{'min_tokens':'7','min_tokens':-1,'min_completion_tokens':2," NIXL_D "}",
		NULL},
	/* each copy of a name, however spelled */
	{NIXL, CHAT, "{'max_tokens':5,'x':1,'max\\u005ftokens':6,'stre\\u0061m':true}",
		"{'max_tokens':1,'x':1,'max\\u005ftokens':1,'stre\\u0061m':false," NIXL_P
		"}",
		"{'max_tokens':5,'x':1,'max\\u005ftokens':6,'stre\\u0061m':true," NIXL_D
		"}",
		NULL},
	{NIXL, CHAT, "{}", "{'max_tokens':1,'stream':false," NIXL_P "}", "{" NIXL_D "}",
		NULL},
	{NIXL, CHAT, " { } ", " { 'max_tokens':1,'stream':false," NIXL_P "} ",
		" { " NIXL_D "} ", NULL},
	/* what a client may not say: first, last, alone, all */
	{NIXL, CHAT, "{'kv_transfer_params':{'remote_host':'evil'},'a':1}",
		"{'a':1,'max_tokens':1,'stream':false," NIXL_P "}", "{'a':1," NIXL_D "}",
		"{'a':1}"},
	{NIXL, CHAT, "{'a':1 , 'kv_transfer_params':{'remote_host':'evil'} }",
		"{'a':1 ,'max_tokens':1,'stream':false," NIXL_P "}",
		"{'a':1 ," NIXL_D "}", "{'a':1 }"},
	{NIXL, CHAT, "{'kv_transfer_params':{'a':{'b':[1,'}']}}}",
		"{'max_tokens':1,'stream':false," NIXL_P "}", "{" NIXL_D "}", "{}"},
	{NIXL, CHAT,
		"{'bootstrap_host':'e', 'bootstrap_port':1 ,'bootstrap_room':2,'a':1,"
		"'disagg_prefill_dp_rank':3,'b':2,'decode_tp_size':4,'ec_transfer_params'"
		":{}}",
		"{'a':1,'b':2,'max_tokens':1,'stream':false," NIXL_P "}",
		"{'a':1,'b':2," NIXL_D "}", "{'a':1,'b':2}"},
	{NIXL, CHAT,
		"{'kv_transfer_params':1,'a':1,'kv_transfer_params':2,'kv_transfer_"
		"params'"
		":3,'b':2}",
		"{'a':1,'b':2,'max_tokens':1,'stream':false," NIXL_P "}",
		"{'a':1,'b':2," NIXL_D "}", "{'a':1,'b':2}"},
	{NIXL, CHAT,
		"{'\\u006b\\u0076\\u005f\\u0074\\u0072\\u0061\\u006e\\u0073\\u0066\\u0065"
		"\\u0072\\u005f\\u0070\\u0061\\u0072\\u0061\\u006d\\u0073':{},'a':1,"
		"'bootstrap\\u005fhost':'e','boot\\u0073trap_a_name_that_goes_on_and_on_"
		"and_on_and_on_and_on_and_on_and_on_and_on_and_on':1}",
		"{'a':1,'max_tokens':1,'stream':false," NIXL_P "}", "{'a':1," NIXL_D "}",
		"{'a':1}"},
	/* dropped beside what prefill alone drops */
	{NIXL, CHAT, "{'kv_transfer_params':0,'stream_options':{},'a':1}",
		"{'a':1,'max_tokens':1,'stream':false," NIXL_P "}",
		"{'stream_options':{},'a':1," NIXL_D "}", "{'stream_options':{},'a':1}"},
	{NIXL, CHAT, "{'stream_options':{},'kv_transfer_params':0,'stream':true}",
		"{'stream':false,'max_tokens':1," NIXL_P "}",
		"{'stream_options':{},'stream':true," NIXL_D "}",
		"{'stream_options':{},'stream':true}"},
	{NIXL, CHAT, "{'stream_options':{},'kv_transfer_params':0}",
		"{'max_tokens':1,'stream':false," NIXL_P "}",
		"{'stream_options':{}," NIXL_D "}", "{'stream_options':{}}"},
	/* nested, where engines look; not where they do not */
	{NIXL, CHAT,
		"{'vllm_xargs':{'kv_transfer_params':'x','t':1},'extra_args':{'kv_"
		"transfer_params':{}},'sampling_params':{'bootstrap_room':1,'max_tokens':"
		"9,'extra_args':{'kv_transfer_params':{},'k':1}},'metadata':{'kv_"
		"transfer_"
		"params':{}},'messages':[{'kv_transfer_params':1}]}",
		"{'vllm_xargs':{'t':1},'extra_args':{},'sampling_params':{'max_tokens':9,"
		"'extra_args':{'k':1}},'metadata':{'kv_transfer_params':{}},'messages':[{"
		"'kv_transfer_params':1}],'max_tokens':1,'stream':false," NIXL_P "}",
		"{'vllm_xargs':{'t':1},'extra_args':{},'sampling_params':{'max_tokens':9,"
		"'extra_args':{'k':1}},'metadata':{'kv_transfer_params':{}},'messages':[{"
		"'kv_transfer_params':1}]," NIXL_D "}",
		"{'vllm_xargs':{'t':1},'extra_args':{},'sampling_params':{'max_tokens':9,"
		"'extra_args':{'k':1}},'metadata':{'kv_transfer_params':{}},'messages':[{"
		"'kv_transfer_params':1}]}"},
	/* responses and messages */
	{NIXL, RESP, "{'input':'x','stream':true}",
		"{'input':'x','stream':false,'max_output_tokens':1," NIXL_P "}",
		"{'input':'x','stream':true," NIXL_D "}", NULL},
	{NIXL, RESP, "{'max_output_tokens':77,'input':'x'}",
		"{'max_output_tokens':1,'input':'x','stream':false," NIXL_P "}",
		"{'max_output_tokens':77,'input':'x'," NIXL_D "}", NULL},
	{NIXL, MESS, "{'max_tokens':77,'messages':[]}",
		"{'max_tokens':1,'messages':[],'stream':false," NIXL_P "}",
		"{'max_tokens':77,'messages':[]," NIXL_D "}", NULL},
	/* the native one */
	{NIXL, GEN,
		"{'text':'x','sampling_params':{'max_new_tokens':9,'min_new_tokens':3,"
		"'temperature':0}}",
		"{'text':'x','sampling_params':{'max_new_tokens':1,'min_new_tokens':1,"
		"'temperature':0},'max_tokens':1,'stream':false," NIXL_P "}",
		"{'text':'x','sampling_params':{'max_new_tokens':9,'min_new_tokens':3,"
		"'temperature':0}," NIXL_D "}",
		NULL},
	/* tokens in, tokens out: in sampling_params, and the transfer in extra_args */
	{NIXL, INF,
		"{'token_ids':[1,2],'sampling_params':{'max_tokens':9,'min_tokens':4}}",
		"{'token_ids':[1,2],'sampling_params':{'max_tokens':1,'min_tokens':1,"
		"'extra_args':{" NIXL_P "}},'stream':false," NIXL_P "}",
		"{'token_ids':[1,2],'sampling_params':{'max_tokens':9,'min_tokens':4,"
		"'extra_args':{" NIXL_D "}}," NIXL_D "}",
		NULL},
	{NIXL, INF, "{'token_ids':[1,2]}",
		"{'token_ids':[1,2],'sampling_params':{'max_tokens':1,'min_tokens':1,"
		"'extra_args':{" NIXL_P "}},'stream':false," NIXL_P "}",
		"{'token_ids':[1,2],'sampling_params':{'extra_args':{" NIXL_D "}}," NIXL_D
		"}",
		NULL},
	{NIXL, INF, "{'sampling_params':null,'stream':true}",
		"{'sampling_params':{'max_tokens':1,'min_tokens':1,'extra_args':{" NIXL_P
		"}},'stream':false," NIXL_P "}",
		"{'sampling_params':{'extra_args':{" NIXL_D "}},'stream':true," NIXL_D
		"}",
		NULL},
	{NIXL, INF, "{'sampling_params':{'extra_args':null,'seed':1}}",
		"{'sampling_params':{'extra_args':{" NIXL_P "},'seed':1,'max_tokens':1},"
		"'stream':false," NIXL_P "}",
		"{'sampling_params':{'extra_args':{" NIXL_D "},'seed':1}," NIXL_D "}",
		NULL},
	{NIXL, INF,
		"{'extra_args':null,'sampling_params':{'extra_args':{'kv_transfer_params'"
		":{'remote_host':'e'},'k':1},'kv_transfer_params':2}}",
		"{'extra_args':null,'sampling_params':{'extra_args':{'k':1," NIXL_P
		"},'max_tokens':1},'stream':false," NIXL_P "}",
		"{'extra_args':null,'sampling_params':{'extra_args':{'k':1," NIXL_D
		"}}," NIXL_D "}",
		"{'extra_args':null,'sampling_params':{'extra_args':{'k':1}}}"},
	{NIXL, INF, "{'sampling_params':{'extra_args':{'kv_transfer_params':{}}}}",
		"{'sampling_params':{'extra_args':{" NIXL_P "},'max_tokens':1},'stream':"
		"false," NIXL_P "}",
		"{'sampling_params':{'extra_args':{" NIXL_D "}}," NIXL_D "}",
		"{'sampling_params':{'extra_args':{}}}"},
	/* one object's members are not another's; extra_args are the engine's own */
	{NIXL, INF,
		"{'vllm_xargs':{'kv_transfer_params':1},'sampling_params':{'extra_args':{"
		"'max_tokens':9,'extra_args':{'kv_transfer_params':1}},'max_tokens':9}}",
		"{'vllm_xargs':{},'sampling_params':{'extra_args':{'max_tokens':9,"
		"'extra_args':{'kv_transfer_params':1}," NIXL_P
		"},'max_tokens':1},'stream':false," NIXL_P "}",
		"{'vllm_xargs':{},'sampling_params':{'extra_args':{'max_tokens':9,"
		"'extra_args':{'kv_transfer_params':1}," NIXL_D
		"},'max_tokens':9}," NIXL_D "}",
		"{'vllm_xargs':{},'sampling_params':{'extra_args':{'max_tokens':9,"
		"'extra_args':{'kv_transfer_params':1}},'max_tokens':9}}"},
	{NIXL, INF,
		"{'vllm_xargs':{'kv_transfer_params':1},'sampling_params':{'extra_args':{"
		"'k':1}}}",
		"{'vllm_xargs':{},'sampling_params':{'extra_args':{'k':1," NIXL_P
		"},'max_tokens':1},'stream':false," NIXL_P "}",
		"{'vllm_xargs':{},'sampling_params':{'extra_args':{'k':1," NIXL_D
		"}}," NIXL_D "}",
		"{'vllm_xargs':{},'sampling_params':{'extra_args':{'k':1}}}"},
	/* the other connectors */
	/* Mooncake hands over what the limit has cut: a first token must not end the text. */
	{MOON, CHAT, "{'min_tokens':0,'stop':['a']}",
		"{'min_tokens':1,'stop':['a'],'max_tokens':1,'stream':false," MOON_P "}",
		"{'min_tokens':0,'stop':['a']," MOON_D "}", NULL},
	{MOON, RESP, "{'input':'Hi'}",
		"{'input':'Hi','max_output_tokens':1,'stream':false," MOON_P "}",
		"{'input':'Hi'," MOON_D "}", NULL},
	{MOON, INF, "{'sampling_params':{'stop_token_ids':[7]}}",
		"{'sampling_params':{'stop_token_ids':[7],'max_tokens':1,'min_tokens':1,"
		"'extra_args':{" MOON_P "}},'stream':false," MOON_P "}",
		"{'sampling_params':{'stop_token_ids':[7],'extra_args':{" MOON_D
		"}}," MOON_D "}",
		NULL},
	{MOON, COMP, "{'prompt':'Hi'}",
		"{'prompt':'Hi','max_tokens':1,'min_tokens':1,'stream':false," MOON_P "}",
		"{'prompt':'Hi'," MOON_D "}", NULL},
	{MOON, COMP, "{'kv_transfer_params':{},'prompt':'Hi','max_tokens':7}",
		"{'prompt':'Hi','max_tokens':1,'min_tokens':1,'stream':false," MOON_P "}",
		"{'prompt':'Hi','max_tokens':7," MOON_D "}",
		"{'prompt':'Hi','max_tokens':7}"},
	{P2P, COMP, "{'prompt':'Hi'}",
		"{'prompt':'Hi','max_tokens':1,'stream':false," NIXL_P "}",
		"{'prompt':'Hi'," NIXL_D "}", NULL},
	{P2P, COMP, "{'prompt':['a','b'],'n':2}",
		"{'prompt':['a','b'],'n':2,'max_tokens':1,'stream':false," NIXL_P "}",
		"{'prompt':['a','b'],'n':2," NIXL_D "}", NULL},
	{SGL, CHAT,
		"{'messages':[],'stream':true,'stream_options':{},'max_tokens':9,'min_"
		"tokens':3}",
		"{'messages':[],'stream':true,'stream_options':{},'max_tokens':9,'min_"
		"tokens':3," SGL_B "}",
		"{'messages':[],'stream':true,'stream_options':{},'max_tokens':9,'min_"
		"tokens':3," SGL_B "}",
		NULL},
	{SGL, GEN, "{'bootstrap_room':7,'text':'x','bootstrap_host':'e'}",
		"{'text':'x'," SGL_B "}", "{'text':'x'," SGL_B "}", "{'text':'x'}"},
	{SGL, INF, "{'token_ids':[1]}", "{'token_ids':[1]," SGL_B "}",
		"{'token_ids':[1]," SGL_B "}", NULL},
	/* ... in batches: a room for each */
	{SGL, COMP, "{'prompt':['a','b']}",
		"{'prompt':['a','b'],'bootstrap_host':['10.0.0.7','10.0.0.7'],'bootstrap_"
		"port':[8998,8998],'bootstrap_room':[4611686018427387903,"
		"4611686018427387904]}",
		"{'prompt':['a','b'],'bootstrap_host':['10.0.0.7','10.0.0.7'],'bootstrap_"
		"port':[8998,8998],'bootstrap_room':[4611686018427387903,"
		"4611686018427387904]}",
		NULL},
	{SGL, COMP, "{'prompt':['a']}",
		"{'prompt':['a'],'bootstrap_host':['10.0.0.7'],'bootstrap_port':[8998],"
		"'bootstrap_room':[4611686018427387903]}",
		"{'prompt':['a'],'bootstrap_host':['10.0.0.7'],'bootstrap_port':[8998],"
		"'bootstrap_room':[4611686018427387903]}",
		NULL},
	{SGL, CHAT, "{'n':2}",
		"{'n':2,'bootstrap_host':['10.0.0.7','10.0.0.7'],'bootstrap_port':[8998,"
		"8998],'bootstrap_room':[4611686018427387903,4611686018427387904]}",
		"{'n':2,'bootstrap_host':['10.0.0.7','10.0.0.7'],'bootstrap_port':[8998,"
		"8998],'bootstrap_room':[4611686018427387903,4611686018427387904]}",
		NULL},
	{SGL, GEN, "{'input_embeds':[[[0.5],[1]]]}",
		"{'input_embeds':[[[0.5],[1]]],'bootstrap_host':['10.0.0.7'],'bootstrap_"
		"port':[8998],'bootstrap_room':[4611686018427387903]}",
		"{'input_embeds':[[[0.5],[1]]],'bootstrap_host':['10.0.0.7'],'bootstrap_"
		"port':[8998],'bootstrap_room':[4611686018427387903]}",
		NULL},
	{SGL, GEN, "{'input_embeds':[[0.5],[1]]}",
		"{'input_embeds':[[0.5],[1]]," SGL_B "}",
		"{'input_embeds':[[0.5],[1]]," SGL_B "}", NULL},
	/* an empty list is no batch, nor is one beyond all reason */
	{SGL, COMP, "{'prompt':[]}", "{'prompt':[]," SGL_B "}", "{'prompt':[]," SGL_B "}",
		NULL},
	{SGL, CHAT, "{'n':99999999999999999999}", "{'n':99999999999999999999," SGL_B "}",
		"{'n':99999999999999999999," SGL_B "}", NULL},
	{SGL, COMP, "{'prompt':['a','b','c'],'n':2000}",
		"{'prompt':['a','b','c'],'n':2000," SGL_B "}",
		"{'prompt':['a','b','c'],'n':2000," SGL_B "}", NULL},
	{SGL, CHAT, "{'n':5000}", "{'n':5000," SGL_B "}", "{'n':5000," SGL_B "}", NULL},
};

START_TEST(they_are_spliced)
{
	const struct made_case *c = &cases[_i];
	const char *wanted[] = {c->prefill, c->decode, c->whole};
	struct kv_pair pair = a_pair();
	struct span body, params;
	char *copy = quoted(c->body, &body), *params_copy = quoted(PARAMS, &params);
	struct kv_request k;
	unsigned leg;

	ck_assert_int_eq(kv_request_read(&k, c->connector, c->endpoint, body), 0);
	ck_assert_int_eq(k.verdict, KV_SPLIT);
	ck_assert_msg(k.has_fields == (c->whole != NULL), "%s", c->body);
	for (leg = PREFILL; leg <= WHOLE; leg++) {
		size_t n;
		char *out = made(&k, body, leg, &pair, params, &n);

		check_bytes(c->body, out, n, wanted[leg] != NULL ? wanted[leg] : c->body);
		free(out);
	}
	kv_request_free(&k);
	free(params_copy);
	free(copy);
}
END_TEST

/* The body of one leg, of a pair that is told otherwise. */
static void check_leg(enum kv_connector connector, const char *text, enum leg leg,
	const struct kv_pair *pair, const char *params_text, const char *wanted)
{
	struct span body, params;
	char *copy = quoted(text, &body), *params_copy = quoted(params_text, &params);
	struct kv_request k;
	size_t n;
	char *out;

	ck_assert_int_eq(kv_request_read(&k, connector, COMP, body), 0);
	out = made(&k, body, leg, pair, params, &n);
	check_bytes(text, out, n, wanted);
	free(out);
	kv_request_free(&k);
	free(params_copy);
	free(copy);
}

START_TEST(without_params_decode_computes)
{
	struct kv_pair pair = a_pair();

	check_leg(NIXL, "{'a':1}", DECODE, &pair, "", "{'a':1}");
	check_leg(P2P, "{'a':1}", DECODE, &pair, "", "{'a':1}");
	check_leg(NIXL, "{'kv_transfer_params':{},'a':1}", DECODE, &pair, "", "{'a':1}");
	pair.engine_id = span_make(NULL, 0);
	check_leg(MOON, "{'a':1,'bootstrap_x':1}", DECODE, &pair, "", "{'a':1}");
	/* they are not asked for */
	pair = a_pair();
	check_leg(MOON, "{'a':1}", DECODE, &pair, "{'evil':1}", "{'a':1," MOON_D "}");
	check_leg(SGL, "{'a':1}", DECODE, &pair, "{'evil':1}", "{'a':1," SGL_B "}");
}
END_TEST

START_TEST(pairs_are_told_apart)
{
	struct kv_pair pair = a_pair();

	pair.prefill_host = SPAN_LIT("fd00::7");
	pair.bootstrap_port = 9001;
	pair.room = 0;
	check_leg(SGL, "{}", PREFILL, &pair, "",
		"{'bootstrap_host':'[fd00::7]','bootstrap_port':9001,'bootstrap_room':"
		"0}");
	check_leg(MOON, "{}", DECODE, &pair, "",
		"{'kv_transfer_params':{'do_remote_decode':false,'do_remote_prefill':"
		"true,'transfer_id':'xfer-1','remote_bootstrap_addr':'http://"
		"[fd00::7]:9001','remote_engine_id':'eng-a'}}");
	/* a rank: rooms of its own, and decode is told */
	pair.prefill_host = SPAN_LIT("h");
	pair.ranks = 4;
	pair.rank = 3;
	pair.room = 43;
	check_leg(SGL, "{'n':2}", PREFILL, &pair, "",
		"{'n':2,'bootstrap_host':['h','h'],'bootstrap_port':[9001,9001],"
		"'bootstrap_room':[43,47]}");
	check_leg(SGL, "{'disagg_prefill_dp_rank':9}", DECODE, &pair, "",
		"{'bootstrap_host':'h','bootstrap_port':9001,'bootstrap_room':43,"
		"'disagg_prefill_dp_rank':3}");
}
END_TEST

/* A whole request of another endpoint is cleaned, too. */
START_TEST(every_endpoint_is_cleaned)
{
	struct span body;
	char *copy =
		quoted("{'input':'x','kv_transfer_params':{},'bootstrap_host':1}", &body);
	unsigned endpoint, connector;

	for (connector = NIXL; connector < CONNECTOR_MAX; connector++) {
		for (endpoint = 0; endpoint < ENDPOINT_MAX; endpoint++) {
			struct kv_request k;
			size_t n;
			char *out;

			ck_assert_int_eq(
				kv_request_read(&k, connector, endpoint, body), 0);
			out = made(&k, body, WHOLE, NULL, body, &n);
			check_bytes("all", out, n, "{'input':'x'}");
			free(out);
			kv_request_free(&k);
		}
	}
	free(copy);
}
END_TEST

/* ---- bodies made to hurt ---- */

static char *repeated(const char *piece, size_t times, size_t *n)
{
	size_t len = strlen(piece), i;
	char *out = malloc(len * times + 16);

	out[0] = '{';
	for (i = 0; i < times; i++)
		memcpy(out + 1 + i * len, piece, len);
	*n = 1 + len * times;
	memcpy(out + *n, "\"z\":0}", 6);
	*n += 6;
	return out;
}

START_TEST(so_many_copies_are_refused)
{
	struct kv_request k;
	size_t n;
	char *body = repeated("\"bootstrap_a\":0,", 1000, &n), *out;

	ck_assert_int_eq(kv_request_read(&k, NIXL, CHAT, span_make(body, n)), 0);
	ck_assert_int_eq(k.verdict, KV_SPLIT);
	out = made(&k, span_make(body, n), WHOLE, NULL, span_make(NULL, 0), &n);
	check_bytes("many", out, n, "{'z':0}");
	free(out);
	kv_request_free(&k);
	free(body);
	body = repeated("\"bootstrap_a\":0,", 1000000, &n);
	ck_assert_int_eq(kv_request_read(&k, NIXL, CHAT, span_make(body, n)), 0);
	ck_assert_int_eq(k.verdict, KV_UNSAFE);
	ck_assert_ptr_null(k.places);
	kv_request_free(&k);
	free(body);
}
END_TEST

/* Members that mean nothing, deep nests and long lists cost no memory, and no more than
 * their bytes: this ends at once, or the program's deadline says so. */
START_TEST(long_bodies_are_read_once)
{
	static const char *const pieces[] = {"\"a\":0,", "\"\\u006b\":[],", "\"n\":1,",
		"\"prompt\":[\"a\",\"b\"],", "\"prompt\":[[1],[2]],"};
	unsigned i;

	for (i = 0; i < ARRAY_LEN(pieces); i++) {
		struct kv_request k;
		size_t n;
		char *body = repeated(pieces[i], 500000, &n);

		ck_assert_int_eq(kv_request_read(&k, NIXL, COMP, span_make(body, n)), 0);
		ck_assert_int_ne(k.verdict, KV_UNSAFE);
		ck_assert_uint_eq(k.n_places, 1);
		kv_request_free(&k);
		free(body);
	}
}
END_TEST

START_TEST(without_memory_nothing_leaks)
{
	static const char text[] = "{\"kv_transfer_params\":{},\"sampling_params\":"
				   "{\"extra_args\":{}},\"stream\":true}";
	struct span body = span_make(text, sizeof(text) - 1);
	struct kv_pair pair = a_pair();
	struct kv_request k;
	size_t n = 7;
	char *out = NULL, *many;

	is_armed = true;
	until_failure = 0;
	ck_assert_int_eq(kv_request_read(&k, NIXL, CHAT, body), ERR_NOMEM);
	is_armed = false;
	ck_assert_ptr_null(k.places);
	ck_assert_int_eq(kv_request_read(&k, NIXL, CHAT, body), 0);
	is_armed = true;
	until_failure = 0;
	ck_assert_int_eq(kv_request_prefill(&k, body, &pair, &out, &n), ERR_NOMEM);
	until_failure = 0;
	ck_assert_int_eq(
		kv_request_decode(&k, body, &pair, SPAN_LIT("{}"), &out, &n), ERR_NOMEM);
	ck_assert_ptr_null(out);
	until_failure = 0;
	ck_assert_int_eq(kv_request_whole(&k, body, &out, &n), ERR_NOMEM);
	ck_assert_ptr_null(out);
	until_failure = 0;
	ck_assert_int_eq(
		kv_release_body(
			SPAN_LIT("{\"remote_request_id\":1,\"kvx_token\":2}"), &out, &n),
		ERR_NOMEM);
	is_armed = false;
	kv_request_free(&k);
	/* while the list grows */
	many = repeated("\"bootstrap_a\":0,", 100, &n);
	is_armed = true;
	until_failure = 1;
	ck_assert_int_eq(kv_request_read(&k, NIXL, CHAT, span_make(many, n)), ERR_NOMEM);
	is_armed = false;
	ck_assert_ptr_null(k.places);
	free(many);
}
END_TEST

/* ---- any body ---- */

struct text {
	char p[4096];
	size_t n;
};

static void add(struct text *t, const char *s)
{
	size_t n = strlen(s);

	ck_assert_uint_lt(t->n + n, sizeof(t->p));
	memcpy(t->p + t->n, s, n);
	t->n += n;
}

static const char *const transfer_names[] = {"kv_transfer_params",
	"kv_transfer\\u005Fparams", "bootstrap_host", "bootstrap_room",
	"b\\u006Fotstrap_port", "ec_transfer_params", "disaggregated_params"};
static const char *const other_names[] = {"model", "messages", "temperature", "seed",
	"top_p", "a\\\"b", "bootstra", "kv_transfer_param", "metadata", "\\u00e9"};
static const char *const values[] = {"1", "null", "true", "\"x\"", "\"}\\\"\"", "[]",
	"[1,[2],{\"bootstrap_host\":1}]", "{}", "{\"kv_transfer_params\":{}}", "1.50e+3",
	"9007199254740993"};
static const char *const blanks[] = {"", "", "", " ", "\n", "\t \r\n"};

static const char *any(struct rng *rng, const char *const *list, size_t n)
{
	return list[rng_below(rng, n)];
}

#define ANY(rng, list) any(rng, list, ARRAY_LEN(list))

/* An object of members with names of their own (but the forbidden ones), with the kept
 * ones' names in kept. */
static void add_object(struct rng *rng, struct text *t, unsigned depth,
	const char *const *inner, size_t n)
{
	unsigned i, members = (unsigned)rng_below(rng, 6);
	uint64_t used = 0;

	add(t, "{");
	add(t, ANY(rng, blanks));
	for (i = 0; i < members; i++) {
		unsigned kind = (unsigned)rng_below(rng, depth > 0 && n > 0 ? 4 : 3);
		unsigned at = (unsigned)rng_below(rng, ARRAY_LEN(other_names));

		if (i > 0) {
			add(t, ",");
			add(t, ANY(rng, blanks));
		}
		add(t, "\"");
		if (kind == 3 && (used & 1ULL << 63) == 0) {
			used |= 1ULL << 63;
			add(t, inner[depth - 1]);
			add(t, "\":");
			add_object(rng, t, depth - 1, inner, n);
		} else if (kind == 0 || (used & 1ULL << at) != 0) {
			add(t, ANY(rng, transfer_names));
			add(t, "\"");
			add(t, ANY(rng, blanks));
			add(t, ":");
			add(t, ANY(rng, values));
		} else {
			used |= 1ULL << at;
			add(t, other_names[at]);
			add(t, "\":");
			add(t, ANY(rng, values));
		}
		add(t, ANY(rng, blanks));
	}
	add(t, "}");
}

static bool is_forbidden(const char *name)
{
	return strcmp(name, "kv_transfer_params") == 0 ||
	       strcmp(name, "ec_transfer_params") == 0 ||
	       strncmp(name, "bootstrap_", 10) == 0 || strncmp(name, "disagg", 6) == 0;
}

static bool is_searched(const char *name)
{
	return strcmp(name, "sampling_params") == 0 || strcmp(name, "extra_args") == 0;
}

/* The same members, less the forbidden ones; recursive where engines look. */
static void check_kept(const struct js *before, const struct js *after)
{
	const char *name;
	struct js *value;
	void *at = NULL;
	size_t kept = 0;

	while (js_each(before, &at, &name, &value)) {
		const struct js *now = js_get(after, name);
		char *a, *z;

		if (is_forbidden(name)) {
			ck_assert_ptr_null(now);
			continue;
		}
		kept++;
		ck_assert_msg(now != NULL, "%s is gone", name);
		if (is_searched(name) && js_is_object(value)) {
			check_kept(value, now);
			continue;
		}
		a = js_print(value, false);
		z = js_print(now, false);
		ck_assert_str_eq(a, z);
		free(a);
		free(z);
	}
	ck_assert_uint_eq(js_len(after), kept);
}

/* A body cleaned is JSON, has nothing that may not be there, and all else. */
START_TEST(random_bodies_are_cleaned)
{
	static const char *const inner[] = {"extra_args", "sampling_params"};
	struct rng rng;
	unsigned i;

	rng_seed(&rng, 2026);
	for (i = 0; i < 20000; i++) {
		struct text t = {.n = 0};
		struct js *before, *after;
		struct kv_request k;
		const char *why;
		size_t n;
		char *out;

		add(&t, ANY(&rng, blanks));
		add_object(&rng, &t, 2, inner, 2);
		add(&t, ANY(&rng, blanks));
		ck_assert_int_eq(kv_request_read(&k, NIXL, CHAT, span_make(t.p, t.n)), 0);
		ck_assert_int_eq(k.verdict, KV_SPLIT);
		out = made(&k, span_make(t.p, t.n), WHOLE, NULL, span_make(NULL, 0), &n);
		before = js_parse(span_make(t.p, t.n), &why);
		ck_assert_msg(before != NULL, "%s: %.*s", why, (int)t.n, t.p);
		after = js_parse(span_make(out, n), &why);
		ck_assert_msg(after != NULL, "%s: %.*s", why, (int)n, out);
		check_kept(before, after);
		js_free(before);
		js_free(after);
		free(out);
		kv_request_free(&k);
	}
}
END_TEST

/*
 * For every connector: the decode body, less what was added in one piece at its end, is
 * the cleaned body, byte for byte; and both legs are JSON with the transfer in it.
 */
START_TEST(random_decode_bodies_are_the_clients)
{
	static const char *const inner[] = {"extra_args", "sampling_params"};
	struct kv_pair pair = a_pair();
	struct rng rng;
	unsigned i;

	rng_seed(&rng, 63);
	for (i = 0; i < 20000; i++) {
		enum kv_connector connector = 1 + rng_below(&rng, CONNECTOR_MAX - 1);
		struct text t = {.n = 0};
		struct span body, params = SPAN_LIT("{\"r\":[1]}");
		struct kv_request k;
		size_t clean_n, n, head;
		char *clean, *decode, *prefill, *brace;
		struct js *js;
		const char *why;

		add_object(&rng, &t, 2, inner, 2);
		body = span_make(t.p, t.n);
		ck_assert_int_eq(kv_request_read(&k, connector, MESS, body), 0);
		clean = made(&k, body, WHOLE, NULL, params, &clean_n);
		decode = made(&k, body, DECODE, &pair, params, &n);
		head = clean_n - 1;
		ck_assert_uint_gt(n, clean_n);
		ck_assert_int_eq(memcmp(clean, decode, head), 0);
		brace = decode + n - 1;
		ck_assert_int_eq(*brace, '}');
		js = js_parse(span_make(decode, n), &why);
		ck_assert_msg(js != NULL, "%s: %.*s", why, (int)n, decode);
		ck_assert(
			(js_get(js, "kv_transfer_params") != NULL) == (connector != SGL));
		ck_assert((js_get(js, "bootstrap_room") != NULL) == (connector == SGL));
		js_free(js);
		prefill = made(&k, body, PREFILL, &pair, params, &n);
		js = js_parse(span_make(prefill, n), &why);
		ck_assert_msg(js != NULL, "%s: %.*s", why, (int)n, prefill);
		ck_assert((js_get(js, "max_tokens") != NULL) == (connector != SGL));
		js_free(js);
		free(prefill);
		free(decode);
		free(clean);
		kv_request_free(&k);
	}
}
END_TEST

static Suite *kv_split_suite(void)
{
	Suite *s = suite_create("kv_split");
	TCase *t = tcase_create("kv_split");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, some_can_be_split, 0, ARRAY_LEN(verdicts));
	tcase_add_loop_test(t, transfers_have_one_place, 0, ARRAY_LEN(placeless));
	tcase_add_test(t, utf_16_is_not_looked_through);
	tcase_add_loop_test(t, they_are_spliced, 0, ARRAY_LEN(cases));
	tcase_add_test(t, without_params_decode_computes);
	tcase_add_test(t, pairs_are_told_apart);
	tcase_add_test(t, every_endpoint_is_cleaned);
	tcase_add_test(t, so_many_copies_are_refused);
	tcase_add_test(t, long_bodies_are_read_once);
	tcase_add_test(t, without_memory_nothing_leaks);
	tcase_add_test(t, random_bodies_are_cleaned);
	tcase_add_test(t, random_decode_bodies_are_the_clients);
	suite_add_tcase(s, t);
	return s;
}

UNIT_MAIN(kv_split_suite())
