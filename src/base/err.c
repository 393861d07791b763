/*
 * The texts of the internal error codes, from the one table in err.h.
 */
#include "base/err.h"

const char *err_text(int err)
{
	static const char *const texts[] = {
#define X(name, text) text,
		ERR_TABLE(X)
#undef X
	};

	if (err == ERR_OK)
		return "no error";
	if (err <= ERR_BASE_ || err >= ERR_END_)
		return "unknown error";
	return texts[err - ERR_BASE_ - 1];
}
