/*
 * Writes an answer to the client as it arrives. See relay.h.
 */
#include "proxy/relay.h"

#include "base/err.h"
#include "http/http_chunk.h"
#include "io/stream.h"

static struct iovec iov_of(struct span s)
{
	return (struct iovec){(void *)s.p, s.n};
}

static int put_chunk(struct iovec *iov, int n, char *line, struct span data)
{
	iov[n++] = (struct iovec){line, http_chunk_line(data.n, line)};
	iov[n++] = iov_of(data);
	iov[n++] = (struct iovec){(void *)"\r\n", 2};
	return n;
}

int relay_send(struct relay *r, struct span head, struct span data, bool last)
{
	char line[HTTP_CHUNK_LINE_MAX];
	struct iovec iov[5];
	int n = 0, err;

	if (head.n > 0)
		iov[n++] = iov_of(head);
	if (data.n > 0 && r->framing == HTTP_BODY_CHUNKED)
		n = put_chunk(iov, n, line, data);
	else if (data.n > 0)
		iov[n++] = iov_of(data);
	if (last && r->framing == HTTP_BODY_CHUNKED)
		iov[n++] = (struct iovec){(void *)"0\r\n\r\n", 5};
	if (n == 0)
		return 0;
	err = stream_write(r->to, iov, n);
	r->bytes += data.n;
	r->is_full = err == ERR_LIMIT;
	if (err == 0 || err == ERR_LIMIT)
		return 0;
	return err == ERR_NOMEM ? ERR_NOMEM : ERR_CLOSED;
}
