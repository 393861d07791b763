"""llama.cpp's own server out of the wheel xllamacpp: llama_server.py MODEL.gguf PORT NAME. Ends on SIGTERM."""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = int(sys.argv[2])
params.model_alias = {sys.argv[3]} if isinstance(params.model_alias, set) else [sys.argv[3]] \
    if isinstance(params.model_alias, list) else sys.argv[3]
params.n_ctx = 8192
params.n_parallel = 4
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
params.endpoint_metrics = True
params.ui = False
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
signal.sigwait({signal.SIGTERM})
