/*
 * The path table: every row with every method, what stays closed, pass_paths, and that a
 * path is its bytes: what another server might take for a row is none here.
 */
#include "base/mem.h"
#include "http/http_head.h"
#include "route/path_table.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#define GETS (1u << HTTP_GET | 1u << HTTP_HEAD | 1u << HTTP_OPTIONS)
#define POSTS (1u << HTTP_POST | 1u << HTTP_OPTIONS)
#define PUTS (1u << HTTP_PUT)
#define DELETES (1u << HTTP_DELETE)

static const struct {
	const char *path, *name;
	unsigned methods;
	enum path_action action;
	enum route_endpoint endpoint;
} served[] = {
	{"/v1/chat/completions", "chat", POSTS, PATH_FORWARD, ENDPOINT_CHAT},
	{"/chat/completions", "chat", POSTS, PATH_FORWARD, ENDPOINT_CHAT},
	{"/v1/chat/completions/batch", "chat_batch", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/v1/completions", "completions", POSTS, PATH_FORWARD, ENDPOINT_COMPLETIONS},
	{"/v1/responses", "responses", POSTS, PATH_FORWARD, ENDPOINT_RESPONSES},
	{"/responses", "responses", POSTS, PATH_FORWARD, ENDPOINT_RESPONSES},
	{"/v1/responses/resp_0aZ-9.:~", "response", GETS | DELETES, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/responses/cancel", "response", GETS | DELETES, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/responses/resp_1/cancel", "response_cancel", POSTS, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/responses/resp_1/input_items", "response_items", GETS, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/messages", "messages", POSTS, PATH_FORWARD, ENDPOINT_MESSAGES},
	{"/v1/messages/count_tokens", "count_tokens", POSTS, PATH_FORWARD,
		ENDPOINT_PLAIN},
	{"/cohere/v2/chat", "cohere_chat", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/api/chat", "ollama_chat", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/api/generate", "ollama_generate", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/completion", "completion", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/completions", "completion", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/infill", "infill", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/v1/systemone", "decisions", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/v1/decisions", "decisions", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/v1/stream/conv-1", "stream", GETS | DELETES, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/stream", "stream", GETS | DELETES, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/embeddings", "embeddings", POSTS, PATH_FORWARD, ENDPOINT_EMBEDDINGS},
	{"/embeddings", "embeddings", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/embedding", "embeddings", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/v2/embed", "embed", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/encode", "encode", POSTS | PUTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/pooling", "pooling", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/classify", "classify", POSTS | PUTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/v1/classify", "classify", POSTS, PATH_FORWARD, ENDPOINT_TEXT},
	{"/v1/rerank", "rerank", POSTS | PUTS, PATH_FORWARD, ENDPOINT_RERANK},
	{"/v1/reranking", "rerank", POSTS, PATH_FORWARD, ENDPOINT_RERANK},
	{"/v2/rerank", "rerank_v2", POSTS, PATH_FORWARD, ENDPOINT_RERANK},
	{"/rerank", "rerank_native", POSTS, PATH_FORWARD, ENDPOINT_RERANK},
	{"/reranking", "rerank_native", POSTS, PATH_FORWARD, ENDPOINT_RERANK},
	{"/v1/score", "score", POSTS, PATH_FORWARD, ENDPOINT_SCORE},
	{"/score", "score_native", POSTS, PATH_FORWARD, ENDPOINT_SCORE},
	{"/generative_scoring", "score", POSTS, PATH_FORWARD, ENDPOINT_SCORE},
	{"/generate", "generate", POSTS | PUTS, PATH_FORWARD, ENDPOINT_GENERATE},
	{"/inference/v1/generate", "inference_generate", POSTS, PATH_FORWARD,
		ENDPOINT_INFERENCE_GENERATE},
	{"/v1/responses/input_tokens", "input_tokens", POSTS, PATH_FORWARD,
		ENDPOINT_PLAIN},
	{"/v1/chat/completions/input_tokens", "input_tokens", POSTS, PATH_FORWARD,
		ENDPOINT_PLAIN},
	{"/tokenize", "tokenize", POSTS, PATH_FORWARD, ENDPOINT_TOKENIZE},
	{"/v1/tokenize", "tokenize", POSTS, PATH_FORWARD, ENDPOINT_TOKENIZE},
	{"/detokenize", "detokenize", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/detokenize", "detokenize", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/apply-template", "render", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/chat/completions/render", "render", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/completions/derender", "render", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/moderations", "moderations", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/audio/transcriptions", "transcriptions", POSTS, PATH_FORWARD,
		ENDPOINT_PLAIN},
	{"/audio/transcriptions", "transcriptions", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/audio/translations", "translations", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/audio/speech", "speech", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/images/generations", "images", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/images/edits", "images", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/images/i_1/content", "image", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/videos", "videos", GETS | POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/videos/v_1", "video", GETS | DELETES, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/videos/v_1/content", "video", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/videos/v_1/remix", "video", POSTS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/meshes", "meshes", GETS | POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/meshes/m_1", "mesh", GETS | DELETES, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/meshes/m_1/content", "mesh", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/actions/generations", "actions", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/conversations", "conversations", POSTS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/conversations/c_1", "conversation", GETS | POSTS | DELETES, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/conversations/c_1/items", "conversation", GETS | POSTS, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/conversations/c_1/items/i_1", "conversation", GETS | DELETES, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/files", "files", GETS | POSTS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/files/f_1", "file", GETS | DELETES, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/files/f_1/content", "file", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/batches", "batches", GETS | POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/batches/b_1", "batch", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/batches/b_1/cancel", "batch", POSTS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/open_session", "session", GETS | POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/close_session", "session", GETS | POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/v1/models/llama", "model", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/models/meta-llama/Llama-3.1-8B", "model", GETS, PATH_FORWARD,
		ENDPOINT_OTHER},
	{"/v1/models/a..b/.c/d./...", "model", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/models/meta%2Dllama%2FLlama", "model", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/api/show", "ollama_models", POSTS, PATH_FORWARD, ENDPOINT_PLAIN},
	{"/get_model_info", "model_info", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/model_info", "model_info", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/get_server_info", "server_info", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/server_info", "server_info", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/version", "info", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/load", "info", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/props", "info", GETS, PATH_FORWARD, ENDPOINT_OTHER},
	{"/v1/models", "models", GETS, PATH_MODELS, ENDPOINT_OTHER},
	{"/models", "models", GETS, PATH_MODELS, ENDPOINT_OTHER},
	{"/api/tags", "models", GETS, PATH_MODELS, ENDPOINT_OTHER},
	{"/finish_session", "finish_session", POSTS, PATH_FINISH_SESSION, ENDPOINT_OTHER},
	{"/health", "health", GETS, PATH_HEALTH, ENDPOINT_OTHER},
	{"/v1/health", "health", GETS, PATH_HEALTH, ENDPOINT_OTHER},
	{"/healthz", "health", GETS, PATH_HEALTH, ENDPOINT_OTHER},
	{"/livez", "health", GETS, PATH_HEALTH, ENDPOINT_OTHER},
	{"/", "health", GETS, PATH_HEALTH, ENDPOINT_OTHER},
	{"/liveness", "liveness", GETS, PATH_HEALTH, ENDPOINT_OTHER},
	{"/add_worker", "router", POSTS, PATH_ROUTER, ENDPOINT_OTHER},
	{"/remove_worker", "router", POSTS, PATH_ROUTER, ENDPOINT_OTHER},
	{"/list_workers", "router", GETS, PATH_ROUTER, ENDPOINT_OTHER},
	{"/get_loads", "router", GETS, PATH_ROUTER, ENDPOINT_OTHER},
	{"/workers", "router", GETS | POSTS, PATH_ROUTER, ENDPOINT_OTHER},
	{"/workers/http%3A%2F%2Fa", "router", GETS | DELETES, PATH_ROUTER,
		ENDPOINT_OTHER},
	{"/readiness", "readiness", GETS, PATH_READINESS, ENDPOINT_OTHER},
	{"/ready", "readiness", GETS, PATH_READINESS, ENDPOINT_OTHER},
	{"/readyz", "readiness", GETS, PATH_READINESS, ENDPOINT_OTHER},
	{"/health_generate", "readiness", GETS, PATH_READINESS, ENDPOINT_OTHER},
	{"/ping", "readiness", GETS | POSTS, PATH_READINESS, ENDPOINT_OTHER},
};

/* Open on engines, closed here; and paths that are no row by one byte. */
static const char *const closed[] = {
	"/v1/load_lora_adapter",
	"/v1/unload_lora_adapter",
	"/pause",
	"/resume",
	"/update_weights",
	"/invocations",
	"/predict",
	"/sleep",
	"/wake_up",
	"/collective_rpc",
	"/reset_prefix_cache",
	"/scale_elastic_ep",
	"/abort_requests",
	"/metrics",
	"/docs",
	"/openapi.json",
	"/start_profile",
	"/flush_cache",
	"/hicache/storage-backend",
	"/hicache/storage-backend/clear",
	"/slots",
	"/slots/0",
	"/slots/0/",
	"/dumper/start",
	"/lora-adapters",
	"/tools",
	"/cors-proxy",
	"/models/load",
	"/v1/streams",
	"/update_weights_of_tomorrow",
	"/abort_request",
	"/admin/v1/status",
	"",
	"*",
	"/v1",
	"/v1/",
	/* trailing slash, doubled slash, dot segments, case, encodings, parameters */
	"/v1/chat/completions/",
	"/generate/",
	"/health/",
	"/readiness/",
	"//v1/chat/completions",
	"/v1//chat/completions",
	"/v1/chat//completions",
	"//generate",
	"//health",
	"/./generate",
	"/v1/./chat/completions",
	"/v1/models/../chat/completions",
	"/x/../generate",
	"/generate/.",
	"/generate/..",
	"/V1/chat/completions",
	"/v1/Chat/completions",
	"/HEALTH",
	"/v1/chat/completion",
	"/v1/chat/completionss",
	"/v1/chat/completions;x",
	"/v1/chat%2Fcompletions",
	"/v1/chat/%63ompletions",
	"/%67enerate",
	"/v1/chat/completions ",
	" /generate",
	"generate",
	/* a response's id is one segment, and plain */
	"/v1/responses/",
	"/v1/responses//",
	"/v1/responses//cancel",
	"/v1/responses/.",
	"/v1/responses/..",
	"/v1/responses/../cancel",
	"/v1/responses/a/b",
	"/v1/responses/a/",
	"/v1/responses/a/cancel/",
	"/v1/responses/a/b/cancel",
	"/v1/responses/a/Cancel",
	"/v1/responses/a/input",
	"/v1/responses/a%2Fcancel",
	"/v1/responses/%61",
	"/v1/responses/a;b",
	"/v1/responses/a b",
	"/v1/responses/a\\cancel",
	"/v1/responses/\xc3\xa9",
	"/v1/responsesa/cancel",
	"/v1/responses/cancel/cancel/cancel",
	/* two ids */
	"/v1/conversations/c/items/",
	"/v1/conversations//items/i",
	"/v1/conversations/c/items/i/x",
	"/v1/conversations/c/items/..",
	"/v1/videos/a%2Fb/content",
	"/v1/files/a/content/",
	/* a model's name is no way out of its folder */
	"/v1/models/",
	"/v1/models//",
	"/v1/models/..",
	"/v1/models/.",
	"/v1/models/../../pause",
	"/v1/models/../load_lora_adapter",
	"/v1/models/x/../../load_lora_adapter",
	"/v1/models/x/..",
	"/v1/models/x/.",
	"/v1/models/x/./y",
	"/v1/models/x//y",
	"/v1/models/x/",
	"/v1/models//pause",
	"/v1/models/%2e%2e/pause",
	"/v1/models/%2E%2E/%2e./pause",
	"/v1/models/.%2e",
	"/v1/models/%2e",
	"/v1/models/..%2fload_lora_adapter",
	"/v1/models/x%2F..%2F..%2Fpause",
	"/v1/models/..%5cpause",
	"/v1/models/..\\pause",
	"/v1/models/%2fpause",
};

static const struct router_opts strict;

static struct path_verdict look_up(
	const struct router_opts *o, unsigned method, const char *path)
{
	struct path_verdict v;

	memset(&v, 0xff, sizeof(v));
	path_lookup(o, method, span_str(path), &v);
	return v;
}

/* OPTIONS of what is answered here is answered here: its methods. */
static enum path_action action_of(enum path_action of_row, unsigned method)
{
	return of_row != PATH_FORWARD && method == HTTP_OPTIONS ? PATH_OPTIONS : of_row;
}

START_TEST(every_row_and_method)
{
	for (unsigned m = 0; m < HTTP_METHOD_MAX; m++) {
		struct path_verdict v = look_up(&strict, m, served[_i].path);

		ck_assert_str_eq(path_route_name(v.route), served[_i].name);
		ck_assert_uint_eq(v.allowed, served[_i].methods);
		if ((served[_i].methods >> m & 1) == 0) {
			ck_assert_int_eq(v.action, PATH_REFUSE);
			ck_assert_int_eq(v.fail, FAIL_METHOD_NOT_ALLOWED);
			continue;
		}
		ck_assert_msg(v.action == action_of(served[_i].action, m), "%s",
			served[_i].path);
		ck_assert_int_eq(v.fail, FAIL_NONE);
		ck_assert_int_eq(v.endpoint, served[_i].endpoint);
	}
}
END_TEST

/* The list above is the whole table. */
START_TEST(no_row_without_its_test)
{
	unsigned n;
	const char *const *names = path_route_names(&n);

	for (unsigned i = 0; i + 2 < n; i++) {
		bool is_tested = false;

		for (size_t k = 0; k < ARRAY_LEN(served); k++)
			is_tested |= strcmp(served[k].name, names[i]) == 0;
		ck_assert_msg(is_tested, "%s", names[i]);
		for (unsigned k = 0; k < i; k++)
			ck_assert_str_ne(names[i], names[k]);
		ck_assert_str_eq(path_route_name(i), names[i]);
	}
	ck_assert_str_eq(names[n - 2], "pass");
	ck_assert_str_eq(names[n - 1], "none");
	ck_assert_str_eq(path_route_name(n - 2), "pass");
	ck_assert_str_eq(path_route_name(n - 1), "none");
	ck_assert_str_eq(path_route_name(n + 9), "none");
	ck_assert_uint_eq(path_route_none(), n - 1);
}
END_TEST

START_TEST(everything_else_is_404)
{
	for (unsigned m = 0; m < HTTP_METHOD_MAX; m++) {
		struct path_verdict v = look_up(&strict, m, closed[_i]);

		ck_assert_msg(v.action == PATH_REFUSE, "%s", closed[_i]);
		ck_assert_msg(v.fail == FAIL_PATH_NOT_FOUND, "%s", closed[_i]);
		ck_assert_uint_eq(v.route, path_route_none());
		ck_assert_int_eq(fail_status(v.fail), 404);
	}
}
END_TEST

/* A NUL inside is a byte like any other. */
START_TEST(paths_are_bytes)
{
	struct path_verdict v;

	path_lookup(&strict, HTTP_POST, SPAN_LIT("/generate\0"), &v);
	ck_assert_int_eq(v.fail, FAIL_PATH_NOT_FOUND);
	path_lookup(&strict, HTTP_POST, span_make("/generateX", 9), &v);
	ck_assert_int_eq(v.action, PATH_FORWARD);
	path_lookup(&strict, HTTP_POST, span_make(NULL, 0), &v);
	ck_assert_int_eq(v.fail, FAIL_PATH_NOT_FOUND);
}
END_TEST

START_TEST(realtime_is_not_implemented)
{
	for (unsigned m = 0; m < HTTP_METHOD_MAX; m++) {
		struct path_verdict v = look_up(&strict, m, "/v1/realtime");

		ck_assert_int_eq(v.action, PATH_REFUSE);
		ck_assert_int_eq(v.fail, FAIL_NOT_IMPLEMENTED);
		ck_assert_int_eq(fail_status(v.fail), 501);
	}
	ck_assert_int_eq(
		look_up(&strict, HTTP_GET, "/v1/realtime/").fail, FAIL_PATH_NOT_FOUND);
}
END_TEST

START_TEST(passed_paths_are_exact)
{
	char slow[] = "/slow_down", pause[] = "/pause", chat[] = "/v1/chat/completions",
	     health[] = "/health";
	char *items[] = {slow, pause, chat, health};
	struct router_opts o = {.pass_paths = {items, ARRAY_LEN(items)}};
	struct path_verdict v;

	for (unsigned m = 0; m < HTTP_METHOD_MAX; m++) {
		v = look_up(&o, m, "/slow_down");
		ck_assert_int_eq(v.action, PATH_FORWARD);
		ck_assert_int_eq(v.endpoint, ENDPOINT_OTHER);
		ck_assert(!v.is_for_all);
		/* All workers get it, and its model says of which pool. */
		v = look_up(&o, m, "/pause");
		ck_assert_int_eq(v.action, PATH_FORWARD);
		ck_assert(v.is_for_all == (m != HTTP_HEAD && m != HTTP_OPTIONS));
		ck_assert_int_eq(
			v.endpoint, v.is_for_all ? ENDPOINT_PLAIN : ENDPOINT_OTHER);
		ck_assert_str_eq(path_route_name(v.route), "pass");
		/* A row's other methods too, without a prompt; its own as ever. */
		v = look_up(&o, m, "/v1/chat/completions");
		ck_assert_int_eq(v.action, PATH_FORWARD);
		ck_assert_str_eq(path_route_name(v.route), "chat");
		ck_assert_int_eq(v.endpoint,
			(POSTS >> m & 1) != 0 ? ENDPOINT_CHAT : ENDPOINT_OTHER);
		/* What is answered here stays here. */
		v = look_up(&o, m, "/health");
		ck_assert_int_eq(v.action,
			(GETS >> m & 1) != 0 ? action_of(PATH_HEALTH, m) : PATH_REFUSE);
	}
	ck_assert_int_eq(look_up(&o, HTTP_POST, "/pause/").fail, FAIL_PATH_NOT_FOUND);
	ck_assert_int_eq(look_up(&o, HTTP_POST, "/paus").fail, FAIL_PATH_NOT_FOUND);
	ck_assert_int_eq(look_up(&o, HTTP_POST, "//pause").fail, FAIL_PATH_NOT_FOUND);
	ck_assert_int_eq(look_up(&o, HTTP_POST, "/resume").fail, FAIL_PATH_NOT_FOUND);
}
END_TEST

/* Answered here, but for pass_paths: engines and their web pages have them, too. */
static bool yields(const char *path)
{
	static const char *const paths[] = {"/", "/models", "/api/tags", "/v1/health",
		"/healthz", "/livez", "/ready", "/readyz", "/health_generate", "/ping"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		if (strcmp(path, paths[i]) == 0)
			return true;
	}
	return false;
}

/* pass_paths = *: raw bytes pass; what is answered here, still is. */
START_TEST(all_pass_but_the_local_ones)
{
	static const struct router_opts o = {.pass_all = true};

	for (size_t i = 0; i < ARRAY_LEN(closed); i++) {
		struct path_verdict v = look_up(&o, HTTP_POST, closed[i]);

		ck_assert_msg(v.action == PATH_FORWARD, "%s", closed[i]);
		ck_assert_str_eq(path_route_name(v.route), "pass");
	}
	for (size_t i = 0; i < ARRAY_LEN(served); i++) {
		if (yields(served[i].path) || served[i].action == PATH_ROUTER) {
			struct path_verdict v = look_up(&o, HTTP_GET, served[i].path);

			ck_assert_int_eq(v.action, PATH_FORWARD);
			ck_assert_str_eq(path_route_name(v.route), "pass");
			continue;
		}
		for (unsigned m = 0; m < HTTP_METHOD_MAX; m++) {
			bool is_own = (served[i].methods >> m & 1) != 0;
			struct path_verdict v = look_up(&o, m, served[i].path);

			ck_assert_str_eq(path_route_name(v.route), served[i].name);
			if (served[i].action == PATH_FORWARD || is_own)
				ck_assert_int_eq(
					v.action, action_of(served[i].action, m));
			else
				ck_assert_int_eq(v.fail, FAIL_METHOD_NOT_ALLOWED);
		}
	}
	ck_assert_int_eq(look_up(&o, HTTP_GET, "/v1/realtime").action, PATH_FORWARD);
}
END_TEST

/* D3: passed calls that leave the engine's prefix cache empty or stale, by the methods
 * that the engine takes, and only where pass_paths lets them through. */
START_TEST(d3_calls_that_drop_caches)
{
	static const struct {
		const char *path;
		bool drops, drops_by_get;
	} rows[] = {
		{"/flush_cache", true, true}, /* SGLang takes both */
		{"/reset_prefix_cache", true, false},
		{"/release_kv_cache_memory", true, false},
		{"/pause", true, false}, /* vLLM: clear_cache is its default */
		{"/end_weight_update", true, false},
		{"/update_weights", true, false},
		{"/update_weights_from_disk", true, false},
		{"/update_weights_from_distributed", true, false},
		{"/finish_weight_update", true, false},
		{"/collective_rpc", true, false},
		{"/sleep", true, false},
		{"/release_memory_occupation", true, true},
		{"/flush_caches", false, false},
		{"/flush_cache/", false, false},
		{"/Flush_cache", false, false},
		{"/v1/flush_cache", false, false},
		{"/update_weight", false, false},
		{"/wake_up", false, false},
		{"/reset_mm_cache", false, false},
		{"/continue_generation", false, false},
		{"*", false, false},
	};
	struct router_opts all = {.pass_all = true}, none = {0};
	struct path_verdict v;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct span path = span_str(rows[i].path);

		path_lookup(&all, HTTP_POST, path, &v);
		ck_assert_int_eq(v.action, PATH_FORWARD);
		ck_assert_msg(v.drops_caches == rows[i].drops, "%s", rows[i].path);
		path_lookup(&all, HTTP_GET, path, &v);
		ck_assert_msg(v.drops_caches == rows[i].drops_by_get, "%s", rows[i].path);
		path_lookup(&all, HTTP_OPTIONS, path, &v);
		ck_assert(!v.drops_caches);
		path_lookup(&all, HTTP_HEAD, path, &v);
		ck_assert(!v.drops_caches);
		path_lookup(&none, HTTP_POST, path, &v);
		ck_assert_int_eq(v.action, PATH_REFUSE);
		ck_assert(!v.drops_caches);
	}
	path_lookup(&all, HTTP_POST, SPAN_LIT("/v1/chat/completions"), &v);
	ck_assert(!v.drops_caches && !v.stops_requests);
	path_lookup(&all, HTTP_POST, SPAN_LIT("/abort_request"), &v);
	ck_assert(!v.drops_caches && v.stops_requests);
	path_lookup(&all, HTTP_POST, SPAN_LIT("/update_weights_from_disk"), &v);
	ck_assert(v.drops_caches && v.stops_requests);
	path_lookup(&all, HTTP_GET, SPAN_LIT("/pause"), &v);
	ck_assert(!v.stops_requests);
}
END_TEST

/* The verdict outlives the buffer that its path lay in: the id is read from where the path
 * is by then. */
static bool id_is(enum http_method method, const char *path, const char *want)
{
	struct router_opts o = {0};
	struct path_verdict v;
	char *lookup = xstrdup(path);
	bool is_right;

	path_lookup(&o, method, span_str(lookup), &v);
	memset(lookup, 'z', strlen(lookup));
	free(lookup);
	is_right = span_is(path_id(&v, span_str(path)), want);
	return is_right && v.id_n == strlen(want);
}

START_TEST(test_b8_what_stands_for_an_id_is_told)
{
	struct router_opts o = {0};
	struct path_verdict v;
	char text[600];

	ck_assert(id_is(HTTP_POST, "/v1/responses/resp_1/cancel", "resp_1"));
	ck_assert(id_is(HTTP_DELETE, "/v1/responses/x", "x"));
	ck_assert(id_is(HTTP_POST, "/v1/responses", ""));
	ck_assert(id_is(HTTP_GET, "/v1/conversations/c_1/items/i_1", "c_1"));
	ck_assert(id_is(HTTP_GET, "/v1/models/m", "m"));
	ck_assert(id_is(HTTP_GET, "/v1/models/org%2Fa/b", "org%2Fa/b"));
	ck_assert(id_is(HTTP_GET, "/v1/models", ""));
	for (int n = 256; n <= 257; n++) {
		snprintf(text, sizeof(text), "/v1/responses/%0*d", n, 7);
		path_lookup(&o, HTTP_GET, span_str(text), &v);
		ck_assert_int_eq(v.action, n == 256 ? PATH_FORWARD : PATH_REFUSE);
	}
}
END_TEST

START_TEST(objects_and_their_paths)
{
	static const struct {
		enum http_method method;
		const char *path;
		bool makes, finds;
	} cases[] = {
		{HTTP_POST, "/v1/responses", true, true},
		{HTTP_POST, "/v1/videos", true, false},
		{HTTP_GET, "/v1/videos", false, false},
		{HTTP_GET, "/v1/videos/v", false, true},
		{HTTP_POST, "/v1/batches", true, true},
		{HTTP_POST, "/v1/files", true, false},
		{HTTP_POST, "/v1/conversations", true, false},
		{HTTP_POST, "/open_session", true, false},
		{HTTP_POST, "/generate", false, true},
		{HTTP_POST, "/v1/chat/completions", false, false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct path_verdict v = look_up(&strict, cases[i].method, cases[i].path);

		ck_assert_int_eq(v.action, PATH_FORWARD);
		ck_assert_msg(v.makes_object == cases[i].makes, "%s", cases[i].path);
		ck_assert_msg(v.finds_object == cases[i].finds, "%s", cases[i].path);
	}
}
END_TEST

START_TEST(errors_have_the_shape_of_the_api)
{
	static const struct {
		const char *path;
		enum path_shape shape;
	} cases[] = {
		{"/v1/chat/completions", SHAPE_OPENAI},
		{"/v1/messages", SHAPE_ANTHROPIC},
		{"/v1/messages/count_tokens", SHAPE_ANTHROPIC},
		{"/v1/messages/batches", SHAPE_ANTHROPIC},
		{"/api/chat", SHAPE_OLLAMA},
		{"/api/pull", SHAPE_OLLAMA},
		{"/completion", SHAPE_LLAMA},
		{"/slots", SHAPE_LLAMA},
		{"/cohere/v2/chat", SHAPE_COHERE},
		{"/cohere/v2/rerank", SHAPE_COHERE},
		{"/pause", SHAPE_OPENAI},
		{"", SHAPE_OPENAI},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		ck_assert_msg(look_up(&strict, HTTP_PATCH, cases[i].path).shape ==
				      cases[i].shape,
			"%s", cases[i].path);
}
END_TEST

static Suite *path_table_suite(void)
{
	Suite *s = suite_create("path_table");
	TCase *tc = tcase_create("path_table");

	tcase_add_loop_test(tc, every_row_and_method, 0, ARRAY_LEN(served));
	tcase_add_test(tc, no_row_without_its_test);
	tcase_add_loop_test(tc, everything_else_is_404, 0, ARRAY_LEN(closed));
	tcase_add_test(tc, paths_are_bytes);
	tcase_add_test(tc, realtime_is_not_implemented);
	tcase_add_test(tc, passed_paths_are_exact);
	tcase_add_test(tc, all_pass_but_the_local_ones);
	tcase_add_test(tc, d3_calls_that_drop_caches);
	tcase_add_test(tc, test_b8_what_stands_for_an_id_is_told);
	tcase_add_test(tc, objects_and_their_paths);
	tcase_add_test(tc, errors_have_the_shape_of_the_api);
	suite_add_tcase(s, tc);
	return s;
}

UNIT_MAIN(path_table_suite())
