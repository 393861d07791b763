/*
 * The aliases of pools: other names for models. The file says "alias NAME = TARGET", its
 * value is "NAME=TARGET". Names are put into bodies as they are, so they have nothing that
 * JSON would spell otherwise. Called by conf.c, conf_check.c and conf_type.c.
 */
#include "base/err.h"
#include "conf/conf_check.h"

#include <string.h>

#define ALIAS_NAME_MAX 256

struct conf_alias conf_alias(const char *item)
{
	struct span rest = span_str(item);
	struct conf_alias a = {.name = {NULL, 0}};

	(void)span_next(&rest, '=', &a.name);
	a.target = rest;
	return a;
}

static bool is_model_name(struct span text)
{
	for (size_t i = 0; i < text.n; i++) {
		char c = text.p[i];

		if ((unsigned char)c <= ' ' || c == '"' || c == '\\' || c == '\x7f' ||
			c == '*' || c == '?')
			return false;
	}
	return text.n > 0 && text.n <= ALIAS_NAME_MAX;
}

int conf_alias_check(struct span text, struct conf_fault *fault)
{
	const char *mark = memchr(text.p, '=', text.n);
	struct span name = text, target = {NULL, 0};

	if (mark != NULL) {
		name = span_make(text.p, (size_t)(mark - text.p));
		target = span_make(mark + 1, text.n - name.n - 1);
	}
	if (is_model_name(name) && is_model_name(target))
		return 0;
	conf_fault_set(fault,
		mark == NULL || name.n == 0 || target.n == 0
			? "does not name an alias and its model"
			: "has a name that no model can have",
		"alias NAME = TARGET; names of up to %d characters, without blanks, "
		"quotes, \\, * and ?",
		ALIAS_NAME_MAX);
	return ERR_PARSE;
}

bool conf_pool_serves(const struct pool_conf *pool, struct span model)
{
	for (size_t i = 0; i < pool->models.n; i++)
		if (conf_glob(pool->models.items[i], model))
			return true;
	return pool->models.n == 0;
}

/* ---- all of them together ---- */

struct finder {
	const struct conf *c;
	const struct conf_source *source;
	struct conf_errors *errors;
};

static bool has_word(const char *text, const char *word)
{
	struct span rest = span_str(text), w;

	while (span_next_word(&rest, &w))
		if (span_is(w, word))
			return true;
	return false;
}

/* The n-th line of the pool (from 0) that gives the item; NULL: a flag does. */
static const struct conf_line *line_of(
	const struct finder *f, const struct pool_conf *pool, const char *item, size_t n)
{
	for (size_t i = 0; i < f->source->n_sections; i++) {
		const struct conf_section *s = &f->source->sections[i];

		if (s->kind != SECTION_POOL || strcmp(s->name, pool->name) != 0)
			continue;
		for (size_t j = 0; j < s->n_lines; j++)
			if (s->lines[j].key->type == CONF_TYPE_ALIASES &&
				has_word(s->lines[j].value, item) && n-- == 0)
				return &s->lines[j];
	}
	return NULL;
}

static void refuse(const struct finder *f, const struct conf_line *line, const char *item,
	const char *hint, const char *message, const char *pool)
{
	conf_errors_add(f->errors, line != NULL ? line->file : NULL,
		line != NULL ? line->line : 0, line != NULL ? "alias" : "--alias", item,
		hint, message, pool);
}

static bool is_alias(const struct conf *c, struct span model)
{
	for (size_t i = 0; i < c->n_pools; i++)
		for (size_t j = 0; j < c->pools[i].aliases.n; j++)
			if (span_eq(conf_alias(c->pools[i].aliases.items[j]).name, model))
				return true;
	return false;
}

/* The pool that gave the name before the item does, NULL: none. *n: how often this pool
 * gave the same item before. */
static const struct pool_conf *given_before(
	const struct conf *c, const struct pool_conf *pool, size_t item, size_t *n)
{
	const char *text = pool->aliases.items[item];
	struct span name = conf_alias(text).name;
	const struct pool_conf *found = NULL;

	*n = 0;
	for (const struct pool_conf *p = c->pools; p <= pool; p++)
		for (size_t j = 0; j < (p == pool ? item : p->aliases.n); j++) {
			if (!span_eq(conf_alias(p->aliases.items[j]).name, name))
				continue;
			found = found != NULL ? found : p;
			*n += p == pool && strcmp(p->aliases.items[j], text) == 0;
		}
	return found;
}

static void check_one(const struct finder *f, const struct pool_conf *pool, size_t i)
{
	const char *item = pool->aliases.items[i];
	struct conf_alias a = conf_alias(item);
	size_t n;
	const struct pool_conf *first = given_before(f->c, pool, i, &n);
	const struct conf_line *line = line_of(f, pool, item, n);

	if (first != NULL)
		refuse(f, line, item, "leave one of them",
			first == pool ? "pool %s has this alias already"
				      : "pool %s has this alias already; a name stands "
					"for one model of one pool",
			first->name);
	else if (span_eq(a.name, a.target))
		refuse(f, line, item, "leave it out", "is an alias of itself in pool %s",
			pool->name);
	else if (is_alias(f->c, a.target))
		refuse(f, line, item, "name the model itself",
			"in pool %s names another alias", pool->name);
	else if (!conf_pool_serves(pool, a.target))
		refuse(f, line, item, "add it to models of the pool",
			"names a model that pool %s does not serve", pool->name);
}

static bool has_item(const struct conf *c, struct span item)
{
	for (size_t i = 0; i < c->n_pools; i++)
		for (size_t j = 0; j < c->pools[i].aliases.n; j++)
			if (span_is(item, c->pools[i].aliases.items[j]))
				return true;
	return false;
}

/* A flag's alias goes to the first pool that serves its model. */
static void check_flag(const struct finder *f, const struct conf_setting *s)
{
	struct span rest = span_str(s->value), item;

	if (s->key->type != CONF_TYPE_ALIASES || strcmp(s->value, "none") == 0)
		return;
	while (span_next_word(&rest, &item))
		if (!has_item(f->c, item))
			refuse(f, NULL, s->value, "add it to models of a pool",
				"names a model that %s serves", "no pool");
}

void conf_check_aliases(const struct conf *c, const struct conf_source *source,
	const struct conf_flags *flags, struct conf_errors *errors)
{
	const struct finder f = {c, source, errors};

	for (size_t i = 0; i < c->n_pools; i++)
		for (size_t j = 0; j < c->pools[i].aliases.n; j++)
			check_one(&f, &c->pools[i], j);
	for (size_t i = 0; flags != NULL && i < flags->n_settings; i++)
		check_flag(&f, &flags->settings[i]);
}
