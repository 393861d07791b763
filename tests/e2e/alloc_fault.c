/*
 * Preloaded into kvsteerd by test_memory.py: makes one allocation of the running daemon
 * fail, or that one and all that follow. ALLOC_FAULT names a file that holds a struct
 * fault; the test writes it while the daemon runs.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum who { MAIN_THREAD, OTHER_THREADS };

struct fault {
	_Atomic int64_t left;   /* allocations up to the one that fails; 0: none does */
	_Atomic int64_t failed; /* so far */
	_Atomic int64_t lasts;  /* those behind it fail, too */
	_Atomic int64_t who;    /* enum who: whose allocations count */
};

static struct fault *fault;

/* glibc's own, under names that nothing replaces. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t count, size_t n);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static void __attribute__((constructor)) open_fault(void)
{
	const char *path = getenv("ALLOC_FAULT");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *at;

	if (fd < 0)
		return;
	at = (void *)syscall(SYS_mmap, NULL, sizeof(*fault), PROT_READ | PROT_WRITE,
		MAP_SHARED, fd, 0);
	close(fd);
	if (at != MAP_FAILED)
		fault = at;
}

static bool is_counted(void)
{
	bool is_main = syscall(SYS_gettid) == getpid();

	return is_main == (atomic_load(&fault->who) == MAIN_THREAD);
}

static bool fails(void)
{
	int64_t left;

	if (fault == NULL || atomic_load(&fault->left) <= 0 || !is_counted())
		return false;
	left = atomic_fetch_sub(&fault->left, 1);
	if (left > 1)
		return false;
	if (atomic_load(&fault->lasts))
		atomic_store(&fault->left, 1);
	atomic_fetch_add(&fault->failed, 1);
	errno = ENOMEM;
	return true;
}

void *malloc(size_t n)
{
	return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t count, size_t n)
{
	return fails() ? NULL : __libc_calloc(count, n);
}

void *realloc(void *p, size_t n)
{
	return fails() ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
	void *made = fails() ? NULL : __libc_memalign(align, n);

	if (made == NULL)
		return ENOMEM;
	*p = made;
	return 0;
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from)
{
	if (fails())
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, from);
}
