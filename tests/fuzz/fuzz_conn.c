/*
 * A client connection from accept to close, and its workers: the real conn, request,
 * upstream and relay over socket pairs, with a virtual clock. The input is a program: a
 * byte that chooses the configuration, then steps of five bytes (what, who, how, and a
 * length, low byte first) and the bytes that a step says. conn_world.h has the promises.
 */
#include "tests/fuzz/conn_says.h"
#include "tests/fuzz/conn_world.h"
#include "tests/fuzz/fuzz.h"

#include <signal.h>

#define STEPS_MAX 200
#define TEXT_MAX 65536
#define LONG_TEXT 12000
#define HEAD 5
#define NO_TURNS 0x80 /* of `who`: the next step comes before the loop's turn */

/* Steps by number; what says bytes of its own comes first. */
enum what {
	CLIENT_BYTES,
	WORKER_BYTES,
	CLIENT_SAYS,
	WORKER_SAYS,
	CLIENT_ENDS,
	WORKER_ENDS,
	READING,
	PASS,
	CONNECTS,
	WORKER_STATE,
	RELOAD,
	DRAIN,
	WHAT_MAX
};

struct step {
	unsigned what, who, how;
	bool has_turns;
	struct span bytes;
};

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);
/* libFuzzer's; the replay has none, and mutates nothing. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room) __attribute__((weak));

int LLVMFuzzerInitialize(int *argc UNUSED, char ***argv UNUSED)
{
	signal(SIGPIPE, SIG_IGN);
	world_prepare();
	return 0;
}

/* The step at p, and its size; 0: the program ends. */
static size_t read_step(const uint8_t *p, size_t n, struct step *s)
{
	size_t len;

	if (n < HEAD)
		return 0;
	*s = (struct step){.what = p[0] % WHAT_MAX,
		.who = p[1] & (NO_TURNS - 1),
		.how = p[2],
		.has_turns = (p[1] & NO_TURNS) == 0};
	if (s->what > WORKER_BYTES)
		return HEAD;
	len = MIN((size_t)p[3] | (size_t)p[4] << 8, n - HEAD);
	s->bytes = span_make((const char *)p + HEAD, len);
	return HEAD + len;
}

/* ---- texts ---- */

struct filled {
	char *p;
	size_t n;
};

static void put(struct filled *f, const char *p, size_t n)
{
	n = MIN(n, TEXT_MAX - f->n);
	memcpy(f->p + f->n, p, n);
	f->n += n;
}

static void put_long(struct filled *f)
{
	static const char words[] = "and so on and on, ";

	for (size_t i = 0; i < LONG_TEXT; i += sizeof(words) - 1)
		put(f, words, sizeof(words) - 1);
}

/* "%L" is what stands behind the empty line. */
static size_t length_of(const char *text, const char *mark)
{
	const char *at = strstr(text, "\r\n\r\n");
	size_t n = 0, per_long = (LONG_TEXT + 17) / 18 * 18;

	for (at = at != NULL ? at + 4 : ""; *at != '\0'; at++) {
		if (at[0] == '%' && at[1] == 'M')
			n += strlen(mark), at++;
		else if (at[0] == '%' && at[1] == 'B')
			n += per_long, at++;
		else
			n++;
	}
	return n;
}

static void fill_in(struct filled *f, const char *text, const char *mark)
{
	char number[24];

	for (const char *at = text; *at != '\0'; at++) {
		if (at[0] != '%') {
			put(f, at, 1);
			continue;
		}
		at++;
		if (*at == 'M')
			put(f, mark, strlen(mark));
		else if (*at == 'B')
			put_long(f);
		else
			put(f, number,
				(size_t)snprintf(number, sizeof(number), "%zu",
					length_of(text, mark)));
	}
}

/* A chunk of what stands behind the '~'. */
static struct span fill_text(const char *text, const char *mark)
{
	static char bytes[TEXT_MAX], whole[TEXT_MAX];
	struct filled f = {bytes, 0}, chunk = {whole, 0};
	char size[16];

	fill_in(&f, text[0] == '~' ? text + 1 : text, mark);
	if (text[0] != '~')
		return span_make(f.p, f.n);
	put(&chunk, size, (size_t)snprintf(size, sizeof(size), "%zx\r\n", f.n));
	put(&chunk, f.p, f.n);
	put(&chunk, "\r\n", 2);
	return span_make(chunk.p, chunk.n);
}

/* ---- steps ---- */

/* How many bytes go in one write: few steps cut small, since each cut costs turns. */
static size_t cut_of(unsigned how, size_t n)
{
	static const size_t cuts[] = {0, 1, 7, 61, 1000};
	size_t cut = cuts[(how >> 6) % 4 + ((how >> 5) & 1)];

	return cut > 0 && n / cut > 512 ? n / 512 : cut;
}

static void client_says_text(const struct step *s, unsigned number)
{
	struct span text = fill_text(
		client_says[number % ARRAY_LEN(client_says)], world_client_mark(s->who));

	world_client_say(s->who, text, 0);
}

static void worker_says_text(const struct step *s, unsigned number)
{
	struct span text = fill_text(
		worker_says[number % ARRAY_LEN(worker_says)], world_worker_mark(s->who));

	world_worker_say(s->who, text, 0);
}

static void run_ends(const struct step *s)
{
	if (s->what == CLIENT_ENDS)
		s->how % 2 == 0 ? world_client_fin(s->who) : world_client_reset(s->who);
	else
		s->how % 2 == 0 ? world_worker_fin(s->who) : world_worker_reset(s->who);
}

static void run_reading(const struct step *s)
{
	if (s->how & 2)
		world_worker_reads(s->who, s->how & 1);
	else
		world_client_reads(s->who, s->how & 1);
}

static void run_connects(const struct step *s)
{
	if (s->how % 8 == 7)
		world_connect_now();
	else
		world_connects(s->how % 4);
}

static void run_step(const struct step *s)
{
	switch ((enum what)s->what) {
	case CLIENT_BYTES:
		world_client_say(s->who, s->bytes, cut_of(s->how, s->bytes.n));
		break;
	case WORKER_BYTES:
		world_worker_say(s->who, s->bytes, cut_of(s->how, s->bytes.n));
		break;
	case CLIENT_SAYS:
		client_says_text(s, s->how);
		break;
	case WORKER_SAYS:
		worker_says_text(s, s->how);
		break;
	case CLIENT_ENDS:
	case WORKER_ENDS:
		run_ends(s);
		break;
	case READING:
		run_reading(s);
		break;
	case PASS: /* 10 ms to 80 s */
		world_pass((uint64_t)(10 + s->how % 32 * 10) << s->how / 32);
		break;
	case CONNECTS:
		run_connects(s);
		break;
	case WORKER_STATE:
		world_worker_state(s->who, s->how);
		break;
	case RELOAD:
		world_reload(s->how);
		break;
	default:
		s->how % 8 == 7 ? world_cut() : world_drain(s->how);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct step s;
	size_t at = 1, n;

	if (size == 0)
		return 0;
	world_begin(bytes[0] & 15, bytes[0] & 16);
	for (unsigned i = 0;
		i < STEPS_MAX && (n = read_step(bytes + at, size - at, &s)) > 0;
		i++, at += n) {
		run_step(&s);
		if (s.has_turns)
			world_turns();
	}
	world_end();
	return 0;
}

/* ---- mutations of programs ---- */

struct place {
	size_t at, n;
};

static unsigned draw(unsigned *seed, unsigned n)
{
	*seed = *seed * 1103515245u + 12345u;
	return (*seed >> 16) % n;
}

static size_t find_steps(const uint8_t *data, size_t size, struct place *places)
{
	struct step s;
	size_t n = 0, at = 1, len;

	while (n < STEPS_MAX && at < size &&
		(len = read_step(data + at, size - at, &s)) > 0) {
		places[n++] = (struct place){at, len};
		at += len;
	}
	return n;
}

/* What deep programs have most of: requests, responses, a little time. */
static void make_step(uint8_t *p, unsigned *seed)
{
	static const uint8_t often[] = {CLIENT_SAYS, CLIENT_SAYS, WORKER_SAYS,
		WORKER_SAYS, WORKER_SAYS, WORKER_SAYS, WORKER_SAYS, PASS, CLIENT_ENDS,
		WORKER_ENDS, READING, CONNECTS, WORKER_STATE, RELOAD, DRAIN};

	p[0] = often[draw(seed, ARRAY_LEN(often))];
	p[1] = (uint8_t)(draw(seed, 3) * draw(seed, 2) | draw(seed, 8) / 7 * NO_TURNS);
	p[2] = (uint8_t)draw(seed, 256);
	p[3] = p[4] = 0;
}

static size_t insert_bytes(uint8_t *data, size_t size, size_t room, size_t at,
	const uint8_t *bytes, size_t n)
{
	if (size + n > room)
		return size;
	memmove(data + at + n, data + at, size - at);
	memcpy(data + at, bytes, n);
	return size + n;
}

static size_t insert_step(
	uint8_t *data, size_t size, size_t room, size_t at, unsigned *seed)
{
	uint8_t fresh[HEAD];

	make_step(fresh, seed);
	return insert_bytes(data, size, room, at, fresh, HEAD);
}

static size_t remove_step(uint8_t *data, size_t size, struct place p)
{
	memmove(data + p.at, data + p.at + p.n, size - p.at - p.n);
	return size - p.n;
}

static size_t repeat_step(
	uint8_t *data, size_t size, size_t room, struct place from, size_t to)
{
	uint8_t *copy = malloc(from.n);

	if (copy == NULL)
		return size;
	memcpy(copy, data + from.at, from.n);
	size = insert_bytes(data, size, room, to, copy, from.n);
	free(copy);
	return size;
}

/* A step of texts becomes one of the bytes of that text, for mutations inside. */
static size_t spell_out(uint8_t *data, size_t size, size_t room, struct place p)
{
	bool is_client = data[p.at] % WHAT_MAX == CLIENT_SAYS;
	unsigned number = data[p.at + 2];
	const char *text = is_client ? client_says[number % ARRAY_LEN(client_says)]
				     : worker_says[number % ARRAY_LEN(worker_says)];
	struct span bytes = fill_text(text, "x");

	if (bytes.n > 4096 || size + bytes.n > room)
		return size;
	data[p.at] = is_client ? CLIENT_BYTES : WORKER_BYTES;
	data[p.at + 3] = (uint8_t)bytes.n;
	data[p.at + 4] = (uint8_t)(bytes.n >> 8);
	return insert_bytes(
		data, size, room, p.at + HEAD, (const uint8_t *)bytes.p, bytes.n);
}

/* The bytes that a step says. */
static size_t mutate_bytes(uint8_t *data, size_t size, size_t room, struct place p)
{
	size_t old = p.n - HEAD, more = MIN(room - size, (size_t)64);
	size_t most = MIN(old + more, (size_t)65535);
	uint8_t *copy = malloc(most + 1);
	size_t n;

	if (copy == NULL || most == 0) {
		free(copy);
		return size;
	}
	memcpy(copy, data + p.at + HEAD, old);
	n = LLVMFuzzerMutate(copy, old, most);
	memmove(data + p.at + HEAD + n, data + p.at + p.n, size - p.at - p.n);
	memcpy(data + p.at + HEAD, copy, n);
	data[p.at + 3] = (uint8_t)n;
	data[p.at + 4] = (uint8_t)(n >> 8);
	free(copy);
	return size - old + n;
}

static size_t mutate_step(
	uint8_t *data, size_t size, size_t room, struct place p, unsigned *seed)
{
	unsigned what = data[p.at] % WHAT_MAX;

	if (what <= WORKER_BYTES && draw(seed, 4) > 0)
		return mutate_bytes(data, size, room, p);
	if ((what == CLIENT_SAYS || what == WORKER_SAYS) && draw(seed, 4) == 0)
		return spell_out(data, size, room, p);
	if (draw(seed, 3) == 0)
		data[p.at + 1] = (uint8_t)(draw(seed, 4) | draw(seed, 8) / 7 * NO_TURNS);
	else
		data[p.at + 2] =
			(uint8_t)(draw(seed, 2) ? data[p.at + 2] + 1u : draw(seed, 256));
	return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed)
{
	static struct place places[STEPS_MAX];
	size_t n = size > 0 ? find_steps(data, size, places) : 0, which, to;

	if (n == 0) {
		data[0] = (uint8_t)draw(&seed, 256);
		return room > HEAD ? insert_step(data, 1, room, 1, &seed) : 1;
	}
	which = draw(&seed, (unsigned)n);
	to = draw(&seed, 2) == 0 ? places[n - 1].at + places[n - 1].n
				 : places[draw(&seed, (unsigned)n)].at;
	switch (draw(&seed, 10)) {
	case 0:
		data[0] = (uint8_t)draw(&seed, 256);
		return size;
	case 1:
	case 2:
	case 3:
		return insert_step(data, size, room, to, &seed);
	case 4:
		return n > 1 ? remove_step(data, size, places[which]) : size;
	case 5:
		return repeat_step(data, size, room, places[which], to);
	default:
		return mutate_step(data, size, room, places[which], &seed);
	}
}
