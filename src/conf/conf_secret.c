/*
 * Reads secrets from their files. See conf_secret.h.
 */
#include "conf/conf_secret.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SECRET_MAX_BYTES 4096

static const struct span in_file = SPAN_LIT("file:"),
			 in_credential = SPAN_LIT("credential:");

bool conf_secret_is_elsewhere(struct span text)
{
	return span_starts(text, in_file) || span_starts(text, in_credential);
}

static struct span behind(struct span text, struct span prefix)
{
	return span_make(text.p + prefix.n, text.n - prefix.n);
}

static int refuse(struct conf_fault *fault, const char *message, const char *hint)
{
	conf_fault_set(fault, message, "%s", hint);
	return ERR_PARSE;
}

static bool is_credential_name(struct span name)
{
	return name.n > 0 && memchr(name.p, '/', name.n) == NULL && !span_is(name, ".") &&
	       !span_is(name, "..");
}

/* 0 and the path; where it names a file, the file need not be there. */
static int find(struct span text, char **path, struct conf_fault *fault)
{
	const char *folder = getenv("CREDENTIALS_DIRECTORY");
	struct span name;

	*path = NULL;
	if (span_starts(text, in_file)) {
		name = behind(text, in_file);
		if (name.n == 0 || name.p[0] != '/')
			return refuse(fault, "does not name a file by its whole path",
				"file:/etc/kvsteer/NAME");
		*path = span_dup(name);
	} else {
		name = behind(text, in_credential);
		if (!is_credential_name(name))
			return refuse(fault, "is not the name of a credential",
				"credential:NAME, as in LoadCredential= of the unit");
		if (folder == NULL)
			return refuse(fault,
				"names a credential, but the service manager gave none",
				"set LoadCredential= in the unit, or give file:PATH");
		*path = mem_format("%s/" SPAN_FMT, folder, SPAN_ARG(name));
	}
	return *path != NULL ? 0 : conf_fault_no_memory(fault);
}

/* The path is no secret, and is named since the value is not. */
static int refuse_file(
	struct conf_fault *fault, const char *path, const char *why, const char *hint)
{
	char message[sizeof(fault->message)];

	snprintf(message, sizeof(message), "%.90s %s", path, why);
	return refuse(fault, message, hint);
}

static int unreadable(struct conf_fault *fault, const char *path)
{
	char why[64];

	snprintf(why, sizeof(why), "cannot be read: %s", strerror(errno));
	return refuse_file(
		fault, path, why, "the daemon's user or group must be able to read it");
}

/* Who can write there lets himself in. */
static int check_file(const char *path, struct conf_fault *fault)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return unreadable(fault, path);
	if (!S_ISREG(st.st_mode))
		return refuse_file(fault, path, "is not a regular file",
			"a file whose one line is the secret");
	if ((st.st_mode & S_IWOTH) != 0)
		return refuse_file(
			fault, path, "can be written by every user", "chmod o-rw");
	return 0;
}

static size_t without_line_end(const char *text, size_t n)
{
	if (n > 0 && text[n - 1] == '\n')
		n--;
	if (n > 0 && text[n - 1] == '\r')
		n--;
	return n;
}

/* The one line of text, as a new string. */
static int take_line(
	const char *path, struct span text, char **secret, struct conf_fault *fault)
{
	text.n = without_line_end(text.p, text.n);
	if (text.n == 0)
		return refuse_file(fault, path, "is empty", "write the secret into it");
	if (memchr(text.p, '\0', text.n) != NULL || memchr(text.p, '\n', text.n) != NULL)
		return refuse_file(fault, path, "has more than one line of text",
			"a file whose one line is the secret");
	*secret = span_dup(text);
	return *secret != NULL ? 0 : conf_fault_no_memory(fault);
}

static int read_file(const char *path, char **secret, struct conf_fault *fault)
{
	scoped_free char *text = NULL;
	size_t n;
	int rc = file_read(path, SECRET_MAX_BYTES, &text, &n);

	if (rc == ERR_NOMEM)
		return conf_fault_no_memory(fault);
	if (rc == ERR_LIMIT)
		return refuse_file(fault, path, "is too large for a secret", "up to 4k");
	if (rc != 0)
		return unreadable(fault, path);
	rc = take_line(path, span_make(text, n), secret, fault);
	mem_wipe(text, n);
	return rc;
}

int conf_secret_read(struct span text, char **secret, struct conf_fault *fault)
{
	scoped_free char *path = NULL;
	int rc = find(text, &path, fault);

	if (rc == 0)
		rc = check_file(path, fault);
	return rc != 0 ? rc : read_file(path, secret, fault);
}

bool conf_secret_is_open(struct span text)
{
	scoped_free char *path = NULL;
	struct conf_fault fault;
	struct stat st;

	return find(text, &path, &fault) == 0 && stat(path, &st) == 0 &&
	       (st.st_mode & S_IROTH) != 0;
}
