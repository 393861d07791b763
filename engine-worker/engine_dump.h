/*
 * The flags, keys and metrics of kvsteer-engine, as rows of --dump-tables.
 */
#ifndef ENGINE_DUMP_H
#define ENGINE_DUMP_H

void engine_dump(void);

#endif
