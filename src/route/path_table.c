/*
 * The table of forwarded and local paths. See path_table.h.
 */
#include "route/path_table.h"

#include <string.h>

#define PATH_ID_MAX 256

#define M_GET (1u << HTTP_GET | 1u << HTTP_HEAD | 1u << HTTP_OPTIONS)
#define M_POST (1u << HTTP_POST | 1u << HTTP_OPTIONS)
#define M_DELETE (1u << HTTP_DELETE)
#define M_ANY ((1u << HTTP_METHOD_MAX) - 1)

/* clang-format off */
static const struct path_row rows[] = {
	{ "/v1/chat/completions", "chat", M_POST, false, PATH_FORWARD, ENDPOINT_CHAT },
	{ "/v1/completions", "completions", M_POST, false, PATH_FORWARD, ENDPOINT_COMPLETIONS },
	{ "/v1/responses", "responses", M_POST, false, PATH_FORWARD, ENDPOINT_RESPONSES },
	{ "/v1/responses/{id}", "response", M_GET | M_DELETE, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/responses/{id}/cancel", "response_cancel", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/responses/{id}/input_items", "response_items", M_GET, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/messages", "messages", M_POST, false, PATH_FORWARD, ENDPOINT_MESSAGES },
	{ "/v1/messages/count_tokens", "count_tokens", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/embeddings", "embeddings", M_POST, false, PATH_FORWARD, ENDPOINT_EMBEDDINGS },
	{ "/v1/rerank", "rerank", M_POST, false, PATH_FORWARD, ENDPOINT_RERANK },
	{ "/v2/rerank", "rerank_v2", M_POST, false, PATH_FORWARD, ENDPOINT_RERANK },
	{ "/rerank", "rerank_native", M_POST, false, PATH_FORWARD, ENDPOINT_RERANK },
	{ "/v1/score", "score", M_POST, false, PATH_FORWARD, ENDPOINT_SCORE },
	{ "/score", "score_native", M_POST, false, PATH_FORWARD, ENDPOINT_SCORE },
	{ "/generate", "generate", M_POST, false, PATH_FORWARD, ENDPOINT_GENERATE },
	{ "/inference/v1/generate", "inference_generate", M_POST, false, PATH_FORWARD, ENDPOINT_INFERENCE_GENERATE },
	{ "/tokenize", "tokenize", M_POST, false, PATH_FORWARD, ENDPOINT_TOKENIZE },
	{ "/detokenize", "detokenize", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/moderations", "moderations", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/audio/transcriptions", "transcriptions", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/audio/translations", "translations", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/audio/speech", "speech", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/images/generations", "images", M_POST, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/models/", "model", M_GET, true, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/get_model_info", "model_info", M_GET, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/get_server_info", "server_info", M_GET, false, PATH_FORWARD, ENDPOINT_OTHER },
	{ "/v1/models", "models", M_GET, false, PATH_MODELS, ENDPOINT_OTHER },
	{ "/finish_session", "finish_session", M_POST, false, PATH_FINISH_SESSION, ENDPOINT_OTHER },
	{ "/health", "health", M_GET, false, PATH_HEALTH, ENDPOINT_OTHER },
	{ "/liveness", "liveness", M_GET, false, PATH_HEALTH, ENDPOINT_OTHER },
	{ "/readiness", "readiness", M_GET, false, PATH_READINESS, ENDPOINT_OTHER },
};
/* clang-format on */

#define ROUTE_PASS ARRAY_LEN(rows)
#define ROUTE_NONE (ARRAY_LEN(rows) + 1)
#define ROUTES (ARRAY_LEN(rows) + 2)

/* Websocket routes: an Upgrade is never forwarded, so these say so at once rather than
 * look missing. */
static const char realtime[] = "/v1/realtime";

/* The next byte as a worker, or a server in front of it, may read it. */
static char take_byte(struct span *rest)
{
	uint64_t code;
	char c = rest->p[0];
	size_t used = 1;

	if (c == '%' && rest->n >= 3 &&
		span_hex_u64(span_make(rest->p + 1, 2), &code) == 0) {
		c = (char)code;
		used = 3;
	}
	*rest = span_make(rest->p + used, rest->n - used);
	return c == '\\' ? '/' : c;
}

/* The part behind a prefix row has no empty segment, "." or "..", however spelt, so it
 * leads to no other path. */
static bool is_plain_name(struct span name)
{
	size_t len = 0, dots = 0; /* of the segment in hand */

	while (name.n > 0) {
		char c = take_byte(&name);

		if (c != '/') {
			len++;
			dots += c == '.';
			continue;
		}
		if (dots == len && len <= 2)
			return false;
		len = dots = 0;
	}
	return dots != len || len > 2;
}

static bool is_under(struct span path, struct span prefix)
{
	return span_starts(path, prefix) &&
	       is_plain_name(span_make(path.p + prefix.n, path.n - prefix.n));
}

/* One segment that nobody reads otherwise: letters, digits and a few marks. */
static bool is_id(struct span s)
{
	size_t i;

	if (s.n == 0 || s.n > PATH_ID_MAX)
		return false;
	for (i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
				(c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
				c == '.' || c == ':' || c == '~';

		if (!is_plain)
			return false;
	}
	return !span_is(s, ".") && !span_is(s, "..");
}

/* "/a/{id}/b": what stands for {id} is *id then. */
static bool fits(const char *row, struct span path, struct span *id)
{
	const char *mark = strchr(row, '{');
	struct span before, after;

	if (mark == NULL)
		return span_is(path, row);
	before = span_make(row, (size_t)(mark - row));
	after = span_str(mark + sizeof("{id}") - 1);
	if (!span_starts(path, before) || path.n < before.n + after.n ||
		!span_eq(span_make(path.p + path.n - after.n, after.n), after))
		return false;
	*id = span_make(path.p + before.n, path.n - before.n - after.n);
	return is_id(*id);
}

/* *id is empty where the row has none. */
static const struct path_row *find_row(struct span path, struct span *id)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(rows); i++) {
		*id = span_make(NULL, 0);
		if (rows[i].is_prefix ? is_under(path, span_str(rows[i].path))
				      : fits(rows[i].path, path, id))
			return &rows[i];
	}
	return NULL;
}

/*
 * Engine calls after which its prefix cache counts no more. A '*' at the end stands for
 * any ending. None of them is forwarded but by pass_paths.
 */
static const char *const cache_drops[] = {
	"/flush_cache",          /* SGLang, and the vLLM router's own */
	"/reset_prefix_cache",   /* vLLM */
	"/update_weights*",      /* SGLang: _from_disk, _from_tensor ...; vLLM */
	"/finish_weight_update", /* vLLM */
	"/collective_rpc",       /* vLLM, development mode: how trainers load weights */
	"/sleep",                /* vLLM: gives the cache's memory back */
	"/release_memory_occupation", /* SGLang: the same */
};

/* Engine calls that make it abort requests, or may. */
static const char *const request_stops[] = {
	"/abort_request",             /* SGLang */
	"/abort_requests",            /* vLLM */
	"/pause",                     /* vLLM: mode=abort is its default */
	"/pause_generation",          /* SGLang */
	"/sleep",                     /* vLLM */
	"/release_memory_occupation", /* SGLang */
	"/update_weights*",           /* SGLang: abort_all_requests */
};

static bool is_listed(
	const char *const *list, size_t n, enum http_method method, struct span path)
{
	size_t i;

	for (i = 0; method == HTTP_POST && i < n; i++) {
		struct span row = span_str(list[i]);
		bool is_open = row.p[row.n - 1] == '*';

		if (is_open ? span_starts(path, span_make(row.p, row.n - 1))
			    : span_eq(path, row))
			return true;
	}
	return false;
}

static bool is_passed(const struct router_opts *o, struct span path)
{
	size_t i;

	if (o->pass_all)
		return true;
	for (i = 0; i < o->pass_paths.n; i++) {
		if (span_is(path, o->pass_paths.items[i]))
			return true;
	}
	return false;
}

static bool is_local(const struct path_row *row)
{
	return row->action != PATH_FORWARD;
}

void path_lookup(const struct router_opts *o, enum http_method method, struct span path,
	struct path_verdict *out)
{
	struct span id;
	const struct path_row *row = find_row(path, &id);
	bool passed = is_passed(o, path);

	if (row != NULL &&
		((row->methods >> method & 1) != 0 || (passed && !is_local(row)))) {
		*out = (struct path_verdict){.action = row->action,
			.route = (unsigned)(row - rows),
			.endpoint = row->endpoint,
			.id_off = id.n > 0 ? (uint32_t)(id.p - path.p) : 0,
			.id_n = (uint32_t)id.n,
			.allowed = row->methods};
		/* Other methods of a keyed path carry no prompt. */
		if ((row->methods >> method & 1) == 0)
			out->endpoint = ENDPOINT_OTHER;
		return;
	}
	if (row != NULL) {
		*out = (struct path_verdict){.action = PATH_REFUSE,
			.fail = FAIL_METHOD_NOT_ALLOWED,
			.route = (unsigned)(row - rows),
			.allowed = row->methods};
		return;
	}
	if (passed) {
		*out = (struct path_verdict){.action = PATH_FORWARD,
			.route = ROUTE_PASS,
			.allowed = M_ANY,
			.drops_caches = is_listed(
				cache_drops, ARRAY_LEN(cache_drops), method, path),
			.stops_requests = is_listed(
				request_stops, ARRAY_LEN(request_stops), method, path)};
		return;
	}
	*out = (struct path_verdict){.action = PATH_REFUSE,
		.fail = span_is(path, realtime) ? FAIL_NOT_IMPLEMENTED
						: FAIL_PATH_NOT_FOUND,
		.route = ROUTE_NONE};
}

const char *const *path_route_names(unsigned *n)
{
	static const char *names[ROUTES];
	size_t i;

	for (i = 0; i < ARRAY_LEN(rows); i++)
		names[i] = rows[i].name;
	names[ROUTE_PASS] = "pass";
	names[ROUTE_NONE] = "none";
	*n = ROUTES;
	return names;
}

const char *path_route_name(unsigned route)
{
	if (route < ARRAY_LEN(rows))
		return rows[route].name;
	return route == ROUTE_PASS ? "pass" : "none";
}

unsigned path_route_none(void)
{
	return ROUTE_NONE;
}
