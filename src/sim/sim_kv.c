/*
 * The KV cache of a simulated worker. See sim_kv.h. Called by sim_worker.c and sim.c.
 *
 * A node stands for one block of the trace, or (a tail) for what one sequence generated.
 * Always true: a node is in the list of the free ones exactly while it holds blocks and
 * no sequence refers to it; those in use and those in the list never exceed the capacity.
 */
#include "sim/sim_kv.h"

#include "base/mem.h"

#include <stdlib.h>

#define NONE 0 /* number of no node: the head of the list */

struct node {
	uint32_t prev, next; /* free ones, oldest first; tails without blocks: next one */
	uint32_t refs;
	uint32_t blocks; /* held, from its beginning */
};

struct sim_kv {
	uint64_t capacity; /* UINT64_MAX: no bound */
	uint64_t used, cached;
	uint32_t n_ids;
	struct node *nodes; /* [0]: head of the list; [1 + id]; then the tails */
	size_t n_nodes, cap_nodes;
	struct sim_hold **owners; /* of tails: who may find it; NULL: nobody */
	size_t cap_owners;
	uint32_t spare_tail; /* a tail without blocks, and so on by next */
};

struct sim_kv *sim_kv_new(uint32_t n_ids, uint64_t capacity)
{
	struct sim_kv *kv = xcalloc(1, sizeof(*kv));

	kv->capacity = capacity > 0 ? capacity : UINT64_MAX;
	kv->n_ids = n_ids;
	kv->n_nodes = kv->cap_nodes = (size_t)n_ids + 1;
	kv->nodes = xcalloc(kv->n_nodes, sizeof(*kv->nodes)); /* most stay untouched */
	return kv;
}

void sim_kv_free(struct sim_kv *kv)
{
	if (kv == NULL)
		return;
	free(kv->nodes);
	free(kv->owners);
	free(kv);
}

/* ---- the list of what nobody uses ---- */

static void list_append(struct sim_kv *kv, uint32_t i)
{
	struct node *n = &kv->nodes[i], *head = &kv->nodes[NONE];

	n->prev = head->prev;
	n->next = NONE;
	kv->nodes[head->prev].next = i;
	head->prev = i;
	kv->cached += n->blocks;
}

static void list_remove(struct sim_kv *kv, uint32_t i)
{
	struct node *n = &kv->nodes[i];

	kv->nodes[n->prev].next = n->next;
	kv->nodes[n->next].prev = n->prev;
	kv->cached -= n->blocks;
}

static bool is_tail(const struct sim_kv *kv, uint32_t i)
{
	return i > kv->n_ids;
}

static struct sim_hold **owner_of(struct sim_kv *kv, uint32_t tail)
{
	return &kv->owners[tail - kv->n_ids - 1];
}

/* A tail without blocks goes back; its owner hears of it. */
static void drop_tail(struct sim_kv *kv, uint32_t i)
{
	struct sim_hold **owner = owner_of(kv, i);

	if (*owner != NULL)
		(*owner)->tail = NONE;
	*owner = NULL;
	kv->nodes[i].next = kv->spare_tail;
	kv->spare_tail = i;
}

static uint32_t new_tail(struct sim_kv *kv)
{
	uint32_t i = kv->spare_tail;
	size_t tails = kv->n_nodes - kv->n_ids;
	int err;

	if (i != NONE) {
		kv->spare_tail = kv->nodes[i].next;
		return i;
	}
	err = mem_grow(&kv->nodes, &kv->cap_nodes, kv->n_nodes + 1, sizeof(*kv->nodes));
	if (err == 0)
		err = mem_grow(&kv->owners, &kv->cap_owners, tails, sizeof(*kv->owners));
	if (err != 0)
		abort();
	kv->nodes[kv->n_nodes] = (struct node){0};
	i = (uint32_t)kv->n_nodes++;
	*owner_of(kv, i) = NULL;
	return i;
}

/* Frees room for n more blocks in use, which must be there. */
static void make_room(struct sim_kv *kv, uint64_t n)
{
	uint64_t idle = kv->capacity - kv->used - kv->cached;

	while (idle < n) {
		uint32_t i = kv->nodes[NONE].next;
		struct node *oldest = &kv->nodes[i];
		uint32_t go = (uint32_t)MIN(n - idle, (uint64_t)oldest->blocks);

		assert(i != NONE);
		idle += go;
		kv->cached -= go;
		oldest->blocks -= go;
		if (oldest->blocks > 0)
			return;
		list_remove(kv, i);
		if (is_tail(kv, i))
			drop_tail(kv, i);
	}
}

/* ---- taking ---- */

/* Full blocks of the i-th block of the prompt. */
static uint32_t size_of(const struct sim_prompt *p, uint32_t i)
{
	uint32_t from = i * p->id_tokens;

	return MIN(p->tokens - from, p->id_tokens) / SIM_KV_TOKENS;
}

static struct node *node_of(
	const struct sim_kv *kv, const struct sim_prompt *p, uint32_t i)
{
	return &kv->nodes[1 + p->ids[i]];
}

/* The blocks that a take would find and change. */
struct plan {
	struct sim_found found;
	uint64_t blocks; /* found, as far as they count */
	uint64_t idle;   /* among the prompt's: held, and used by nobody */
	uint64_t more;   /* to be allocated */
};

static void plan_prompt(const struct sim_kv *kv, const struct sim_prompt *p,
	uint64_t most, struct plan *plan)
{
	bool goes_on = true;

	for (uint32_t i = 0; i < p->n_ids; i++) {
		const struct node *n = node_of(kv, p, i);
		uint32_t size = size_of(p, i), held = MIN(n->blocks, size);

		plan->more += size - held;
		if (n->refs == 0)
			plan->idle += n->blocks;
		if (!goes_on)
			continue;
		plan->blocks += held;
		plan->found.ids += held == size && size > 0;
		goes_on = held == size;
	}
	plan->blocks = MIN(plan->blocks, most);
}

static uint64_t full_blocks(const struct sim_prompt *p)
{
	return p->tokens / SIM_KV_TOKENS;
}

static struct plan make_plan(const struct sim_kv *kv, const struct sim_prompt *p,
	uint64_t n_tokens, const struct sim_hold *hold)
{
	uint64_t all = (n_tokens + SIM_KV_TOKENS - 1) / SIM_KV_TOKENS;
	uint64_t most = n_tokens > 0 ? (n_tokens - 1) / SIM_KV_TOKENS : 0;
	uint32_t tail = hold->tail;
	struct plan plan = {{0, 0}, 0, 0, 0};

	plan_prompt(kv, p, most, &plan);
	if (tail != NONE && plan.blocks == full_blocks(p))
		plan.blocks = MIN(plan.blocks + kv->nodes[tail].blocks, most);
	plan.found.tokens = plan.blocks * SIM_KV_TOKENS;
	/* Its last block is held, but computed again: it needs a place of its own. */
	if (all == full_blocks(p) && all > 0 && plan.more == 0)
		plan.more++;
	plan.more += all - full_blocks(p);
	return plan;
}

static void take_prompt(struct sim_kv *kv, const struct sim_prompt *p)
{
	for (uint32_t i = 0; i < p->n_ids; i++) {
		struct node *n = node_of(kv, p, i);

		if (n->refs++ > 0 || n->blocks == 0)
			continue;
		list_remove(kv, 1 + p->ids[i]);
		kv->used += n->blocks;
	}
}

/* All of the prompt's blocks are held from now on. */
static void fill_prompt(struct sim_kv *kv, const struct sim_prompt *p)
{
	for (uint32_t i = 0; i < p->n_ids; i++) {
		struct node *n = node_of(kv, p, i);
		uint32_t size = size_of(p, i), more = size - MIN(n->blocks, size);

		make_room(kv, more);
		n->blocks += more;
		kv->used += more;
	}
}

static void take_tail(struct sim_kv *kv, struct sim_hold *hold)
{
	uint32_t tail = hold->tail;

	if (tail == NONE)
		return;
	list_remove(kv, tail);
	kv->nodes[tail].blocks = 0;
	drop_tail(kv, tail); /* its room is given again with the others' */
}

bool sim_kv_take(struct sim_kv *kv, const struct sim_prompt *p, uint64_t n_tokens,
	uint64_t spare, struct sim_hold *hold, struct sim_found *found)
{
	struct plan plan = make_plan(kv, p, n_tokens, hold);
	uint64_t filled = 0;

	if (kv->capacity != UINT64_MAX &&
		plan.more + plan.idle + spare > kv->capacity - kv->used)
		return false;
	for (uint32_t i = 0; i < p->n_ids; i++)
		filled += size_of(p, i) - MIN(node_of(kv, p, i)->blocks, size_of(p, i));
	take_prompt(kv, p);
	take_tail(kv, hold);
	fill_prompt(kv, p);
	hold->own = (uint32_t)(plan.more - filled);
	make_room(kv, hold->own);
	kv->used += hold->own;
	*found = plan.found;
	return true;
}

bool sim_kv_grow(struct sim_kv *kv, struct sim_hold *hold)
{
	if (kv->used == kv->capacity)
		return false;
	make_room(kv, 1);
	kv->used++;
	hold->own++;
	return true;
}

/* ---- letting go ---- */

static void leave_tail(
	struct sim_kv *kv, uint64_t blocks, bool keeps, struct sim_hold *hold)
{
	uint32_t tail;

	if (blocks == 0)
		return;
	tail = new_tail(kv);
	kv->nodes[tail].blocks = (uint32_t)blocks;
	list_append(kv, tail);
	if (keeps) {
		*owner_of(kv, tail) = hold;
		hold->tail = tail;
	}
}

void sim_kv_release(struct sim_kv *kv, const struct sim_prompt *p, uint64_t n_computed,
	bool keeps, struct sim_hold *hold)
{
	uint64_t full = n_computed / SIM_KV_TOKENS, prompt = full_blocks(p);

	assert(hold->tail == NONE);
	kv->used -= hold->own;
	leave_tail(kv, full > prompt ? MIN(full - prompt, (uint64_t)hold->own) : 0, keeps,
		hold);
	hold->own = 0;
	for (uint32_t i = p->n_ids; i-- > 0;) {
		struct node *n = node_of(kv, p, i);
		uint64_t before = (uint64_t)i * p->id_tokens / SIM_KV_TOKENS;

		assert(n->refs > 0);
		if (--n->refs > 0)
			continue;
		kv->used -= n->blocks;
		n->blocks = (uint32_t)MIN(
			(uint64_t)n->blocks, full > before ? full - before : 0);
		if (n->blocks > 0)
			list_append(kv, 1 + p->ids[i]);
	}
}

/* ---- what others ask ---- */

uint64_t sim_kv_used(const struct sim_kv *kv)
{
	return kv->used;
}

uint64_t sim_kv_cached(const struct sim_kv *kv)
{
	return kv->cached;
}

void sim_kv_check(const struct sim_kv *kv)
{
	uint64_t listed = 0, cached = 0, free_nodes = 0, used = 0;

	for (uint32_t i = kv->nodes[NONE].next, before = NONE; i != NONE;
		before = i, i = kv->nodes[i].next) {
		assert(kv->nodes[i].prev == before && kv->nodes[i].refs == 0);
		assert(kv->nodes[i].blocks > 0);
		cached += kv->nodes[i].blocks;
		listed++;
	}
	for (size_t i = 1; i < kv->n_nodes; i++) {
		free_nodes += kv->nodes[i].refs == 0 && kv->nodes[i].blocks > 0;
		used += kv->nodes[i].refs > 0 ? kv->nodes[i].blocks : 0;
	}
	assert(listed == free_nodes && cached == kv->cached);
	assert(used <= kv->used && kv->cached <= kv->capacity - kv->used);
}
