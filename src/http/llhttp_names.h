/*
 * llhttp.h beside http_head.h: both name the methods HTTP_GET and so on, so llhttp's are
 * called LLHTTP_GET here. To be included before http_head.h, by http_parse.c and by the
 * fuzz target that compares the two; the wrappers around llhttp's own sources need its
 * real names.
 */
#ifndef HTTP_LLHTTP_NAMES_H
#define HTTP_LLHTTP_NAMES_H

#define HTTP_GET LLHTTP_GET
#define HTTP_HEAD LLHTTP_HEAD
#define HTTP_POST LLHTTP_POST
#define HTTP_PUT LLHTTP_PUT
#define HTTP_PATCH LLHTTP_PATCH
#define HTTP_DELETE LLHTTP_DELETE
#define HTTP_OPTIONS LLHTTP_OPTIONS
#include "http/llhttp_mode.h"
#undef HTTP_GET
#undef HTTP_HEAD
#undef HTTP_POST
#undef HTTP_PUT
#undef HTTP_PATCH
#undef HTTP_DELETE
#undef HTTP_OPTIONS

#endif
