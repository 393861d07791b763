/*
 * The state that a process leaves to its successor. See upgrade_state.h.
 *
 * {"pools": [{"name", "generation", "up": [N for each role]}],
 *  "drained": [NAME], "workers": [{"name", "pairs": [[KEY, VALUE]]}]}
 */
#include "control/upgrade_state.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "conf/conf_table.h"
#include "io/js.h"
#include "pool/site.h"
#include "worker/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAIRS_MAX 256

/* Serves, or would if it had room. */
static bool is_up(const struct worker *w)
{
	enum worker_state s = worker_state(w);

	return s == WORKER_HEALTHY || s == WORKER_SUSPECT;
}

static void count_up(struct pool *p, unsigned up[ROLE_MAX], unsigned all[ROLE_MAX])
{
	const struct worker *w;
	size_t i;

	memset(up, 0, ROLE_MAX * sizeof(*up));
	memset(all, 0, ROLE_MAX * sizeof(*all));
	for (i = 0; (w = pool_worker_at(p, i)) != NULL; i++) {
		all[w->role]++;
		up[w->role] += is_up(w);
	}
}

/* ---- saving ---- */

static struct js *pool_object(struct pool *p)
{
	struct js *out = js_object(), *list = js_array();
	unsigned up[ROLE_MAX], all[ROLE_MAX];
	enum role r;

	count_up(p, up, all);
	for (r = 0; r < ROLE_MAX; r++)
		js_push(list, js_int(up[r]));
	js_set_str(out, "name", pool_name(p));
	js_set_int(out, "generation", (int64_t)pool_generation(p));
	js_set(out, "up", list);
	return out;
}

/* All that is set, secrets too, as it would stand in a file. */
static bool push_pairs(struct js *list, enum conf_base which, const void *base)
{
	size_t i;

	for (i = 0; i < conf_keys_n; i++) {
		const struct conf_key *key = &conf_keys[i];
		scoped_free char *value = NULL;
		struct js *pair;

		if (key->base != which)
			continue;
		value = conf_value_text(key, base);
		if (value == NULL)
			return false;
		if (strcmp(value, "none") == 0)
			continue;
		pair = js_array();
		js_push(pair, js_string(span_str(key->name)));
		js_push(pair, js_string(span_str(value)));
		js_push(list, pair);
		mem_wipe(value, strlen(value));
	}
	return true;
}

/* NULL: out of memory. */
static struct js *worker_object(const struct worker *w)
{
	struct js *out, *pairs = js_array();

	if (!push_pairs(pairs, CONF_BASE_WORKER, w->conf) ||
		!push_pairs(pairs, CONF_BASE_OPTS, &w->conf->opts)) {
		js_free(pairs);
		return NULL;
	}
	out = js_object();
	js_set_str(out, "name", w->group);
	js_set(out, "pairs", pairs);
	return out;
}

/* False: out of memory. */
static bool push_workers(struct pool *p, struct js *drained, struct js *added)
{
	const struct worker *w;
	struct js *object;
	size_t i;

	for (i = 0; (w = pool_worker_at(p, i)) != NULL; i++) {
		if (atomic_load(&w->is_draining))
			js_push(drained, js_string(span_str(w->name)));
		/* All ranks behind a URL are added as one, by the first of them. */
		if (w->origin != ORIGIN_API || w->rank != w->conf->dp_start_rank)
			continue;
		object = worker_object(w);
		if (object == NULL)
			return false;
		js_push(added, object);
	}
	return true;
}

/* As text; NULL: out of memory. */
static char *state_text(const struct site *site)
{
	struct js *out, *pools, *drained, *added;
	bool is_whole = true;
	char *text;
	size_t i;

	(void)js_ran_out();
	out = js_object();
	pools = js_array();
	drained = js_array();
	added = js_array();
	for (i = 0; i < site->n_pools; i++) {
		js_push(pools, pool_object(site->pools[i]));
		is_whole &= push_workers(site->pools[i], drained, added);
	}
	js_set(out, "pools", pools);
	js_set(out, "drained", drained);
	js_set(out, "workers", added);
	text = js_print(out, false);
	js_free(out);
	if (is_whole && !js_ran_out())
		return text;
	if (text != NULL)
		mem_wipe(text, strlen(text));
	free(text);
	return NULL;
}

static bool write_all(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t done = write(fd, p, n);

		if (done < 0 && errno != EINTR)
			return false;
		if (done > 0) {
			p += done;
			n -= (size_t)done;
		}
	}
	return true;
}

int upgrade_state_save(const struct site *site)
{
	scoped_free char *text = state_text(site);
	int fd = memfd_create("kvsteer-state", MFD_CLOEXEC);
	bool is_whole = text != NULL && fd >= 0 && write_all(fd, text, strlen(text)) &&
			lseek(fd, 0, SEEK_SET) == 0;

	if (text != NULL)
		mem_wipe(text, strlen(text));
	if (is_whole)
		return fd;
	if (fd >= 0)
		close(fd);
	return ERR_IO;
}

/* ---- loading ---- */

struct js *upgrade_state_load(int fd)
{
	off_t size = lseek(fd, 0, SEEK_END);
	scoped_free char *text = NULL;
	struct js *state;
	const char *why;

	if (size <= 0 || size > (off_t)JS_MAX_BYTES)
		return NULL;
	text = xmalloc((size_t)size);
	if (pread(fd, text, (size_t)size, 0) != size)
		return NULL;
	state = js_parse(span_make(text, (size_t)size), &why);
	mem_wipe(text, (size_t)size);
	return state;
}

/* An item of an array whose absence is like its being empty. */
static const struct js *item(const struct js *array, size_t i)
{
	return array != NULL && i < js_len(array) ? js_at(array, i) : NULL;
}

static char *text_of(const struct js *v)
{
	struct span s;

	return v != NULL && js_as_str(v, &s) ? xstrndup(s.p, s.n) : NULL;
}

struct pairs {
	struct conf_pair items[PAIRS_MAX];
	size_t n;
};

static void read_pairs(const struct js *list, struct pairs *out)
{
	const struct js *pair;
	size_t i;

	out->n = 0;
	for (i = 0; (pair = item(list, i)) != NULL && out->n < PAIRS_MAX; i++) {
		char *key = text_of(item(pair, 0)), *value = text_of(item(pair, 1));

		if (key != NULL && value != NULL) {
			out->items[out->n++] = (struct conf_pair){key, value};
		} else {
			free(key);
			free(value);
		}
	}
}

static void free_pairs(struct pairs *p)
{
	while (p->n > 0) {
		struct conf_pair *pair = &p->items[--p->n];

		mem_wipe((char *)pair->value, strlen(pair->value));
		free((char *)pair->key);
		free((char *)pair->value);
	}
}

static struct worker *find_worker(const struct site *site, struct span name)
{
	struct worker *w = NULL;
	size_t i;

	for (i = 0; w == NULL && i < site->n_pools; i++)
		w = pool_find(site->pools[i], name);
	return w;
}

static bool has_name(const struct site *site, const char *name)
{
	size_t i;

	for (i = 0; i < site->n_pools; i++) {
		if (pool_has_name(site->pools[i], span_str(name)))
			return true;
	}
	return false;
}

static const char *add_worker(
	const struct site *site, const char *name, const struct pairs *pairs)
{
	struct conf_errors errors = {0};
	struct worker_conf wc;
	struct pool *pool;
	const char *why = NULL;

	if (conf_worker_make(site->conf, name, pairs->items, pairs->n, &errors, &wc) !=
		0) {
		conf_errors_free(&errors);
		return "its options are not valid any more";
	}
	conf_errors_free(&errors);
	pool = site_pool(site, span_str(wc.pool));
	if (pool == NULL)
		why = "its pool is gone";
	else if (has_name(site, name))
		why = "the configuration has one of its name now";
	else if (pool_add_worker(pool, &wc) != 0)
		why = "out of memory";
	worker_conf_free(&wc);
	return why;
}

static void apply_worker(const struct js *v, const struct site *site)
{
	scoped_free char *name = text_of(js_get(v, "name"));
	struct pairs pairs;
	const char *why;

	if (name == NULL)
		return;
	read_pairs(js_get(v, "pairs"), &pairs);
	why = add_worker(site, name, &pairs);
	free_pairs(&pairs);
	if (why != NULL)
		log_warn("worker %s, added by the admin API, is not taken over: %s", name,
			why);
	else
		log_notice("worker %s, added by the admin API, is taken over", name);
}

static void apply_drained(const struct js *v, const struct site *site)
{
	scoped_free char *name = text_of(v);
	struct worker *w = name != NULL ? find_worker(site, span_str(name)) : NULL;

	if (w == NULL)
		return;
	atomic_store(&w->is_draining, true);
	log_notice("worker %s stays drained", name);
	worker_unref(w);
}

static struct pool *named_pool(const struct js *v, const struct site *site)
{
	struct span name;

	return js_as_str(js_get(v, "name"), &name) ? site_pool(site, name) : NULL;
}

void upgrade_state_apply(const struct js *state, const struct site *site)
{
	const struct js *v, *list;
	size_t i;

	list = js_get(state, "workers");
	for (i = 0; (v = item(list, i)) != NULL; i++)
		apply_worker(v, site);
	list = js_get(state, "drained");
	for (i = 0; (v = item(list, i)) != NULL; i++)
		apply_drained(v, site);
	list = js_get(state, "pools");
	for (i = 0; (v = item(list, i)) != NULL; i++) {
		struct pool *p = named_pool(v, site);
		int64_t n;

		if (p != NULL && js_as_int(js_get(v, "generation"), &n) && n >= 0)
			pool_set_generation(p, (uint64_t)n);
	}
}

static bool is_pool_reached(const struct js *v, struct pool *p, const char **lacking)
{
	unsigned up[ROLE_MAX], all[ROLE_MAX];
	bool is_reached = true;
	enum role r;
	int64_t n;

	count_up(p, up, all);
	for (r = 0; r < ROLE_MAX; r++) {
		if (!js_as_int(item(js_get(v, "up"), r), &n))
			continue;
		n = MIN(n, (int64_t)all[r]);
		if ((int64_t)up[r] < n)
			is_reached = false;
		if (n > 0 && up[r] == 0)
			*lacking = pool_name(p);
	}
	return is_reached;
}

bool upgrade_state_is_reached(
	const struct js *state, const struct site *site, const char **lacking)
{
	const struct js *pools = js_get(state, "pools"), *v;
	bool is_reached = true;
	size_t i;

	*lacking = NULL;
	for (i = 0; (v = item(pools, i)) != NULL; i++) {
		struct pool *p = named_pool(v, site);

		if (p != NULL && !is_pool_reached(v, p, lacking))
			is_reached = false;
	}
	return is_reached;
}
