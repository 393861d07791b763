"""A small random Llama with a real byte-level BPE tokenizer: tiny_model.py FOLDER TEXT... Runs in an engine's environment.

Weights are random, so the text is nonsense, but it is the same nonsense for the same tokens: answers can be compared. The end
token is never the best one: texts run to their limit unless a request says otherwise.
"""

import json
import os
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
HIDDEN, LAYERS, POSITIONS = 128, 2, 4096
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}{% for t in tools %}{{ t | tojson }}\\n{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{%- if m['content'] is string %}{{ m['content'] }}{%- elif m['content'] %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{%- endif %}"
    "{%- if not (loop.last and continue_final_message) %}{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def tokenizer(texts):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train(texts, trainers.BpeTrainer(vocab_size=4096, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                   model_max_length=POSITIONS)
    fast.chat_template = TEMPLATE
    return fast


def main(folder, texts):
    os.makedirs(folder, exist_ok=True)
    fast = tokenizer(texts)
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(fast), hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=POSITIONS, bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id, tie_word_embeddings=False))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.08)
        for token in SPECIAL:
            model.lm_head.weight[fast.convert_tokens_to_ids(token)] = 0
    model.float().save_pretrained(folder)
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump({"eos_token_id": fast.eos_token_id, "bos_token_id": fast.bos_token_id}, f)


main(sys.argv[1], sys.argv[2:])
