/*
 * What clients and workers say in the programs of fuzz_conn.c: texts that reach deep, by
 * number. "%M" becomes the mark of the client that asks, "%B" a long text.
 * A program may also spell its bytes itself.
 */
#ifndef FUZZ_CONN_SAYS_H
#define FUZZ_CONN_SAYS_H

#define ASK(path, length, fields, body)                                              \
	"POST " path " HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\nContent-Length: " length \
	"\r\n" fields "\r\n" body

/* Content-Length is what the text has once it is filled in: "%L". */
static const char *const client_says[] = {
	"GET /v1/models HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n\r\n",
	"GET /readiness HTTP/1.1\r\nHost: r\r\n\r\n",
	ASK("/v1/chat/completions", "%L", "",
		"{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\","
		"\"content\":\"Say %M, and then say more of it, as long as you can\"}]}"),
	ASK("/v1/chat/completions", "%L", "",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"%B\"},"
		"{\"role\":\"user\",\"content\":\"%M\"}],\"max_tokens\":5}"),
	ASK("/v1/completions", "%L", "",
		"{\"model\":\"m\",\"stream\":true,\"prompt\":\"%B\",\"temperature\":0}"),
	ASK("/v1/completions", "%L", "Connection: close\r\n",
		"{\"model\":\"m\",\"prompt\":[\"a\",\"b %M\"],\"n\":2}"),
	ASK("/v1/completions", "%L", "Expect: 100-continue\r\n",
		"{\"model\":\"m\",\"stream\":true,\"prompt\":\"short %M\"}"),
	"POST /v1/completions HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n"
	"Transfer-Encoding: chunked\r\n\r\n"
	"1a\r\n{\"model\":\"m\",\"prompt\":\"abc\r\n"
	"11;x=y\r\nde\",\"stream\":true\r\n1\r\n}\r\n0\r\nT: 1\r\n\r\n",
	"POST /v1/completions HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n"
	"Transfer-Encoding: chunked\r\n\r\n",
	ASK("/v1/responses", "%L", "",
		"{\"model\":\"m\",\"input\":\"%M\",\"stream\":true,\"store\":true}"),
	ASK("/v1/responses", "%L", "",
		"{\"model\":\"m\",\"input\":\"%M\",\"previous_response_id\":\"resp_1\"}"),
	"GET /v1/responses/resp_1 HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n\r\n",
	"DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n\r\n",
	"HEAD /v1/models HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n\r\n",
	"HEAD /pass HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n\r\n",
	"GET /pass HTTP/1.0\r\nX-Mark: %M\r\n\r\n",
	"GET /pass HTTP/1.0\r\nConnection: keep-alive\r\nX-Mark: %M\r\n\r\n",
	"OPTIONS /v1/completions HTTP/1.1\r\nHost: r\r\nOrigin: https://a.example\r\n"
	"Access-Control-Request-Method: POST\r\n\r\n",
	ASK("/v1/messages", "%L", "X-Api-Key: k\r\n",
		"{\"model\":\"m\",\"stream\":true,\"max_tokens\":9,"
		"\"messages\":[{\"role\":\"user\",\"content\":\"%M\"}]}"),
	ASK("/api/chat", "%L", "",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%M\"}]"
		"}"),
	ASK("/generate", "%L", "X-Session-Id: s%M\r\n",
		"{\"text\":\"%B "
		"%M\",\"sampling_params\":{\"max_new_tokens\":4},\"stream\":true}"),
	ASK("/inference/v1/generate", "%L", "",
		"{\"token_ids\":[1,2,3,4],\"sampling_params\":{\"max_tokens\":4}}"),
	ASK("/v1/completions", "%L", "X-Kvsteer-Worker: w0\r\n",
		"{\"prompt\":\"%M\",\"kv_transfer_params\":{\"do_remote_decode\":true},"
		"\"bootstrap_host\":\"h\",\"bootstrap_room\":7}"),
	ASK("/v1/completions", "%L", "X-Kvsteer-Model: n\r\nX-Priority: high\r\n",
		"{\"prompt\":\"%B%B\",\"stream\":true}"),
	ASK("/pass", "30000", "", "%B"),
	ASK("/pass", "%L", "Connection: close\r\n", "%B%B%B%B"),
	ASK("/v1/embeddings", "%L", "", "{\"model\":\"n\",\"input\":[\"%M\",\"b\"]}"),
	ASK("/v1/chat/completions", "200000", "", "{\"messages\":["),
	"%B",
	"5\r\n{\"a\":\r\n",
	"3\r\n\"x\"\r\n1\r\n}\r\n0\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"POST /pass HTTP/1.1\r\nHost: r\r\nContent-Length: 3\r\n"
	"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST /finish_session?session_id=s1 HTTP/1.1\r\nHost: r\r\nX-Mark: %M\r\n"
	"Content-Length: 0\r\n\r\n",
	"\r\n",
	ASK("/v1/completions", "%L",
		"X-Kvsteer-Prefix: 16b;0123456789abcdef,fedcba9876543210\r\n",
		"{\"model\":\"m\",\"prompt\":\"%B\"}"),
	ASK("/v1/completions", "%L", "X-Kvsteer-Prefix: 16b;0,\r\n", "{}"),
};

#define SSE                                                      \
	"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" \
	"Transfer-Encoding: chunked\r\nX-Mark: %M\r\n\r\n"

/* A text that begins with '~' is one chunk: its size is put before it. */
static const char *const worker_says[] = {
	SSE,
	"~data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":"
	"\"assistant\",\"content\":\"\"}}]}\n\n",
	"~data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":"
	"\"%M \"}}]}\n\n",
	"~data: "
	"{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,"
	"\"text\":\" word %M\",\"finish_reason\":null}]}\n\n",
	"~data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\"\",\"delta\":{},"
	"\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,"
	"\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
	"~data: "
	"{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"abort\"}]}\n\n",
	"~data: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\n",
	"~: ping\n\n",
	"~data: [DONE]\n\n",
	"~data: {\"choices\":[{\"ind",
	"0\r\n\r\n",
	"0\r\nT: 1\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %L\r\n\r\n"
	"{\"id\":\"cmpl-2\",\"mark\":\"%M\",\"choices\":[{\"index\":0,\"text\":\"x\","
	"\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":9,"
	"\"completion_tokens\":1}}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %L\r\n\r\n"
	"{\"id\":\"cmpl-3\",\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":"
	"\"length\"}],\"kv_transfer_params\":{\"do_remote_prefill\":true,"
	"\"remote_engine_id\":\"e%M\",\"remote_block_ids\":[1,2],\"remote_host\":\"h\","
	"\"remote_port\":5600,\"tp_size\":1}}",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %L\r\n\r\n"
	"{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"completed\",\"output\":["
	"]}",
	"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n%B",
	"HTTP/1.1 200 OK\r\nX-Mark: %M\r\n\r\n%B",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Mark: %M\r\n\r\n",
	"~%B",
	"%B",
	"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: "
	"2\r\n\r\n{}",
	"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 13\r\n\r\n{\"error\":\"m\"}",
	"HTTP/1.1 500 Oops\r\nContent-Length: 20000\r\n\r\n{\"error\":",
	"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	"HTTP/1.1 404 Not Found\r\nContent-Length: 37\r\n\r\n"
	"{\"error\":{\"message\":\"no model found\"}}",
	"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 100 Continue\r\n\r\n",
	"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
	"HTTP/1.1 204 No Content\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nETag: \"%M\"\r\n\r\n",
	"HTTP/1.0 200 OK\r\n\r\n%M",
	"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	"data: {\"choices\":[{\"index\":0,\"text\":\"%M\"}]}\n\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
	"HTTP/1.1 2",
	"event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
	"~event: content_block_delta\ndata: "
	"{\"type\":\"content_block_delta\",\"index\":0,"
	"\"delta\":{\"type\":\"text_delta\",\"text\":\"%M\"}}\n\n",
	"~event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
	"~event: response.created\ndata: {\"type\":\"response.created\",\"response\":"
	"{\"id\":\"resp_1\"}}\n\n",
	"~event: response.output_text.delta\ndata: "
	"{\"type\":\"response.output_text.delta\","
	"\"delta\":\"%M\"}\n\n",
	"~{\"model\":\"m\",\"message\":{\"content\":\"%M\"},\"done\":false}\n",
	"~{\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\":true}\n",
	"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
	"Transfer-Encoding: chunked\r\n\r\n",
	"zz\r\n",
};

#endif
