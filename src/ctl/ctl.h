/*
 * kvsteerctl from its command line to its exit status. Called by main().
 */
#ifndef CTL_CTL_H
#define CTL_CTL_H

/* 0; 1: the daemon said no; 2: usage; 3: it cannot be reached; 4: not permitted. */
int ctl_main(int argc, char **argv);

#endif
