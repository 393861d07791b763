/*
 * The service manager's notify datagram (sd_notify protocol) by hand; silent without
 * NOTIFY_SOCKET.
 */
#ifndef IO_NOTIFY_H
#define IO_NOTIFY_H

#include "base/base.h"

/* "READY=1\nSTATUS=..."; 0, or ERR_* when the manager could not be told. */
int notify_send(const char *text);
int notify_sendf(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* "RELOADING=1\nMONOTONIC_USEC=..." */
int notify_reloading(void);
/* True if there is a service manager to notify. */
bool notify_is_on(void);

/*
 * notify_store(): the manager keeps duplicates of these descriptors under name (no colon
 * in it), and gives them to the next start of the service in LISTEN_FDS.
 * notify_unstore(): it forgets all descriptors of that name.
 */
int notify_store(const char *name, const int *fds, size_t n);
int notify_unstore(const char *name);

/* The interval in which the manager expects WATCHDOG=1, in microseconds; 0: never. */
uint64_t notify_watchdog_us(void);

#endif
