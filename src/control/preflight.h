/*
 * What -t asks of this machine beyond the files: whether the addresses and the admin
 * socket could be had. Says the same as a start would, in the same words (boot.c takes
 * them from here), but for what the daemon that runs already has itself.
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
 * 0; or ERR_IO with an error each in *errors. What the daemon at conf's admin socket
 * listens on is fine, and so is what the service manager keeps for the next start of this
 * service. Where the daemon may not be asked, addresses in use are a warning. Opens
 * nothing for longer than the call.
 */
int preflight(const struct conf *conf, struct conf_errors *errors) MUST_CHECK;

/* A start by flags alone must not fail for a socket that nobody asked for. */
bool preflight_is_optional(const struct conf *conf, const char *value, const char *def);
/* metrics_listen as an address, without a look-up; ERR_IO with errno. */
int preflight_metrics_address(
	const char *text, union sock_addr *a, uint16_t *port) MUST_CHECK;
/* Adds the error that conf's admin socket cannot be opened. error: errno, or 0 where
 * something is at its path already. */
void preflight_admin_fault(
	const struct conf *conf, int error, struct conf_errors *errors);

#endif
