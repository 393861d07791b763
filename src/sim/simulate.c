/*
 * The simulator from its command line to its report. See simulate.h. Called by main only.
 */
#include "sim/simulate.h"

#include "base/dump.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "bench/outcome.h"
#include "io/js.h"
#include "sim/sim_plot.h"
#include "sim/sim_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_BYTES_MAX ((size_t)1 << 30)
#define MARK "round_robin" /* the policy that others are held against */

/* Everything that lives as long as the program's one run. */
struct simulation {
	struct sim_flags flags;
	struct sim_input input;
	FILE *json, *plot; /* NULL: none, or stdout */
	char **specs;      /* owned, as its items */
	size_t n_specs;
	struct sim_report report;
};

bool simulate_is_asked(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--simulate") == 0)
			return true;
	}
	return false;
}

/* ---- what the flags name ---- */

static int make_input(struct simulation *s, const struct trace *t)
{
	int err = sim_input_make(t, s->flags.requests, s->flags.speed, &s->input);

	return err == 0 ? DONE
			: bench_complain(USAGE, "%s: %s", s->flags.trace, err_text(err));
}

static int read_trace(struct simulation *s)
{
	const char *name = s->flags.trace;
	struct trace_fault fault = {0, NULL};
	char *text = NULL;
	size_t n = 0;
	struct trace trace = {0};
	int status, err;

	err = file_read(name, TRACE_BYTES_MAX, &text, &n);
	if (err != 0) {
		status = bench_complain(USAGE, "--trace %s: %s", name,
			err == ERR_IO ? strerror(errno) : err_text(err));
	} else {
		err = trace_read(span_make(text, n), &trace, &fault);
		if (err == 0)
			status = make_input(s, &trace);
		else if (err == ERR_PARSE)
			status = bench_complain(
				USAGE, "%s:%zu: %s", name, fault.line, fault.message);
		else
			status = bench_complain(FAILED, "%s: %s", name, err_text(err));
	}
	free(text);
	trace_free(&trace);
	return status;
}

static int open_file(const char *flag, const char *name, FILE **out)
{
	if (name == NULL || strcmp(name, "-") == 0)
		return DONE;
	*out = fopen(name, "we");
	return *out != NULL ? DONE
			    : bench_complain(
				      USAGE, "--%s %s: %s", flag, name, strerror(errno));
}

/* Before the run: nobody waits to hear that a folder is missing. */
static int open_files(struct simulation *s)
{
	int status = open_file("json", s->flags.json, &s->json);

	return status == DONE ? open_file("plot", s->flags.plot, &s->plot) : status;
}

static void add_spec(struct simulation *s, char *spec)
{
	for (size_t i = 0; i < s->n_specs; i++) {
		if (strcmp(s->specs[i], spec) == 0) {
			free(spec);
			return;
		}
	}
	s->specs = xrealloc(s->specs, (s->n_specs + 1) * sizeof(*s->specs));
	s->specs[s->n_specs++] = spec;
}

/* The mark first, then each once in the order given. */
static int list_specs(struct simulation *s)
{
	add_spec(s, xstrdup(MARK));
	for (size_t i = 0; i < s->flags.policies.n; i++) {
		char **all;
		size_t n;

		if (strcmp(s->flags.policies.specs[i], "all") != 0) {
			add_spec(s, xstrdup(s->flags.policies.specs[i]));
			continue;
		}
		all = sim_router_all_specs(&n);
		for (size_t k = 0; k < n; k++)
			add_spec(s, all[k]);
		free(all);
	}
	return DONE;
}

/* ---- the runs and their report ---- */

static struct sim_opts sim_opts(const struct simulation *s)
{
	const struct sim_flags *f = &s->flags;

	return (struct sim_opts){
		.input = &s->input,
		.workers = (unsigned)f->workers,
		.kv_tokens = f->kv_tokens,
		.prefill_rate = f->speed_free ? 0 : f->prefill_rate,
		.decode_rate = f->speed_free ? 0 : f->decode_rate,
		.max_seqs = (unsigned)f->max_seqs,
		.max_requests = (unsigned)f->max_requests,
		.seed = f->seed,
	};
}

static int run_all(struct simulation *s)
{
	struct sim_opts opts = sim_opts(s);
	struct sim_report *r = &s->report;

	*r = (struct sim_report){.flags = &s->flags, .input = &s->input};
	sim_ceiling(&opts, &r->ceiling);
	r->results = xcalloc(s->n_specs, sizeof(*r->results));
	for (size_t i = 0; i < s->n_specs; i++) {
		char *why = NULL;
		int err = sim_run(&opts, s->specs[i], &r->results[i], &why);

		if (err != 0) {
			(void)bench_complain(USAGE, "--policy %s: %s", s->specs[i],
				why != NULL ? why : err_text(err));
			free(why);
			return USAGE;
		}
		r->n++;
	}
	return DONE;
}

static int close_file(const char *flag, const char *name, bool ok, FILE **f)
{
	if (*f != NULL)
		ok = fclose(*f) == 0 && ok;
	*f = NULL;
	return ok ? DONE
		  : bench_complain(FAILED, "--%s %s: %s", flag, name, strerror(errno));
}

static int write_json(struct simulation *s)
{
	struct js *root = sim_report_json(&s->report);
	char *text = js_print(root, true);
	bool ok = text != NULL &&
		  fprintf(s->json != NULL ? s->json : stdout, "%s\n", text) > 0;

	js_free(root);
	free(text);
	return close_file("json", s->flags.json, ok, &s->json);
}

static int write_plot(struct simulation *s)
{
	struct text text = {0};
	bool ok;

	sim_plot(&s->report, &text);
	ok = !text.failed && fwrite(text.p, 1, text.n, s->plot) == text.n;
	text_free(&text);
	return close_file("plot", s->flags.plot, ok, &s->plot);
}

static int tell(struct simulation *s)
{
	const char *json = s->flags.json;
	int status = DONE;

	if (json == NULL || strcmp(json, "-") != 0)
		sim_report_print(&s->report);
	if (json != NULL)
		status = write_json(s);
	if (s->plot != NULL && status == DONE)
		status = write_plot(s);
	if (fflush(stdout) != 0)
		status = bench_complain(FAILED, "stdout: %s", strerror(errno));
	return status;
}

static void tear_down(struct simulation *s)
{
	for (size_t i = 0; i < s->report.n; i++)
		sim_result_free(&s->report.results[i]);
	free(s->report.results);
	sim_result_free(&s->report.ceiling);
	for (size_t i = 0; i < s->n_specs; i++)
		free(s->specs[i]);
	free(s->specs);
	sim_input_free(&s->input);
	if (s->json != NULL)
		(void)fclose(s->json);
	if (s->plot != NULL)
		(void)fclose(s->plot);
}

static int dump_tables(void)
{
	sim_flags_dump();
	return fflush(stdout) == 0 ? DONE : FAILED;
}

int simulate_main(int argc, char **argv)
{
	static int (*const steps[])(struct simulation *) = {
		read_trace, open_files, list_specs, run_all, tell};
	struct simulation s = {.n_specs = 0};
	enum flag_result got;
	int status;

	if (dump_is_asked(argc - 1, argv + 1))
		return dump_tables();
	got = sim_flags_parse(argc, argv, &s.flags);
	status = got == FLAG_USAGE ? USAGE : DONE;
	for (size_t i = 0; got == FLAG_RUN && status == DONE && i < ARRAY_LEN(steps); i++)
		status = steps[i](&s);
	if (got == FLAG_DONE && fflush(stdout) != 0)
		status = FAILED;
	tear_down(&s);
	return status;
}
