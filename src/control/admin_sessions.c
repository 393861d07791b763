/*
 * POST finish_session?session_id=S: a sticky session ends, in every pool.
 */
#include "control/admin_calls.h"

#include "control/admin_reply.h"
#include "http/http_server.h"

#define SESSION_NAME_MAX 16384

void admin_finish_session(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	char session[SESSION_NAME_MAX];
	struct js *out;

	if (!http_call_query_value(call, "session_id", session, sizeof(session)) ||
		session[0] == '\0') {
		admin_fail(call, ADMIN_INVALID, "session_id is missing");
		return;
	}
	out = js_object();
	js_set_str(out, "session_id", session);
	js_set_bool(out, "was_known",
		site_finish_session(a->control->site, span_str(session)));
	admin_reply(call, 200, out);
}
