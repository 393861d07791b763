/*
 * Whole configurations and command lines: whatever the bytes are, conf_load says good or
 * gives errors, and a good one, printed, reads back as an equal one. The first byte
 * chooses: '-' is a command line (one argument a line), anything else a file.
 */
#include "base/cleanup.h"
#include "conf/conf_flags.h"

#include <string.h>
#include <sys/mman.h>

enum { WORDS_MAX = 64 };

static void note_change(void *arg, const char *section, const char *key, const char *was,
	const char *now, bool needs_restart)
{
	(void)needs_restart;
	fprintf(stderr, "[%s] %s: %s -> %s\n", section, key, was, now);
	++*(unsigned *)arg;
}

static int load_bytes(const char *text, size_t n, struct conf **out)
{
	struct conf_errors errors = {0};
	int fd = memfd_create("conf", MFD_CLOEXEC), rc;
	char path[64];

	if (fd < 0 || write(fd, text, n) != (ssize_t)n)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	rc = conf_load(path, NULL, &errors, out);
	if ((rc != 0) != (errors.n_errors > 0))
		abort();
	for (size_t i = 0; i < errors.n; i++)
		free(conf_error_text(&errors.items[i]));
	conf_errors_free(&errors);
	close(fd);
	return rc;
}

/* Secrets are not printed, so such a text is no configuration. */
static void check_print(struct conf *conf)
{
	scoped_free char *text = conf_print(conf);
	struct conf *again = NULL;
	unsigned changes = 0;

	if (strstr(text, "= (set)\n") != NULL)
		return;
	if (load_bytes(text, strlen(text), &again) != 0)
		abort();
	if (conf_diff(conf, again, note_change, &changes) != 0 || changes > 0)
		abort();
	conf_unref(again);
}

static void try_line(const uint8_t *data, size_t n)
{
	scoped_free char *text = strndup((const char *)data, n);
	struct conf_errors errors = {0};
	struct conf_flags flags;
	struct conf *conf = NULL;
	char *argv[WORDS_MAX] = {"kvsteerd"}, *rest = text, *word;
	int argc = 1;

	while (argc < WORDS_MAX && (word = strsep(&rest, "\n")) != NULL)
		argv[argc++] = word;
	if (conf_flags_parse(argc, argv, &errors, &flags) == 0) {
		if (conf_load(NULL, &flags, &errors, &conf) == 0) {
			check_print(conf);
			conf_unref(conf);
		} else if (errors.n_errors == 0) {
			abort();
		}
		conf_flags_free(&flags);
	} else if (errors.n_errors == 0) {
		abort();
	}
	conf_errors_free(&errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct conf *conf = NULL;

	if (n > 0 && data[0] == '-') {
		try_line(data, n);
	} else if (load_bytes((const char *)data, n, &conf) == 0) {
		check_print(conf);
		conf_unref(conf);
	}
	return 0;
}
