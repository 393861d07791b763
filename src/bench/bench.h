/*
 * kvsteer-bench: measures an OpenAI-compatible server.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

/* The exit status: 0, 1 (nothing was answered, or the report could not be written), 2. */
int bench_main(int argc, char **argv);

#endif
