/*
 * kvsteerctl: its command line, and one function for each command. See ctl.h.
 */
#include "ctl/ctl.h"

#include "base/args.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf_lex.h"
#include "base/dump.h"
#include "base/mem.h"
#include "ctl/ctl_call.h"
#include "ctl/ctl_metrics.h"
#include "ctl/ctl_print.h"
#include "ctl/ctl_top.h"
#include "io/js.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/kvsteer/admin.sock"
#define DEFAULT_PATH "/v1/chat/completions"
#define BODY_MAX_BYTES (64u << 20)
#define DRAIN_LOOK_MS 100 /* between two looks at what a worker still has */

struct command {
	const char *name;
	unsigned min_words, max_words;
	enum ctl_exit (*run)(const struct ctl *ctl);
	const char *args;
	const char *help;
};

/* ---- shared by the commands ---- */

typedef void print_fn(const struct js *document);

/*
 * Calls, and prints the answer by print, or as JSON where that was asked for; as it is
 * where print is NULL.
 */
static enum ctl_exit call_and_print(
	const struct ctl *ctl, const struct ctl_request *req, print_fn *print)
{
	struct ctl_answer a;
	enum ctl_exit result = ctl_call(ctl, req, &a);

	if (result != CTL_OK)
		return result;
	if (print == NULL) {
		printf("%s", a.text);
	} else if (a.document == NULL || !js_is_object(a.document)) {
		ctl_complain(
			"%s: the program at this socket is not kvsteerd", ctl->socket);
		result = CTL_UNREACHABLE;
	} else if (ctl->as_json) {
		printf("%s\n", a.text);
	} else {
		print(a.document);
	}
	ctl_answer_free(&a);
	return result;
}

static enum ctl_exit get(const struct ctl *ctl, const char *path, print_fn *print)
{
	struct ctl_request req = {.method = "GET", .path = path};

	return call_and_print(ctl, &req, print);
}

/* ---- the commands ---- */

static enum ctl_exit run_status(const struct ctl *ctl)
{
	return get(ctl, "status", ctl_print_status);
}

static char *worker_path(const struct ctl *ctl, const char *verb)
{
	scoped_free char *name = ctl_encode(ctl->words[0]);

	return xasprintf("workers/%s%s", name, verb);
}

static enum ctl_exit run_workers(const struct ctl *ctl)
{
	scoped_free char *path = NULL;

	if (ctl->n_words == 0)
		return get(ctl, "workers", ctl_print_workers);
	path = worker_path(ctl, "");
	return get(ctl, path, ctl_print_worker);
}

static enum ctl_exit run_tenants(const struct ctl *ctl)
{
	return get(ctl, "tenants", ctl_print_tenants);
}

/* add NAME URL [KEY=VALUE ...] */
static enum ctl_exit run_add(const struct ctl *ctl)
{
	struct ctl_request req = {.method = "POST", .path = "workers"};
	struct js *body = js_object();
	scoped_free char *text = NULL;
	unsigned i;

	js_set_str(body, "name", ctl->words[0]);
	js_set_str(body, "url", ctl->words[1]);
	for (i = 2; i < ctl->n_words; i++) {
		char *eq = strchr(ctl->words[i], '=');

		if (eq == NULL || eq == ctl->words[i]) {
			ctl_complain("%s: expected KEY=VALUE, such as role=decode",
				ctl->words[i]);
			js_free(body);
			return CTL_USAGE;
		}
		*eq = '\0';
		js_set_str(body, ctl->words[i], eq + 1);
		*eq = '=';
	}
	text = js_print(body, false);
	js_free(body);
	req.body = span_str(text);
	return call_and_print(ctl, &req, ctl_print_worker);
}

/* False, after saying so: the option's value is no time. Not given, it is one. */
static bool read_time(const char *option, const char *text, uint64_t *ms)
{
	const char *hint;

	if (text == NULL || conf_duration_ms(span_str(text), ms, &hint) == 0)
		return true;
	ctl_complain("%s %s: expected a time, such as 30s", option, text);
	return false;
}

/* A worker that is removed at once is no longer listed, whatever state it had. */
static void print_removed(const struct js *document)
{
	struct span name;
	int64_t load = 0;

	if (!js_as_str(js_get(document, "name"), &name))
		return;
	(void)js_as_int(js_get(document, "load"), &load);
	printf(SPAN_FMT ": removed, %lld requests in flight\n", SPAN_ARG(name),
		(long long)load);
}

static enum ctl_exit run_remove(const struct ctl *ctl)
{
	scoped_free char *plain = worker_path(ctl, ""), *path = NULL;
	struct ctl_request req = {.method = "DELETE"};
	uint64_t ms;

	if (!read_time("--drain", ctl->drain, &ms))
		return CTL_USAGE;
	path = xasprintf("%s%s%s", plain, ctl->drain != NULL ? "?drain=" : "",
		ctl->drain != NULL ? ctl->drain : "");
	req.path = path;
	return call_and_print(
		ctl, &req, ctl->drain != NULL ? ctl_print_outcome : print_removed);
}

static enum ctl_exit post_worker(const struct ctl *ctl, const char *verb)
{
	scoped_free char *path = worker_path(ctl, verb);
	struct ctl_request req = {.method = "POST", .path = path};

	return call_and_print(ctl, &req, ctl_print_outcome);
}

/* Requests that the worker, or all ranks of it, still have. */
static enum ctl_exit ask_load(const struct ctl *ctl, int64_t *load)
{
	scoped_free char *path = worker_path(ctl, "");
	struct ctl_request req = {.method = "GET", .path = path};
	struct ctl_answer a;
	enum ctl_exit result = ctl_call(ctl, &req, &a);

	if (result != CTL_OK)
		return result;
	if (!js_as_int(js_get(a.document, "load"), load)) {
		ctl_complain(
			"%s: the program at this socket is not kvsteerd", ctl->socket);
		result = CTL_UNREACHABLE;
	}
	ctl_answer_free(&a);
	return result;
}

static enum ctl_exit wait_drained(const struct ctl *ctl, uint64_t wait_ms)
{
	uint64_t due_ms = clock_update() + wait_ms;
	int64_t load = 0;

	for (;;) {
		enum ctl_exit result = ask_load(ctl, &load);

		if (result != CTL_OK || load == 0)
			return result;
		if (clock_update() >= due_ms)
			break;
		usleep(DRAIN_LOOK_MS * 1000);
	}
	ctl_complain("%s has %lld requests in flight after %s", ctl->words[0],
		(long long)load, ctl->timeout);
	return CTL_REFUSED;
}

/* drain NAME [--timeout TIME]: with it, returns when the worker has no request left. */
static enum ctl_exit run_drain(const struct ctl *ctl)
{
	enum ctl_exit result;
	uint64_t wait_ms = 0;

	if (!read_time("--timeout", ctl->timeout, &wait_ms))
		return CTL_USAGE;
	result = post_worker(ctl, "/drain");
	if (result != CTL_OK || ctl->timeout == NULL)
		return result;
	return wait_drained(ctl, wait_ms);
}

static enum ctl_exit run_undrain(const struct ctl *ctl)
{
	return post_worker(ctl, "/undrain");
}

/* The whole of a file ("-": stdin); NULL: it cannot be read, which was said. */
static char *read_file(const char *name, size_t *n)
{
	bool is_stdin = strcmp(name, "-") == 0;
	FILE *f = is_stdin ? stdin : fopen(name, "r");
	size_t cap = 65536, got;
	char *text = NULL;

	*n = 0;
	if (f != NULL) {
		text = xmalloc(cap);
		while ((got = fread(text + *n, 1, cap - *n, f)) > 0) {
			*n += got;
			if (*n == cap && cap < BODY_MAX_BYTES)
				text = xrealloc(text, cap *= 2);
		}
	}
	if (f == NULL || ferror(f) || *n >= BODY_MAX_BYTES) {
		ctl_complain("%s: %s", name,
			*n >= BODY_MAX_BYTES ? "too large" : strerror(errno));
		free(text);
		text = NULL;
	}
	if (f != NULL && !is_stdin)
		fclose(f);
	return text;
}

/* The one file of explain; NULL: there is none or more, which was said. */
static const char *explain_file(const struct ctl *ctl)
{
	if ((ctl->file != NULL) + ctl->n_words == 1)
		return ctl->file != NULL ? ctl->file : ctl->words[0];
	ctl_complain("explain: %s; usage: kvsteerctl explain [--file] FILE",
		ctl->file != NULL ? "only one file is allowed" : "FILE is missing");
	return NULL;
}

/* "Name: value"; a line's end in it would smuggle another. */
static bool is_header(const char *text)
{
	const char *colon = strchr(text, ':');

	if (colon != NULL && colon != text && strpbrk(text, "\r\n") == NULL)
		return true;
	ctl_complain("--header %s: expected 'Name: value'", text);
	return false;
}

/* explain FILE: the body as a client would send it */
static enum ctl_exit run_explain(const struct ctl *ctl)
{
	const char *file = explain_file(ctl);
	scoped_free char *target =
		ctl_encode(ctl->path != NULL ? ctl->path : DEFAULT_PATH);
	scoped_free char *tenant = ctl->tenant != NULL ? ctl_encode(ctl->tenant) : NULL;
	scoped_free char *path = xasprintf("explain?path=%s%s%s", target,
		tenant != NULL ? "&tenant=" : "", tenant != NULL ? tenant : "");
	scoped_free char *body = NULL, *prefix = NULL, *pinned = NULL;
	const char *headers[ARRAY_LEN(ctl->headers) + 4] = {
		"Content-Type: application/json"};
	struct ctl_request req = {.method = "POST", .path = path, .headers = headers};
	unsigned i, n = 1;
	size_t len;

	for (i = 0; i < ctl->n_headers; i++) {
		if (!is_header(ctl->headers[i]))
			return CTL_USAGE;
		headers[n++] = ctl->headers[i];
	}
	if (file == NULL)
		return CTL_USAGE;
	body = read_file(file, &len);
	if (body == NULL)
		return CTL_REFUSED;
	if (ctl->prefix != NULL)
		headers[n++] = prefix = xasprintf("X-Kvsteer-Prefix: %s", ctl->prefix);
	if (ctl->pinned != NULL)
		headers[n++] = pinned = xasprintf("X-Kvsteer-Worker: %s", ctl->pinned);
	req.body = span_make(body, len);
	return call_and_print(ctl, &req, ctl_print_explain);
}

static enum ctl_exit run_reload(const struct ctl *ctl)
{
	struct ctl_request req = {.method = "POST", .path = "reload"};

	return call_and_print(ctl, &req, ctl_print_reload);
}

static void print_upgrade(const struct js *document)
{
	int64_t pid = 0, old_pid = 0;

	(void)js_as_int(js_get(document, "pid"), &pid);
	(void)js_as_int(js_get(document, "old_pid"), &old_pid);
	printf("process %lld serves now; process %lld finishes its requests\n",
		(long long)pid, (long long)old_pid);
}

static enum ctl_exit run_upgrade(const struct ctl *ctl)
{
	struct ctl_request req = {.method = "POST", .path = "upgrade"};

	return call_and_print(ctl, &req, print_upgrade);
}

static void print_generation(const struct js *document)
{
	int64_t n = 0;

	if (js_as_int(js_get(document, "generation"), &n))
		printf("%lld\n", (long long)n);
}

/* generation POOL [NUMBER] */
static enum ctl_exit run_generation(const struct ctl *ctl)
{
	scoped_free char *pool = ctl_encode(ctl->words[0]);
	scoped_free char *path = xasprintf("pools/%s/generation", pool), *body = NULL;
	struct ctl_request req = {.method = "POST", .path = path};
	uint64_t n;

	if (ctl->n_words > 1) {
		if (span_to_u64(span_str(ctl->words[1]), &n) != 0 || n > INT64_MAX) {
			ctl_complain("%s: expected a number", ctl->words[1]);
			return CTL_USAGE;
		}
		body = xasprintf("{\"set\":%s}", ctl->words[1]);
		req.body = span_str(body);
	}
	return call_and_print(ctl, &req, print_generation);
}

static void print_finished(const struct js *doc)
{
	bool was_known = false;

	if (js_as_bool(js_get(doc, "was_known"), &was_known))
		printf("%s\n", was_known ? "ended" : "no such session");
}

/* finish-session SESSION */
static enum ctl_exit run_finish_session(const struct ctl *ctl)
{
	scoped_free char *session = ctl_encode(ctl->words[0]);
	scoped_free char *path = xasprintf("finish_session?session_id=%s", session);
	struct ctl_request req = {.method = "POST", .path = path};

	return call_and_print(ctl, &req, print_finished);
}

/* flush POOL */
static enum ctl_exit run_flush(const struct ctl *ctl)
{
	scoped_free char *pool = ctl_encode(ctl->words[0]);
	scoped_free char *path = xasprintf("pools/%s/flush", pool);
	struct ctl_request req = {.method = "POST", .path = path};

	return call_and_print(ctl, &req, print_generation);
}

#define CALL_TIMEOUT_MS 86400000 /* the daemon gives each worker its own time */

/* call POOL PATH [FILE] */
static enum ctl_exit run_call(const struct ctl *ctl)
{
	scoped_free char *pool = ctl_encode(ctl->words[0]);
	scoped_free char *target = ctl_encode(ctl->words[1]);
	scoped_free char *method = ctl_encode(ctl->method != NULL ? ctl->method : "POST");
	scoped_free char *path =
		xasprintf("pools/%s/call?path=%s&method=%s", pool, target, method);
	scoped_free char *body = NULL;
	struct ctl_request req = {
		.method = "POST", .path = path, .timeout_ms = CALL_TIMEOUT_MS};
	size_t len;

	if (ctl->n_words > 2) {
		body = read_file(ctl->words[2], &len);
		if (body == NULL)
			return CTL_REFUSED;
		req.body = span_make(body, len);
	}
	return call_and_print(ctl, &req, ctl_print_called);
}

static void print_level(const struct js *document)
{
	struct span level;

	if (js_as_str(js_get(document, "level"), &level))
		printf("log level " SPAN_FMT "\n", SPAN_ARG(level));
}

static enum ctl_exit run_log_level(const struct ctl *ctl)
{
	struct ctl_request req = {.method = "POST", .path = "log_level"};
	struct js *body = js_object();
	scoped_free char *text = NULL;

	js_set_str(body, "level", ctl->words[0]);
	text = js_print(body, false);
	js_free(body);
	req.body = span_str(text);
	return call_and_print(ctl, &req, print_level);
}

static void print_config(const struct js *document)
{
	struct span text;

	if (js_as_str(js_get(document, "config"), &text))
		fwrite(text.p, 1, text.n, stdout);
}

static enum ctl_exit run_config(const struct ctl *ctl)
{
	return get(ctl, "config", print_config);
}

static enum ctl_exit run_metrics(const struct ctl *ctl)
{
	struct ctl_request req = {.method = "GET", .path = "metrics"};
	struct ctl_answer a;
	enum ctl_exit result;

	if (!ctl->as_json)
		return get(ctl, "metrics", NULL);
	result = ctl_call(ctl, &req, &a);
	if (result != CTL_OK)
		return result;
	ctl_print_metrics(a.text);
	ctl_answer_free(&a);
	return CTL_OK;
}

static const struct command commands[] = {
	{"status", 0, 0, run_status, "", "show the daemon, its pools and workers"},
	{"top", 0, 0, ctl_top, "[-b] [-n N] [--sort KEY]", "show status continuously"},
	{"workers", 0, 1, run_workers, "[NAME]", "show all workers, or one in full"},
	{"tenants", 0, 0, run_tenants, "",
		"show the tenants of api_keys, their limits and requests"},
	{"add", 2, 62, run_add, "NAME URL [KEY=VALUE ...]",
		"add a worker, until the next restart"},
	{"remove", 1, 1, run_remove, "NAME [--drain TIME]",
		"remove a worker; its requests are finished"},
	{"drain", 1, 1, run_drain, "NAME [--timeout TIME]",
		"give a worker no new requests"},
	{"undrain", 1, 1, run_undrain, "NAME", "give it new requests again"},
	{"explain", 0, 1, run_explain, "[--file] FILE",
		"show which worker a request would go to, and why"},
	{"reload", 0, 0, run_reload, "", "read the configuration again"},
	{"upgrade", 0, 0, run_upgrade, "",
		"replace the process by the installed program"},
	{"generation", 1, 2, run_generation, "POOL [N]",
		"tell that weights changed, so that old caches are ignored"},
	{"flush", 1, 1, run_flush, "POOL", "empty the caches of the workers of a pool"},
	{"call", 2, 3, run_call, "POOL PATH [FILE]",
		"ask every worker of a pool: POST PATH, with the file as body"},
	{"finish-session", 1, 1, run_finish_session, "SESSION",
		"end a session (sticky_least_loaded)"},
	{"log-level", 1, 1, run_log_level, "LEVEL",
		"set it to error, warn, notice, info or debug"},
	{"config", 0, 0, run_config, "", "print the configuration in force"},
	{"metrics", 0, 0, run_metrics, "", "print the metrics in the Prometheus format"},
};

/* ---- the command line ---- */

static const struct option {
	char letter; /* 0: none */
	const char *name;
	const char *arg; /* NULL: a switch */
	size_t offset;   /* in struct ctl: a bool, or a text */
	const char *deflt;
	const char *help;
} options[] = {
	{'s', "--socket", "SOCKET", offsetof(struct ctl, socket), DEFAULT_SOCKET,
		"the daemon's admin socket"},
	{0, "--json", NULL, offsetof(struct ctl, as_json), NULL,
		"print the answer as JSON"},
	{'b', "--batch", NULL, offsetof(struct ctl, is_batch), NULL,
		"top: print plain text, for a file or a pipe"},
	{'n', "--count", "N", offsetof(struct ctl, count), NULL,
		"top: end after N screens"},
	{'d', "--delay", "TIME", offsetof(struct ctl, delay), "1s",
		"top: time between two screens"},
	{0, "--sort", "KEY", offsetof(struct ctl, sort), "load",
		"top: sort by load, hit, ttft, errors or name"},
	{0, "--drain", "TIME", offsetof(struct ctl, drain), NULL,
		"remove: wait this long for requests in flight"},
	{0, "--timeout", "TIME", offsetof(struct ctl, timeout), NULL,
		"drain: wait this long for requests in flight"},
	{0, "--method", "METHOD", offsetof(struct ctl, method), "POST",
		"call: GET, POST, PUT or DELETE"},
	{0, "--file", "FILE", offsetof(struct ctl, file), NULL,
		"explain: the request body; -: standard input"},
	{0, "--path", "PATH", offsetof(struct ctl, path), DEFAULT_PATH,
		"explain: the request's path"},
	{0, "--header", "LINE", offsetof(struct ctl, headers), NULL,
		"explain: a header 'Name: value'; repeat for more"},
	{0, "--prefix", "VALUE", offsetof(struct ctl, prefix), NULL,
		"explain: the header X-Kvsteer-Prefix"},
	{0, "--worker", "NAME", offsetof(struct ctl, pinned), NULL,
		"explain: the header X-Kvsteer-Worker"},
	{0, "--tenant", "NAME", offsetof(struct ctl, tenant), NULL,
		"explain: the tenant whose key the request shows"},
	{'h', "--help", NULL, offsetof(struct ctl, wants_help), NULL,
		"print this and exit"},
	{'V', "--version", NULL, offsetof(struct ctl, wants_version), NULL,
		"print the version and exit"},
};

static void print_option(FILE *to, const struct option *o)
{
	char letter[] = {'-', o->letter, ',', ' ', '\0'}, left[64];

	snprintf(left, sizeof(left), "%s%s%s%s", o->letter != 0 ? letter : "", o->name,
		o->arg != NULL ? " " : "", o->arg != NULL ? o->arg : "");
	fprintf(to, "  %-21s %s", left, o->help);
	fprintf(to, o->deflt != NULL ? " (%s)\n" : "\n", o->deflt);
}

static void print_usage(FILE *to)
{
	size_t i;

	fprintf(to, "usage: kvsteerctl [-s SOCKET] [--json] COMMAND [ARGUMENT ...]\n\n");
	for (i = 0; i < ARRAY_LEN(commands); i++) {
		char left[64];

		snprintf(left, sizeof(left), "%s %s", commands[i].name, commands[i].args);
		fprintf(to, "  %-34s %s\n", left, commands[i].help);
	}
	fputc('\n', to);
	for (i = 0; i < ARRAY_LEN(options); i++)
		print_option(to, &options[i]);
}

static int dump_tables(void)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(commands); i++)
		dump_row("command", commands[i].name);
	for (i = 0; i < ARRAY_LEN(options); i++)
		dump_row("flag", options[i].name + strlen("--"),
			options[i].arg != NULL ? options[i].arg : "switch",
			options[i].deflt);
	dump_exits(CTL_EXIT_MAX - 1);
	return fflush(stdout) == 0 ? CTL_OK : CTL_REFUSED;
}

static const struct command *find_command(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(commands); i++) {
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	}
	return NULL;
}

static const struct option *find_option(const struct arg *arg)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(options); i++) {
		const struct option *o = &options[i];

		if (arg->kind == ARG_LETTER ? o->letter == arg->letter
					    : span_is(arg->name, o->name))
			return o;
	}
	return NULL;
}

/* False: there are too many of that kind. */
static bool set_option(struct ctl *ctl, const struct option *o, const char *value)
{
	void *field = (char *)ctl + o->offset;

	if (o->arg == NULL) {
		*(bool *)field = true;
	} else if (field != ctl->headers) {
		*(const char **)field = value;
	} else {
		if (ctl->n_headers == ARRAY_LEN(ctl->headers))
			return false;
		ctl->headers[ctl->n_headers++] = value;
	}
	return true;
}

static enum ctl_exit refuse(const struct arg *arg, const char *why)
{
	ctl_complain(SPAN_FMT "%s", SPAN_ARG(arg->name), why);
	return CTL_USAGE;
}

static enum ctl_exit read_option(
	struct args *args, const struct arg *arg, struct ctl *ctl)
{
	const struct option *o = find_option(arg);
	const char *value = NULL;

	if (o == NULL)
		return refuse(arg, ": no such option; kvsteerctl -h lists them");
	if (o->arg == NULL && arg->kind == ARG_LONG && arg->attached != NULL)
		return refuse(arg, " takes no value");
	if (o->arg != NULL)
		value = args_value(args, arg);
	if (o->arg != NULL && value == NULL)
		return refuse(arg, " needs a value");
	if (set_option(ctl, o, value))
		return CTL_OK;
	ctl_complain(SPAN_FMT ": at most %zu are allowed", SPAN_ARG(arg->name),
		ARRAY_LEN(ctl->headers));
	return CTL_USAGE;
}

/* Takes argv apart; CTL_USAGE after saying why. Options may stand anywhere. */
static enum ctl_exit read_words(int argc, char **argv, struct ctl *ctl)
{
	enum ctl_exit result = CTL_OK;
	struct args args;
	struct arg arg;

	args_begin(&args, argc, argv);
	while (result == CTL_OK && args_next(&args, &arg)) {
		if (arg.kind != ARG_WORD)
			result = read_option(&args, &arg, ctl);
		else if (ctl->n_words < ARRAY_LEN(ctl->words))
			ctl->words[ctl->n_words++] = arg.name.p;
		else
			result = refuse(&arg, ": too many arguments");
	}
	return result;
}

static enum ctl_exit run_command(struct ctl *ctl)
{
	const struct command *c;

	if (ctl->wants_help) {
		print_usage(stdout);
		return CTL_OK;
	}
	if (ctl->wants_version) {
		printf("kvsteerctl %s\n", KVSTEER_VERSION);
		return CTL_OK;
	}
	if (ctl->n_words == 0) {
		print_usage(stderr);
		return CTL_USAGE;
	}
	c = find_command(ctl->words[0]);
	if (c == NULL) {
		ctl_complain(
			"%s: no such command; kvsteerctl -h lists them", ctl->words[0]);
		return CTL_USAGE;
	}
	ctl->n_words--;
	memmove(ctl->words, ctl->words + 1, ctl->n_words * sizeof(*ctl->words));
	if (ctl->n_words < c->min_words || ctl->n_words > c->max_words) {
		ctl_complain("%s: too %s arguments; usage: kvsteerctl %s%s%s", c->name,
			ctl->n_words < c->min_words ? "few" : "many", c->name,
			c->args[0] != '\0' ? " " : "", c->args);
		return CTL_USAGE;
	}
	return c->run(ctl);
}

int ctl_main(int argc, char **argv)
{
	struct ctl ctl = {.socket = DEFAULT_SOCKET};
	enum ctl_exit result;

	if (dump_is_asked(argc, argv))
		return dump_tables();
	result = read_words(argc, argv, &ctl);
	if (result == CTL_OK)
		result = run_command(&ctl);
	if (fflush(stdout) != 0 && result == CTL_OK) {
		ctl_complain("stdout: %s", strerror(errno));
		result = CTL_REFUSED;
	}
	return (int)result;
}
