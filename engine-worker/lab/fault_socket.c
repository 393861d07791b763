/*
 * The faults' control socket: a second small server beside the API.
 * Called by engine_daemon.c.
 */
#include "lab/fault_socket.h"
#include "base/err.h"
#include "base/log.h"
#include "http/http_server.h"
#include "io/js.h"
#include "io/sock.h"
#include "lab/fault.h"

#include <stdlib.h>
#include <unistd.h>

enum { BODY_MAX = 65536, MESSAGE_BYTES = 256 };

struct fault_socket {
	struct http_server *server;
	const struct fault_target *target;
	const char *path;
};

static void reply_faults(struct fault_socket *f, struct http_call *call)
{
	struct js *root = faults_json(f->target->faults);
	char *text = js_print(root, false);

	js_free(root);
	if (text == NULL)
		http_call_fail(call, FAIL_OVERLOADED);
	else
		http_call_reply(call, 200, "application/json", span_str(text),
			span_make(NULL, 0));
	free(text);
}

static void handle_get(void *arg, struct http_call *call)
{
	reply_faults(arg, call);
}

static void handle_set(void *arg, struct http_call *call)
{
	struct fault_socket *f = arg;
	struct span body = http_call_body(call);
	char message[MESSAGE_BYTES];
	const char *why = "";
	struct js *root = js_parse(body, &why);
	int err;

	if (root == NULL) {
		http_call_fail_text(call, FAIL_MALFORMED_REQUEST, why);
		return;
	}
	err = faults_read(f->target->faults, root, message, sizeof(message));
	js_free(root);
	if (err != 0) {
		http_call_fail_text(call, FAIL_MALFORMED_REQUEST, message);
		return;
	}
	log_notice("faults: " SPAN_FMT, SPAN_ARG(body));
	f->target->changed(f->target->arg);
	reply_faults(f, call);
}

static void handle_clear(void *arg, struct http_call *call)
{
	struct fault_socket *f = arg;

	log_notice("faults: none");
	faults_clear(f->target->faults);
	f->target->changed(f->target->arg);
	reply_faults(f, call);
}

static void handle_restart(void *arg, struct http_call *call)
{
	struct fault_socket *f = arg;

	log_notice("faults: restart");
	if (f->target->restart(f->target->arg) == 0)
		reply_faults(f, call);
	else
		http_call_fail(call, FAIL_OVERLOADED);
}

static const struct http_route routes[] = {
	{"GET", "/faults", handle_get},
	{"POST", "/faults", handle_set},
	{"POST", "/faults/clear", handle_clear},
	{"POST", "/restart", handle_restart},
};

int fault_socket_new(struct loop *l, const char *path, const struct fault_target *target,
	struct fault_socket **out)
{
	struct fault_socket *f = calloc(1, sizeof(*f));
	struct http_server_opts opts = {
		.routes = routes,
		.n_routes = ARRAY_LEN(routes),
		.arg = f,
		.max_body = BODY_MAX,
	};
	int fd, err = f != NULL ? sock_listen_unix(path, 0600, &fd) : ERR_NOMEM;

	if (err != 0) {
		free(f);
		return err;
	}
	f->target = target;
	f->path = path;
	f->server = http_server_new(l, fd, &opts);
	if (f->server == NULL) {
		close(fd);
		(void)unlink(path);
		free(f);
		return ERR_NOMEM;
	}
	*out = f;
	return 0;
}

void fault_socket_free(struct fault_socket *f)
{
	if (f == NULL)
		return;
	http_server_free(f->server);
	(void)unlink(f->path);
	free(f);
}
