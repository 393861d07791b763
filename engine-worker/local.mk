# The worker. One line per module: to add engine-worker/token.c and its header, append
#   libengine_a_SOURCES += engine-worker/token.c engine-worker/token.h
# tests/lint/check-lists fails for a file that is in no list.

# ENGINE_LIBS is what its program and its tests link.
ENGINE_LIBS = libengine.a $(KVSTEER_LIBS) -lm

# The library and the program wait for their first files: whoever adds engine-worker/main.c
# takes the "# " away.
# noinst_LIBRARIES += libengine.a
# libengine_a_SOURCES =
# sbin_PROGRAMS += kvsteer-engine
# kvsteer_engine_SOURCES = engine-worker/main.c
# kvsteer_engine_LDADD = $(ENGINE_LIBS)
