/*
 * Guards the admin paths on the client side (the vLLM router's: /finish_session ...). The
 * admin socket has no such gate: its mode guards it. Runs on the I/O threads.
 */
#ifndef CONTROL_ADMIN_GATE_H
#define CONTROL_ADMIN_GATE_H

#include "base/fail.h"
#include "base/span.h"
#include "http/http_head.h"

struct conf;

/*
 * FAIL_NONE for a request with admin_key. If no key is set, also for a request from this
 * machine that no proxy forwarded, to a daemon that was started by flags alone and
 * listens on loopback only. Else FAIL_UNAUTHORIZED or FAIL_FORBIDDEN.
 */
enum fail admin_gate(const struct conf *c, const char *base, const struct http_head *head,
	struct span client_ip);

#endif
