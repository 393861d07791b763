/*
 * GET tenants: the tenants, their limits and their requests. Keys are counted, never
 * shown.
 */
#include "control/admin_calls.h"

#include "control/admin_reply.h"
#include "http/http_server.h"
#include "pool/tenant.h"

#include <stdio.h>

#define TENANTS_SHOWN_MAX 10000

static struct js *rate_text(const struct conf_tenant *t)
{
	char text[32];
	int n;

	if (t->rate == 0)
		return js_null();
	n = snprintf(text, sizeof(text), "%u/%s", t->rate,
		t->rate_period_ms == 1000 ? "s" : "m");
	return js_string(span_make(text, (size_t)n));
}

static int64_t asked(const struct tenant *t, enum tenant_result result)
{
	return (int64_t)atomic_load(&t->account->asked[result]);
}

static struct js *tenant_object(const struct tenant *t)
{
	struct js *out = js_object();

	js_set_str(out, "name", t->conf->name);
	js_set_int(out, "keys", t->conf->n_keys);
	js_set_str(out, "cache_group", t->conf->cache_group);
	js_set_int(out, "max_requests", t->conf->max_requests);
	js_set(out, "rate", rate_text(t->conf));
	js_set_int(out, "in_flight", atomic_load(&t->account->limit.active));
	js_set_int(out, "requests", asked(t, TENANT_MAY));
	js_set_int(out, "refused_max_requests", asked(t, TENANT_AT_CAP));
	js_set_int(out, "refused_rate", asked(t, TENANT_TOO_FAST));
	return out;
}

/* Null where no key is asked for. */
struct js *admin_tenants_summary(const struct site *site)
{
	struct js *out;

	if (site->tenants == NULL)
		return js_null();
	out = js_object();
	js_set_int(out, "tenants", (int64_t)site->tenants->keys->n_tenants);
	js_set_int(out, "keys", (int64_t)site->tenants->keys->n_keys);
	return out;
}

void admin_list_tenants(void *arg, struct http_call *call)
{
	struct admin *a = arg;
	const struct tenants *t = a->control->site->tenants;
	struct js *out = js_object(), *list = js_array();
	size_t i, n = t != NULL ? t->keys->n_tenants : 0;

	for (i = 0; i < n && i < TENANTS_SHOWN_MAX; i++)
		js_push(list, tenant_object(&t->items[i]));
	js_set(out, "api_keys", admin_tenants_summary(a->control->site));
	js_set(out, "tenants", list);
	admin_reply(call, 200, out);
}
