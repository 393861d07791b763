/*
 * The rows of --dump-tables. Metrics are those of a scrape of a site with one worker,
 * which nothing is ever sent to. See dump_tables.h. Called by daemon.c.
 */
#include "control/dump_tables.h"

#include "base/dump.h"
#include "base/metric.h"
#include "conf/conf_table.h"
#include "control/admin_calls.h"
#include "pool/pool.h"
#include "route/path_table.h"
#include "worker/worker.h"

#include <stdlib.h>

/* So that families of what workers report have a line, too. */
static void report_all(struct pool *pool)
{
	struct worker **workers;
	size_t n;

	workers = pool_list(pool, &n);
	for (size_t i = 0; i < n; i++) {
		worker_report(workers[i], 0, 0, 0, 0, UINT64_MAX);
		worker_unref(workers[i]);
	}
	free(workers);
}

static void dump_scrape(struct site *site)
{
	struct control *c = calloc(1, sizeof(*c));
	struct text text = {0};

	if (c == NULL)
		return;
	report_all(site->pools[0]);
	c->site = site;
	admin_metrics_print(c, &text);
	dump_metrics(&text);
	text_free(&text);
	free(c);
}

static void dump_site(struct conf *conf)
{
	static const struct pool_ops no_ops = {NULL, NULL, NULL};
	struct site_opts opts = {.pool_ops = &no_ops};
	const char *const *routes;
	unsigned n_routes;
	struct site *site = site_new(conf, NULL, &opts);

	if (site == NULL)
		return;
	routes = path_route_names(&n_routes);
	metric_set_routes(routes, n_routes);
	dump_scrape(site);
	site_retire(site, NULL);
	site_unref(site);
}

void dump_daemon_tables(void)
{
	char *argv[] = {"kvsteerd", "--worker-urls", "http://127.0.0.1:8000", NULL};
	struct conf_errors errors = {0};
	struct conf_flags flags;
	struct conf *conf;

	conf_dump_keys();
	conf_dump_flags();
	dump_failures();
	path_dump_rows();
	if (conf_flags_parse(3, argv, &errors, &flags) == 0) {
		if (conf_load(NULL, &flags, &errors, &conf) == 0) {
			dump_site(conf);
			conf_unref(conf);
		}
		conf_flags_free(&flags);
	}
	conf_errors_free(&errors);
}
