/*
 * Where the server is: http://HOST[:PORT][/PREFIX]. Pure.
 */
#ifndef BENCH_URL_H
#define BENCH_URL_H

#include "base/base.h"

struct url {
	char host[256];      /* a name or an address, no brackets */
	char authority[272]; /* as a Host field has it */
	char prefix[512];    /* "" or "/team-a": no slash at the end, no "/v1" */
	uint16_t port;
};

/* ERR_PARSE and *why: static text that says what is wrong and what would do. */
int url_parse(const char *text, struct url *out, const char **why) MUST_CHECK;

#endif
