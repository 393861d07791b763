/*
 * Secrets that the configuration only names: "file:PATH", or "credential:NAME" of the
 * service manager ($CREDENTIALS_DIRECTORY, systemd.exec(5)). Read with the configuration,
 * so a reload reads them anew. Called by conf_type.c and conf_check.c.
 */
#ifndef CONF_CONF_SECRET_H
#define CONF_CONF_SECRET_H

#include "base/base.h"
#include "base/span.h"
#include "conf/conf_table.h"

/* The text names a place, and is not the secret itself. */
bool conf_secret_is_elsewhere(struct span text);
/*
 * What stands there, without the end of its line; a new string, for the caller to wipe
 * and free. ERR_PARSE or ERR_NOMEM and *fault: no such file or credential, not a regular
 * file, one that every user may write, empty, or above 4 KiB.
 */
int conf_secret_read(
	struct span text, char **secret, struct conf_fault *fault) MUST_CHECK;
/* Every user may read the place; false also where it is not known. */
bool conf_secret_is_open(struct span text);

#endif
