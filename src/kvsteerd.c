/*
 * The router daemon: main() and nothing else.
 */
#include "control/daemon.h"

int main(int argc, char **argv)
{
	return daemon_main(argc, argv);
}
