# The worker. One line per module: to add engine-worker/token.c and its header, append
#   libengine_a_SOURCES += engine-worker/token.c engine-worker/token.h
# tests/lint/check-lists fails for a file that is in no list.

# ENGINE_LIBS is what its program and its tests link.
ENGINE_LIBS = libengine.a $(KVSTEER_LIBS) -lm
