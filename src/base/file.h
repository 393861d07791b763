/*
 * A whole small file into memory. Called by the readers of configuration, at start and on
 * reload; never on the request path.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/base.h"

/*
 * *text is the caller's to free, *n its bytes (no NUL behind them). ERR_LIMIT: the file has
 * more than max_bytes. ERR_NOMEM. ERR_IO: errno says why.
 */
int file_read(const char *path, size_t max_bytes, char **text, size_t *n) MUST_CHECK;

#endif
