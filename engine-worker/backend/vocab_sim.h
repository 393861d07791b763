/*
 * The tokenizer and the chat template of the sim backend, as a table.
 */
#ifndef ENGINE_BACKEND_VOCAB_SIM_H
#define ENGINE_BACKEND_VOCAB_SIM_H

#include "core/vocab.h"

extern const struct vocab vocab_sim;

#endif
