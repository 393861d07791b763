/*
 * The one table of paths: every route of vLLM 0.32.0, SGLang 0.5.23 and llama.cpp's server
 * (commit 00dd081), read from their sources, and the paths that the router answers itself.
 * Included by path_table.c; tests/e2e/test_routes.py walks it, and tests/lint/check-routes
 * compares kvsteerd(8) with it.
 *
 * X(path, label, methods, action, endpoint, shape, marks, source)
 *
 * path      exact bytes. "{id}" stands for one segment of plain bytes. A '/' at the end
 *           stands for a name that may have slashes; a '*' for any ending.
 * label     the `route` of metrics and logs; several rows may share one
 * methods   GET: with HEAD and OPTIONS; POST, PUT: with OPTIONS
 * action    FORWARD    to one worker
 *           HEALTH, READINESS, MODELS, FINISH_SESSION, ROUTER   answered here
 *           FLEET      concerns every worker of a pool
 *           CLOSED     concerns one engine process, or is dangerous: not for clients
 *           WEBSOCKET  no Upgrade is forwarded
 *           FLEET and CLOSED are 404 but for pass_paths.
 * endpoint  the prompt that the route key is made of. PLAIN: the body, JSON or a
 *           form, is read for its model alone. OTHER: the body is not read
 * shape     of the errors that the router makes itself: the API's
 * marks     DROPS    the engine's prefix cache is empty or stale after it
 *           STOPS    the engine aborts requests
 *           MAKES    the response's id names an object that lives on its worker
 *           FINDS    an object that the path or query names, or that the body names
 *           NAMES    the path ends with a model's name; answered here where a worker that lists
 *                    it does not answer it
 *           YIELDS   pass_paths forwards it all the same
 * source    V: vllm/entrypoints/, S: sglang/srt/entrypoints/http_server.py,
 *           G: sglang/multimodal_gen/runtime/entrypoints/, L: llama.cpp
 *           tools/server/server.cpp, O: OpenAI's API, K: kvsteer
 */
#ifndef ROUTE_PATH_ROWS_H
#define ROUTE_PATH_ROWS_H

/* clang-format off */
#define PATH_ROWS(X) \
	/* ---- generation ---- */ \
	X("/v1/chat/completions", "chat", POST, FORWARD, CHAT, OPENAI, 0, "V openai/chat_completion, S, L") \
	X("/chat/completions", "chat", POST, FORWARD, CHAT, OPENAI, 0, "L") \
	X("/v1/chat/completions/batch", "chat_batch", POST, FORWARD, TEXT, OPENAI, 0, "V openai/chat_completion") \
	X("/v1/completions", "completions", POST, FORWARD, COMPLETIONS, OPENAI, 0, "V openai/completion, S, L") \
	X("/v1/responses", "responses", POST, FORWARD, RESPONSES, OPENAI, MAKES | FINDS, "V openai/responses, S, L") \
	X("/responses", "responses", POST, FORWARD, RESPONSES, OPENAI, MAKES | FINDS, "L") \
	X("/v1/messages", "messages", POST, FORWARD, MESSAGES, ANTHROPIC, 0, "V anthropic, S, L") \
	X("/cohere/v2/chat", "cohere_chat", POST, FORWARD, TEXT, COHERE, 0, "V cohere") \
	X("/api/chat", "ollama_chat", POST, FORWARD, TEXT, OLLAMA, 0, "S") \
	X("/api/generate", "ollama_generate", POST, FORWARD, TEXT, OLLAMA, 0, "S") \
	X("/generate", "generate", POST_PUT, FORWARD, GENERATE, OPENAI, FINDS, "S") \
	X("/inference/v1/generate", "inference_generate", POST, FORWARD, INFERENCE_GENERATE, OPENAI, 0, "V scale_out/token_in_token_out") \
	X("/completion", "completion", POST, FORWARD, TEXT, LLAMA, 0, "L") \
	X("/completions", "completion", POST, FORWARD, TEXT, LLAMA, 0, "L") \
	X("/infill", "infill", POST, FORWARD, TEXT, LLAMA, 0, "L") \
	X("/v1/systemone", "decisions", POST, FORWARD, TEXT, OPENAI, 0, "V generate/structured_decisions, S") \
	X("/v1/decisions", "decisions", POST, FORWARD, TEXT, OPENAI, 0, "S") \
	X("/v1/stream/{id}", "stream", GET_DELETE, FORWARD, OTHER, LLAMA, FINDS, "L") \
	X("/v1/stream", "stream", GET_DELETE, FORWARD, OTHER, LLAMA, FINDS, "L server-stream.cpp, later") \
	/* ---- embeddings, scores, classes ---- */ \
	X("/v1/embeddings", "embeddings", POST, FORWARD, EMBEDDINGS, OPENAI, 0, "V pooling/embed, S, L") \
	X("/embeddings", "embeddings", POST, FORWARD, TEXT, LLAMA, 0, "L") \
	X("/embedding", "embeddings", POST, FORWARD, TEXT, LLAMA, 0, "L") \
	X("/v2/embed", "embed", POST, FORWARD, TEXT, COHERE, 0, "V pooling/embed") \
	X("/encode", "encode", POST_PUT, FORWARD, TEXT, OPENAI, 0, "S") \
	X("/pooling", "pooling", POST, FORWARD, TEXT, OPENAI, 0, "V pooling/pooling") \
	X("/classify", "classify", POST_PUT, FORWARD, TEXT, OPENAI, 0, "V pooling/classify, S") \
	X("/v1/classify", "classify", POST, FORWARD, TEXT, OPENAI, 0, "S") \
	X("/v1/rerank", "rerank", POST_PUT, FORWARD, RERANK, OPENAI, 0, "V pooling/scoring, S, L") \
	X("/v1/reranking", "rerank", POST, FORWARD, RERANK, OPENAI, 0, "L") \
	X("/v2/rerank", "rerank_v2", POST, FORWARD, RERANK, OPENAI, 0, "V pooling/scoring") \
	X("/rerank", "rerank_native", POST, FORWARD, RERANK, OPENAI, 0, "V pooling/scoring, L") \
	X("/reranking", "rerank_native", POST, FORWARD, RERANK, OPENAI, 0, "L") \
	X("/v1/score", "score", POST, FORWARD, SCORE, OPENAI, 0, "V pooling/scoring, S") \
	X("/score", "score_native", POST, FORWARD, SCORE, OPENAI, 0, "V pooling/scoring") \
	X("/generative_scoring", "score", POST, FORWARD, SCORE, OPENAI, 0, "V generate/generative_scoring") \
	/* ---- prompts: counted, rendered, taken apart ---- */ \
	X("/v1/messages/count_tokens", "count_tokens", POST, FORWARD, PLAIN, ANTHROPIC, 0, "V anthropic, S, L") \
	X("/v1/chat/completions/input_tokens", "input_tokens", POST, FORWARD, PLAIN, OPENAI, 0, "L") \
	X("/chat/completions/input_tokens", "input_tokens", POST, FORWARD, PLAIN, OPENAI, 0, "L") \
	X("/v1/responses/input_tokens", "input_tokens", POST, FORWARD, PLAIN, OPENAI, 0, "L") \
	X("/responses/input_tokens", "input_tokens", POST, FORWARD, PLAIN, OPENAI, 0, "L") \
	X("/tokenize", "tokenize", POST, FORWARD, TOKENIZE, OPENAI, 0, "V serve/tokenize, S, L") \
	X("/v1/tokenize", "tokenize", POST, FORWARD, TOKENIZE, OPENAI, 0, "S") \
	X("/detokenize", "detokenize", POST, FORWARD, PLAIN, OPENAI, 0, "V serve/tokenize, S, L") \
	X("/v1/detokenize", "detokenize", POST, FORWARD, PLAIN, OPENAI, 0, "S") \
	X("/apply-template", "render", POST, FORWARD, PLAIN, LLAMA, 0, "L") \
	X("/v1/chat/completions/render", "render", POST, FORWARD, PLAIN, OPENAI, 0, "V scale_out/render") \
	X("/v1/completions/render", "render", POST, FORWARD, PLAIN, OPENAI, 0, "V scale_out/render") \
	X("/v1/messages/render", "render", POST, FORWARD, PLAIN, ANTHROPIC, 0, "V scale_out/render") \
	X("/v1/responses/render", "render", POST, FORWARD, PLAIN, OPENAI, 0, "V scale_out/render") \
	X("/cohere/v2/chat/render", "render", POST, FORWARD, PLAIN, COHERE, 0, "V cohere") \
	X("/v1/chat/completions/derender", "render", POST, FORWARD, PLAIN, OPENAI, 0, "V scale_out/derender") \
	X("/v1/completions/derender", "render", POST, FORWARD, PLAIN, OPENAI, 0, "V scale_out/derender") \
	X("/parse_function_call", "render", POST, FORWARD, PLAIN, OPENAI, 0, "S") \
	X("/separate_reasoning", "render", POST, FORWARD, PLAIN, OPENAI, 0, "S") \
	X("/v1/moderations", "moderations", POST, FORWARD, PLAIN, OPENAI, 0, "O") \
	/* ---- audio, images, video ---- */ \
	X("/v1/audio/transcriptions", "transcriptions", POST, FORWARD, PLAIN, OPENAI, 0, "V speech_to_text/transcription, S, L") \
	X("/audio/transcriptions", "transcriptions", POST, FORWARD, PLAIN, OPENAI, 0, "L") \
	X("/v1/audio/translations", "translations", POST, FORWARD, PLAIN, OPENAI, 0, "V speech_to_text/translation") \
	X("/v1/audio/speech", "speech", POST, FORWARD, PLAIN, OPENAI, 0, "O") \
	X("/v1/images/generations", "images", POST, FORWARD, PLAIN, OPENAI, MAKES, "G openai/image_api.py") \
	X("/v1/images/edits", "images", POST, FORWARD, PLAIN, OPENAI, MAKES, "G openai/image_api.py") \
	X("/v1/images/{id}/content", "image", GET, FORWARD, OTHER, OPENAI, FINDS, "G openai/image_api.py") \
	X("/v1/videos", "videos", GET_POST, FORWARD, PLAIN, OPENAI, MAKES, "G openai/video_api.py") \
	X("/v1/videos/{id}", "video", GET_DELETE, FORWARD, OTHER, OPENAI, FINDS, "G openai/video_api.py") \
	X("/v1/videos/{id}/content", "video", GET, FORWARD, OTHER, OPENAI, FINDS, "G openai/video_api.py") \
	X("/v1/videos/{id}/remix", "video", POST, FORWARD, OTHER, OPENAI, MAKES | FINDS, "O") \
	X("/v1/meshes", "meshes", GET_POST, FORWARD, PLAIN, OPENAI, MAKES, "G openai/mesh_api.py") \
	X("/v1/meshes/{id}", "mesh", GET_DELETE, FORWARD, OTHER, OPENAI, FINDS, "G openai/mesh_api.py") \
	X("/v1/meshes/{id}/content", "mesh", GET, FORWARD, OTHER, OPENAI, FINDS, "G openai/mesh_api.py") \
	X("/v1/actions/generations", "actions", POST, FORWARD, PLAIN, OPENAI, 0, "G action/api.py") \
	X("/v1/actions/metadata", "actions", GET, FORWARD, OTHER, OPENAI, 0, "G action/api.py") \
	X("/rollout/generate", "actions", POST, FORWARD, PLAIN, OPENAI, 0, "G post_training/rollout_api.py") \
	/* ---- objects that live on one worker ---- */ \
	X("/v1/responses/{id}", "response", GET_DELETE, FORWARD, OTHER, OPENAI, FINDS, "V openai/responses, S") \
	X("/v1/responses/{id}/cancel", "response_cancel", POST, FORWARD, OTHER, OPENAI, FINDS, "V openai/responses, S") \
	X("/v1/responses/{id}/input_items", "response_items", GET, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/v1/conversations", "conversations", POST, FORWARD, OTHER, OPENAI, MAKES, "O") \
	X("/v1/conversations/{id}", "conversation", GET_POST_DELETE, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/v1/conversations/{id}/items", "conversation", GET_POST, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/v1/conversations/{id}/items/{id}", "conversation", GET_DELETE, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/v1/files", "files", GET_POST, FORWARD, OTHER, OPENAI, MAKES, "O") \
	X("/v1/files/{id}", "file", GET_DELETE, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/v1/files/{id}/content", "file", GET, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/v1/batches", "batches", GET_POST, FORWARD, PLAIN, OPENAI, MAKES | FINDS, "O") \
	X("/v1/batches/{id}", "batch", GET, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/v1/batches/{id}/cancel", "batch", POST, FORWARD, OTHER, OPENAI, FINDS, "O") \
	X("/open_session", "session", GET_POST, FORWARD, PLAIN, OPENAI, MAKES, "S") \
	X("/close_session", "session", GET_POST, FORWARD, PLAIN, OPENAI, FINDS, "S") \
	/* ---- what an engine says of itself ---- */ \
	X("/v1/models/", "model", GET, FORWARD, OTHER, OPENAI, NAMES, "S, G openai/common_api.py, O") \
	X("/api/show", "ollama_models", POST, FORWARD, PLAIN, OLLAMA, 0, "S") \
	X("/get_model_info", "model_info", GET, FORWARD, OTHER, OPENAI, 0, "S") \
	X("/model_info", "model_info", GET, FORWARD, OTHER, OPENAI, 0, "S, G http_server.py") \
	X("/v1/model_info", "model_info", GET, FORWARD, OTHER, OPENAI, 0, "G openai/common_api.py") \
	X("/get_server_info", "server_info", GET, FORWARD, OTHER, OPENAI, 0, "S") \
	X("/server_info", "server_info", GET, FORWARD, OTHER, OPENAI, 0, "V serve/dev/server_info, S, G http_server.py") \
	X("/v1/list_loras", "info", GET, FORWARD, OTHER, OPENAI, 0, "G openai/common_api.py") \
	X("/tokenizer_info", "info", GET, FORWARD, OTHER, OPENAI, 0, "V serve/tokenize") \
	X("/props", "info", GET, FORWARD, OTHER, LLAMA, 0, "L") \
	X("/version", "info", GET, FORWARD, OTHER, OPENAI, 0, "V serve/instrumentator/basic.py") \
	X("/load", "info", GET, FORWARD, OTHER, OPENAI, 0, "V serve/instrumentator/basic.py") \
	/* ---- answered here ---- */ \
	X("/v1/models", "models", GET, MODELS, OTHER, OPENAI, 0, "V openai/models, S, L") \
	X("/models", "models", GET, MODELS, OTHER, OPENAI, YIELDS, "L, G http_server.py") \
	X("/api/tags", "models", GET, MODELS, OTHER, OLLAMA, YIELDS, "S") \
	X("/finish_session", "finish_session", POST, FINISH_SESSION, OTHER, OPENAI, 0, "K") \
	X("/add_worker", "router", POST, ROUTER, OTHER, OPENAI, YIELDS, "vLLM router, S router") \
	X("/remove_worker", "router", POST, ROUTER, OTHER, OPENAI, YIELDS, "vLLM router, S router") \
	X("/list_workers", "router", GET, ROUTER, OTHER, OPENAI, YIELDS, "vLLM router, S router") \
	X("/get_loads", "router", GET, ROUTER, OTHER, OPENAI, YIELDS, "vLLM router, S router") \
	X("/workers", "router", GET_POST, ROUTER, OTHER, OPENAI, YIELDS, "vLLM router, S router") \
	X("/workers/*", "router", GET_DELETE, ROUTER, OTHER, OPENAI, YIELDS, "vLLM router, S router") \
	X("/health", "health", GET, HEALTH, OTHER, OPENAI, 0, "V serve/instrumentator/health.py, S, L, G http_server.py") \
	X("/v1/health", "health", GET, HEALTH, OTHER, OPENAI, YIELDS, "L") \
	X("/healthz", "health", GET, HEALTH, OTHER, OPENAI, YIELDS, "K") \
	X("/livez", "health", GET, HEALTH, OTHER, OPENAI, YIELDS, "K") \
	X("/", "health", GET, HEALTH, OTHER, OPENAI, YIELDS, "S, L server-http.cpp") \
	X("/liveness", "liveness", GET, HEALTH, OTHER, OPENAI, 0, "K, G http_server.py") \
	X("/readiness", "readiness", GET, READINESS, OTHER, OPENAI, 0, "K") \
	X("/ready", "readiness", GET, READINESS, OTHER, OPENAI, YIELDS, "V launchers/dp_supervisor.py, S") \
	X("/readyz", "readiness", GET, READINESS, OTHER, OPENAI, YIELDS, "V launchers/dp_supervisor.py") \
	X("/health_generate", "readiness", GET, READINESS, OTHER, OPENAI, YIELDS, "S, G http_server.py") \
	X("/ping", "readiness", GET_POST, READINESS, OTHER, OPENAI, YIELDS, "V serve/sagemaker, S") \
	/* ---- calls that concern every worker of a pool ---- */ \
	X("/flush_cache", "pass", GET_POST, FLEET, OTHER, OPENAI, DROPS, "S") \
	X("/reset_prefix_cache", "pass", POST, FLEET, OTHER, OPENAI, DROPS, "V serve/dev/cache") \
	X("/reset_mm_cache", "pass", POST, FLEET, OTHER, OPENAI, 0, "V serve/dev/cache") \
	X("/reset_encoder_cache", "pass", POST, FLEET, OTHER, OPENAI, 0, "V serve/dev/cache") \
	X("/hicache/storage-backend/clear", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/sleep", "pass", POST, FLEET, OTHER, OPENAI, DROPS | STOPS, "V serve/dev/sleep") \
	X("/wake_up", "pass", POST, FLEET, OTHER, OPENAI, 0, "V serve/dev/sleep") \
	X("/is_sleeping", "pass", GET, FLEET, OTHER, OPENAI, 0, "V serve/dev/sleep") \
	X("/release_kv_cache_memory", "pass", POST, FLEET, OTHER, OPENAI, DROPS, "V serve/dev/sleep") \
	X("/release_memory_occupation", "pass", GET_POST, FLEET, OTHER, OPENAI, DROPS | STOPS, "S, G post_training/weights_api.py") \
	X("/resume_memory_occupation", "pass", GET_POST, FLEET, OTHER, OPENAI, 0, "S, G post_training/weights_api.py") \
	X("/pause", "pass", POST, FLEET, OTHER, OPENAI, DROPS | STOPS, "V rl/online") \
	X("/resume", "pass", POST, FLEET, OTHER, OPENAI, 0, "V rl/online") \
	X("/is_paused", "pass", GET, FLEET, OTHER, OPENAI, 0, "V rl/online") \
	X("/pause_generation", "pass", POST, FLEET, OTHER, OPENAI, STOPS, "S") \
	X("/continue_generation", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/abort_request", "pass", POST, FLEET, OTHER, OPENAI, STOPS, "S") \
	X("/abort_requests", "pass", POST, FLEET, OTHER, OPENAI, STOPS, "V rl/online, V scale_out/token_in_token_out") \
	X("/inference/v1/abort_requests", "pass", POST, FLEET, OTHER, OPENAI, STOPS, "V scale_out/token_in_token_out") \
	X("/v1/chat/completions/control", "pass", POST, FLEET, OTHER, OPENAI, 0, "L") \
	X("/v1/streams", "pass", GET, FLEET, OTHER, LLAMA, 0, "L") \
	X("/v1/streams/lookup", "pass", POST, FLEET, OTHER, LLAMA, 0, "L server-stream.cpp, later") \
	X("/start_weight_update", "pass", POST, FLEET, OTHER, OPENAI, 0, "V rl/online") \
	X("/start_draft_weight_update", "pass", POST, FLEET, OTHER, OPENAI, 0, "V rl/online") \
	X("/finish_weight_update", "pass", POST, FLEET, OTHER, OPENAI, DROPS, "V rl/online") \
	X("/begin_weight_update", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/end_weight_update", "pass", POST, FLEET, OTHER, OPENAI, DROPS, "S") \
	X("/update_weight_version", "pass", POST, FLEET, OTHER, OPENAI, 0, "V rl/online, S") \
	X("/update_weights_from_tensor_checker", "pass", POST, FLEET, OTHER, OPENAI, 0, "G post_training/weights_api.py") \
	X("/update_weights*", "pass", POST, FLEET, OTHER, OPENAI, DROPS | STOPS, "V rl/online, S, G post_training/weights_api.py") \
	X("/init_weight_transfer_engine", "pass", POST, FLEET, OTHER, OPENAI, 0, "V rl/online") \
	X("/shutdown_weight_transfer_engine", "pass", POST, FLEET, OTHER, OPENAI, 0, "V rl/online") \
	X("/v1/load_lora_adapter", "pass", POST, FLEET, OTHER, OPENAI, 0, "V serve/lora") \
	X("/v1/unload_lora_adapter", "pass", POST, FLEET, OTHER, OPENAI, 0, "V serve/lora") \
	X("/load_lora_adapter", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/load_lora_adapter_from_tensors", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/unload_lora_adapter", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/lora-adapters", "pass", GET_POST, FLEET, OTHER, LLAMA, 0, "L") \
	X("/v1/set_lora", "pass", POST, FLEET, OTHER, OPENAI, 0, "G openai/common_api.py") \
	X("/v1/merge_lora_weights", "pass", POST, FLEET, OTHER, OPENAI, 0, "G openai/common_api.py") \
	X("/v1/unmerge_lora_weights", "pass", POST, FLEET, OTHER, OPENAI, 0, "G openai/common_api.py") \
	X("/set_internal_state", "pass", POST_PUT, FLEET, OTHER, OPENAI, 0, "S") \
	X("/add_external_corpus", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/remove_external_corpus", "pass", POST, FLEET, OTHER, OPENAI, 0, "S") \
	X("/scale_elastic_ep", "pass", POST, FLEET, OTHER, OPENAI, 0, "V serve/elastic_ep, S elastic_ep.py") \
	X("/is_scaling_elastic_ep", "pass", GET_POST, FLEET, OTHER, OPENAI, 0, "V serve/elastic_ep, S elastic_ep.py") \
	/* ---- calls to one engine process ---- */ \
	X("/invocations", "pass", POST, CLOSED, OTHER, OPENAI, 0, "V serve/sagemaker, S") \
	X("/vertex_generate", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S, G http_server.py") \
	X("/predict", "pass", POST, CLOSED, OTHER, LLAMA, 0, "L server-http.cpp") \
	X("/collective_rpc", "pass", POST, CLOSED, OTHER, OPENAI, DROPS, "V serve/dev/rpc") \
	X("/init_weights_send_group_for_remote_instance", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/send_weights_to_remote_instance", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/get_remote_instance_transfer_engine_info", "pass", GET, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/remote_instance_transfer_engine_info", "pass", GET, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/init_weights_update_group", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/destroy_weights_update_group", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/get_weights_by_name", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/get_weights_checksum", "pass", POST, CLOSED, OTHER, OPENAI, 0, "G post_training/weights_api.py") \
	X("/weights_checker", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/weight_checker", "pass", POST, CLOSED, OTHER, OPENAI, 0, "V rl/online") \
	X("/weight_info", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V rl/online") \
	X("/get_world_size", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V rl/online") \
	X("/fault_tolerance/apply", "pass", POST, CLOSED, OTHER, OPENAI, 0, "V serve/fault_tolerance") \
	X("/fault_tolerance/status", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V serve/fault_tolerance") \
	X("/pd_role_switch", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/slow_down", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/dumper/{id}", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/start_profile", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "V serve/profile, S") \
	X("/stop_profile", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "V serve/profile, S") \
	X("/set_trace_level", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/freeze_gc", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/configure_logging", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/start_expert_distribution_record", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/stop_expert_distribution_record", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/dump_expert_distribution_record", "pass", GET_POST, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/hicache/storage-backend", "pass", GET_PUT_DELETE, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/get_hicache_l3_cache_layout", "pass", GET, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/list_external_corpora", "pass", GET, CLOSED, OTHER, OPENAI, 0, "S") \
	X("/kv_event_sources", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V serve/instrumentator/basic.py") \
	X("/v1/loads", "pass", GET, CLOSED, OTHER, OPENAI, 0, "S v1_loads.py") \
	X("/stats", "pass", GET, CLOSED, OTHER, OPENAI, 0, "G http_server.py") \
	X("/metrics", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V serve/instrumentator/metrics.py, S, L") \
	X("/docs", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V serve/instrumentator/offline_docs.py, S") \
	X("/redoc", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V, S") \
	X("/openapi.json", "pass", GET, CLOSED, OTHER, OPENAI, 0, "V, S") \
	X("/slots", "pass", GET, CLOSED, OTHER, LLAMA, 0, "L") \
	X("/slots/{id}", "pass", POST, CLOSED, OTHER, LLAMA, 0, "L") \
	X("/models/load", "pass", POST, CLOSED, OTHER, LLAMA, 0, "L") \
	X("/models/unload", "pass", POST, CLOSED, OTHER, LLAMA, 0, "L") \
	X("/models/sse", "pass", GET, CLOSED, OTHER, LLAMA, 0, "L") \
	X("/cors-proxy", "pass", GET_POST, CLOSED, OTHER, LLAMA, 0, "L") \
	X("/tools", "pass", GET_POST, CLOSED, OTHER, LLAMA, 0, "L") \
	X("/send", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S disaggregation/encoder/http_server.py") \
	X("/scheduler_receive_meta_data", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S disaggregation/encoder/http_server.py") \
	X("/scheduler_receive_url", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S disaggregation/encoder/http_server.py") \
	X("/gate/activate", "pass", POST, CLOSED, OTHER, OPENAI, 0, "S distributed/gated_launch.py") \
	X("/get_transfer_engine_info", "pass", GET, CLOSED, OTHER, OPENAI, 0, "S engine_info_bootstrap_server.py") \
	X("/register_transfer_engine_info", "pass", PUT, CLOSED, OTHER, OPENAI, 0, "S engine_info_bootstrap_server.py") \
	X("/route", "pass", GET_PUT, CLOSED, OTHER, OPENAI, 0, "S disaggregation/common/conn.py") \
	/* ---- websockets ---- */ \
	X("/v1/realtime", "none", GET, WEBSOCKET, OTHER, OPENAI, 0, "V speech_to_text/realtime, S") \
	X("/v1/actions/realtime", "none", GET, WEBSOCKET, OTHER, OPENAI, 0, "G action/api.py") \
	X("/v1/realtime_video/generate", "none", GET, WEBSOCKET, OTHER, OPENAI, 0, "G openai/realtime") \
	X("/openpi/policy", "none", GET, WEBSOCKET, OTHER, OPENAI, 0, "G action/openpi.py")
/* clang-format on */

#endif
