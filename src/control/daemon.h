/*
 * The daemon from its command line to its exit status. Called by main().
 */
#ifndef CONTROL_DAEMON_H
#define CONTROL_DAEMON_H

/* 0, 1 (it failed at run time), 2 (usage or configuration); -t: 0 or 1. */
int daemon_main(int argc, char **argv);

#endif
