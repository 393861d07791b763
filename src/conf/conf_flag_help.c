/*
 * The flags of kvsteerd as -h prints them, and as --dump-tables does. See conf_flags.h.
 */
#include "base/cleanup.h"
#include "base/dump.h"
#include "base/mem.h"
#include "conf/conf_flag_row.h"

#include <stdio.h>
#include <string.h>

static void print_names(FILE *to, enum effect effect, const char *title)
{
	int column = 0;

	fprintf(to, "\n%s:\n", title);
	for (size_t i = 0; i < conf_flag_rows_n; i++) {
		const struct conf_flag *flag = &conf_flag_rows[i];
		int n = (int)strlen(flag->name != NULL ? flag->name : "") + 1;

		if (flag->effect != effect)
			continue;
		if (column > 0 && column + n > 78) {
			fputc('\n', to);
			column = 0;
		}
		column += fprintf(to, "%s%s", column == 0 ? "  " : " ", flag->name);
	}
	fputc('\n', to);
}

/* "-c, " before a flag that has a letter. */
static void letter_of(const struct conf_flag *flag, char out[5])
{
	out[0] = '\0';
	for (size_t i = 0; i < CONF_FLAG_LETTERS; i++)
		if (strcmp(conf_flag_letters[i].name, flag->name) == 0)
			snprintf(out, 5, "-%c, ", conf_flag_letters[i].letter);
}

static const char *meaning_of(const struct conf_flag *flag)
{
	if (flag->scope == CONF_SCOPE_PREFILL)
		return "the same, for prefill only";
	if (flag->scope == CONF_SCOPE_DECODE)
		return "the same, for decode only";
	return flag->text != NULL ? flag->text : conf_flag_key(flag)->doc;
}

static void print_row(FILE *to, const struct conf_flag *flag)
{
	enum { HEAD_WIDTH = 31 };
	scoped_free char *head = NULL;
	char letter[5];

	letter_of(flag, letter);
	head = xasprintf("%s%s%s%s", letter, flag->name,
		flag->argument != NULL ? " " : "",
		flag->argument != NULL ? flag->argument : "");
	if (strlen(head) <= HEAD_WIDTH)
		fprintf(to, "  %-*s  %s\n", HEAD_WIDTH, head, meaning_of(flag));
	else
		fprintf(to, "  %s\n%*s%s\n", head, HEAD_WIDTH + 4, "", meaning_of(flag));
}

void conf_usage(FILE *to)
{
	fputs("usage: kvsteerd [-tTVh] [-c FILE] [flags]\n", to);
	for (size_t i = 0; i < conf_flag_rows_n; i++) {
		const struct conf_flag *flag = &conf_flag_rows[i];

		if (flag->effect == EFFECT_GROUP && flag->name != NULL)
			fprintf(to, "\n%s:\n", flag->name);
		else if (flag->effect == EFFECT_SET || flag->effect == EFFECT_FIXED ||
			 flag->effect == EFFECT_CALL)
			print_row(to, flag);
	}
	fputs("\nEvery key of [router] and [pool NAME] in kvsteer.conf(5) is a flag too, "
	      "with its own\n"
	      "units: --key-with-dashes VALUE. --prefill-KEY and --decode-KEY set it for "
	      "one role.\n"
	      "Flags override the file.\n",
		to);
	print_names(to, EFFECT_IGNORED, "Accepted, without effect");
	print_names(to, EFFECT_REFUSED, "Refused, with a hint");
}

/* --dump-tables */

static const char *type_of(const struct conf_flag *flag)
{
	if (flag->effect == EFFECT_IGNORED)
		return "ignored";
	if (flag->effect == EFFECT_REFUSED)
		return "refused";
	if (flag->arity == ARITY_NONE)
		return "switch";
	if (flag->effect == EFFECT_CALL)
		return flag->argument;
	return flag->unit != NULL ? "seconds" : conf_type_name(conf_flag_key(flag)->type);
}

void conf_dump_flags(void)
{
	for (size_t i = 0; i < conf_flag_rows_n; i++) {
		const struct conf_flag *flag = &conf_flag_rows[i];

		if (flag->effect != EFFECT_GROUP)
			dump_row("flag", flag->name + strlen("--"), type_of(flag),
				flag->effect == EFFECT_SET ? conf_flag_key(flag)->def
							   : NULL);
	}
}
