/*
 * Looks at the files of the configuration. See conf_watch.h. Called by daemon.c and
 * reload.c.
 */
#include "control/conf_watch.h"

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What tells one state of a file from another, links followed; false: there is none. */
static bool add_file(uint64_t *mark, const char *path)
{
	struct stat st;
	uint64_t told[5] = {0};
	bool is_there = stat(path, &st) == 0;

	if (is_there) {
		told[0] = (uint64_t)st.st_dev;
		told[1] = (uint64_t)st.st_ino;
		told[2] = (uint64_t)st.st_size;
		told[3] = (uint64_t)st.st_mtim.tv_sec;
		told[4] = (uint64_t)st.st_mtim.tv_nsec;
	}
	*mark = hash64(told, sizeof(told), *mark + is_there);
	return is_there;
}

/* The conf.d beside it: what is in it, too, since a file may change in place. */
static void add_folder(uint64_t *mark, const char *path)
{
	const char *slash = strrchr(path, '/');
	int dir_n = slash != NULL ? (int)(slash - path) + 1 : 0;
	scoped_free char *folder = mem_format("%.*sconf.d", dir_n, path);
	struct dirent **entries = NULL;
	int n = folder != NULL ? scandir(folder, &entries, NULL, alphasort) : 0;

	for (int i = 0; i < n; i++) {
		scoped_free char *file = mem_format("%s/%s", folder, entries[i]->d_name);

		if (file != NULL && entries[i]->d_name[0] != '.') {
			*mark = hash64(file, strlen(file), *mark);
			(void)add_file(mark, file);
		}
		free(entries[i]);
	}
	free(entries);
}

static bool add_files(uint64_t *mark, const char *path)
{
	if (path == NULL)
		return true;
	if (!add_file(mark, path))
		return false;
	add_folder(mark, path);
	return true;
}

static uint64_t mark_of_keys(const char *api_keys)
{
	uint64_t mark = 0;

	if (api_keys != NULL)
		(void)add_file(&mark, api_keys);
	return mark;
}

void conf_watch_begin(struct conf_watch *w, const char *path)
{
	w->read = 0;
	(void)add_files(&w->read, path);
}

void conf_watch_end(struct conf_watch *w, const char *api_keys)
{
	w->keys_read = mark_of_keys(api_keys);
	w->seen = w->read + w->keys_read;
}

bool conf_watch_is_due(struct conf_watch *w, const char *path, const char *api_keys)
{
	uint64_t mark = 0, keys = mark_of_keys(api_keys), before = w->seen;

	if (!add_files(&mark, path))
		return false;
	w->seen = mark + keys;
	if ((mark == w->read && keys == w->keys_read) || w->seen != before)
		return false;
	w->read = mark;
	w->keys_read = keys;
	return true;
}
