/*
 * Heads rebuilt: a new head from parsed fields, hop-by-hop fields left out, ours added.
 * No snprintf. Framing never travels as it came. Every function writes at most cap bytes
 * and returns the length, or 0 when it does not fit (HTTP_WRITE_ROOM says how much always
 * fits).
 */
#ifndef HTTP_HTTP_WRITE_H
#define HTTP_HTTP_WRITE_H

#include "http/http_edit.h"
#include "http/http_head.h"

/* head_len + the lengths of all added spans + this is always enough room. */
/* Without what an edit adds (HTTP_EDIT_MAX). */
#define HTTP_WRITE_ROOM 1024

struct http_request_out {
	const char *base; /* the raw head */
	const struct http_head *head;
	struct span
		url_base; /* "" or "/team-a": put before the path ("*" stays as it is) */
	struct span host_line; /* "Host: w0.test:8001\r\n", made once for each worker */
	struct span peer_ip;   /* X-Forwarded-For; after what came if is_forwarded */
	/* By a trusted proxy: what it says of its own client goes on. Of anybody else
	 * X-Forwarded-*, Forwarded, X-Real-IP, X-Original-URL and X-Rewrite-URL end
	 * here. */
	bool is_forwarded;
	struct span proto;         /* X-Forwarded-Proto: "http", "https" */
	struct span request_id;    /* X-Request-Id; replaces what came (the caller kept it
				      when sane) */
	struct span authorization; /* not empty: replaces the client's Authorization and
				      X-Api-Key ("Bearer ...") */
	bool drop_credentials;     /* the client's Authorization, X-Api-Key and Cookie
				      end here */
	struct span rank_line; /* not empty: "X-data-parallel-rank: 2\r\n", replaces what
				  came, in any spelling */
	bool accepts_plain;    /* the answer is read here: Accept-Encoding ends here */
	const struct http_edit *edit; /* NULL: none */
	struct span extra;            /* whole lines with CRLF, may be empty */
	enum http_framing
		framing; /* NONE, LENGTH or CHUNKED: what the caller will send */
	uint64_t content_length;
};
/*
 * Left out: hop-by-hop, Host, Content-Length, Transfer-Encoding, Expect, X-Kvsteer-* in
 * any spelling, and spellings with '_' of framing, auth and router fields. Everything
 * else in order, repeated ones too, value bytes as they came. Adds Via: 1.1 kvsteer
 * (appended to what came).
 */
size_t http_write_request(const struct http_request_out *o, char *out, size_t cap);

struct http_response_out {
	const char *base;
	const struct http_head *head; /* the worker's */
	enum http_framing
		framing; /* what the client gets: NONE, LENGTH, CHUNKED, UNTIL_CLOSE */
	uint64_t content_length; /* LENGTH; for NONE with head->has_length (HEAD, 304) the
				    worker's length is passed on */
	bool close;              /* Connection: close */
	bool keep_alive_10;      /* a 1.0 client asked: Connection: keep-alive */
	unsigned keepalive_secs; /* Keep-Alive: timeout=N when not close (0: none) */
	struct span request_id;  /* added unless the worker set one */
	bool drop_cors;          /* the worker's Access-Control-* end here */
	const struct http_edit *edit; /* NULL: none */
	struct span extra;            /* whole lines */
};
/* "HTTP/1.1 200 OK": version ours, reason phrase ours. Drops hop-by-hop; all else in
 * order. */
size_t http_write_response(const struct http_response_out *o, char *out, size_t cap);

/* A head of our own ("HTTP/1.1 503 ...", Content-Type, Content-Length, Connection); extra
 * may be empty. */
size_t http_write_own(int status, struct span content_type, uint64_t content_length,
	bool close, struct span extra, char *out, size_t cap);

/* Decimal into out (at most 20 bytes); returns the length. */
size_t http_write_u64(uint64_t n, char *out);

#endif
