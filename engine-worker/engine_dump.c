/*
 * The rows of --dump-tables. Metrics are those of a scrape of an engine with the default
 * settings, which never runs. See engine_dump.h. Called by engine_daemon.c.
 */
#include "engine_dump.h"
#include "api/engine_metrics.h"
#include "base/dump.h"
#include "core/histograms.h"
#include "engine_flags.h"
#include "io/loop.h"

static void dump_scrape(struct engine *engine)
{
	struct engine_histograms histograms = {0};
	struct handoff_counts counts = {0};
	struct engine_metrics_opts opts = {.model = "sim", .handoff = &counts};
	struct text text = {0};

	engine_metrics_print(&text, engine_sched(engine), &histograms, &opts);
	dump_metrics(&text);
	text_free(&text);
}

void engine_dump(void)
{
	char *argv[] = {"kvsteer-engine", NULL};
	struct loop *loop = loop_new();
	struct engine_flags flags;
	struct engine *engine = NULL;

	engine_flags_dump();
	if (engine_flags_parse(1, argv, &flags) == FLAG_RUN && loop != NULL &&
		engine_new(loop, &flags.engine, &engine) == 0) {
		while (!engine_is_ready(engine))
			loop_turn(loop, -1);
		dump_scrape(engine);
	}
	engine_free(engine);
	engine_flags_free(&flags);
	loop_free(loop);
}
