/*
 * The walk over argv. See args.h.
 */
#include "base/args.h"

void args_begin(struct args *a, int argc, char **argv)
{
	*a = (struct args){.argv = argv, .argc = argc, .at = 1};
}

static void next_letter(struct args *a, struct arg *out)
{
	char *next = a->letters + 1;

	a->letter_name[0] = '-';
	a->letter_name[1] = *a->letters;
	*out = (struct arg){
		.kind = ARG_LETTER,
		.name = span_make(a->letter_name, 2),
		.letter = *a->letters,
		.attached = *next != '\0' ? next : NULL,
	};
	a->letters = out->attached;
}

static void take_long(char *word, struct arg *out)
{
	char *equals = strchr(word, '=');

	*out = (struct arg){
		.kind = ARG_LONG,
		.name = span_make(
			word, equals != NULL ? (size_t)(equals - word) : strlen(word)),
		.attached = equals != NULL ? equals + 1 : NULL,
	};
}

bool args_next(struct args *a, struct arg *out)
{
	char *word;

	if (a->letters != NULL) {
		next_letter(a, out);
		return true;
	}
	if (!a->only_words && a->at < a->argc && strcmp(a->argv[a->at], "--") == 0) {
		a->only_words = true;
		a->at++;
	}
	if (a->at >= a->argc)
		return false;
	word = a->argv[a->at++];
	if (a->only_words || word[0] != '-' || word[1] == '\0') {
		*out = (struct arg){.kind = ARG_WORD, .name = span_str(word)};
	} else if (word[1] == '-') {
		take_long(word, out);
	} else {
		a->letters = word + 1;
		next_letter(a, out);
	}
	return true;
}

char *args_attached(struct args *a, const struct arg *arg)
{
	a->letters = NULL;
	return arg->attached;
}

char *args_value(struct args *a, const struct arg *arg)
{
	char *value = args_attached(a, arg);

	return value != NULL || a->at >= a->argc ? value : a->argv[a->at++];
}

void args_drop_letters(struct args *a)
{
	a->letters = NULL;
}
