/*
 * Addresses as people write them: worker URLs, host:port, networks; and the globs of
 * `models`. Every error says what is accepted. A host is an IPv4 address, an IPv6 address
 * in brackets, or a name; nothing is resolved here. Called by conf_type.c and
 * conf_flags.c, and through conf.h by the code that takes addresses from
 * outside.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/mem.h"
#include "conf/conf_table.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_MAX = 253, URL_MAX = 2048, ADDRESS_TEXT_MAX = 64 };

/* message must be static: conf_url_parse hands it out. */
struct refusal {
	const char *message;
	char hint[200];
};

static int refuse(struct refusal *r, const char *message, const char *hint)
{
	r->message = message;
	snprintf(r->hint, sizeof(r->hint), "%s", hint);
	return ERR_PARSE;
}

static int no_memory(struct refusal *r)
{
	(void)refuse(r, "cannot be read: out of memory", "");
	return ERR_NOMEM;
}

static bool all_of(struct span text, const char *marks)
{
	for (size_t i = 0; i < text.n; i++)
		if (text.p[i] == '\0' || strchr(marks, text.p[i]) == NULL)
			return false;
	return true;
}

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define HEX DIGITS "abcdefABCDEF"

static size_t find(struct span text, char c)
{
	const char *at = text.n > 0 ? memchr(text.p, c, text.n) : NULL;

	return at != NULL ? (size_t)(at - text.p) : text.n;
}

static bool has(struct span text, char c)
{
	return find(text, c) < text.n;
}

static struct span from(struct span text, size_t at)
{
	return span_make(text.p + at, text.n - at);
}

/* Puts text into out as the kernel would print it. */
static bool read_ip(int family, struct span text, unsigned char *bytes, char *out)
{
	char copy[ADDRESS_TEXT_MAX];

	if (text.n == 0 || text.n >= sizeof(copy))
		return false;
	memcpy(copy, text.p, text.n);
	copy[text.n] = '\0';
	return inet_pton(family, copy, bytes) == 1 &&
	       inet_ntop(family, bytes, out, ADDRESS_TEXT_MAX) != NULL;
}

static int read_port(
	struct span text, bool may_be_zero, uint16_t *port, struct refusal *r)
{
	uint64_t value;
	int rc = span_to_u64(text, &value);

	if (text.n == 0)
		return refuse(r, "has no port after the colon", "such as :8000");
	if (rc == ERR_PARSE)
		return refuse(r, "has a port that is not a number", "such as :8000");
	if (rc != 0 || value > 65535 || (value == 0 && !may_be_zero))
		return refuse(r, "has a port that is out of range", "from 1 to 65535");
	*port = (uint16_t)value;
	return 0;
}

/* "[v6]..." : the address into *host, what follows the bracket into *rest. */
static int read_v6(struct span text, char **host, struct span *rest, struct refusal *r)
{
	unsigned char bytes[16];
	char printed[ADDRESS_TEXT_MAX];
	size_t close = find(text, ']');
	struct span inside = span_make(text.p + 1, close - 1);

	if (close == text.n)
		return refuse(r, "has no closing bracket", "such as [::1]:8000");
	if (has(inside, '%'))
		return refuse(
			r, "has an IPv6 zone", "use an address that is not link-local");
	if (!read_ip(AF_INET6, inside, bytes, printed))
		return refuse(
			r, "has no IPv6 address in its brackets", "such as [::1]:8000");
	*rest = from(text, close + 1);
	if (rest->n > 0 && rest->p[0] != ':')
		return refuse(r, "has text after the bracket", "such as [::1]:8000");
	*host = strdup(printed);
	return *host != NULL ? 0 : no_memory(r);
}

static int check_name(struct span name, struct refusal *r)
{
	unsigned char bytes[4];
	char printed[ADDRESS_TEXT_MAX];

	if (name.n > HOST_MAX)
		return refuse(
			r, "has a host name that is too long", "up to 253 characters");
	if (!all_of(name, LETTERS DIGITS "-._"))
		return refuse(r,
			"has a host name with other characters than a-z, 0-9, - and .",
			"write international names in their xn-- form");
	if (name.p[0] == '.' || name.p[0] == '-' ||
		(name.n > 1 && memmem(name.p, name.n, "..", 2) != NULL))
		return refuse(r, "has no valid host name", "such as gpu1.example.org");
	if (all_of(name, DIGITS ".") && !read_ip(AF_INET, name, bytes, printed))
		return refuse(r, "has no valid IPv4 address", "such as 10.0.0.1");
	return 0;
}

/* "name..." up to the colon. */
static int read_name(struct span text, char **host, struct span *rest, struct refusal *r)
{
	size_t colon = find(text, ':');
	struct span name = span_make(text.p, colon);
	char *lower;

	*rest = from(text, colon);
	if (rest->n > 0 && has(from(*rest, 1), ':'))
		return refuse(r, "has more than one colon",
			"an IPv6 address stands in brackets, such as [::1]:8000");
	if (name.n == 0)
		return refuse(r, "has no host", "such as 127.0.0.1:8000");
	if (check_name(name, r) != 0)
		return ERR_PARSE;
	lower = span_dup(name);
	if (lower == NULL)
		return no_memory(r);
	for (char *c = lower; *c != '\0'; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c += 'a' - 'A';
	*host = lower;
	return 0;
}

static int read_host(struct span text, char **host, struct span *rest, struct refusal *r)
{
	if (text.n > 0 && text.p[0] == '[')
		return read_v6(text, host, rest, r);
	return read_name(text, host, rest, r);
}

static int read_scheme(struct span text, bool *tls, struct span *rest, struct refusal *r)
{
	const char *mark = text.n > 0 ? memmem(text.p, text.n, "://", 3) : NULL;
	struct span scheme;

	if (mark == NULL) {
		refuse(r, "has no scheme", "such as http://127.0.0.1:8000");
		if (text.n > 0 && text.n < 100 && all_of(text, DIGITS))
			snprintf(r->hint, sizeof(r->hint),
				"did you mean http://127.0.0.1:" SPAN_FMT "?",
				SPAN_ARG(text));
		else if (text.n > 0 && text.n < 100 && !has(text, '@'))
			snprintf(r->hint, sizeof(r->hint),
				"did you mean http://" SPAN_FMT "?", SPAN_ARG(text));
		return ERR_PARSE;
	}
	scheme = span_make(text.p, (size_t)(mark - text.p));
	*rest = from(text, scheme.n + 3);
	*tls = span_case_eq(scheme, SPAN_LIT("https"));
	if (*tls || span_case_eq(scheme, SPAN_LIT("http")))
		return 0;
	if (span_case_eq(scheme, SPAN_LIT("grpc")) ||
		span_case_eq(scheme, SPAN_LIT("grpcs")))
		return refuse(r, "is a gRPC URL", "give the engine's HTTP address");
	return refuse(r, "has a scheme that is neither http nor https, nor unix",
		"such as http://127.0.0.1:8000");
}

/* Every byte a path may hold, %XX complete, no empty and no dot segment. */
static int check_base(struct span base, struct refusal *r)
{
	struct span rest = base, segment;

	if (!all_of(base, LETTERS DIGITS "-._~!$&'()*+,;=:@/%"))
		return refuse(
			r, "has characters that no path may hold", "escape them as %XX");
	for (size_t i = 0; i < base.n; i++)
		if (base.p[i] == '%' &&
			(i + 2 >= base.n || !all_of(span_make(base.p + i + 1, 2), HEX)))
			return refuse(r, "has an incomplete escape",
				"two hex digits follow a %");
	while (span_next(&rest, '/', &segment))
		if (segment.p != base.p && (segment.n == 0 || span_is(segment, ".") ||
						   span_is(segment, "..")))
			return refuse(r, "has an empty or dotted path segment",
				"such as /team-a");
	return 0;
}

/* text: "" or "/...". The base without slashes at its end. */
static int read_base(struct span text, struct span *base, struct refusal *r)
{
	while (text.n > 0 && text.p[text.n - 1] == '/')
		text.n--;
	if (check_base(text, r) != 0)
		return ERR_PARSE;
	if (span_ends(text, SPAN_LIT("/v1"))) {
		refuse(r,
			"ends in /v1, with which the paths of requests begin: they would "
			"become /v1/v1/...",
			"remove /v1");
		return ERR_PARSE;
	}
	*base = text;
	return 0;
}

static int check_shape(struct span text, struct refusal *r)
{
	if (text.n == 0)
		return refuse(r, "is empty", "such as http://127.0.0.1:8000");
	if (text.n > URL_MAX)
		return refuse(r, "is too long", "up to 2048 characters");
	for (size_t i = 0; i < text.n; i++)
		if ((unsigned char)text.p[i] <= ' ' || (unsigned char)text.p[i] >= 0x7f)
			return refuse(r, "has blanks or characters outside ASCII",
				"give one URL for each worker, such as "
				"http://127.0.0.1:8000");
	return 0;
}

/* Cuts the part behind "scheme://" into host[:port] and path. */
static int cut_authority(
	struct span rest, struct span *authority, struct span *path, struct refusal *r)
{
	size_t slash = find(rest, '/');

	if (has(rest, '#'))
		return refuse(r, "has a fragment", "leave out the # and what follows");
	if (has(rest, '?'))
		return refuse(r, "has a query", "leave out the ? and what follows");
	*authority = span_make(rest.p, slash);
	*path = from(rest, slash);
	if (has(*authority, '@'))
		return refuse(r, "has a user, a password or a rank before the path",
			"set worker_key for the worker's key, dp_size for the number of "
			"ranks");
	return 0;
}

/* The value of the Host header: without the port if it is the scheme's own. */
static char *host_header(bool tls, const char *host, uint16_t port)
{
	bool is_v6 = strchr(host, ':') != NULL;
	char suffix[8] = "";

	if (port != (tls ? 443 : 80))
		snprintf(suffix, sizeof(suffix), ":%u", port);
	return mem_format("%s%s%s%s", is_v6 ? "[" : "", host, is_v6 ? "]" : "", suffix);
}

/* Takes the host, also when memory runs out. */
static int fill_url(
	struct conf_url *out, bool tls, char *host, uint16_t port, struct span base)
{
	*out = (struct conf_url){.tls = tls, .host = host, .port = port};
	out->base = span_dup(base);
	out->host_header = host_header(tls, host, port);
	if (out->base != NULL && out->host_header != NULL)
		out->text = mem_format(
			"%s://%s%s", tls ? "https" : "http", out->host_header, out->base);
	if (out->text != NULL)
		return 0;
	conf_url_free(out);
	return ERR_NOMEM;
}

/* Room in a sockaddr_un, with its end. */
#define UNIX_PATH_MAX 107

static bool is_unix(struct span text)
{
	struct span scheme = SPAN_LIT("unix:");

	return text.n >= scheme.n && span_case_eq(span_make(text.p, scheme.n), scheme);
}

static int check_unix_path(struct span path, const char *form, struct refusal *r)
{
	if (path.n < 2 || path.p[0] != '/' || path.p[1] == '/')
		return refuse(r, "has no absolute path", form);
	if (path.n > UNIX_PATH_MAX)
		return refuse(r, "has a path that is too long for a socket",
			"up to 107 characters");
	return 0;
}

/* "unix:/run/engine.sock", also with "//" in front of the path. */
static int parse_unix(struct span text, struct conf_url *out, struct refusal *r)
{
	struct span path = from(text, 5);
	int rc;

	if (span_starts(path, SPAN_LIT("///")))
		path = from(path, 2);
	rc = check_unix_path(path, "such as unix:/run/engine.sock", r);
	if (rc != 0)
		return rc;
	*out = (struct conf_url){.host = span_dup(path)};
	out->base = strdup("");
	out->host_header = strdup("localhost");
	if (out->host != NULL && out->base != NULL && out->host_header != NULL)
		out->text = mem_format("unix:%s", out->host);
	if (out->text != NULL)
		return 0;
	conf_url_free(out);
	return no_memory(r);
}

static int parse_url(struct span text, struct conf_url *out, struct refusal *r)
{
	struct span rest = {0}, authority = {0}, path = {0}, after = {0}, base = {0};
	scoped_free char *host = NULL;
	uint16_t port;
	bool tls;
	int rc;

	if (check_shape(text, r) != 0)
		return ERR_PARSE;
	if (is_unix(text))
		return parse_unix(text, out, r);
	if (read_scheme(text, &tls, &rest, r) != 0 ||
		cut_authority(rest, &authority, &path, r) != 0)
		return ERR_PARSE;
	rc = read_host(authority, &host, &after, r);
	if (rc != 0)
		return rc;
	port = tls ? 443 : 80;
	if (after.n > 0 && read_port(from(after, 1), false, &port, r) != 0)
		return ERR_PARSE;
	if (read_base(path, &base, r) != 0)
		return ERR_PARSE;
	return fill_url(out, tls, take_ptr(host), port, base) == 0 ? 0 : no_memory(r);
}

int conf_url_read(struct span text, struct conf_url *out, struct conf_fault *fault)
{
	struct refusal r;
	int rc = parse_url(text, out, &r);

	if (rc != 0)
		conf_fault_set(fault, r.message, "%s", r.hint);
	return rc;
}

int conf_url_parse(struct span text, struct conf_url *out, const char **why)
{
	struct refusal r;
	int rc = parse_url(text, out, &r);

	if (rc != 0)
		*why = r.message;
	return rc;
}

int conf_url_copy(const struct conf_url *from_url, struct conf_url *to)
{
	*to = (struct conf_url){.tls = from_url->tls, .port = from_url->port};
	if (from_url->text == NULL)
		return 0;
	to->text = strdup(from_url->text);
	to->host = strdup(from_url->host);
	to->base = strdup(from_url->base);
	to->host_header = strdup(from_url->host_header);
	if (to->text != NULL && to->host != NULL && to->base != NULL &&
		to->host_header != NULL)
		return 0;
	conf_url_free(to);
	return ERR_NOMEM;
}

char *conf_url_name(const struct conf_url *u)
{
	char *name;

	if (!conf_url_is_unix(u))
		return mem_format("%s:%u", u->host, u->port);
	name = strdup(strrchr(u->host, '/') + 1);
	for (char *c = name; c != NULL && *c != '\0'; c++)
		if (!all_of(span_make(c, 1), LETTERS DIGITS "._-"))
			*c = '_';
	if (name != NULL && name[0] == '\0') {
		free(name);
		name = strdup("unix");
	}
	return name;
}

void conf_url_free(struct conf_url *u)
{
	if (u == NULL)
		return;
	free(u->text);
	free(u->host);
	free(u->base);
	free(u->host_header);
	*u = (struct conf_url){0};
}

static int parse_hostport(
	struct span text, char **host, uint16_t *port, struct refusal *r)
{
	scoped_free char *name = NULL;
	struct span rest = text;
	uint16_t number;
	int rc = 0;

	if (text.n > 0 && all_of(text, DIGITS)) {
		refuse(r, "is a port without an address", "");
		text.n = MIN(text.n, (size_t)20);
		snprintf(r->hint, sizeof(r->hint),
			"127.0.0.1:" SPAN_FMT " for this machine, "
			":" SPAN_FMT " for every address",
			SPAN_ARG(text), SPAN_ARG(text));
		return ERR_PARSE;
	}
	if (span_starts(text, SPAN_LIT("*:")))
		return refuse(
			r, "has no valid host name", "begin with : for every address");
	if (text.n == 0 || text.p[0] != ':' || has(from(text, 1), ':'))
		rc = read_host(text, &name, &rest, r);
	else if ((name = strdup("")) == NULL)
		rc = no_memory(r);
	if (rc != 0)
		return rc;
	if (rest.n == 0)
		return refuse(r, "has no port", "such as 127.0.0.1:30000");
	if (read_port(from(rest, 1), true, &number, r) != 0)
		return ERR_PARSE;
	*host = take_ptr(name);
	*port = number;
	return 0;
}

int conf_hostport_read(
	struct span text, char **host, uint16_t *port, struct conf_fault *fault)
{
	struct refusal r;
	int rc = parse_hostport(text, host, port, &r);

	if (rc != 0)
		conf_fault_set(fault, r.message, "%s", r.hint);
	return rc;
}

int conf_listen_check(struct span text, struct conf_fault *fault)
{
	scoped_free char *host = NULL;
	struct refusal r;
	uint16_t port;
	int rc;

	if (span_is(text, CONF_LISTEN_PROXY))
		return 0;
	if (!is_unix(text))
		return conf_hostport_read(text, &host, &port, fault);
	rc = check_unix_path(from(text, 5), "such as unix:/run/kvsteer/llm.sock", &r);
	if (rc != 0)
		conf_fault_set(fault, r.message, "%s", r.hint);
	return rc;
}

int conf_hostport_parse(struct span text, char **host, uint16_t *port, const char **why)
{
	struct refusal r;
	int rc = parse_hostport(text, host, port, &r);

	if (rc != 0)
		*why = r.message;
	return rc;
}

static bool is_zero_beyond(const unsigned char *bytes, unsigned size, unsigned prefix)
{
	for (unsigned bit = prefix; bit < size * 8; bit++)
		if (bytes[bit / 8] & (0x80u >> (bit % 8)))
			return false;
	return true;
}

int conf_cidr_check(struct span text, struct conf_fault *fault)
{
	static const char form[] = "such as 10.0.0.0/8, fd00::/8 or 127.0.0.1";
	size_t slash = find(text, '/');
	struct span address = span_make(text.p, slash);
	int family = has(address, ':') ? AF_INET6 : AF_INET;
	unsigned size = family == AF_INET6 ? 16 : 4;
	unsigned char bytes[16];
	char printed[ADDRESS_TEXT_MAX];
	uint64_t prefix = size * 8;

	if (!read_ip(family, address, bytes, printed)) {
		conf_fault_set(fault, "is not a network", "%s", form);
		return ERR_PARSE;
	}
	if (slash < text.n &&
		(span_to_u64(from(text, slash + 1), &prefix) != 0 || prefix > size * 8)) {
		conf_fault_set(
			fault, "has no valid prefix length", "from /0 to /%u", size * 8);
		return ERR_PARSE;
	}
	if (!is_zero_beyond(bytes, size, (unsigned)prefix)) {
		conf_fault_set(fault, "has bits beyond its prefix length",
			"write the network's first address, or /%u for this one alone",
			size * 8);
		return ERR_PARSE;
	}
	return 0;
}

int conf_peer_check(struct span text, struct conf_fault *fault)
{
	return span_is(text, "unix:") ? 0 : conf_cidr_check(text, fault);
}

/* Greedy with one point of return: the last '*' seen. Linear in practice, never
 * recursive. */
bool conf_glob(const char *pattern, struct span text)
{
	const char *star = NULL;
	size_t at = 0, mark = 0;

	while (at < text.n) {
		if (*pattern == '*') {
			star = pattern++;
			mark = at;
		} else if (*pattern != '\0' &&
			   (*pattern == '?' || *pattern == text.p[at])) {
			pattern++;
			at++;
		} else if (star != NULL) {
			pattern = star + 1;
			at = ++mark;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return *pattern == '\0';
}
