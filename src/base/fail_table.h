/*
 * Why a request ended: one row each. X(NAME, status, type, code, text)
 *
 *	status	HTTP status that the client gets; 0: none can be sent, the connection just ends
 *	type	OpenAI's error.type
 *	code	error.code, the log token and the metric's label
 *	text	the message for the client: fixed, never client bytes or worker addresses, no
 *		character that JSON escapes
 *
 * The enum is FAIL_<NAME>; FAIL_NONE is success. The order of rows is free. No status stands
 * anywhere else in the program.
 */
#ifndef BASE_FAIL_TABLE_H
#define BASE_FAIL_TABLE_H

/* clang-format off */
#define FAIL_TABLE(X)                                                                                                    \
	X(NONE, 200, "", "ok", "")                                                                                       \
	X(MALFORMED_REQUEST, 400, "invalid_request_error", "malformed_request", "The request is not valid HTTP/1.1.")    \
	X(BAD_TARGET, 400, "invalid_request_error", "malformed_request", "The request target is not valid.")             \
	X(BAD_HOST, 400, "invalid_request_error", "malformed_request", "The request needs exactly one valid Host header.") \
	X(BAD_FRAMING, 400, "invalid_request_error", "malformed_request",                                                \
	  "The length of the request body is ambiguous: Content-Length or Transfer-Encoding is wrong.")                  \
	X(BAD_CHUNK, 400, "invalid_request_error", "malformed_request", "The chunked request body is malformed.")        \
	X(CHUNK_EXTENSIONS, 400, "invalid_request_error", "malformed_request",                                                  \
	  "The chunk extensions of the request body are longer than 4 KiB.")                                                    \
	X(CHUNK_OVERHEAD, 400, "invalid_request_error", "malformed_request",                                                    \
	  "The chunked request body has too little data for its framing: send larger chunks.")                                  \
	X(BAD_HEADER, 400, "invalid_request_error", "malformed_request", "A header field is malformed or repeated.")     \
	X(TOO_MANY_HOPS, 400, "invalid_request_error", "malformed_request",                                                     \
	  "X-Forwarded-For names more than 32 addresses.")                                                                      \
	X(CONNECTION_TOO_LONG, 400, "invalid_request_error", "malformed_request",                                               \
	  "The Connection header names more than 64 options.")                                                                  \
	X(BAD_PREFIX, 400, "invalid_request_error", "malformed_request",                                                 \
	  "X-Kvsteer-Prefix is malformed: <block><b|t>;<hash>,<hash>... with hashes of 1 to 16 hex digits is expected.") \
	X(BAD_WORKER, 400, "invalid_request_error", "malformed_request", "X-Kvsteer-Worker names no known worker.")      \
	X(BAD_TRANSFER, 400, "invalid_request_error", "malformed_request",                                               \
	  "The request body has KV transfer fields, which clients may not set and which cannot be removed: it is not valid JSON, or has more than 1024 of them.")      \
	X(MODEL_REQUIRED, 400, "invalid_request_error", "model_required",                                                       \
	  "The request names no model and several are served here: set the field model, or the header X-Kvsteer-Model.") \
	X(UNAUTHORIZED, 401, "authentication_error", "unauthorized", "A valid API key is required.")                     \
	X(FORBIDDEN, 403, "permission_error", "forbidden", "This call is not permitted here.")                           \
	X(ADDRESS_DENIED, 403, "permission_error", "forbidden", "Requests from this address are not permitted here.")    \
	X(MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found", "No pool serves this model.")                \
	X(POOL_NOT_FOUND, 404, "invalid_request_error", "pool_not_found", "There is no pool of this name.")              \
	X(PATH_NOT_FOUND, 404, "invalid_request_error", "path_not_found", "This path is not served here.")               \
	X(METHOD_NOT_ALLOWED, 405, "invalid_request_error", "method_not_allowed", "This method is not allowed here.")    \
	X(QUEUE_TIMEOUT, 408, "overloaded_error", "queue_timeout", "No worker became free in time.")                     \
	X(CLIENT_TIMEOUT, 408, "invalid_request_error", "client_timeout", "The request did not arrive in time.")         \
	X(CONFLICT, 409, "invalid_request_error", "conflict", "A resource with this name already exists.")               \
	X(BODY_TOO_LARGE, 413, "invalid_request_error", "body_too_large", "The request body is larger than allowed here.")    \
	X(MAX_BODY_SIZE, 413, "invalid_request_error", "body_too_large",                                                        \
	  "The request body is larger than max_body_size allows.")                                                              \
	X(LINE_TOO_LARGE, 414, "invalid_request_error", "head_too_large", "The request line is longer than 8 KiB.")    \
	X(EXPECTATION, 417, "invalid_request_error", "expectation_failed", "Only Expect: 100-continue is supported.")    \
	X(MISDIRECTED, 421, "invalid_request_error", "misdirected", "This host is not served on this connection.")       \
	X(QUEUE_FULL, 429, "overloaded_error", "queue_full", "Too many requests are waiting.")                           \
	X(RATE_LIMITED, 429, "rate_limit_error", "rate_limited", "The rate limit is reached.")                           \
	X(HEAD_TOO_LARGE, 431, "invalid_request_error", "head_too_large", "The request header is larger than 32 KiB.")  \
	X(TOO_MANY_FIELDS, 431, "invalid_request_error", "head_too_large",                                                      \
	  "The request has more than 100 header fields.")                                                                       \
	X(TRAILER_TOO_LARGE, 431, "invalid_request_error", "head_too_large",                                                    \
	  "The trailer of the request body is larger than 32 KiB or has more than 100 fields.")                                 \
	X(INTERNAL, 500, "internal_error", "internal", "The server had an internal error.")                              \
	X(NOT_IMPLEMENTED, 501, "invalid_request_error", "not_implemented",                                              \
	  "This method, transfer coding or upgrade is not implemented.")                                                 \
	X(WORKER_UNREACHABLE, 502, "upstream_error", "worker_unreachable", "No worker could be reached.")                \
	X(WORKER_RESET, 502, "upstream_error", "worker_reset", "The worker closed the connection before it responded.")  \
	X(WORKER_PROTOCOL, 502, "upstream_error", "worker_protocol", "The worker's response is not valid HTTP/1.1.") \
	X(WORKER_HEAD_TOO_LARGE, 502, "upstream_error", "worker_head_too_large",                                                \
	  "The header of the worker's response is too large: 64 KiB, 256 fields, a status line of 8 KiB and 64 options in Connection are the limits.")\
	X(WORKER_INTERIM, 502, "upstream_error", "worker_interim",                                                              \
	  "The worker sent more than 16 interim responses (1xx) before its response.")                                          \
	X(WORKER_CHUNKS, 502, "upstream_error", "worker_chunks",                                                                \
	  "The chunked framing of the worker's response is too large: its extensions exceed 4 KiB, its trailer 32 KiB or 100 fields, or its chunks have too little data.")\
	X(WORKER_PREFILL, 502, "upstream_error", "worker_prefill",                                                              \
	  "The prefill worker's response is not the JSON object that kv_connector expects.")                                    \
	X(WORKER_PREFILL_TOO_LARGE, 502, "upstream_error", "worker_prefill_too_large",                                          \
	  "The prefill worker's response is larger than max_prefill_response allows.")                                          \
	X(WORKER_BROKE, 502, "upstream_error", "worker_broke", "The worker's response ended before it was complete.")    \
	X(WORKER_ERROR, 502, "upstream_error", "worker_error", "The worker's response says that the worker failed.")     \
	X(NOT_BY_ALL, 502, "upstream_error", "not_by_all", "Not every worker did what was asked.")                       \
	X(WORKER_NOT_KEPT, 502, "upstream_error", "worker_not_kept",                                                            \
	  "A worker responded with an error that is larger than 64 KiB or came too slowly to be kept, and the next one did not respond.")\
	X(NO_WORKER, 503, "overloaded_error", "no_worker", "No worker is available.")                                    \
	X(OVERLOADED, 503, "overloaded_error", "overloaded", "There is not enough memory for this request.")             \
	X(BODY_MEMORY, 503, "overloaded_error", "overloaded",                                                                   \
	  "The bodies of all requests need more memory than body_memory allows.")                                               \
	X(DRAINING, 503, "overloaded_error", "draining", "The router is shutting down.")                                 \
	X(WORKER_TIMEOUT, 504, "upstream_error", "worker_timeout", "The worker did not respond in time.")                \
	X(HTTP_VERSION, 505, "invalid_request_error", "http_version", "Only HTTP/1.x is supported.")                    \
	X(CLIENT_GONE, 0, "", "client_gone", "")                                                                         \
	X(CLIENT_STALLED, 0, "", "client_stalled", "")                                                                   \
	X(SHUTDOWN, 0, "", "shutdown", "")
/* clang-format on */

#endif
