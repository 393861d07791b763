/*
 * A new configuration in. See reload.h.
 * Order: everything that may fail, then site_new() (which changes the pools, and fails
 * only without memory, before it changed one), then what cannot fail.
 */
#include "control/reload.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "control/conf_log.h"
#include "control/listen.h"
#include "control/service.h"
#include "control/threads.h"
#include "control/upgrade.h"
#include "fleet/health.h"

#include <stdlib.h>
#include <string.h>

void reload_report_free(struct reload_report *report)
{
	size_t i;

	for (i = 0; i < report->n; i++) {
		free(report->changes[i].section);
		free(report->changes[i].key);
		free(report->changes[i].was);
		free(report->changes[i].now);
	}
	free(report->changes);
	conf_errors_free(&report->errors);
	*report = (struct reload_report){0};
}

#define NAMED_MAX 16

struct changes {
	struct reload_report *report;
	const struct conf *conf; /* the new one */
};

static void on_change(void *arg, const char *section, const char *key, const char *was,
	const char *now, bool needs_restart)
{
	struct changes *changes = arg;
	struct reload_report *r = changes->report;
	const char *file;
	unsigned line;

	if (needs_restart) {
		file = conf_place(changes->conf, key, NULL, &line);
		conf_errors_add(&r->errors, file, line, key, now,
			"set it back, or restart the daemon",
			"[%s] %s was %s and cannot change while the daemon runs", section,
			key, was);
		return;
	}
	r->changes = xrealloc(r->changes, (r->n + 1) * sizeof(*r->changes));
	r->changes[r->n++] = (struct reload_change){
		xstrdup(section), xstrdup(key), xstrdup(was), xstrdup(now)};
}

/* The new site in force; the old one ends with its last request. */
static int swap_site(struct control *c, struct conf *conf)
{
	struct site *old = c->site, *site;

	c->site_opts.now_ms = clock_now_ms();
	site = site_new(conf, old, &c->site_opts);
	if (site == NULL)
		return ERR_NOMEM;
	c->site = site;
	threads_set_site(c->threads, site);
	site_retire(old, site);
	site_unref(old);
	return 0;
}

static int apply(struct control *c, struct conf *conf, struct reload_report *report)
{
	struct listen_from from = {.have = c->listening};
	struct listen_set *plan;
	int err;

	err = listen_plan(&from, conf, threads_count(c->threads), &report->errors, &plan);
	if (err != 0)
		return ERR_PARSE;
	if (swap_site(c, conf) != 0) {
		listen_abandon(plan);
		conf_errors_add(
			&report->errors, NULL, 0, NULL, NULL, NULL, "out of memory");
		return ERR_PARSE;
	}
	listen_commit(&c->listening, plan, c->threads);
	listen_log(c->listening);
	listen_store(c->listening);
	log_set_level(conf->router.log_level);
	health_reconfigured(c->health);
	return 0;
}

static int load_and_apply(struct control *c, struct reload_report *report)
{
	struct changes changes = {.report = report};
	struct conf *conf;
	int err;

	if (c->is_draining) {
		conf_errors_add(&report->errors, NULL, 0, NULL, NULL, NULL,
			"the daemon is stopping");
		return ERR_PARSE;
	}
	if (upgrade_is_open(c)) {
		conf_errors_add(&report->errors, NULL, 0, NULL, NULL,
			"reload again when it is done", "an upgrade is under way");
		return ERR_PARSE;
	}
	if (conf_load(c->flags.conf_file, &c->flags, &report->errors, &conf) != 0)
		return ERR_PARSE;
	changes.conf = conf;
	conf_diff(c->site->conf, conf, on_change, &changes);
	err = report->errors.n_errors > 0 ? ERR_PARSE : apply(c, conf, report);
	conf_unref(conf);
	return err;
}

static const struct conf_error *first_error(const struct conf_errors *errors)
{
	size_t i;

	for (i = 0; errors->items[i].is_warning; i++)
		;
	return &errors->items[i];
}

/* The first one in full; of the others the keys, as far as they are few. */
char *reload_failure_text(const struct conf_errors *errors)
{
	const struct conf_error *first = first_error(errors);
	char *text = conf_error_text(first);
	size_t i, told = 0;

	for (i = 0; i < errors->n && told < NAMED_MAX; i++) {
		const struct conf_error *e = &errors->items[i];
		char *longer;

		if (e->is_warning || e == first || e->key == NULL)
			continue;
		longer = xasprintf(
			"%s%s%s", text, told == 0 ? "; also wrong: " : ", ", e->key);
		free(text);
		text = longer;
		told++;
	}
	if (told + 1 < errors->n_errors) {
		char *longer = xasprintf(
			"%s (and %zu more errors)", text, errors->n_errors - 1 - told);

		free(text);
		text = longer;
	}
	return text;
}

static void log_change(const struct reload_change *c)
{
	if (strcmp(c->key, "(section)") == 0)
		log_notice("changed: [%s] %s", c->section,
			strcmp(c->now, "present") == 0 ? "added" : "removed");
	else
		log_notice(
			"changed: [%s] %s: %s -> %s", c->section, c->key, c->was, c->now);
}

static void log_changes(const struct reload_report *report)
{
	size_t i;

	for (i = 0; i < report->n; i++)
		log_change(&report->changes[i]);
	log_notice("reloaded: %zu change%s", report->n, report->n == 1 ? "" : "s");
}

int reload_run(struct control *c, struct reload_report *report)
{
	scoped_free char *failure = NULL;
	int err;

	*report = (struct reload_report){0};
	service_reloading(c->service);
	err = load_and_apply(c, report);
	c->reloads[err == 0 ? RELOAD_OK : RELOAD_FAILED]++;
	if (err == 0) {
		conf_log(&report->errors, LOG_LEVEL_WARN);
		log_changes(report);
	} else {
		failure = reload_failure_text(&report->errors);
		log_error("reload failed, nothing changed: %s", failure);
	}
	service_reloaded(c->service, failure);
	return err;
}

void reload_by_signal(struct control *c)
{
	struct reload_report report;

	if (upgrade_is_open(c)) {
		log_notice("SIGHUP: the reload waits for the upgrade that is under way");
		upgrade_reload_later(c);
		return;
	}
	if (reload_run(c, &report) != 0)
		log_debug("SIGHUP: the old configuration stays");
	reload_report_free(&report);
}
