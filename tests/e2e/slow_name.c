/*
 * For LD_PRELOAD, by test_faults.py: looking up the name slow.test stands still until the
 * file that SLOW_NAME_UNTIL names is there; then the name is 127.0.0.1.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int getaddrinfo_fn(const char *host, const char *port,
	const struct addrinfo *hints, struct addrinfo **out);

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
	struct addrinfo **out)
{
	getaddrinfo_fn *real = (getaddrinfo_fn *)dlsym(RTLD_NEXT, "getaddrinfo");

	if (host != NULL && strcmp(host, "slow.test") == 0) {
		while (access(getenv("SLOW_NAME_UNTIL"), F_OK) != 0)
			usleep(2000);
		host = "127.0.0.1";
	}
	return real(host, port, hints, out);
}
