/*
 * Exit codes and complaints. See outcome.h.
 */
#include "bench/outcome.h"

#include <stdarg.h>
#include <stdio.h>

int bench_complain(int status, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)fputs("kvsteer-bench: ", stderr);
	(void)vfprintf(stderr, fmt, args);
	(void)fputc('\n', stderr);
	va_end(args);
	return status;
}
