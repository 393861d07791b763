/*
 * What the tests of sites share: pools that tell of their workers, which are healthy from
 * the first, and how many came and went.
 */
#ifndef UNIT_SITE_RIG_H
#define UNIT_SITE_RIG_H

#include "pool/site.h"
#include "tests/unit/unit_model.h"

static unsigned n_added, n_removed;

static inline void rig_added(void *arg, struct pool *p, struct worker *w)
{
	(void)arg;
	(void)p;
	atomic_store(&w->health, WORKER_HEALTHY);
	n_added++;
}

static inline void rig_removed(void *arg, struct pool *p, struct worker *w)
{
	(void)arg;
	(void)p;
	(void)w;
	n_removed++;
}

static const struct pool_ops rig_ops = {NULL, rig_added, rig_removed};
static const struct site_opts rig_opts = {
	.boot_secret = {1, 2}, .pool_ops = &rig_ops, .now_ms = 1000};

/* Of a configuration's text; old: what it takes over from, or NULL. */
static inline struct site *rig_site(const char *text, struct site *old)
{
	struct conf *conf = unit_conf(text);
	struct site *s = site_new(conf, old, &rig_opts);

	ck_assert_ptr_nonnull(s);
	ck_assert_ptr_eq(s->conf, conf);
	conf_unref(conf);
	return s;
}

/* The end: every worker that came has gone. */
static inline void rig_close(struct site *s)
{
	site_retire(s, NULL);
	site_unref(s);
	ck_assert_uint_eq(n_added, n_removed);
}

#endif
