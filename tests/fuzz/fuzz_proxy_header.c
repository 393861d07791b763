/*
 * Fuzz target of the PROXY protocol's header. What must hold: no byte beyond those given
 * is looked at; what is taken is taken from exactly its own bytes, whatever follows; its
 * parts ask for more; what is refused stays refused with more behind it; its length is
 * within bounds, and its address is one.
 */
#include "base/err.h"
#include "http/http_proxy.h"

#include <stdlib.h>
#include <string.h>

/* Also where assert() would say too little. */
#define MUST(fact)               \
	do {                     \
		if (!(fact))     \
			abort(); \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* From a block of exactly n bytes, so that the sanitizer sees a look beyond. */
static int read_alone(const uint8_t *bytes, size_t n, struct http_proxy *out)
{
	char *copy = malloc(n);
	int rc;

	MUST(copy != NULL || n == 0);
	if (n > 0)
		memcpy(copy, bytes, n);
	rc = http_proxy_read(copy, n, out);
	free(copy);
	return rc;
}

static void check_taken(const uint8_t *bytes, const struct http_proxy *h)
{
	char text[IP_TEXT_MAX];
	struct http_proxy again;
	struct ip ip;

	MUST(h->len >= 15 && h->len <= HTTP_PROXY_MAX);
	MUST(bytes[0] != 'P' || h->len <= HTTP_PROXY_LINE_MAX);
	MUST(read_alone(bytes, h->len, &again) == 0 && again.len == h->len);
	MUST(again.has_ip == h->has_ip && ip_eq(&again.ip, &h->ip));
	if (!h->has_ip)
		return;
	(void)ip_text(&h->ip, text);
	MUST(ip_parse(span_str(text), &ip) == 0 && ip_eq(&ip, &h->ip));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct http_proxy whole, part;
	int rc = read_alone(bytes, size, &whole);
	size_t step = size > 256 ? size / 64 : 1;

	MUST(rc == 0 || rc == ERR_AGAIN || rc == ERR_PARSE);
	if (rc == 0)
		check_taken(bytes, &whole);
	for (size_t n = 0; n < size; n += step) {
		int at = read_alone(bytes, n, &part);

		if (at == 0)
			MUST(rc == 0 && part.len == whole.len && n >= whole.len);
		else if (at == ERR_PARSE)
			MUST(rc == ERR_PARSE);
		else
			MUST(rc != 0 || n < whole.len);
	}
	return 0;
}
