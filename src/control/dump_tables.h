/*
 * The keys, flags, metrics and failures of kvsteerd, as rows of --dump-tables.
 */
#ifndef CONTROL_DUMP_TABLES_H
#define CONTROL_DUMP_TABLES_H

void dump_daemon_tables(void);

#endif
