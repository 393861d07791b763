/*
 * The state of one I/O thread, which all of the data path on it uses: loop, buffers that
 * are lent, free lists, idle upstream connections. A connection, its request and its
 * exchanges live and die on one thread; nothing here is locked, but for struct process
 * (atomics).
 */
#ifndef PROXY_IO_THREAD_H
#define PROXY_IO_THREAD_H

#include "base/base.h"
#include "base/list.h"
#include "base/poison.h"
#include "base/rng.h"
#include "io/loop.h"
#include "io/wheel.h"
#include "pool/site.h"
#include "worker/guard.h"

#include <pthread.h>
#include <stdatomic.h>

#define IO_SCRATCH_BYTES 65536 /* what one read of an answer takes at most */
#define IO_OUT_BYTES (HTTP_RESPONSE_HEAD_MAX + 8192)
#define IO_IN_BYTES 20480 /* lent to a client connection while it has bytes */
#define IO_BODY_MIN \
	(32u << 10) /* memory of bodies comes in powers of two, and is kept for the next \
		       up to */
#define IO_BODY_MAX (4u << 20)
#define IO_BODY_SIZES 8
#define IO_BODY_KEPT_BYTES (16u << 20)

struct access_log;
struct digester;
struct drain;
struct kv_release;
struct mailbox;
struct upstream_idle;
struct conn;
struct dial_line;

/* Shared by all threads. */
struct process {
	_Atomic uint64_t body_memory; /* bytes of request bodies held */
	_Atomic unsigned connections; /* of clients */
	struct slots slots;           /* of requests at a worker */
	_Atomic unsigned queued;      /* of requests that wait for a worker */
	unsigned max_connections;     /* set before the threads start */
	_Atomic bool is_draining;     /* /readiness is 503, responses close */
	_Atomic uint64_t next_conn_id;
	/* A worker came into doubt (reach.h); any thread. Set before; NULL: nobody
	 * asks. */
	void (*tell_doubt)(void *arg);
	void *tell_arg;
	struct response_map *responses; /* set before; NULL: none is remembered */
	pthread_mutex_t dial_lock;      /* of dial_lines (dial_line.h) */
	LIST_HEAD(dial_line_list, dial_line) dial_lines;
};

struct io_thread {
	unsigned index;
	struct loop *loop;
	struct mailbox *mailbox; /* letters to this thread; the daemon's */
	struct wheel *wheel;
	struct process *process;
	struct site *site;        /* references; replaced by a mailbox message */
	unsigned spare_site_refs; /* beside its own, for requests to come */
	struct rng rng;
	bool is_draining; /* responses that begin say Connection: close */
	bool keeps_idle;  /* and connections that were not told yet are kept until then */
	/* Draining, it still accepts connections, to tell them: they are late, and the
	 * drain does not wait for them. */
	bool keeps_listening;

	char *scratch_bytes, *out_bytes;  /* io_scratch(), io_out() */
	struct turn_hook poisons_scratch; /* with AddressSanitizer */

	struct io_block *free_blocks; /* of IO_IN_BYTES */
	unsigned n_free_blocks;
	struct io_block *free_bodies[IO_BODY_SIZES]; /* of IO_BODY_MIN << i bytes */
	size_t free_body_bytes;
	struct request *free_requests;
	unsigned n_free_requests;
	struct exchange *free_exchanges;
	unsigned n_free_exchanges;

	LIST_HEAD(kv_release_list, kv_release) releases; /* cleanup.h */
	LIST_HEAD(drain_list, drain) drains;
	unsigned n_cleanups; /* both */

	struct digester *digester; /* of clients' keys */
	struct upstream_idle *idle;
	struct dial_line *dial_line;
	struct access_log *log;
	TAILQ_HEAD(conn_list, conn) conns;
	unsigned n_conns;
	unsigned n_late;                 /* connections accepted while draining */
	void (*on_last_conn)(void *arg); /* draining: it waits for no connection more */
	void *on_last_conn_arg;
};

/* Takes its own reference to site. NULL: out of memory. Call on the thread itself. */
struct io_thread *io_thread_new(
	unsigned index, struct loop *l, struct process *p, struct site *site);
/* All connections must be gone. */
void io_thread_free(struct io_thread *t);
void io_thread_set_site(
	struct io_thread *t, struct site *site); /* takes its own reference */

/* The site with a reference for a request, and back. References are taken many at once:
 * else all threads would write one counter with each request, in a line that all read. */
struct site *io_site_take(struct io_thread *t);
void io_site_give(struct io_thread *t, struct site *site);

/* IO_SCRATCH_BYTES: answers are read here, and handed on within the turn. */
static inline char *io_scratch(struct io_thread *t)
{
	unpoison(t->scratch_bytes, IO_SCRATCH_BYTES);
	return t->scratch_bytes;
}
/* IO_OUT_BYTES: headers are written here, and sent within the turn. */
static inline char *io_out(struct io_thread *t)
{
	unpoison(t->out_bytes, IO_OUT_BYTES);
	return t->out_bytes;
}

/* A block of IO_IN_BYTES; NULL: out of memory. */
char *io_block_get(struct io_thread *t);
void io_block_put(struct io_thread *t, char *block);
/*
 * Memory for a body of at least want bytes, from malloc: it may be grown with realloc.
 * *cap is what it holds: want rounded up to a power of two, or want where it is above
 * IO_BODY_MAX. NULL: out of memory. Memory that is given back is as large as cap says.
 */
char *io_body_get(struct io_thread *t, size_t want, size_t *cap);
void io_body_put(struct io_thread *t, char *body, size_t cap); /* NULL is fine */
/* The thread ends: frees all blocks that were given back. */
void io_free_all(struct io_thread *t);

#endif
