/*
 * Priorities by header. See priority.h.
 */
#include "pool/priority.h"

static const struct {
	const char *name;
	enum priority priority;
} words[] = {
	{"high", PRIORITY_HIGH},
	{"normal", PRIORITY_NORMAL},
	{"low", PRIORITY_LOW},
};

enum priority priority_read(
	const struct conf_list *headers, const char *base, const struct http_head *head)
{
	size_t i, k;

	for (i = 0; i < headers->n; i++) {
		struct span value =
			http_head_value(base, head, span_str(headers->items[i]));

		if (value.n == 0)
			continue;
		for (k = 0; k < ARRAY_LEN(words); k++) {
			if (span_case_eq(value, span_str(words[k].name)))
				return words[k].priority;
		}
		break;
	}
	return PRIORITY_NORMAL;
}
