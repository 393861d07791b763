/*
 * The table of forwarded and local paths. See path_table.h.
 */
#include "model/path_table.h"

/* Bits in the order of enum http_method (http/http_head.h): GET HEAD POST PUT PATCH
 * DELETE OPTIONS. */
#define M_GET (1u << 0 | 1u << 1 | 1u << 6)
#define M_POST (1u << 2 | 1u << 6)
#define M_ANY 0x7fu
#define METHOD_POST 2

/* clang-format off */
static const struct path_row rows[] = {
	{ "/v1/chat/completions", "chat", M_POST, false, PATH_FORWARD, ENDPOINT_CHAT },
	{ "/v1/completions", "completions", M_POST, false, PATH_FORWARD, ENDPOINT_COMPLETIONS },
	{ "/v1/responses", "responses", M_POST, false, PATH_FORWARD, ENDPOINT_RESPONSES },
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

/* What follows a prefix row has no empty segment, "." or "..", however spelt: it leads to
 * no other path. */
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

static const struct path_row *find_row(struct span path)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(rows); i++) {
		struct span row = span_str(rows[i].path);

		if (rows[i].is_prefix ? is_under(path, row) : span_eq(path, row))
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

static bool drops_caches(unsigned method, struct span path)
{
	size_t i;

	for (i = 0; method == METHOD_POST && i < ARRAY_LEN(cache_drops); i++) {
		struct span row = span_str(cache_drops[i]);
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

void path_lookup(const struct router_opts *o, unsigned method, struct span path,
	struct path_verdict *out)
{
	const struct path_row *row = find_row(path);
	bool passed = is_passed(o, path);

	if (row != NULL &&
		((row->methods >> method & 1) != 0 || (passed && !is_local(row)))) {
		*out = (struct path_verdict){row->action, FAIL_NONE,
			(unsigned)(row - rows), row->endpoint, row->methods, false};
		/* Other methods of a keyed path carry no prompt. */
		if ((row->methods >> method & 1) == 0)
			out->endpoint = ENDPOINT_OTHER;
		return;
	}
	if (row != NULL) {
		*out = (struct path_verdict){PATH_REFUSE, FAIL_METHOD_NOT_ALLOWED,
			(unsigned)(row - rows), ENDPOINT_OTHER, row->methods, false};
		return;
	}
	if (passed) {
		*out = (struct path_verdict){PATH_FORWARD, FAIL_NONE, ROUTE_PASS,
			ENDPOINT_OTHER, M_ANY, drops_caches(method, path)};
		return;
	}
	*out = (struct path_verdict){PATH_REFUSE,
		span_is(path, realtime) ? FAIL_NOT_IMPLEMENTED : FAIL_PATH_NOT_FOUND,
		ROUTE_NONE, ENDPOINT_OTHER, 0, false};
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
