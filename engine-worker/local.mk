# The worker. One line per module: to add engine-worker/token.c and its header, append
#   libengine_a_SOURCES += engine-worker/token.c engine-worker/token.h
# tests/lint/check-lists fails for a file that is in no list.

noinst_LIBRARIES += libengine.a
libengine_a_SOURCES =
libengine_a_SOURCES += engine-worker/kv_cache.c engine-worker/kv_cache.h
libengine_a_SOURCES += engine-worker/sim.c engine-worker/sim.h
libengine_a_SOURCES += engine-worker/token.c engine-worker/token.h
libengine_a_SOURCES += engine-worker/chat.c engine-worker/chat.h
libengine_a_SOURCES += engine-worker/params.c engine-worker/params.h

# ENGINE_LIBS is what its program and its tests link.
ENGINE_LIBS = libengine.a $(KVSTEER_LIBS) -lm

# The program waits for its main: whoever adds engine-worker/main.c takes the "# " away.
# sbin_PROGRAMS += kvsteer-engine
# kvsteer_engine_SOURCES = engine-worker/main.c
# kvsteer_engine_LDADD = $(ENGINE_LIBS)
