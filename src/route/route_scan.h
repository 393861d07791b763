/*
 * The first phase of a route key: while the body arrives, the spans of its top-level
 * fields and the ends of long values; of a form the span of its model.
 *
 * Always true: of duplicate fields the last is kept; the skips are in order of start and
 * belong to fields of the table only, so that memory is at most about 1.5 times the body
 * (and mostly nothing). Filled by route_scan.c, read by route_key.c and route_prompt.c.
 */
#ifndef ROUTE_ROUTE_SCAN_H
#define ROUTE_ROUTE_SCAN_H

#include "route/form_scan.h"
#include "route/json_scan.h"
#include "route/json_walk.h"
#include "route/route_key.h"

#define ROUTE_FIELDS(X)                     \
	X(MODEL, "model")                   \
	X(STREAM, "stream")                 \
	X(MESSAGES, "messages")             \
	X(TOOLS, "tools")                   \
	X(FUNCTIONS, "functions")           \
	X(SYSTEM, "system")                 \
	X(INSTRUCTIONS, "instructions")     \
	X(INPUT, "input")                   \
	X(PREVIOUS, "previous_response_id") \
	X(CONVERSATION, "conversation")     \
	X(INPUT_FILE, "input_file_id")      \
	X(PROMPT, "prompt")                 \
	X(TEXT, "text")                     \
	X(INPUT_IDS, "input_ids")           \
	X(TOKEN_IDS, "token_ids")           \
	X(IMAGE_DATA, "image_data")         \
	X(QUERY, "query")                   \
	X(DOCUMENTS, "documents")           \
	X(TEXT_1, "text_1")                 \
	X(TEXT_2, "text_2")                 \
	X(DATA_1, "data_1")                 \
	X(DATA_2, "data_2")                 \
	X(QUERIES, "queries")               \
	X(ITEMS, "items")                   \
	X(INPUT_EXTRA, "input_extra")       \
	X(INPUT_PREFIX, "input_prefix")     \
	X(INPUT_SUFFIX, "input_suffix")     \
	X(CONTENT, "content")               \
	X(TEXTS, "texts")                   \
	X(INPUTS, "inputs")                 \
	X(STATE, "state")                   \
	X(LORA_PATH, "lora_path")           \
	X(CACHE_SALT, "cache_salt")         \
	X(SESSION_PARAMS, "session_params") \
	X(USER, "user")                     \
	X(SESSION_ID, "session_id")         \
	X(CACHE_KEY, "prompt_cache_key")    \
	X(METADATA, "metadata")             \
	X(SAFETY, "safety_identifier")      \
	X(USER_ID, "user_id")

enum route_field {
#define X(name, key) FIELD_##name,
	ROUTE_FIELDS(X)
#undef X
		FIELD_MAX,
	FIELD_NONE = FIELD_MAX
};

struct route_scan {
	enum route_endpoint endpoint;
	bool is_form; /* `form` reads it, and nothing but its model counts */
	struct form_scan form;
	size_t model, model_end; /* of a form; equal: none */
	bool is_object;          /* the body begins with { */
	bool has_failed;         /* broken, or no object: nothing more is read */
	enum route_field field;  /* whose value is being read */
	bool has_suspect;        /* a name that route_scan_may_transfer() is about */
	struct json_value fields[FIELD_MAX];
	struct json_skip *skips; /* owned */
	size_t n_skips, cap_skips;
	uint32_t open_skip[JSON_SKIP_DEPTH +
			   1]; /* the entry of the open container of each depth */
	struct json_scan json;
};

#endif
