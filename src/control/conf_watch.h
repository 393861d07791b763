/*
 * Whether the files of the configuration have changed since they were read
 * (watch_config): the file, the conf.d beside it, and the file that api_keys names. They
 * are looked at, not waited for: a ConfigMap is a chain of links that change as a whole,
 * and a network's file system tells nobody. The control thread's.
 */
#ifndef CONTROL_CONF_WATCH_H
#define CONTROL_CONF_WATCH_H

#include "base/base.h"

struct conf_watch {
	uint64_t read, seen; /* marks: when they were read, and at the last look */
	uint64_t keys_read;  /* of the file of keys */
};

/* Just before path is read; NULL: there is none. */
void conf_watch_begin(struct conf_watch *w, const char *path);
/* It was read, and names this file of keys (NULL: none). */
void conf_watch_end(struct conf_watch *w, const char *api_keys);
/* A look, once a second: true where a change has stood still since the last look, once for
 * each change. False while path is missing, as when it is being replaced. */
bool conf_watch_is_due(struct conf_watch *w, const char *path, const char *api_keys);

#endif
