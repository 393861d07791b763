/*
 * The request methods that the router knows, for those who speak HTTP (room http) and for
 * tables that name methods and speak none (the paths, room route).
 */
#ifndef BASE_HTTP_METHOD_H
#define BASE_HTTP_METHOD_H

enum http_method {
	HTTP_GET,
	HTTP_HEAD,
	HTTP_POST,
	HTTP_PUT,
	HTTP_PATCH,
	HTTP_DELETE,
	HTTP_OPTIONS,
	HTTP_METHOD_MAX
};

#endif
