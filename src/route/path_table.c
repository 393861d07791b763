/*
 * The table of forwarded and local paths. See path_table.h.
 */
#include "route/path_table.h"

#include "base/dump.h"
#include "base/hash.h"
#include "route/path_rows.h"

#include <pthread.h>
#include <string.h>

#define PATH_ID_MAX 256

#define M_GET (1u << HTTP_GET | 1u << HTTP_HEAD | 1u << HTTP_OPTIONS)
#define M_POST (1u << HTTP_POST | 1u << HTTP_OPTIONS)
#define M_DELETE (1u << HTTP_DELETE)
#define M_GET_POST (M_GET | M_POST)
#define M_GET_DELETE (M_GET | M_DELETE)
#define M_GET_POST_DELETE (M_GET | M_POST | M_DELETE)
#define M_GET_PUT_DELETE (M_GET | M_DELETE | 1u << HTTP_PUT)
#define M_PUT (1u << HTTP_PUT | 1u << HTTP_OPTIONS)
#define M_GET_PUT (M_GET | M_PUT)
#define M_POST_PUT (M_POST | 1u << HTTP_PUT)
#define M_ANY ((1u << HTTP_METHOD_MAX) - 1)
/* HEAD and OPTIONS change nothing. */
#define M_QUIET (1u << HTTP_HEAD | 1u << HTTP_OPTIONS)

enum path_mark { DROPS = 1, STOPS = 2, MAKES = 4, FINDS = 8, YIELDS = 16, NAMES = 32 };

static const struct path_row {
	struct span path;
	const char *label;
	const char *texts[6]; /* of --dump-tables */
	uint16_t methods;     /* bit i: enum http_method i */
	uint8_t marks;
	enum path_action action;
	enum route_endpoint endpoint;
	enum path_shape shape;
} rows[] = {
#define X(path, label, methods, action, endpoint, shape, marks, source)              \
	{{path, sizeof(path) - 1}, label,                                            \
		{#methods, #action, #endpoint, #shape, #marks, source}, M_##methods, \
		marks, PATH_##action, ENDPOINT_##endpoint, SHAPE_##shape},
	PATH_ROWS(X)
#undef X
};

#define ROWS ARRAY_LEN(rows)

/*
 * Made once, from the rows: the exact paths by their hash, the other rows in their order,
 * and the labels, of which several rows may share one.
 */
#define INDEX_SIZE 1024
static struct {
	pthread_once_t once;
	uint8_t exact[INDEX_SIZE]; /* row number + 1; 0: free */
	uint8_t patterns[ROWS];
	size_t n_patterns;
	const char *labels[ROWS + 2];
	uint8_t label_of[ROWS];
	unsigned n_labels, pass, none;
} made = {.once = PTHREAD_ONCE_INIT};

static_assert(ROWS < 255 && ROWS < INDEX_SIZE / 2, "the index has room");

static bool is_pattern(struct span path)
{
	char last = path.p[path.n - 1];

	return memchr(path.p, '{', path.n) != NULL || last == '*' ||
	       (path.n > 1 && last == '/');
}

static size_t slot_of(struct span path)
{
	return hash64(path.p, path.n, 0) % INDEX_SIZE;
}

static unsigned label_number(const char *label)
{
	unsigned i = 0;

	while (i < made.n_labels && strcmp(made.labels[i], label) != 0)
		i++;
	if (i == made.n_labels)
		made.labels[made.n_labels++] = label;
	return i;
}

/* The last two, which rows have that are not served. */
static bool is_of_no_label(const char *label)
{
	return strcmp(label, "pass") == 0 || strcmp(label, "none") == 0;
}

static void make_index(void)
{
	size_t i, at;

	for (i = 0; i < ROWS; i++) {
		if (!is_of_no_label(rows[i].label))
			made.label_of[i] = (uint8_t)label_number(rows[i].label);
		if (is_pattern(rows[i].path)) {
			made.patterns[made.n_patterns++] = (uint8_t)i;
			continue;
		}
		at = slot_of(rows[i].path);
		while (made.exact[at] != 0)
			at = (at + 1) % INDEX_SIZE;
		made.exact[at] = (uint8_t)(i + 1);
	}
	made.pass = label_number("pass");
	made.none = label_number("none");
}

static void need_index(void)
{
	pthread_once(&made.once, make_index);
}

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

/* "/a/{id}/b/{id}": what stands for the first {id} is *id then. */
static bool fits(struct span row, struct span path, struct span *id)
{
	struct span mark = SPAN_LIT("{id}");

	while (row.n > 0) {
		struct span segment, rest = path;

		if (!span_starts(row, mark)) {
			if (path.n == 0 || path.p[0] != row.p[0])
				return false;
			row = span_make(row.p + 1, row.n - 1);
			path = span_make(path.p + 1, path.n - 1);
			continue;
		}
		if (!span_next(&rest, '/', &segment) || !is_id(segment))
			return false;
		if (id->n == 0)
			*id = segment;
		row = span_make(row.p + mark.n, row.n - mark.n);
		path = span_make(path.p + segment.n, path.n - segment.n);
	}
	return path.n == 0;
}

static bool fits_pattern(struct span row, struct span path, struct span *id)
{
	char last = row.p[row.n - 1];

	*id = span_make(NULL, 0);
	if (last == '/')
		return is_under(path, row);
	if (last == '*')
		return span_starts(path, span_make(row.p, row.n - 1));
	return fits(row, path, id);
}

/* *id is empty where the row has none. */
static const struct path_row *find_row(struct span path, struct span *id)
{
	size_t at = slot_of(path), i;

	*id = span_make(NULL, 0);
	for (; made.exact[at] != 0; at = (at + 1) % INDEX_SIZE) {
		const struct path_row *row = &rows[made.exact[at] - 1];

		if (span_eq(path, row->path))
			return row;
	}
	for (i = 0; i < made.n_patterns; i++) {
		const struct path_row *row = &rows[made.patterns[i]];

		if (fits_pattern(row->path, path, id))
			return row;
	}
	*id = span_make(NULL, 0);
	return NULL;
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

/* Rows that are no more than a name where pass_paths has the path. */
static bool is_shut(const struct path_row *row, bool passed)
{
	if (passed && (row->marks & YIELDS) != 0)
		return true;
	return row->action == PATH_FLEET || row->action == PATH_CLOSED ||
	       row->action == PATH_WEBSOCKET;
}

static bool is_served(const struct path_row *row, enum http_method method, bool passed)
{
	return (row->methods >> method & 1) != 0 ||
	       (passed && row->action == PATH_FORWARD);
}

/* A row that clients may call. */
static struct path_verdict serve(const struct path_row *row, enum http_method method,
	struct span path, struct span id, bool passed)
{
	bool is_own = (row->methods >> method & 1) != 0;
	struct path_verdict v = {
		.route = made.label_of[row - rows],
		.shape = row->shape,
		.allowed = row->methods,
	};

	if (!is_served(row, method, passed)) {
		v.action = PATH_REFUSE;
		v.fail = FAIL_METHOD_NOT_ALLOWED;
		return v;
	}
	v.action = row->action != PATH_FORWARD && method == HTTP_OPTIONS ? PATH_OPTIONS
									 : row->action;
	/* Other methods of a keyed path carry no prompt. */
	v.endpoint = is_own ? row->endpoint : ENDPOINT_OTHER;
	v.id_off = id.n > 0 ? (uint32_t)(id.p - path.p) : 0;
	v.id_n = (uint32_t)id.n;
	if ((row->marks & NAMES) != 0) {
		v.id_off = (uint32_t)row->path.n;
		v.id_n = (uint32_t)(path.n - row->path.n);
	}
	v.makes_object = (row->marks & MAKES) != 0 && method == HTTP_POST;
	v.names_model = (row->marks & NAMES) != 0;
	v.finds_object = is_own && (row->marks & FINDS) != 0;
	return v;
}

/* What pass_paths lets through. row: NULL, or one that clients may not call. */
static struct path_verdict pass(const struct path_row *row, enum http_method method)
{
	bool acts = row != NULL && (row->methods & ~M_QUIET) >> method & 1;
	bool is_for_all =
		row != NULL && row->action == PATH_FLEET && !(M_QUIET >> method & 1);

	return (struct path_verdict){
		.action = PATH_FORWARD,
		.route = made.pass,
		.allowed = M_ANY,
		.drops_caches = acts && (row->marks & DROPS) != 0,
		.stops_requests = acts && (row->marks & STOPS) != 0,
		.is_for_all = is_for_all,
		/* Its model, which the body may name, says the pool. */
		.endpoint = is_for_all ? ENDPOINT_PLAIN : ENDPOINT_OTHER,
	};
}

/* The shape of errors on paths of no row. */
static enum path_shape shape_by_name(struct span path)
{
	if (span_starts(path, SPAN_LIT("/v1/messages/")))
		return SHAPE_ANTHROPIC;
	if (span_starts(path, SPAN_LIT("/api/")))
		return SHAPE_OLLAMA;
	if (span_starts(path, SPAN_LIT("/cohere/")))
		return SHAPE_COHERE;
	return SHAPE_OPENAI;
}

void path_lookup(const struct router_opts *o, enum http_method method, struct span path,
	struct path_verdict *out)
{
	const struct path_row *row;
	struct span id;
	bool passed = is_passed(o, path);

	need_index();
	row = find_row(path, &id);
	if (row != NULL && !is_shut(row, passed)) {
		*out = serve(row, method, path, id, passed);
		return;
	}
	if (passed) {
		*out = pass(row, method);
		return;
	}
	*out = (struct path_verdict){
		.action = PATH_REFUSE,
		.fail = row != NULL && row->action == PATH_WEBSOCKET
				? FAIL_NOT_IMPLEMENTED
				: FAIL_PATH_NOT_FOUND,
		.route = made.none,
		.shape = row != NULL ? row->shape : shape_by_name(path),
	};
}

void path_find_effects(const char *method, struct span target, struct path_effects *out)
{
	const struct path_row *row;
	struct span path, id;
	bool acts;

	need_index();
	if (!span_next(&target, '?', &path))
		path = target;
	row = find_row(path, &id);
	acts = row != NULL &&
	       ((row->methods >> (strcmp(method, "GET") == 0          ? HTTP_GET
					 : strcmp(method, "PUT") == 0 ? HTTP_PUT
								      : HTTP_POST)) &
		       1) != 0;
	*out = (struct path_effects){
		.drops_caches = acts && (row->marks & DROPS) != 0,
		.stops_requests = acts && (row->marks & STOPS) != 0,
	};
}

const char *const *path_route_names(unsigned *n)
{
	need_index();
	*n = made.n_labels;
	return made.labels;
}

const char *path_route_name(unsigned route)
{
	need_index();
	return route < made.n_labels ? made.labels[route] : "none";
}

unsigned path_route_none(void)
{
	need_index();
	return made.none;
}

void path_dump_rows(void)
{
	size_t i;

	for (i = 0; i < ROWS; i++) {
		const struct path_row *row = &rows[i];

		dump_row("route", row->path.p, row->label, row->texts[0], row->texts[1],
			row->texts[2], row->texts[3], row->texts[4], row->texts[5]);
	}
}
