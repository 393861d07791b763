/* Compiles the system's llhttp llhttp.c (see src/local.mk); nothing of it is committed.
 */
#include "http/llhttp_mode.h"
#include <llhttp.c>
