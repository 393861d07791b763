/* Compiles the system's llhttp http.c (see src/local.mk); nothing of it is committed. */
#include "http/llhttp_mode.h"
#include <http.c>
