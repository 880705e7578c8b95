"""llama.cpp, through the low-level functions of llama-cpp-python.

Does not: sample in llama.cpp; the most likely token is taken by numpy, which costs some tens of microseconds.
"""

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

_REPEATS = 5
_ROOM = 1024  # tokens of one sequence
_SEQUENCES = 8
_BATCH = 512  # tokens of one pass
_FILE = "model.gguf"
_ERROR = 4  # the level of a message in its log


class Engine:
    """llama.cpp as one of the engines."""

    def __init__(self) -> None:
        self.api: Any = import_module("llama_cpp")
        self.version = self.api.__version__
        self._log = self.api.llama_log_callback(_only_errors)
        self.api.llama_log_set(self._log, ctypes.c_void_p(0))
        self.api.llama_backend_init()

    def prepare(self, source: str, target: str, variant: str) -> None:
        """A checkpoint -> GGUF in bfloat16 -> the variant."""
        whole, made = Path(target, "whole.gguf"), Path(target, _FILE)
        write_gguf(Path(source), whole)
        if variant == "BF16":
            whole.rename(made)
            return
        how = self.api.llama_model_quantize_default_params()
        how.ftype, how.nthread = getattr(self.api, f"LLAMA_FTYPE_MOSTLY_{variant}"), 1
        if self.api.llama_model_quantize(str(whole).encode(), str(made).encode(), how):
            raise RuntimeError(f"llama.cpp could not quantize to {variant}")
        whole.unlink()

    def load(self, path: str, variant: str, threads: int) -> dict[str, float]:
        """Open the file, with room for eight sequences that share nothing."""
        began, api = perf_counter(), self.api
        model = api.llama_model_load_from_file(str(Path(path, _FILE)).encode(), api.llama_model_default_params())
        if not model:
            raise RuntimeError("llama.cpp could not load the file")
        how = api.llama_context_default_params()
        how.n_ctx, how.n_seq_max, how.kv_unified = _ROOM * _SEQUENCES, _SEQUENCES, False
        how.n_batch = how.n_ubatch = _BATCH
        how.n_threads = how.n_threads_batch = threads
        self.context = api.llama_init_from_model(model, how)
        self.memory = api.llama_get_memory(self.context)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self.rows = api.llama_batch_init(_BATCH, 0, 1)
        return {"load_seconds": perf_counter() - began}

    def _put(self, rows: Sequence[tuple[int, int, int]], wanted: int) -> None:
        """One pass over (token, position, sequence); logits of the last `wanted` rows."""
        batch = self.rows
        batch.n_tokens = len(rows)
        for at, (token, position, sequence) in enumerate(rows):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
            batch.logits[at] = at >= len(rows) - wanted
        if self.api.llama_decode(self.context, batch):
            raise RuntimeError("llama.cpp could not run a pass")

    def _best(self, row: int) -> int:
        logits = self.api.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def _read(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Forget everything, read the prompts; the token after each."""
        self.api.llama_memory_clear(self.memory, 1)
        found = []
        for number, prompt in enumerate(prompts):
            self._put([(token, at, number) for at, token in enumerate(prompt)], 1)
            found.append(self._best(-1))
        return found

    def decode(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first token, one at a time."""
        return self.batch([prompt], tokens)

    def prefill(self, prompt: list[int]) -> dict[str, float]:
        """A prompt to its first token."""
        began = perf_counter()
        self._read([prompt])
        return {"seconds": perf_counter() - began, "tokens": len(prompt)}

    def batch(self, prompts: list[list[int]], tokens: int) -> dict[str, float]:
        """After every text's first token, one of each at a time."""
        latest, count = self._read(prompts), len(prompts)
        began = perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + tokens - 1):
            self._put([(token, position, number) for number, token in enumerate(latest)], count)
            latest = [self._best(row) for row in range(count)]
        return {"seconds": perf_counter() - began, "tokens": count * (tokens - 1)}

    def width(self, context: list[int], rows: list[int]) -> dict[str, float]:
        """One pass over `rows` after `context`, with the logits of every row."""
        self._read([context])
        past, times = len(context), []
        for _ in range(_REPEATS + 1):
            began = perf_counter()
            self._put([(token, past + at, 0) for at, token in enumerate(rows)], len(rows))
            self.api.llama_synchronize(self.context)
            times.append(perf_counter() - began)
            self.api.llama_memory_seq_rm(self.memory, 0, past, -1)
        return {"seconds": sorted(times[1:])[_REPEATS // 2], "tokens": len(rows)}


def _only_errors(level: int, text: bytes, _: object) -> None:
    if level == _ERROR:
        sys.stderr.write(text.decode(errors="replace"))


_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(source: Path, target: Path) -> None:
    """A Llama checkpoint in bfloat16 as GGUF; vectors become float32, as llama.cpp wants them."""
    gguf: Any = import_module("gguf")
    config = json.loads(Path(source, "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(target, "llama")
    _write_facts(writer, gguf, config)
    _write_vocabulary(writer, gguf, source, config["vocab_size"])
    for name, weight in read_checkpoint(Path(source, "model.safetensors")):
        given = _rename(name)
        if weight.ndim == 1:
            writer.add_tensor(given, (weight.astype(np.uint32) << 16).view(np.float32))
            continue
        heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
        turned = next((n for letter, n in heads.items() if f"attn_{letter}." in given), 0)
        block = np.ascontiguousarray(_interleave(weight, turned) if turned else weight)
        writer.add_tensor(given, block.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_facts(writer: Any, gguf: Any, config: dict[str, Any]) -> None:  # noqa: ANN401 - the package's own
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _write_vocabulary(writer: Any, gguf: Any, source: Path, size: int) -> None:  # noqa: ANN401
    tokenizer = json.loads(Path(source, "tokenizer.json").read_text(encoding="utf-8"))
    words, kinds = [""] * size, [gguf.TokenType.NORMAL] * size
    for word, number in tokenizer["model"]["vocab"].items():
        words[number] = word
    for added in tokenizer["added_tokens"]:
        words[added["id"]], kinds[added["id"]] = added["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _rename(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest.removesuffix('.weight')]}.weight"


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head from halves that turn together to neighbours that turn together."""
    size, width = weight.shape
    return weight.reshape(heads, 2, size // heads // 2, width).swapaxes(1, 2).reshape(size, width)


def read_checkpoint(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and bfloat16 bits of a safetensors file; numpy has no bfloat16."""
    content = np.memmap(file, dtype=np.uint8, mode="r")
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:begin].tobytes())
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}, and only BF16 is converted")
        first, last = entry["data_offsets"]
        yield name, content[begin + first : begin + last].view(np.uint16).reshape(entry["shape"])
