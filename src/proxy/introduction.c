/*
 * Connections that begin with a header of the PROXY protocol. See introduction.h.
 */
#include "proxy/introduction.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/http_proxy.h"
#include "proxy/client.h"
#include "proxy/io_thread.h"

#define LOG_EVERY_MS 10000

static struct log_limit stranger_limit, malformed_limit, late_limit;

static void refuse(enum metric_id counter, struct log_limit *limit, const struct ip *peer,
	const char *why)
{
	char text[IP_TEXT_MAX];
	unsigned missed;

	metric_inc(counter);
	if (!log_limit_ok(limit, clock_now_ms(), LOG_EVERY_MS, &missed))
		return;
	(void)ip_text(peer, text);
	log_warn("a connection of %s is closed: %s (%u more since the last such line)",
		text, why, missed);
}

bool introduction_is_allowed(const struct io_thread *t, const struct ip *peer)
{
	if (ip_set_has(&t->site->trusted, peer))
		return true;
	refuse(METRIC_PROXY_STRANGER, &stranger_limit, peer,
		"the address is for the PROXY protocol of trusted_proxies alone");
	return false;
}

int introduction_read(struct client *c)
{
	struct http_proxy h;
	int err;

	while ((err = http_proxy_read(c->buf, c->len, &h)) == ERR_AGAIN) {
		ssize_t got = client_fill(c);

		if (got == ERR_CLOSED && c->len > 0)
			break;
		if (got <= 0)
			return (int)got;
	}
	if (err != 0) {
		refuse(METRIC_PROXY_MALFORMED, &malformed_limit, &c->peer.ip,
			"it does not begin with a header of the PROXY protocol");
		return ERR_PARSE;
	}
	client_consume(c, h.len);
	if (h.has_ip)
		http_who_set(&c->peer, &h.ip);
	return 0;
}

void introduction_is_late(const struct client *c)
{
	refuse(METRIC_PROXY_TIMEOUT, &late_limit, &c->peer.ip,
		"the header of the PROXY protocol did not come in time");
}
