/*
 * One call to the admin socket, and messages for its failures. Used by the
 * ctl*.c files.
 */
#ifndef CTL_CTL_CALL_H
#define CTL_CTL_CALL_H

#include "base/base.h"
#include "base/span.h"

enum ctl_exit {
	CTL_OK,
	CTL_REFUSED, /* the daemon said no, or a file cannot be read */
	CTL_USAGE,
	CTL_UNREACHABLE,
	CTL_NOT_PERMITTED,
	CTL_EXIT_MAX
};

struct js;

/* The command line. Texts point into argv. */
struct ctl {
	const char *socket;
	bool as_json, wants_help, wants_version;
	const char *path;        /* explain: --path */
	const char *prefix;      /* explain: --prefix; NULL: not given */
	const char *pinned;      /* explain: --worker; NULL: not given */
	const char *tenant;      /* explain: --tenant; NULL: not given */
	const char *file;        /* explain: --file; NULL: not given */
	const char *headers[16]; /* explain: --header, in order */
	unsigned n_headers;
	const char *method;               /* call: --method; NULL: not given */
	const char *drain;                /* remove: --drain; NULL: not given */
	const char *timeout;              /* drain: --timeout; NULL: not given */
	bool is_batch;                    /* top: -b */
	const char *count, *delay, *sort; /* top: -n, -d, --sort; NULL: not given */
	const char *words[64];            /* behind the command */
	unsigned n_words;
};

struct ctl_request {
	const char *method;
	const char *path; /* behind /admin/v1/, query included, encoded */
	struct span body;
	const char *const *headers; /* NULL-terminated; may be NULL */
	unsigned timeout_ms;        /* 0: as long as a reload may take */
};

struct ctl_answer {
	char *text;          /* NUL-terminated; owned */
	struct js *document; /* NULL: the text is no JSON */
};

/*
 * CTL_OK and *out; else the reason was printed (the daemon's answer as JSON on stdout
 * where ctl->as_json), and *out is empty.
 */
enum ctl_exit ctl_call(
	const struct ctl *ctl, const struct ctl_request *req, struct ctl_answer *out);
void ctl_answer_free(struct ctl_answer *a);

/* Percent-encodes a path word or query value; a new string. */
char *ctl_encode(const char *text);
/* "kvsteerctl: ..." on stderr. */
void ctl_complain(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* From now on into text[n], the last one only; NULL: on stderr again. */
void ctl_complain_into(char *text, size_t n);

#endif
