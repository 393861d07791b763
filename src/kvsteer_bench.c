/*
 * The bench: main() and nothing else. --simulate is a program of its own beneath it.
 */
#include "bench/bench.h"
#include "sim/simulate.h"

int main(int argc, char **argv)
{
	return simulate_is_asked(argc, argv) ? simulate_main(argc, argv)
					     : bench_main(argc, argv);
}
