/*
 * The checks of -t beyond the files: whether the addresses and the admin socket could be
 * opened on this machine, and whether the workers' names are known. Gives the same errors as a start (boot.c takes them from here),
 * except for sockets that the running daemon has itself.
 * Used by daemon.c and boot.c.
 */
#ifndef CONTROL_PREFLIGHT_H
#define CONTROL_PREFLIGHT_H

#include "base/base.h"
#include "conf/conf.h"
#include "io/sock.h"

#define DEFAULT_ADMIN_SOCKET "/run/kvsteer/admin.sock"
#define DEFAULT_METRICS "127.0.0.1:29000"

/*
 * 0; or ERR_IO with an error each in *errors. Addresses of the daemon at conf's admin
 * socket are fine, and so are sockets that the service manager keeps for the next start
 * of this service. If the daemon may not be asked, addresses in use are a warning. Opens
 * nothing for longer than the call.
 */
int preflight(const struct conf *conf, struct conf_errors *errors) MUST_CHECK;

/* A start by flags alone must not fail for a socket that the user did not ask for. */
bool preflight_is_optional(const struct conf *conf, const char *value, const char *def);
/* metrics_listen as an address, without a look-up; ERR_IO with errno. */
int preflight_metrics_address(
	const char *text, union sock_addr *a, uint16_t *port) MUST_CHECK;
/* Adds the error that conf's admin socket cannot be opened. error: errno, or 0 where
 * something is at its path already. */
void preflight_admin_fault(
	const struct conf *conf, int error, struct conf_errors *errors);

#endif
