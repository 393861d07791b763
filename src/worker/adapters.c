/*
 * A short list of names, in order of their use. See adapters.h.
 */
#include "worker/adapters.h"

#include <string.h>

#define USUAL_SLOTS 8u /* SGLang's max_loras_per_batch; vLLM says what it has */

static unsigned slots_of(const struct adapters *a)
{
	return MIN(a->report.slots > 0 ? a->report.slots : USUAL_SLOTS, ADAPTERS_MAX);
}

static unsigned find(const uint64_t *list, unsigned n, uint64_t adapter)
{
	unsigned i;

	for (i = 0; i < n; i++) {
		if (list[i] == adapter)
			break;
	}
	return i;
}

void adapters_sent(struct adapters *a, uint64_t adapter)
{
	unsigned at = find(a->sent, a->n_sent, adapter);

	if (at == a->n_sent) {
		a->n_sent = MIN(a->n_sent + 1, slots_of(a));
		at = a->n_sent - 1;
	}
	memmove(a->sent + 1, a->sent, at * sizeof(*a->sent));
	a->sent[0] = adapter;
}

void adapters_reported(struct adapters *a, const struct adapters_report *report)
{
	a->report = *report;
	a->n_sent = MIN(a->n_sent, slots_of(a));
}

enum adapter_state adapters_state(const struct adapters *a, uint64_t adapter)
{
	const struct adapters_report *r = &a->report;
	unsigned at = find(r->names, r->n, adapter);

	if (find(a->sent, a->n_sent, adapter) < a->n_sent || at < r->n_running)
		return ADAPTER_READY;
	if (at < r->n)
		return ADAPTER_WAITS;
	return MAX(a->n_sent, r->n_running) < slots_of(a) ? ADAPTER_FREE
							  : ADAPTER_CROWDED;
}

void adapters_forget(struct adapters *a)
{
	a->n_sent = a->report.n_running = a->report.n = 0;
}
