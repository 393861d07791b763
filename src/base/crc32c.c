/*
 * CRC-32C. Pure; the table is made once, before the first use. See crc32c.h.
 */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t table[256];
static pthread_once_t is_made = PTHREAD_ONCE_INIT;

static void make_table(void)
{
	for (uint32_t i = 0; i < ARRAY_LEN(table); i++) {
		uint32_t crc = i;

		for (unsigned k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		table[i] = crc;
	}
}

uint32_t crc32c_by_tables(uint32_t crc, const void *bytes, size_t n)
{
	const unsigned char *p = bytes;

	(void)pthread_once(&is_made, make_table);
	crc = ~crc;
	for (; n > 0; n--)
		crc = crc >> 8 ^ table[(crc ^ *p++) & 0xff];
	return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(
	uint32_t crc, const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t sum = ~crc, word;

	for (; n >= sizeof(word); n -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		sum = __builtin_ia32_crc32di(sum, word);
	}
	for (; n > 0; n--)
		sum = __builtin_ia32_crc32qi((uint32_t)sum, *p++);
	return ~(uint32_t)sum;
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t n)
{
	return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, bytes, n)
						: crc32c_by_tables(crc, bytes, n);
}
#else
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n)
{
	return crc32c_by_tables(crc, bytes, n);
}
#endif
