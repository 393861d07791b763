/*
 * The configurations of fuzz_conn.c: unified pools and split ones, one for each connector.
 * All have short time limits, so that whatever begins ends soon.
 */
#ifndef FUZZ_CONN_CONF_H
#define FUZZ_CONN_CONF_H

#define COMMON                                                              \
	"[router]\naccess_log = on\nhead_timeout = 5s\nbody_timeout = 5s\n" \
	"keepalive_timeout = 10s\nwrite_timeout = 5s\nqueue_timeout = 6s\n" \
	"queue_size = 3\npass_paths = /pass\nmax_body_size = 256k\n"        \
	"expose_worker = on\nallow_pin = on\n"
#define POOL                                                                  \
	"connect_timeout = 1s\nfirst_byte_timeout = 8s\n"                     \
	"stream_idle_timeout = 8s\nupstream_idle = 4s\nno_worker_wait = 2s\n" \
	"cb_timeout = 5s\nretry_max_retries = 3\nindex_memory = 65536\n"      \
	"prefix_block = 16\n"
#define UNIFIED                                                       \
	"[worker w0]\nurl = http://10.0.0.1:8000\nmax_requests = 2\n" \
	"[worker w1]\nurl = http://10.0.0.2:8000\nmax_requests = 2\n"
#define SPLIT                                                       \
	"[worker w0]\nurl = http://10.0.0.1:8000\nrole = prefill\n" \
	"[worker w1]\nurl = http://10.0.0.2:8000\nrole = prefill\n" \
	"[worker w2]\nurl = http://10.0.0.3:8000\nrole = decode\n"  \
	"[worker w3]\nurl = http://10.0.0.4:8000\nrole = decode\n"

static const char *const conf_texts[] = {
	COMMON "max_concurrent_requests = 3\n[pool default]\n" POOL
	       "resume_streams = on\nretry_budget = 100%\n" UNIFIED,
	COMMON "half_close = allow\nbody_memory = 65536\nlog_format = json\n"
	       "[pool default]\n" POOL "hold_headers = off\ntotal_timeout = 12s\n"
	       "kv_connector = nixl\nretry_on = none\npolicy = round_robin\n"
	       "[worker w0]\nurl = http://10.0.0.1:8000\n",
	COMMON "[pool default]\n" POOL "kv_connector = nixl\npd_min_prefill = 0\n"
	       "resume_streams = on\n" SPLIT,
	COMMON "[pool default]\n" POOL
	       "kv_connector = nixl_push\npd_min_prefill = 0\n" SPLIT,
	COMMON "[pool default]\n" POOL
	       "kv_connector = mooncake\npd_min_prefill = 0\n" SPLIT,
	COMMON "[pool default]\n" POOL "kv_connector = p2p_nccl\n" SPLIT,
	COMMON "[pool default]\n" POOL
	       "kv_connector = sglang\nmax_prefill_response = 4096\n" SPLIT,
	COMMON "cors_origins = *\npriority_headers = X-Priority\nhalf_close = abort\n"
	       "[pool one]\nmodels = m\n" POOL "policy = prefix_affinity\n"
	       "retry_budget = 100%\n"
	       "[pool two]\n" POOL "policy = sticky_least_loaded\nkv_params = pass\n"
	       "[worker w0]\nurl = http://10.0.0.1:8000\npool = one\nmax_requests = 1\n"
	       "[worker w1]\nurl = http://10.0.0.2:8000\npool = one\n"
	       "[worker w2]\nurl = http://10.0.0.3:8000\npool = two\n",
};

#endif
