/*
 * For LD_PRELOAD, by test_faults.py and test_connect.py: looking up the name slow.test
 * stands still until the file that SLOW_NAME_UNTIL names is there; then the name is
 * 127.0.0.1, or what the file SLOW_NAME_ADDRESS says.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int getaddrinfo_fn(const char *host, const char *port,
	const struct addrinfo *hints, struct addrinfo **out);

static const char *read_address(char *text, int n)
{
	const char *path = getenv("SLOW_NAME_ADDRESS");
	FILE *f = path != NULL ? fopen(path, "r") : NULL;
	const char *got = f != NULL ? fgets(text, n, f) : NULL;

	if (f != NULL)
		fclose(f);
	return got != NULL ? got : "127.0.0.1";
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
	struct addrinfo **out)
{
	char text[64];
	getaddrinfo_fn *real = (getaddrinfo_fn *)dlsym(RTLD_NEXT, "getaddrinfo");

	if (host != NULL && strcmp(host, "slow.test") == 0) {
		while (access(getenv("SLOW_NAME_UNTIL"), F_OK) != 0)
			usleep(2000);
		host = read_address(text, sizeof(text));
	}
	return real(host, port, hints, out);
}
