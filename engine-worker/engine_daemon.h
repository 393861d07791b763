/*
 * kvsteer-engine from its command line to its exit status.
 */
#ifndef ENGINE_DAEMON_H
#define ENGINE_DAEMON_H

/* 0: ended as asked; 1: failed at run time; 2: usage. */
int engine_main(int argc, char **argv);

#endif
