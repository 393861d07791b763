/* Compiles the system's llhttp api.c (see src/local.mk); nothing of it is committed. */
#include "http/llhttp_mode.h"
#include <api.c>
