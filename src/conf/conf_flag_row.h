/*
 * A flag of kvsteerd's command line as a row, and what is known while the line is read.
 * For the files that are the command line: conf_flags.c (the walk over it),
 * conf_flag_take.c (the rows, and what each does) and conf_flag_help.c (-h). Nobody else
 * includes this.
 */
#ifndef CONF_CONF_FLAG_ROW_H
#define CONF_CONF_FLAG_ROW_H

#include "base/args.h"
#include "conf/conf_flags.h"

/* The arguments of a flag: none, a value, any number of them, a URL and maybe its
 * port. */
enum arity { ARITY_NONE, ARITY_ONE, ARITY_MANY, ARITY_PAIR };
enum effect {
	EFFECT_GROUP,
	EFFECT_SET,
	EFFECT_FIXED,
	EFFECT_CALL,
	EFFECT_IGNORED,
	EFFECT_REFUSED
};

struct words {
	char **items;
	size_t n;
};

struct conf_flag;
struct conf_flag_parser;
typedef void conf_flag_take_fn(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words);

struct conf_flag {
	const char *name;
	enum effect effect;
	enum arity arity;
	const char *argument;
	enum conf_scope scope;
	const char *key;
	const char *unit; /* SET: put behind a bare number ("s"); FIXED: the value */
	const char *text; /* for -h; why or hint; NULL: the key's doc */
	conf_flag_take_fn *take;
};

struct conf_flag_parser {
	struct conf_flags *out;
	struct conf_errors *errors;
	struct args args;
	/* Pairs of flags that make one setting, joined at the end. */
	const char *host, *port, *metrics_host, *metrics_port;
	const char *pd_connector;
	char *pair[2];
	bool no_retries, no_breaker;
};

extern const struct conf_flag conf_flag_rows[];
extern const size_t conf_flag_rows_n;

/* The flags that have a letter, too. */
struct conf_flag_letter {
	char letter;
	const char *name;
};
enum { CONF_FLAG_LETTERS = 5 };
extern const struct conf_flag_letter conf_flag_letters[CONF_FLAG_LETTERS];

enum conf_section_kind conf_flag_section(enum conf_scope scope);
/* The key that a row sets. */
const struct conf_key *conf_flag_key(const struct conf_flag *flag);
bool conf_flag_is_number(const char *text);

/* An error; value and hint may be NULL. */
void conf_flag_refuse(struct conf_flag_parser *p, const char *name, const char *value,
	const char *hint, const char *message);
/* A setting whose value was made here, not given. */
void conf_flag_add_own(struct conf_flag_parser *p, enum conf_scope scope,
	const char *name, const char *value);
/* Does what the row says, with what the line gave for it. */
void conf_flag_run(
	struct conf_flag_parser *p, const struct conf_flag *flag, struct words words);

#endif
