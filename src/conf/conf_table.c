/*
 * The four key tables as one array, and look-ups in it: by section, by name, by likeness.
 * Nothing here is ever written. Called by the other conf_*.c files.
 */
#include "conf/conf_table.h"
#include "base/dump.h"
#include "base/err.h"
#include "base/word.h"
#include "conf/conf_keys.h"

#include <stdarg.h>
#include <stdio.h>

#define live false
#define restart true
#define open false
#define secret true

#define ROW(base, st, name, field, type, def, min, max, reload, exposure, doc)     \
	{#name, base, CONF_TYPE_##type, offsetof(struct st, field), def, min, max, \
		reload, exposure, doc},
#define ROUTER_ROW(...) ROW(CONF_BASE_ROUTER, router_opts, __VA_ARGS__)
#define POOL_ROW(...) ROW(CONF_BASE_POOL, pool_conf, __VA_ARGS__)
#define ROLE_ROW(...) ROW(CONF_BASE_ROLE, role_opts, __VA_ARGS__)
#define OPTS_ROW(...) ROW(CONF_BASE_OPTS, worker_opts, __VA_ARGS__)
#define WORKER_ROW(...) ROW(CONF_BASE_WORKER, worker_conf, __VA_ARGS__)

const struct conf_key conf_keys[] = {
	/* clang-format off */
	CONF_ROUTER_KEYS(ROUTER_ROW)
	CONF_POOL_KEYS(POOL_ROW)
	CONF_ROLE_KEYS(ROLE_ROW)
	CONF_WORKER_KEYS(WORKER_ROW)
	CONF_OPTS_KEYS(OPTS_ROW)
	/* clang-format on */
};
const size_t conf_keys_n = ARRAY_LEN(conf_keys);

#undef live
#undef restart
#undef open
#undef secret

bool conf_key_in(const struct conf_key *key, enum conf_section_kind kind)
{
	switch (kind) {
	case SECTION_ROUTER:
		return key->base == CONF_BASE_ROUTER;
	case SECTION_POOL:
		return key->base == CONF_BASE_POOL || key->base == CONF_BASE_ROLE ||
		       key->base == CONF_BASE_OPTS;
	case SECTION_POOL_ROLE:
		return key->base == CONF_BASE_ROLE || key->base == CONF_BASE_OPTS;
	case SECTION_WORKER:
		return key->base == CONF_BASE_WORKER || key->base == CONF_BASE_OPTS;
	}
	return false;
}

const struct conf_key *conf_key_find(enum conf_section_kind kind, struct span name)
{
	for (size_t i = 0; i < conf_keys_n; i++)
		if (span_is(name, conf_keys[i].name) && conf_key_in(&conf_keys[i], kind))
			return &conf_keys[i];
	return NULL;
}

bool conf_key_is_list(const struct conf_key *key)
{
	return key->type >= CONF_TYPE_ADDRESSES;
}

const char *conf_section_form(enum conf_section_kind kind)
{
	static const char *const forms[] = {
		[SECTION_ROUTER] = "[router]",
		[SECTION_POOL] = "[pool NAME]",
		[SECTION_POOL_ROLE] = "[pool NAME prefill|decode]",
		[SECTION_WORKER] = "[worker NAME]",
	};

	return forms[kind];
}

static const struct conf_key *nearest_key(enum conf_section_kind kind, struct span name)
{
	const struct conf_key *best = NULL;
	struct word_search search = {.wanted = name};

	for (size_t i = 0; i < conf_keys_n; i++)
		if (conf_key_in(&conf_keys[i], kind) &&
			word_is_nearest(&search, span_str(conf_keys[i].name)))
			best = &conf_keys[i];
	return best;
}

const char *conf_key_hint(
	enum conf_section_kind kind, struct span name, char *out, size_t n)
{
	const struct conf_key *near;

	for (int other = SECTION_ROUTER; other <= SECTION_WORKER; other++) {
		if (conf_key_find((enum conf_section_kind)other, name) == NULL)
			continue;
		snprintf(out, n, "it belongs in %s",
			conf_section_form((enum conf_section_kind)other));
		return out;
	}
	near = nearest_key(kind, name);
	if (near == NULL)
		return "kvsteer.conf(5) lists the keys";
	snprintf(out, n, "did you mean %s?", near->name);
	return out;
}

void conf_fault_set(
	struct conf_fault *fault, const char *message, const char *hint_fmt, ...)
{
	va_list args;

	snprintf(fault->message, sizeof(fault->message), "%s", message);
	va_start(args, hint_fmt);
	vsnprintf(fault->hint, sizeof(fault->hint), hint_fmt, args);
	va_end(args);
}

int conf_fault_no_memory(struct conf_fault *fault)
{
	conf_fault_set(fault, "cannot be read: out of memory", "%s", "");
	return ERR_NOMEM;
}

int conf_base_defaults(enum conf_base which, void *base)
{
	for (size_t i = 0; i < conf_keys_n; i++) {
		const struct conf_key *key = &conf_keys[i];
		struct conf_fault fault;
		int rc;

		if (key->base != which || key->def == NULL)
			continue;
		rc = conf_value_set(key, base, span_str(key->def), &fault);
		if (rc != 0) {
			assert(rc == ERR_NOMEM); /* the tests read every default */
			return rc;
		}
	}
	return 0;
}

int conf_base_copy(enum conf_base which, const void *from, void *to)
{
	for (size_t i = 0; i < conf_keys_n; i++)
		if (conf_keys[i].base == which &&
			conf_value_copy(&conf_keys[i], from, to) != 0)
			return ERR_NOMEM;
	return 0;
}

void conf_base_clear(enum conf_base which, void *base)
{
	for (size_t i = 0; i < conf_keys_n; i++)
		if (conf_keys[i].base == which)
			conf_value_clear(&conf_keys[i], base);
}

static void dump_base(const char *section, enum conf_base which)
{
	for (size_t i = 0; i < conf_keys_n; i++) {
		const struct conf_key *key = &conf_keys[i];

		if (key->base == which)
			dump_row("key", section, key->name, conf_type_name(key->type),
				key->def, key->needs_restart ? "restart" : "reload");
	}
}

void conf_dump_keys(void)
{
	dump_base("router", CONF_BASE_ROUTER);
	dump_base("pool", CONF_BASE_POOL);
	dump_base("pool", CONF_BASE_ROLE);
	dump_base("pool", CONF_BASE_OPTS);
	dump_base("worker", CONF_BASE_WORKER);
}
