/*
 * Refuses an llhttp that would take the request heads which only strict mode refuses.
 *
 * Before version 9 strictness is chosen when llhttp is compiled (LLHTTP_STRICT_MODE,
 * passed by configure to every file that sees llhttp.h); from 9 on it is always strict.
 * Included by the three wrappers, and by llhttp_names.h for everybody else.
 */
#ifndef HTTP_LLHTTP_MODE_H
#define HTTP_LLHTTP_MODE_H

#include <llhttp.h>

#if LLHTTP_VERSION_MAJOR < 9 && LLHTTP_STRICT_MODE != 1
#	error "llhttp before version 9 must be compiled with -DLLHTTP_STRICT_MODE=1"
#endif

#endif
