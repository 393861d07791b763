/*
 * A worker in virtual time, as kvsteer-engine with its sim backend is one: prompts are
 * computed one after another, first come first served, beside the sequences that decode,
 * each at its own rate; a prompt is admitted when fewer than max_seqs run and its blocks
 * are free (and 1 % more while others run), and none overtakes it; a sequence that
 * finds no block for its next token takes those of the one that came last, which waits
 * again. Pure.
 */
#ifndef SIM_SIM_WORKER_H
#define SIM_SIM_WORKER_H

#include "base/list.h"
#include "sim/sim_event.h"
#include "sim/sim_kv.h"

enum sim_state { SIM_NEW, SIM_WAITING, SIM_PROMPT, SIM_DECODE, SIM_DONE };

/* One request on its way through a worker. Must not move. */
struct sim_job {
	/* The caller's. */
	uint64_t number;     /* of its arrival */
	uint64_t arrival_us; /* at the router */
	struct sim_prompt prompt;
	uint32_t output; /* tokens to generate, at least 1 */
	/* The worker's. */
	struct sim_worker *worker;
	enum sim_state state;
	TAILQ_ENTRY(sim_job) link; /* waiting, or running */
	struct sim_hold hold;
	struct sim_found found; /* when it was first admitted */
	uint32_t epoch;         /* changes when it is preempted */
	uint32_t made;          /* tokens generated, as of made_us */
	uint64_t made_us;
	bool has_first; /* token */
	uint64_t began_us,
		first_us;  /* of its prompt, as computed last; of its first token */
	uint64_t computed; /* prompt tokens, and those computed again */
	uint64_t base;     /* tokens found or computed before began_us */
};

TAILQ_HEAD(sim_jobs, sim_job);

struct sim_worker_opts {
	uint64_t kv_blocks;           /* 0: no bound */
	double prefill_us, decode_us; /* of a token; 0: they take no time */
	unsigned max_seqs;
};

struct sim_worker {
	unsigned number;
	struct sim_worker_opts opts;
	struct sim_kv *kv;                /* owned */
	struct sim_jobs waiting, running; /* waiting: by number */
	struct sim_job *prompt;           /* the one being computed; NULL: none */
	unsigned n_running, n_waiting;
	struct sim_events *events; /* borrowed */
	/* So far. */
	uint64_t preemptions, computed, requests;
};

void sim_worker_open(struct sim_worker *w, unsigned number,
	const struct sim_worker_opts *opts, uint32_t n_ids, struct sim_events *events);
void sim_worker_close(struct sim_worker *w);

/* Whether it could ever hold the whole of the sequence. */
bool sim_worker_fits(const struct sim_worker *w, const struct sim_job *job);
/* It arrives. Its events follow. */
void sim_worker_submit(struct sim_worker *w, struct sim_job *job, uint64_t now_us);
/* Handles an event of one of its jobs. The job then shows the result: has_first, SIM_DONE
 * when it has left. */
void sim_worker_event(const struct sim_event *event);

#endif
