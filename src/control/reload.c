/*
 * A new configuration comes into force. See reload.h.
 * The order: everything that may fail comes first. site_new() is next; it fails only when
 * memory is short, and then it has changed no pool. The rest cannot fail.
 */
#include "control/reload.h"

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

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX 16 /* keys that the line of a failure names */

struct changes {
	struct reload_report *report;
	const struct conf *conf; /* the new one */
};

static void free_change(struct reload_change *change)
{
	free(change->section);
	free(change->key);
	free(change->was);
	free(change->now);
}

static int add_change(struct reload_report *r, const char *section, const char *key,
	const char *was, const char *now)
{
	struct reload_change change = {
		strdup(section), strdup(key), strdup(was), strdup(now)};

	if (change.section == NULL || change.key == NULL || change.was == NULL ||
		change.now == NULL ||
		mem_grow(&r->changes, &r->cap, r->n + 1, sizeof(change)) != 0) {
		free_change(&change);
		return ERR_NOMEM;
	}
	r->changes[r->n++] = change;
	return 0;
}

void reload_report_free(struct reload_report *report)
{
	size_t i;

	for (i = 0; i < report->n; i++)
		free_change(&report->changes[i]);
	free(report->changes);
	conf_errors_free(&report->errors);
	*report = (struct reload_report){0};
}

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
	if (add_change(r, section, key, was, now) != 0)
		conf_errors_no_memory(&r->errors);
}

/* Requests may wait for workers of pools that are no more. */
static void serve_waiting(const struct site *s, uint64_t now_ms)
{
	size_t i;

	for (i = 0; i < s->n_pools; i++)
		pool_serve(s->pools[i], now_ms);
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
	serve_waiting(old, c->site_opts.now_ms);
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
		return err == ERR_NOMEM ? err : ERR_PARSE;
	err = listen_prepare(c->listening, plan, c->threads, threads_count(c->threads));
	if (err == 0)
		err = swap_site(c, conf);
	if (err != 0) {
		listen_retract(plan, c->threads);
		conf_errors_no_memory(&report->errors);
		return err;
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
	conf_watch_begin(&c->watch, c->flags.conf_file);
	err = conf_load(c->flags.conf_file, &c->flags, &report->errors, &conf);
	conf_watch_end(&c->watch,
		err == 0 ? conf->router.api_keys : c->site->conf->router.api_keys);
	if (err != 0)
		return err;
	changes.conf = conf;
	if (conf_diff(c->site->conf, conf, on_change, &changes) != 0)
		conf_errors_no_memory(&report->errors);
	if (report->errors.n_errors > 0)
		err = report->errors.no_memory ? ERR_NOMEM : ERR_PARSE;
	else
		err = apply(c, conf, report);
	conf_unref(conf);
	return err;
}

void reload_failure_text(const struct conf_errors *errors, char *out, size_t n)
{
	const struct conf_error *first = conf_errors_first(errors), *e;
	size_t i, used, told = 0;

	conf_error_print(first, out, n);
	used = strlen(out);
	for (i = 0; told < NAMED_MAX && (e = conf_errors_at(errors, i)) != NULL; i++) {
		if (e->is_warning || e == first || e->key == NULL)
			continue;
		used = mem_append(out, n, used, "%s%s",
			told == 0 ? "; also wrong: " : ", ", e->key);
		told++;
	}
	if (told + 1 < errors->n_errors)
		mem_append(out, n, used, " (and %zu more errors)",
			errors->n_errors - 1 - told);
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
	char failure[RELOAD_FAILURE_MAX];
	int err;

	*report = (struct reload_report){0};
	service_reloading(c->service);
	err = load_and_apply(c, report);
	c->reloads[err == 0 ? RELOAD_OK : RELOAD_FAILED]++;
	if (err == 0) {
		conf_log(&report->errors, LOG_LEVEL_WARN);
		log_changes(report);
	} else {
		reload_failure_text(&report->errors, failure, sizeof(failure));
		log_error("reload failed, nothing changed: %s", failure);
	}
	service_reloaded(c->service, err == 0 ? NULL : failure);
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
