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

#endif
