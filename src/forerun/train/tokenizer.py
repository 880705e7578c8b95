"""Train the byte-level BPE that target and drafter share, and write it as a Hugging Face folder.

Every byte is a token, so every UTF-8 text survives decode(encode(text)); digits stand alone (arithmetic stays aligned).
Does not: normalise text; add a token at the start of a prompt.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from forerun.errors import TrainError

END_OF_TEXT = "<|endoftext|>"
ROLES = ("system", "user", "assistant")
END_OF_TURN = "<|end|>"
SPECIAL = (END_OF_TEXT, *(f"<|{role}|>" for role in ROLES), END_OF_TURN)
# GPT-4's split, except that a digit stands alone.
SPLIT = r"'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# A tool's result is shown to the model as a user turn: that is how the training chats do it.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- set role = 'user' if message['role'] == 'tool' else message['role'] -%}"
    "{{- '<|' + role + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of exactly `vocab_size` tokens; the special ones take the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        got = tokenizer.get_vocab_size()
        message = f"the text gives only {got} of {vocab_size} tokens; add text or ask for a smaller vocab_size."
        raise TrainError(message)
    return tokenizer


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that reads the names of special tokens inside a text as ordinary characters."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = True
    return copy


def special_id(tokenizer: Tokenizer, name: str) -> int:
    """The id of a special token."""
    found: int | None = tokenizer.token_to_id(name)
    if found is None:
        message = f"the tokenizer has no token {name!r}; use one that forerun train made."
        raise TrainError(message)
    return found


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        message = f"folder {str(folder)!r} has no tokenizer.json; train the tokenizer first, or name another folder."
        raise TrainError(message)
    return Tokenizer.from_file(str(path))


def write(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers' AutoTokenizer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": list(SPECIAL[1:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
