/*
 * Rules for headers. See header_rule.h.
 */
#include "base/header_rule.h"

#include "base/err.h"

int header_rule_read(struct span text, struct header_rule *out)
{
	static const char *const ops[] = {
		[HEADER_SET] = "set",
		[HEADER_ADD] = "add",
		[HEADER_REMOVE] = "remove",
	};
	struct span op;
	size_t i;

	if (!span_next_word(&text, &op) || !span_next_word(&text, &out->name))
		return ERR_PARSE;
	for (i = 0; i < ARRAY_LEN(ops) && !span_is(op, ops[i]); i++)
		;
	if (i == ARRAY_LEN(ops))
		return ERR_PARSE;
	out->op = (enum header_op)i;
	out->value = span_trim(text);
	return (out->value.n == 0) == (out->op == HEADER_REMOVE) ? 0 : ERR_PARSE;
}

static char fold(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c | 0x20);
	return c == '_' ? '-' : c;
}

bool header_name_eq(struct span a, struct span b)
{
	if (a.n != b.n)
		return false;
	for (size_t i = 0; i < a.n; i++) {
		if (fold(a.p[i]) != fold(b.p[i]))
			return false;
	}
	return true;
}
