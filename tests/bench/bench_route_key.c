/*
 * Prints what a route key costs: nanoseconds of CPU per request for bodies of several
 * shapes, the scan and the hashing apart, the best of several rounds. With an argument
 * only the bodies whose name has it. Keeps nothing, judges nothing. Run by hand.
 */
#include "base/mem.h"
#include "route/route_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct body {
	char *p;
	size_t n, cap;
};

static void add(struct body *b, const char *text, size_t n)
{
	if (b->n + n > b->cap) {
		b->cap = (b->n + n) * 2;
		b->p = xrealloc(b->p, b->cap);
	}
	memcpy(b->p + b->n, text, n);
	b->n += n;
}

static void add_text(struct body *b, const char *text)
{
	add(b, text, strlen(text));
}

/* Plain words, with an escape (a newline) every `every` bytes; 0: none. */
static void add_prose(struct body *b, size_t n, size_t every)
{
	static const char words[] = "the quick brown fox jumps over the lazy dog and ";

	for (size_t i = 0; i < n; i++) {
		if (every > 0 && i % every == every - 1)
			add(b, "\\n", 2);
		else
			add(b, &words[i % (sizeof(words) - 1)], 1);
	}
}

static struct body chat(size_t bytes, unsigned messages, size_t every)
{
	struct body b = {NULL, 0, 0};

	add_text(&b,
		"{\"model\":\"m\",\"stream\":true,\"temperature\":0.7,\"messages\":[");
	for (unsigned i = 0; i < messages; i++) {
		add_text(&b, i > 0 ? ",{\"role\":\"" : "{\"role\":\"");
		add_text(&b, i % 2 == 0 ? "user" : "assistant");
		add_text(&b, "\",\"content\":\"");
		add_prose(&b, bytes / messages, every);
		add_text(&b, "\"}");
	}
	add_text(&b, "]}");
	return b;
}

static struct body tools(unsigned count)
{
	struct body b = {NULL, 0, 0};

	add_text(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
		     "\"hi\"}],\"tools\":[");
	for (unsigned i = 0; i < count; i++) {
		if (i > 0)
			add_text(&b, ", ");
		add_text(&b,
			"{\"type\": \"function\", \"function\": {\"name\": "
			"\"get_weather\", "
			"\"description\": \"Looks the weather up for a place and a "
			"day.\", "
			"\"parameters\": {\"type\": \"object\", \"properties\": "
			"{\"place\": {\"type\": "
			"\"string\", \"description\": \"A town or a place\"}, \"days\": "
			"{\"type\": "
			"\"integer\", \"minimum\": 1}}, \"required\": [\"place\"]}}}");
	}
	add_text(&b, "]}");
	return b;
}

static struct body ids(unsigned count)
{
	struct body b = {NULL, 0, 0};
	char id[16];

	add_text(&b, "{\"model\":\"m\",\"prompt\":[");
	for (unsigned i = 0; i < count; i++)
		add(&b, id, (size_t)sprintf(id, i > 0 ? ",%u" : "%u", i * 7919 % 128000));
	add_text(&b, "]}");
	return b;
}

static struct body escapes(size_t bytes)
{
	struct body b = {NULL, 0, 0};

	add_text(&b, "{\"model\":\"m\",\"prompt\":\"");
	while (b.n < bytes)
		add_text(&b, "\\u00e9");
	add_text(&b, "\"}");
	return b;
}

static struct body image(size_t bytes)
{
	struct body b = {NULL, 0, 0};

	add_text(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{"
		     "\"type\":"
		     "\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,");
	for (size_t i = 0; i < bytes; i++)
		add(&b, &"ABCDefgh0123/+xy"[i * 7 % 16], 1);
	add_text(&b, "\"}},{\"type\":\"text\",\"text\":\"what is it?\"}]}]}");
	return b;
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void die(void)
{
	fprintf(stderr, "out of memory\n");
	exit(1);
}

static double scan_ns(struct route_scan *s, enum route_endpoint endpoint,
	const struct body *b, unsigned turns)
{
	double start = now_ns();

	for (unsigned i = 0; i < turns; i++) {
		route_scan_begin(s, endpoint);
		if (route_scan_feed(s, b->p, 0, b->n) < 0)
			die();
	}
	return (now_ns() - start) / turns;
}

static double build_ns(
	struct route_scan *s, const struct body *b, struct route_key *k, unsigned turns)
{
	struct route_key_opts opts = {128, 32, 0, false, false};
	double start = now_ns();

	for (unsigned i = 0; i < turns; i++) {
		route_key_reset(k);
		if (route_key_build(s, b->p, b->n, &opts, k) < 0)
			die();
	}
	return (now_ns() - start) / turns;
}

static void run(const char *name, enum route_endpoint endpoint, struct body b)
{
	struct route_scan *s = route_scan_new();
	struct route_key k;
	double scan = 1e18, build = 1e18;
	unsigned turns = (unsigned)(1000000 / (b.n + 200)) + 1;

	if (s == NULL)
		die();
	route_key_init(&k);
	for (unsigned round = 0; round < 20; round++) {
		double now = scan_ns(s, endpoint, &b, turns);

		scan = now < scan ? now : scan;
		now = build_ns(s, &b, &k, turns);
		build = now < build ? now : build;
	}
	printf("%-24s %8zu bytes  scan %9.0f ns (%5.2f GB/s)  build %9.0f ns  %zu "
	       "blocks%s\n",
		name, b.n, scan, (double)b.n / scan, build, k.n_blocks,
		k.readable ? "" : "  UNREADABLE");
	route_key_free(&k);
	route_scan_free(s);
	free(b.p);
}

#define RUN(name, endpoint, body)                  \
	do {                                       \
		if (strstr(name, only) != NULL)    \
			run(name, endpoint, body); \
	} while (0)

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : "";

	RUN("chat 2 KiB", ENDPOINT_CHAT, chat(1900, 3, 0));
	RUN("chat 2 KiB, newlines", ENDPOINT_CHAT, chat(1900, 3, 80));
	RUN("chat 16 KiB", ENDPOINT_CHAT, chat(16000, 9, 80));
	RUN("chat 400 KB", ENDPOINT_CHAT, chat(400000, 1, 0));
	RUN("chat 400 KB, newlines", ENDPOINT_CHAT, chat(400000, 1, 80));
	RUN("chat 1 MB, 600 messages", ENDPOINT_CHAT, chat(1000000, 600, 80));
	RUN("chat 100,000 x 10 bytes", ENDPOINT_CHAT, chat(1000000, 100000, 0));
	RUN("tools 20 KB", ENDPOINT_CHAT, tools(48));
	RUN("1,000,000 ids", ENDPOINT_COMPLETIONS, ids(1000000));
	RUN("5 MB of escapes", ENDPOINT_COMPLETIONS, escapes(5000000));
	RUN("10 MB of escapes", ENDPOINT_COMPLETIONS, escapes(10000000));
	RUN("5 MB image", ENDPOINT_CHAT, image(5000000));
	return 0;
}
