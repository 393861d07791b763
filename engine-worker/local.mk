# The worker. One line per module: to add engine-worker/backend/token.c and its header, append
#   libengine_a_SOURCES += engine-worker/backend/token.c engine-worker/backend/token.h
# tests/lint/check-lists fails for a file that is in no list.

# ENGINE_LIBS is what its program and its tests link.
ENGINE_LIBS = libengine.a $(KVSTEER_LIBS) -lm

noinst_LIBRARIES += libengine.a
libengine_a_SOURCES =

# core: the scheduler, the KV cache, the step loop, and the table that backends fill
libengine_a_SOURCES += engine-worker/core/backend.h
libengine_a_SOURCES += engine-worker/core/engine.c engine-worker/core/engine.h
libengine_a_SOURCES += engine-worker/core/histograms.c engine-worker/core/histograms.h
libengine_a_SOURCES += engine-worker/core/kv_cache.c engine-worker/core/kv_cache.h
libengine_a_SOURCES += engine-worker/core/sched.c engine-worker/core/sched.h
libengine_a_SOURCES += engine-worker/core/sched_plan.c engine-worker/core/sched_plan.h
libengine_a_SOURCES += engine-worker/core/sched_seq.c engine-worker/core/sched_seq.h
libengine_a_SOURCES += engine-worker/core/vocab.c engine-worker/core/vocab.h

# kvx: prompts handed over between engines
libengine_a_SOURCES += engine-worker/kvx/kv_handoff.c engine-worker/kvx/kv_handoff.h
libengine_a_SOURCES += engine-worker/kvx/kv_params.c engine-worker/kvx/kv_params.h
libengine_a_SOURCES += engine-worker/kvx/kvx_client.c engine-worker/kvx/kvx_client.h
libengine_a_SOURCES += engine-worker/kvx/kvx_frame.c engine-worker/kvx/kvx_frame.h
libengine_a_SOURCES += engine-worker/kvx/kvx_link.c engine-worker/kvx/kvx_link.h
libengine_a_SOURCES += engine-worker/kvx/kvx_server.c engine-worker/kvx/kvx_server.h
libengine_a_SOURCES += engine-worker/kvx/lease.c engine-worker/kvx/lease.h

# lab: it does wrong what a test tells it
libengine_a_SOURCES += engine-worker/lab/doom.c engine-worker/lab/doom.h
libengine_a_SOURCES += engine-worker/lab/fault.c engine-worker/lab/fault.h
libengine_a_SOURCES += engine-worker/lab/fault_socket.c engine-worker/lab/fault_socket.h
libengine_a_SOURCES += engine-worker/lab/hang.c engine-worker/lab/hang.h

# backend: the simulation, its tokens and its chats
libengine_a_SOURCES += engine-worker/backend/backend_sim.c engine-worker/backend/backend_sim.h
libengine_a_SOURCES += engine-worker/backend/chat.c engine-worker/backend/chat.h
libengine_a_SOURCES += engine-worker/backend/token.c engine-worker/backend/token.h
libengine_a_SOURCES += engine-worker/backend/vocab_sim.c engine-worker/backend/vocab_sim.h

# api: what clients call
libengine_a_SOURCES += engine-worker/api/completion.c engine-worker/api/completion.h
libengine_a_SOURCES += engine-worker/api/engine_health.c engine-worker/api/engine_health.h
libengine_a_SOURCES += engine-worker/api/engine_metrics.c engine-worker/api/engine_metrics.h
libengine_a_SOURCES += engine-worker/api/params.c engine-worker/api/params.h
libengine_a_SOURCES += engine-worker/api/serve.c engine-worker/api/serve.h

# above them: flags and the daemon
libengine_a_SOURCES += engine-worker/engine_daemon.c engine-worker/engine_daemon.h
libengine_a_SOURCES += engine-worker/engine_dump.c engine-worker/engine_dump.h
libengine_a_SOURCES += engine-worker/engine_flags.c engine-worker/engine_flags.h

sbin_PROGRAMS += kvsteer-engine
kvsteer_engine_SOURCES = engine-worker/main.c
kvsteer_engine_LDADD = $(ENGINE_LIBS)
