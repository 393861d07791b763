/*
 * The main of kvsteer-engine, in no library, so that tests link everything else.
 */
#include "engine_daemon.h"

int main(int argc, char **argv)
{
	return engine_main(argc, argv);
}
