/*
 * What fuzz targets share.
 */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include "base/base.h"
#include "base/span.h"
#include "conf/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Also where assert() would say too little. */
#define MUST(fact)                                                      \
	do {                                                            \
		if (!(fact)) {                                          \
			fprintf(stderr, "broken promise: %s\n", #fact); \
			abort();                                        \
		}                                                       \
	} while (0)

/* A descriptor at the beginning of these bytes; the caller closes it. */
static inline int fuzz_file(const char *p, size_t n)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	MUST(fd >= 0 && (n == 0 || write(fd, p, n) == (ssize_t)n));
	MUST(lseek(fd, 0, SEEK_SET) == 0);
	return fd;
}

/* Of a sound text. */
static inline struct conf *fuzz_conf(const char *text)
{
	struct conf_errors errors = {0};
	struct conf *conf = NULL;
	int fd = fuzz_file(text, strlen(text));
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (conf_load(path, NULL, &errors, &conf) != 0) {
		fprintf(stderr, "%s in\n%s", conf_error_text(&errors.items[0]), text);
		abort();
	}
	conf_errors_free(&errors);
	close(fd);
	return conf;
}

/* A copy in a block of its own, so that a look behind its end is seen. */
static inline char *fuzz_copy(const char *p, size_t n)
{
	char *copy = malloc(n + (n == 0));

	MUST(copy != NULL);
	if (n > 0)
		memcpy(copy, p, n);
	return copy;
}

#endif
