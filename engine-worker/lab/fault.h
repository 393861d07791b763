/*
 * The faults that a simulated engine was told to have: which they are, their names on the
 * control socket, and whether the next request or event meets one. Pure. They are
 * independent of each other, and each can be taken back; without faults nothing here
 * costs more than a compare.
 *
 * As JSON, with the value that means "no such fault":
 *	"wedge": false		true: no step is made, all else answers
 *	"die_core": false	true: the engine behind the API is dead: open streams end with
 *				an error event, all else is answered 500, /health 503
 *	"die_after_ms": null	it dies so long after the next completion or chat has come
 *	"die_how": "kill"	or "core": the process, as by SIGKILL; or as with die_core
 *	"slow": 1		factor on all times, 1 to 10000
 *	"cut_after": null	a stream breaks where it would send one event more than this
 *				many ("data: [DONE]" is one)
 *	"cut_how": "rst"	or "fin": the connection ends without the end of the answer
 *	"cut_left": null	how many streams still break; null: all
 *	"hold_after": null	a stream says nothing after so many events until its end, which
 *				brings all of it: as where a tool's argument is parsed whole
 *	"answer": null		completions are answered with this status (400 to 599), or
 *				"reset": RST without a byte; "head": streams get their headers,
 *				and nothing more is ever said
 *	"answer_left": null	how many still are; null: all
 *	"retry_after": null	seconds in such an answer's Retry-After
 *	"hang_connect": false	true: connects get no answer; connections that exist go on
 *	"health": "ok"		"fail": 503; "silent": no answer until this is changed
 *	"health_delay_ms": 0	before /health is answered
 */
#ifndef ENGINE_LAB_FAULT_H
#define ENGINE_LAB_FAULT_H

#include "base/base.h"

struct js;

enum fault_health { FAULT_HEALTH_OK, FAULT_HEALTH_FAIL, FAULT_HEALTH_SILENT };

enum { FAULT_NONE = -1, FAULT_ALL = -1, FAULT_RESET = 0, FAULT_HEAD = 1 };

struct faults {
	bool is_wedged, is_core_dead, hangs_connect, cuts_by_fin, dies_in_core;
	double slow;
	int64_t cut_after, hold_after; /* events; FAULT_NONE */
	int64_t cut_left, answer_left; /* FAULT_ALL */
	int64_t die_after_ms;          /* FAULT_NONE */
	int64_t answer;        /* a status, FAULT_RESET, FAULT_HEAD or FAULT_NONE */
	int64_t retry_after_s; /* FAULT_NONE */
	enum fault_health health;
	int64_t health_delay_ms;
	/* Counts of what happened; faults_clear() leaves them. */
	uint64_t n_cut, n_answered, n_restarts;
};

/* No faults. */
void faults_clear(struct faults *f);
/*
 * Changes what the object names. ERR_PARSE (nothing is changed): an unknown key or a
 * value out of range; message[0..n) says which. cut_left and answer_left count from anew
 * when cut_after or answer are given without them: for all.
 */
int faults_read(
	struct faults *f, const struct js *object, char *message, size_t n) MUST_CHECK;
/* All of them, and under "count" what happened; the caller's. NULL: out of memory. */
struct js *faults_json(const struct faults *f);

/* The fault that the next completion gets as its answer, or FAULT_NONE. Counts it. */
int64_t faults_take_answer(struct faults *f);
/* Whether a stream that has sent n_events breaks instead of sending another one. Counts
 * it. */
bool faults_take_cut(struct faults *f, uint64_t n_events);
/* Whether a stream that has sent n_events keeps for itself what it has to say. */
static inline bool faults_hold(const struct faults *f, uint64_t n_events)
{
	return f->hold_after != FAULT_NONE && n_events >= (uint64_t)f->hold_after;
}

#endif
