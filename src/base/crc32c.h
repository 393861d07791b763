/*
 * CRC-32C (Castagnoli): by the processor's instruction where it has one, else by a table.
 */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include "base/base.h"

/* The sum of bytes that follow those whose sum is crc; 0 before the first. crc32c(0,
 * "123456789", 9) is 0xe3069283. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n);
/* The same by tables, whatever the processor has: for tests. */
uint32_t crc32c_by_tables(uint32_t crc, const void *bytes, size_t n);

#endif
