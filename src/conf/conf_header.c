/*
 * The rules of request_header and response_header: their form, and which headers they may
 * name. Framing, the fields of one hop and what the router writes itself are none of them.
 */
#include "base/err.h"
#include "base/header_rule.h"
#include "conf/conf_table.h"

/* A '*' at the end: all names that begin so. */
static const char *const of_both[] = {"connection", "keep-alive", "proxy-connection",
	"proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
	"upgrade", "http2-settings", "content-length", "content-type", "content-encoding",
	"via", "x-request-id", "x-kvsteer-*"};
static const char *const of_requests[] = {"host", "expect", "x-forwarded-*",
	"x-data-parallel-rank", "authorization", "x-api-key"};
static const char *const of_responses[] = {"access-control-*"};

static bool fits(struct span name, const char *pattern)
{
	struct span p = span_str(pattern);

	if (p.p[p.n - 1] != '*')
		return header_name_eq(name, p);
	p.n--;
	return name.n >= p.n && header_name_eq(span_make(name.p, p.n), p);
}

static bool is_in(struct span name, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (fits(name, list[i]))
			return true;
	return false;
}

static bool is_value(struct span s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];

		if ((c < ' ' && c != '\t') || c == 0x7f)
			return false;
	}
	return true;
}

static int check(struct span text, bool is_reserved, const struct header_rule *rule,
	struct conf_fault *fault)
{
	if (text.n > CONF_HEADER_RULE_MAX) {
		conf_fault_set(fault, "is too long", "up to %d characters",
			CONF_HEADER_RULE_MAX);
		return ERR_PARSE;
	}
	if (is_reserved) {
		conf_fault_set(fault, "names a header that the router itself needs",
			"not those of framing, of one connection, of the body's type, or "
			"that the router writes");
		return ERR_PARSE;
	}
	if (!is_value(rule->value)) {
		conf_fault_set(fault, "has a value that no header can have",
			"leave control characters out");
		return ERR_PARSE;
	}
	return conf_header_name_check(rule->name, fault);
}

static int read_rule(struct span text, struct header_rule *rule, struct conf_fault *fault)
{
	if (header_rule_read(text, rule) == 0)
		return 0;
	conf_fault_set(fault, "is no rule for a header",
		"set NAME VALUE, add NAME VALUE or remove NAME");
	return ERR_PARSE;
}

int conf_request_rule_check(struct span text, struct conf_fault *fault)
{
	struct header_rule rule;

	if (read_rule(text, &rule, fault) != 0)
		return ERR_PARSE;
	return check(text,
		is_in(rule.name, of_both, ARRAY_LEN(of_both)) ||
			is_in(rule.name, of_requests, ARRAY_LEN(of_requests)),
		&rule, fault);
}

int conf_response_rule_check(struct span text, struct conf_fault *fault)
{
	struct header_rule rule;

	if (read_rule(text, &rule, fault) != 0)
		return ERR_PARSE;
	return check(text,
		is_in(rule.name, of_both, ARRAY_LEN(of_both)) ||
			is_in(rule.name, of_responses, ARRAY_LEN(of_responses)),
		&rule, fault);
}
