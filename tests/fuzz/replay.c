/*
 * The main of every fuzz target where libFuzzer is not linked: runs the target over each
 * file named, and each file in each folder named.
 *
 * Every input lies in its own heap block of its exact size (an empty one in a block of
 * none), so that the address sanitizer sees a read past its end. No file found is a
 * failure: a replay that ran nothing proves nothing. Arguments that begin with a dash are
 * libFuzzer's: ignored.
 *
 * Called by tests/run under "make check", or by hand with one crash file.
 */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static void die(const char *path)
{
	perror(path);
	exit(2);
}

/* Reads a whole file into a block of its own; the caller frees. */
static uint8_t *read_file(const char *path, size_t size)
{
	FILE *file = fopen(path, "rb");
	uint8_t *bytes = malloc(size);

	if (file == NULL || (bytes == NULL && size > 0))
		die(path);
	if (size > 0 && fread(bytes, 1, size, file) != size)
		die(path);
	fclose(file);
	return bytes;
}

static void replay_file(const char *path, size_t size)
{
	uint8_t *bytes = read_file(path, size);

	/* The last name printed before a crash is the one to look at. */
	printf("%s (%zu bytes)\n", path, size);
	fflush(stdout);
	LLVMFuzzerTestOneInput(bytes, size);
	free(bytes);
}

static unsigned replay_path(const char *path);

static unsigned replay_folder(const char *path)
{
	struct dirent **entries;
	unsigned files = 0;
	int count = scandir(path, &entries, NULL, alphasort);

	if (count < 0)
		die(path);
	for (int i = 0; i < count; i++) {
		char child[PATH_MAX];

		if (entries[i]->d_name[0] != '.') {
			snprintf(child, sizeof(child), "%s/%s", path, entries[i]->d_name);
			files += replay_path(child);
		}
		free(entries[i]);
	}
	free(entries);
	return files;
}

/* Returns the number of files run. */
static unsigned replay_path(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		die(path);
	if (S_ISDIR(st.st_mode))
		return replay_folder(path);
	replay_file(path, (size_t)st.st_size);
	return 1;
}

int main(int argc, char **argv)
{
	unsigned files = 0;

	if (LLVMFuzzerInitialize != NULL)
		LLVMFuzzerInitialize(&argc, &argv);
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] != '-')
			files += replay_path(argv[i]);
	}
	printf("%u inputs replayed\n", files);
	return files > 0 ? 0 : 1;
}
