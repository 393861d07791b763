/*
 * A walk over argv, the same for all programs: "--name", "--name=value", letters alone or
 * together ("-tT"), a letter's value attached or next ("-cFILE", "-tc FILE"), words in
 * between, and "--", after which all are words. The caller knows the flags, and asks for
 * the value of a flag that takes one. Nothing is copied or changed.
 */
#ifndef BASE_ARGS_H
#define BASE_ARGS_H

#include "base/base.h"
#include "base/span.h"

struct args {
	char **argv;
	int argc, at;  /* at: the next argument */
	char *letters; /* of "-tT", those that are to come; NULL: none */
	char letter_name[3];
	bool only_words;
};

enum arg_kind { ARG_WORD, ARG_LONG, ARG_LETTER };

struct arg {
	enum arg_kind kind;
	/* "--port", "-t", or the word; until the next args_next(). name.p is a string:
	 * what is attached to a long flag's name is in it, too. */
	struct span name;
	char letter;    /* of ARG_LETTER */
	char *attached; /* behind '=' or the letter; NULL: nothing */
};

/* argv[0] is passed over. */
void args_begin(struct args *a, int argc, char **argv);
/* False: there are no more. */
bool args_next(struct args *a, struct arg *out);
/* The value attached to the flag, which then is not more letters; NULL: none. */
char *args_attached(struct args *a, const struct arg *arg);
/* That, else the next argument whatever it looks like; NULL: there is none. */
char *args_value(struct args *a, const struct arg *arg);
/* The letters behind an unknown one are not read: they may be its value. */
void args_drop_letters(struct args *a);

#endif
