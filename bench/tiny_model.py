"""A model that knows nothing: a Llama of a few hundred kB without weights, and a tokenizer with a word a token.

Runs in the environment of the software that reads it, which has `tokenizers`: ``python tiny_model.py DIRECTORY`` writes
what Hugging Face's `from_pretrained` wants to find. Nothing here downloads anything.

A word a token, whatever the word: every token of an answer then is an event of its own (half a UTF-8 character would
wait for the other half), and the words of `trioproxy mock`, `0000 0001 …`, are counted as the tokens that they are.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

SPECIAL = ("[UNK]", "[BOS]", "[EOS]", "[PAD]")
WORDS = 508
CONTEXT = 32768
"""Tokens of a prompt and its answer."""

CHAT_TEMPLATE = (
    "{% for message in messages %}[BOS] {{ message['role'] }} : {{ message['content'] }} [EOS] {% endfor %}"
    "{% if add_generation_prompt %}[BOS] assistant : {% endif %}"
)


def vocabulary() -> dict[str, int]:
    """The special tokens, then the numbers as four digits."""
    return {word: number for number, word in enumerate([*SPECIAL, *(f"{number:04}" for number in range(WORDS))])}


def llama(words: dict[str, int]) -> dict[str, Any]:
    """Two layers of two heads, of a size (64) that vLLM's attention on a CPU has kernels for."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(words),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "bos_token_id": words["[BOS]"],
        "eos_token_id": words["[EOS]"],
        "pad_token_id": words["[PAD]"],
        "torch_dtype": "float32",
    }


def main(directory: Path) -> None:
    words = vocabulary()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(directory / "tokenizer.json"))
    written = {
        "config.json": llama(words),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "[UNK]",
            "bos_token": "[BOS]",
            "eos_token": "[EOS]",
            "pad_token": "[PAD]",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in written.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
