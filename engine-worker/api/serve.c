/*
 * The engine's HTTP API: one table of routes over the small server.
 * Called by engine_daemon.c.
 */
#include "api/serve.h"
#include "api/completion.h"
#include "api/engine_health.h"
#include "api/engine_metrics.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "base/rng.h"
#include "core/engine.h"
#include "core/histograms.h"
#include "http/http_server.h"
#include "io/js.h"
#include "kvx/kv_handoff.h"
#include "lab/doom.h"
#include "lab/fault.h"
#include "lab/fault_socket.h"
#include "lab/hang.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { MESSAGE_BYTES = 1024 };

enum { N_ROUTES = 20 };

enum { IS_AWAKE = -1, SLEEP_MAX = 2 };

struct serve {
	struct http_server *server;
	struct http_route routes[N_ROUTES]; /* in force */
	struct engine *engine;
	struct serve_opts opts;
	struct completion_list completions;
	struct engine_histograms histograms;
	struct engine_health *health;
	struct handoff *handoff;
	struct faults faults;
	struct fault_target fault_target;
	struct hang hang;
	struct doom *doom;
	int listen_fd; /* the server's; -1: it takes nobody any more */
	bool is_ready, is_draining;
	int sleep_level; /* IS_AWAKE, or 0 to SLEEP_MAX */
	uint64_t started_ms;
	char engine_id[33]; /* of this process: another one after a restart */
};

/* Answers with a JSON document, and frees it. */
static void reply_json(struct http_call *call, struct js *root)
{
	char *text = js_print(root, false);

	js_free(root);
	if (text == NULL)
		http_call_fail_text(
			call, FAIL_OVERLOADED, "The engine is out of memory.");
	else
		http_call_reply(call, 200, "application/json", span_str(text),
			span_make(NULL, 0));
	free(text);
}

static struct params_limits limits_of(const struct serve *s)
{
	return (struct params_limits){
		.model = s->opts.model,
		.vocab = engine_vocab(s->engine),
		.max_model_len = s->opts.max_model_len,
	};
}

/* The connection ends, or its client leaves: nothing is to be done. */
static void on_gone(void *arg UNUSED)
{
}

/* Sends what comes before the first event, if any, and no more. */
static void answer_head(struct serve *s, struct http_call *call, bool is_chat)
{
	struct params_limits limits = limits_of(s);
	struct params params;
	char message[MESSAGE_BYTES];

	if (params_read(http_call_body(call), is_chat, &limits, &params, message,
		    sizeof(message)) == FAIL_NONE &&
		params.is_stream)
		http_call_begin(call, 200, "text/event-stream", span_make(NULL, 0));
	params_free(&params);
	http_call_watch(call, on_gone, NULL, NULL);
}

/* Answers with what a fault says; false: there is none. */
static bool meets_fault(struct serve *s, struct http_call *call, bool is_chat)
{
	int64_t status;
	char extra[64] = "";

	if (s->faults.is_core_dead) {
		http_call_fail_text(call, FAIL_INTERNAL, "The engine failed.");
		return true;
	}
	status = faults_take_answer(&s->faults);
	if (status == FAULT_NONE)
		return false;
	if (status == FAULT_RESET) {
		http_call_abort(call);
		return true;
	}
	if (status == FAULT_HEAD) {
		answer_head(s, call, is_chat);
		return true;
	}
	if (s->faults.retry_after_s != FAULT_NONE)
		(void)snprintf(extra, sizeof(extra), "Retry-After: %" PRId64 "\r\n",
			s->faults.retry_after_s);
	http_call_reply(call, (int)status, "application/json",
		SPAN_LIT(
			"{\"error\":{\"message\":\"The engine was told to answer this.\","
			"\"type\":\"server_error\",\"param\":null,\"code\":\"fault\"}}"),
		span_str(extra));
	return true;
}

static void start_completion(struct serve *s, struct http_call *call, bool is_chat)
{
	struct completion_opts opts;

	if (s->is_draining) {
		http_call_fail_text(call, FAIL_DRAINING, "The engine is shutting down.");
		return;
	}
	if (s->faults.die_after_ms != FAULT_NONE)
		doom_set(s->doom, (uint64_t)s->faults.die_after_ms);
	if (meets_fault(s, call, is_chat))
		return;
	opts = (struct completion_opts){
		.sched = engine_sched(s->engine),
		.limits = limits_of(s),
		.all = &s->completions,
		.histograms = &s->histograms,
		.faults = &s->faults,
		.handoff = s->handoff,
	};
	completion_start(&opts, call, is_chat);
}

static void handle_chat(void *arg, struct http_call *call)
{
	start_completion(arg, call, true);
}

static void handle_completion(void *arg, struct http_call *call)
{
	start_completion(arg, call, false);
}

static struct js *ids_json(const struct token_list *list)
{
	struct js *ids = js_array();

	for (size_t i = 0; i < list->n; i++)
		js_push(ids, js_int(list->ids[i]));
	return ids;
}

/* One prompt as a request by token ids, as far as a router wants to know it. */
static struct js *rendered_json(const struct serve *s, const struct params *params,
	const struct token_list *prompt)
{
	struct js *root = js_object(), *sampling = js_object();

	js_set_str(root, "model", s->opts.model);
	js_set(root, "token_ids", ids_json(prompt));
	js_set_int(sampling, "n", params->n);
	js_set(sampling, "max_tokens",
		params->max_new > 0 ? js_int(params->max_new) : js_null());
	js_set(root, "sampling_params", sampling);
	js_set_bool(root, "stream", params->is_stream);
	return root;
}

/* Answers with the prompt of a request, and computes nothing. */
static void render(struct serve *s, struct http_call *call, bool is_chat)
{
	struct params_limits limits = limits_of(s);
	struct params params;
	char message[MESSAGE_BYTES];
	enum fail why = params_read(http_call_body(call), is_chat, &limits, &params,
		message, sizeof(message));
	struct js *list;

	if (why != FAIL_NONE) {
		http_call_fail_text(call, why, message);
	} else if (is_chat) {
		reply_json(call, rendered_json(s, &params, &params.prompts[0]));
	} else {
		list = js_array();
		for (size_t i = 0; i < params.n_prompts; i++)
			js_push(list, rendered_json(s, &params, &params.prompts[i]));
		reply_json(call, list);
	}
	params_free(&params);
}

static void handle_render_chat(void *arg, struct http_call *call)
{
	render(arg, call, true);
}

static void handle_render_completion(void *arg, struct http_call *call)
{
	render(arg, call, false);
}

static void handle_tokenize(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	struct token_list list = {NULL, 0, 0};
	char message[MESSAGE_BYTES];
	enum fail why = params_tokenize(http_call_body(call), engine_vocab(s->engine),
		&list, message, sizeof(message));
	struct js *root;

	if (why != FAIL_NONE) {
		http_call_fail_text(call, why, message);
	} else {
		root = js_object();
		js_set_int(root, "count", (int64_t)list.n);
		js_set_int(root, "max_model_len", (int64_t)s->opts.max_model_len);
		js_set(root, "tokens", ids_json(&list));
		reply_json(call, root);
	}
	token_list_free(&list);
}

static void handle_detokenize(void *arg, struct http_call *call)
{
	const struct serve *s = arg;
	char message[MESSAGE_BYTES], *text = NULL;
	size_t n = 0;
	enum fail why = params_detokenize(http_call_body(call), engine_vocab(s->engine),
		&text, &n, message, sizeof(message));
	struct js *root;

	if (why != FAIL_NONE) {
		http_call_fail_text(call, why, message);
		return;
	}
	root = js_object();
	js_set(root, "prompt", js_string(span_make(text, n)));
	free(text);
	reply_json(call, root);
}

static void handle_models(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	struct js *root = js_object(), *list = js_array(), *model = js_object();
	char owner[64];

	(void)snprintf(owner, sizeof(owner), "kvsteer-%s", engine_backend(s->engine));
	js_set_str(model, "id", s->opts.model);
	js_set_str(model, "object", "model");
	js_set_int(model, "created", (int64_t)(s->started_ms / 1000));
	js_set_str(model, "owned_by", owner);
	js_set_str(model, "root", s->opts.model);
	js_set(model, "parent", js_null());
	js_set_int(model, "max_model_len", (int64_t)s->opts.max_model_len);
	js_set(model, "permission", js_array());
	js_push(list, model);
	js_set_str(root, "object", "list");
	js_set(root, "data", list);
	reply_json(call, root);
}

static void handle_health(void *arg, struct http_call *call)
{
	struct serve *s = arg;

	engine_health_handle(s->health, call);
}

static void handle_version(void *arg UNUSED, struct http_call *call)
{
	struct js *root = js_object();

	js_set_str(root, "version", KVSTEER_VERSION);
	reply_json(call, root);
}

static void handle_server_info(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	const struct sched *sched = engine_sched(s->engine);
	const struct sched_opts *opts = sched_opts(sched);
	struct js *root = js_object();

	js_set_str(root, "version", KVSTEER_VERSION);
	js_set_str(root, "engine_id", s->engine_id);
	js_set_str(root, "backend", engine_backend(s->engine));
	js_set_str(root, "role", role_text(handoff_role(s->handoff)));
	js_set(root, "kvx_host",
		handoff_is_on(s->handoff) ? js_string(span_str(handoff_host(s->handoff)))
					  : js_null());
	js_set(root, "kvx_port",
		handoff_is_on(s->handoff) ? js_int(handoff_port(s->handoff)) : js_null());
	js_set_str(root, "kv_group", handoff_group(s->handoff));
	js_set_str(root, "served_model_name", s->opts.model);
	js_set_int(root, "max_model_len", (int64_t)s->opts.max_model_len);
	js_set_int(root, "block_size", sched_shape(sched)->block_tokens);
	js_set_int(root, "num_blocks", sched_shape(sched)->n_blocks);
	js_set_int(root, "max_num_seqs", opts->max_seqs);
	js_set_int(root, "max_num_batched_tokens", opts->step_tokens);
	js_set_int(root, "max_waiting", opts->max_waiting);
	js_set_int(root, "num_running", sched_running(sched));
	js_set_int(root, "num_waiting", sched_waiting(sched));
	js_set_int(root, "num_used_blocks", sched_used_blocks(sched));
	reply_json(call, root);
}

static void handle_metrics(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	struct text text = {NULL, 0, 0, false};
	struct handoff_counts counts = handoff_counts(s->handoff);
	struct engine_metrics_opts opts = {
		s->opts.model, s->opts.max_model_len, s->started_ms, &counts};

	engine_metrics_print(&text, engine_sched(s->engine), &s->histograms, &opts);
	if (text.failed)
		http_call_fail_text(
			call, FAIL_OVERLOADED, "The engine is out of memory.");
	else
		http_call_reply(call, 200, "text/plain; version=0.0.4; charset=utf-8",
			span_make(text.p, text.n), span_make(NULL, 0));
	text_free(&text);
}

static void handle_flush(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	struct js *root = js_object();

	sched_flush(engine_sched(s->engine));
	js_set_bool(root, "success", true);
	reply_json(call, root);
}

/* A router says that what is kept under these params will not be taken. */
static void handle_release(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	const char *why = "";
	struct js *body = js_parse(http_call_body(call), &why), *root;
	const struct js *id = js_get(body, "remote_request_id");
	unsigned char token[KVX_TOKEN_BYTES];
	bool was_kept, is_ours = false;
	struct span request;

	if (id == NULL || !js_as_str(id, &request) || request.n > KVX_REQUEST_MAX ||
		!kv_token_read(js_get(body, "token"), token)) {
		http_call_fail_text(call, FAIL_MALFORMED_REQUEST,
			"An object with 'remote_request_id' and 'token' is expected.");
		js_free(body);
		return;
	}
	is_ours = handoff_release(s->handoff, request, token, &was_kept);
	js_free(body);
	if (!is_ours) {
		http_call_fail_text(
			call, FAIL_FORBIDDEN, "The token is not of this engine.");
		return;
	}
	root = js_object();
	js_set_bool(root, "released", was_kept);
	reply_json(call, root);
}

/* A random name, in hex, and the time of birth. */
static void name_process(struct serve *s)
{
	uint64_t id[2];

	s->started_ms = clock_wall_ms();
	rng_secret(id, sizeof(id));
	(void)snprintf(s->engine_id, sizeof(s->engine_id), "%016" PRIx64 "%016" PRIx64,
		id[0], id[1]);
}

static void handle_loading(void *arg UNUSED, struct http_call *call)
{
	http_call_reply(call, 503, "application/json",
		SPAN_LIT("{\"error\":{\"message\":\"The model is being loaded.\","
			 "\"type\":\"overloaded_error\",\"param\":null,"
			 "\"code\":\"loading\"}}"),
		SPAN_LIT("Retry-After: 1\r\n"));
}

/* Sleep */

static void set_pace(struct serve *s)
{
	const struct faults *f = &s->faults;

	engine_set_pace(s->engine, f->slow,
		f->is_wedged || f->is_core_dead || s->sleep_level != IS_AWAKE);
}

static void handle_load(void *arg, struct http_call *call)
{
	const struct serve *s = arg;
	struct js *root = js_object();

	js_set_int(root, "server_load", s->completions.n);
	reply_json(call, root);
}

static void handle_is_sleeping(void *arg, struct http_call *call)
{
	const struct serve *s = arg;
	struct js *root = js_object();

	js_set_bool(root, "is_sleeping", s->sleep_level != IS_AWAKE);
	reply_json(call, root);
}

/* What the query says; false: nothing that can be done. */
static bool read_sleep(const struct http_call *call, int *level, bool *aborts)
{
	char value[16];

	*level = 1;
	*aborts = true;
	if (http_call_query_value(call, "level", value, sizeof(value))) {
		*level = value[0] - '0';
		if (value[1] != '\0' || *level < 0 || *level > SLEEP_MAX)
			return false;
	}
	if (http_call_query_value(call, "mode", value, sizeof(value))) {
		*aborts = strcmp(value, "abort") == 0;
		return *aborts || strcmp(value, "keep") == 0;
	}
	return true;
}

static void handle_sleep(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	struct js *root;
	bool aborts;
	int level;

	if (!read_sleep(call, &level, &aborts)) {
		http_call_fail_text(call, FAIL_MALFORMED_REQUEST,
			"'level' must be from 0 to 2, and 'mode' abort or keep.");
		return;
	}
	s->sleep_level = level;
	set_pace(s);
	if (aborts)
		completions_abort(&s->completions);
	if (level > 0)
		sched_flush(engine_sched(s->engine));
	root = js_object();
	js_set_str(root, "status", "sleeping");
	js_set_int(root, "level", level);
	reply_json(call, root);
}

static void handle_wake_up(void *arg, struct http_call *call)
{
	struct serve *s = arg;
	struct js *root = js_object();

	s->sleep_level = IS_AWAKE;
	set_pace(s);
	js_set_str(root, "status", "awake");
	js_set(root, "tags", js_null());
	reply_json(call, root);
}

static const struct http_route routes[] = {
	{"POST", "/v1/chat/completions", handle_chat},
	{"POST", "/v1/completions", handle_completion},
	{"POST", "/v1/chat/completions/render", handle_render_chat},
	{"POST", "/v1/completions/render", handle_render_completion},
	{"POST", "/tokenize", handle_tokenize},
	{"POST", "/detokenize", handle_detokenize},
	{"GET", "/v1/models", handle_models},
	{"GET", "/health", handle_health},
	{"GET", "/ping", handle_health},
	{"POST", "/ping", handle_health},
	{"GET", "/version", handle_version},
	{"GET", "/load", handle_load},
	{"GET", "/is_sleeping", handle_is_sleeping},
	{"POST", "/sleep", handle_sleep},
	{"POST", "/wake_up", handle_wake_up},
	{"GET", "/server_info", handle_server_info},
	{"GET", "/metrics", handle_metrics},
	{"POST", "/v1/kv/release", handle_release},
	{"POST", "/flush_cache", handle_flush},
	{"POST", "/reset_prefix_cache", handle_flush},
};

/* Routes that need no model work; the others say that it is being loaded. */
static void route_while_loading(struct serve *s)
{
	static_assert(ARRAY_LEN(routes) == N_ROUTES, "all of them");
	for (size_t i = 0; i < N_ROUTES; i++) {
		s->routes[i] = routes[i];
		if (routes[i].handle != handle_health &&
			routes[i].handle != handle_version)
			s->routes[i].handle = handle_loading;
	}
}

static void hang_connects(struct serve *s, bool on)
{
	if (s->listen_fd < 0)
		return;
	http_server_pause(s->server, on);
	hang_set(&s->hang, s->listen_fd, on);
}

static void faults_changed(void *arg)
{
	struct serve *s = arg;

	set_pace(s);
	if (s->faults.is_core_dead)
		completions_break(&s->completions);
	hang_connects(s, s->faults.hangs_connect);
	engine_health_refresh(s->health);
}

/* The time of die_after_ms has passed; the fault may have been taken back. */
static void die(void *arg)
{
	struct serve *s = arg;

	if (s->faults.die_after_ms == FAULT_NONE)
		return;
	if (!s->faults.dies_in_core)
		(void)raise(SIGKILL);
	s->faults.die_after_ms = FAULT_NONE;
	s->faults.is_core_dead = true;
	faults_changed(s);
}

static int open_parts(struct serve *s, struct loop *l, int listen_fd)
{
	struct http_server_opts server_opts = {
		.routes = s->routes,
		.n_routes = ARRAY_LEN(routes),
		.arg = s,
		.max_body = JS_MAX_BYTES,
		.max_connections = 16384,
	};

	int err = handoff_new(
		l, s->opts.handoff, s->engine_id, &s->histograms, &s->handoff);

	if (err != 0)
		return err;
	s->health = engine_health_new(l, s->engine, &s->faults,
		role_text(handoff_role(s->handoff)), s->engine_id);
	s->doom = doom_new(l, die, s);
	if (s->health != NULL && s->doom != NULL)
		s->server = http_server_new(l, listen_fd, &server_opts);
	return s->server != NULL ? 0 : ERR_NOMEM;
}

static int restart(void *arg)
{
	struct serve *s = arg;
	int err;

	if (!s->is_ready)
		return ERR_CLOSED;
	http_server_cut(s->server);
	name_process(s);
	handoff_restart(s->handoff);
	err = engine_restart(s->engine);
	if (err != 0)
		return err;
	memset(&s->histograms, 0, sizeof(s->histograms));
	s->sleep_level = IS_AWAKE;
	set_pace(s);
	s->faults.n_restarts++;
	return 0;
}

int serve_new(struct loop *l, int listen_fd, struct engine *engine,
	const struct serve_opts *opts, struct serve **out)
{
	struct serve *s = calloc(1, sizeof(*s));
	int err;

	if (s == NULL)
		return ERR_NOMEM;
	s->engine = engine;
	s->opts = *opts;
	s->sleep_level = IS_AWAKE;
	faults_clear(&s->faults);
	s->fault_target = (struct fault_target){&s->faults, faults_changed, restart, s};
	hang_init(&s->hang);
	s->listen_fd = listen_fd;
	name_process(s);
	route_while_loading(s);
	err = open_parts(s, l, listen_fd);
	if (err != 0)
		serve_free(s);
	else
		*out = s;
	return err;
}

int serve_ready(struct serve *s)
{
	size_t held = sched_max_tokens(engine_sched(s->engine));
	int err;

	if (s->opts.max_model_len == 0)
		s->opts.max_model_len = held;
	if (s->opts.max_model_len > held)
		return ERR_LIMIT;
	err = handoff_ready(s->handoff, s->engine);
	if (err != 0)
		return err;
	memcpy(s->routes, routes, sizeof(routes));
	s->is_ready = true;
	return 0;
}

size_t serve_max_model_len(const struct serve *s)
{
	return s->opts.max_model_len;
}

const struct handoff *serve_handoff(const struct serve *s)
{
	return s->handoff;
}

const struct fault_target *serve_fault_target(const struct serve *s)
{
	return &s->fault_target;
}

void serve_drain(struct serve *s)
{
	hang_connects(s, false);
	s->is_draining = true;
	engine_health_drain(s->health);
	(void)serve_is_drained(s);
}

bool serve_is_drained(struct serve *s)
{
	if (s->completions.n > 0)
		return false;
	if (s->listen_fd >= 0) {
		s->listen_fd = -1;
		http_server_drain(s->server);
	}
	return http_server_connections(s->server) == 0 && handoff_is_idle(s->handoff);
}

void serve_free(struct serve *s)
{
	if (s == NULL)
		return;
	hang_set(&s->hang, -1, false);
	doom_free(s->doom);
	http_server_free(s->server);
	engine_health_free(s->health);
	handoff_free(s->handoff);
	free(s);
}
