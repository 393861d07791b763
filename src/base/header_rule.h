/*
 * A rule for a header, as the configuration writes it: "set NAME VALUE", "add NAME VALUE"
 * or "remove NAME".
 */
#ifndef BASE_HEADER_RULE_H
#define BASE_HEADER_RULE_H

#include "base/base.h"
#include "base/span.h"

enum header_op { HEADER_SET, HEADER_ADD, HEADER_REMOVE };

struct header_rule {
	enum header_op op;
	struct span name, value; /* in the text */
};

/* ERR_PARSE: it has not that form. The name's and the value's bytes are not judged. */
int header_rule_read(struct span text, struct header_rule *out) MUST_CHECK;
/* Equal in any case, and with '_' for '-': servers take one for the other. */
bool header_name_eq(struct span a, struct span b);

#endif
