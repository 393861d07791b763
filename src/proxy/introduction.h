/*
 * Connections that begin with a header of the PROXY protocol (listen = ADDRESS
 * proxy_protocol): a trusted proxy says first who its client is. Called by conn.c.
 */
#ifndef PROXY_INTRODUCTION_H
#define PROXY_INTRODUCTION_H

#include "base/base.h"

struct client;
struct io_thread;
struct ip;

/* Whether this peer may introduce clients. If not, it is counted, and told the log. */
bool introduction_is_allowed(const struct io_thread *t, const struct ip *peer);
/* Reads the header from the client's buffer and takes it away. 0: c->peer is the client;
 * ERR_AGAIN: it is not whole yet; else the connection is to be closed without an answer:
 * ERR_PARSE: it is no such header, which is counted; ERR_CLOSED, ERR_NOMEM. */
int introduction_read(struct client *c) MUST_CHECK;
/* Its time is over. */
void introduction_is_late(const struct client *c);

#endif
