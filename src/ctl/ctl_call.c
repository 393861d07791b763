/*
 * One call to the admin socket. See ctl_call.h.
 */
#include "ctl/ctl_call.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "io/fetch.h"
#include "io/js.h"

#include <errno.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define TIMEOUT_MS 60000 /* a reload looks names up */
#define ANSWER_MAX_BYTES (64u << 20)

/* Where complaints go instead of stderr. */
static char *complaint;
static size_t complaint_room;

void ctl_complain_into(char *text, size_t n)
{
	complaint = text;
	complaint_room = n;
}

void ctl_complain(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (complaint != NULL) {
		vsnprintf(complaint, complaint_room, fmt, args);
	} else {
		fputs("kvsteerctl: ", stderr);
		vfprintf(stderr, fmt, args);
		fputc('\n', stderr);
	}
	va_end(args);
}

char *ctl_encode(const char *text)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				    "0123456789-._~:@";
	size_t room = 3 * strlen(text) + 1;
	char *out = xmalloc(room), *to = out, *end = out + room;

	for (; *text != '\0'; text++) {
		if (strchr(plain, *text) != NULL)
			*to++ = *text;
		else
			to += snprintf(
				to, (size_t)(end - to), "%%%02X", (unsigned char)*text);
	}
	*to = '\0';
	return out;
}

void ctl_answer_free(struct ctl_answer *a)
{
	free(a->text);
	js_free(a->document);
	*a = (struct ctl_answer){0};
}

/*
 * The group of the socket, or of the folder that may not be entered on the way to it; ""
 * where it has no name.
 */
static void find_group(const char *path, char *name, size_t n)
{
	scoped_free char *at = xstrdup(path);
	const struct group *g;
	struct stat st;

	*name = '\0';
	while (stat(at, &st) != 0) {
		char *slash = strrchr(at, '/');

		if (slash == NULL || slash == at)
			return;
		*slash = '\0';
	}
	g = getgrgid(st.st_gid);
	if (g != NULL)
		snprintf(name, n, "%s", g->gr_name);
}

static void complain_of_rights(const char *path)
{
	char group[64];

	find_group(path, group, sizeof(group));
	if (group[0] != '\0')
		ctl_complain("%s: permission denied; use sudo, or become a member of the "
			     "group %s",
			path, group);
	else
		ctl_complain("%s: permission denied; use sudo, or become a member of the "
			     "group that owns the socket",
			path);
}

/* Why the socket at path cannot be reached; CTL_OK: it can, so that was not it. */
static enum ctl_exit diagnose(const char *path)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	scoped_fd int fd = -1;

	if ((size_t)snprintf(un.sun_path, sizeof(un.sun_path), "%s", path) >=
		sizeof(un.sun_path))
		return CTL_USAGE;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&un, sizeof(un)) == 0)
		return CTL_OK;
	if (errno == EACCES || errno == EPERM) {
		complain_of_rights(path);
		return CTL_NOT_PERMITTED;
	}
	if (errno == ENOENT)
		ctl_complain("%s: there is no such socket; kvsteerd is not running "
			     "(systemctl status kvsteer), or its admin_socket has "
			     "another path (-s SOCKET)",
			path);
	else if (errno == ECONNREFUSED)
		ctl_complain("%s: no program answers; kvsteerd is not running (systemctl "
			     "status kvsteer)",
			path);
	else
		ctl_complain("%s: %s", path, strerror(errno));
	return CTL_UNREACHABLE;
}

/* The exchange failed: connecting once more says why more exactly than a library does. */
static enum ctl_exit complain_of(const char *path, const struct fetch_answer *answer)
{
	enum ctl_exit why = diagnose(path);

	if (why != CTL_OK)
		return why;
	ctl_complain("%s: no valid answer: %s%s%s", path,
		fetch_result_text(answer->result), answer->error[0] != '\0' ? ": " : "",
		answer->error);
	return CTL_UNREACHABLE;
}

static struct span text_of(const struct js *object, const char *key)
{
	struct span s = {"", 0};

	if (!js_as_str(js_get(object, key), &s))
		s = span_make("", 0);
	return s;
}

/* "file:line: key = value: message; hint", as the daemon would have logged it. */
static void print_item(const struct js *item)
{
	struct span file = text_of(item, "file"), key = text_of(item, "key");
	struct span value = text_of(item, "value"), hint = text_of(item, "hint");
	int64_t line = 0;
	bool has_line = js_as_int(js_get(item, "line"), &line) && line > 0;

	if (file.n > 0)
		fprintf(stderr, SPAN_FMT, SPAN_ARG(file));
	if (file.n > 0 && has_line)
		fprintf(stderr, ":%lld", (long long)line);
	if (file.n > 0)
		fputs(": ", stderr);
	if (key.n > 0)
		fprintf(stderr, SPAN_FMT "%s" SPAN_FMT ": ", SPAN_ARG(key),
			js_as_str(js_get(item, "value"), &value) ? " = " : "",
			SPAN_ARG(value));
	fprintf(stderr, SPAN_FMT, SPAN_ARG(text_of(item, "message")));
	if (hint.n > 0)
		fprintf(stderr, "; " SPAN_FMT, SPAN_ARG(hint));
	fputc('\n', stderr);
}

static void print_refusal(int status, const struct ctl_answer *a)
{
	const struct js *error =
		a->document != NULL ? js_get(a->document, "error") : NULL;
	const struct js *list =
		a->document != NULL ? js_get(a->document, "errors") : NULL;
	size_t i;

	if (error == NULL)
		ctl_complain("the daemon answered %d", status);
	else
		ctl_complain(SPAN_FMT, SPAN_ARG(text_of(error, "message")));
	if (list == NULL || !js_is_array(list))
		return;
	/* The only one is the message already, but for a reload. */
	if (js_len(list) == 1 && status == 400)
		return;
	for (i = 0; i < js_len(list); i++)
		print_item(js_at(list, i));
}

static enum ctl_exit judge(const struct ctl *ctl, int status, const struct ctl_answer *a)
{
	if (status >= 200 && status < 300)
		return CTL_OK;
	if (ctl->as_json)
		printf("%s\n", a->text);
	print_refusal(status, a);
	return status == 401 || status == 403 ? CTL_NOT_PERMITTED : CTL_REFUSED;
}

enum ctl_exit ctl_call(
	const struct ctl *ctl, const struct ctl_request *req, struct ctl_answer *out)
{
	scoped_free char *url = xasprintf("http://localhost/admin/v1/%s", req->path);
	struct fetch_request fetch = {.url = url,
		.method = req->method,
		.unix_socket = ctl->socket,
		.headers = req->headers,
		.body = req->body,
		.timeout_ms = req->timeout_ms > 0 ? req->timeout_ms : TIMEOUT_MS,
		.max_body = ANSWER_MAX_BYTES};
	struct fetch_answer answer;
	enum ctl_exit result;
	const char *why;

	*out = (struct ctl_answer){0};
	if (strlen(ctl->socket) >= sizeof(((struct sockaddr_un *)NULL)->sun_path)) {
		ctl_complain("%s: the path is too long for a socket", ctl->socket);
		return CTL_USAGE;
	}
	fetch_blocking(&fetch, &answer);
	if (answer.result != FETCH_OK) {
		free((char *)answer.body.p);
		return complain_of(ctl->socket, &answer);
	}
	out->text = xstrndup(answer.body.n > 0 ? answer.body.p : "", answer.body.n);
	free((char *)answer.body.p);
	out->document = js_parse(span_str(out->text), &why);
	result = judge(ctl, answer.status, out);
	if (result != CTL_OK)
		ctl_answer_free(out);
	return result;
}
