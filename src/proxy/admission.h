/*
 * Whether a request gets a worker now, waits for one, or is refused: the caps of workers
 * and of the process, the queue before them, and what happens when every worker is out
 * (DESIGN 10). The PICK step of request.c calls it; what is waited for is freed by other
 * requests, on any thread, which then call admission_freed().
 *
 * Waiting is bounded: in number by queue_size for the whole process, in time by
 * queue_timeout where workers are full, and by no_worker_wait where all are out; after
 * the latter the least bad worker is tried. A request that waits holds no slot and is no
 * load.
 */
#ifndef PROXY_ADMISSION_H
#define PROXY_ADMISSION_H

#include "base/base.h"

struct request;
struct pool_ask;
struct routing;

/*
 * Picks for r (its guard and pick are filled), or lets it wait. ask and routing are
 * copied; what they point to lives as long as r waits. 0; ERR_AGAIN: it waits, and will
 * be run again; ERR_PARSE, ERR_NOENT: as pool_pick(); ERR_LIMIT: the queue is full;
 * ERR_STATE: nobody is there, not even as a last resort; ERR_NOMEM.
 */
int admission_ask(struct request *r, const struct pool_ask *ask,
	const struct routing *routing) MUST_CHECK;
bool admission_is_waiting(const struct request *r);
/* Run again: as admission_ask(), and ERR_TIMEOUT: it waited for queue_timeout. */
int admission_resume(struct request *r) MUST_CHECK;
/* When it is to be run again at the latest; 0: it does not wait, or has no end. */
uint64_t admission_deadline_ms(const struct request *r);
/* It ends while it waits, or perhaps was granted a worker: then its guard is held. */
void admission_leave(struct request *r);
/* After r's guard was dropped: who waits is served. */
void admission_freed(struct request *r);
/* Seconds after which a refused client may find room: those who wait before it over the
 * rate at which its pool finishes requests. */
unsigned admission_retry_after_secs(const struct request *r);

#endif
