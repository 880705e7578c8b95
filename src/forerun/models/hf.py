"""Any other causal model that transformers can load, with its keys and values in forerun's own cache.

Slower than `transformer.py`: requests run one after another, and transformers' layers make many small calls.
Does not: skip layers; run code from a folder; take models with recurrent or chunked layers, or ones whose code ignores
the tree mask or the positions it is given, which a trial pass at load finds out.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache as TheirCache
from transformers.cache_utils import CacheLayerMixin, DynamicCache

from forerun.caches.contract import Cache
from forerun.errors import ConfigError, ModelError
from forerun.layers.attention import bias
from forerun.models.contract import Model, ModelInfo
from forerun.types import KVLayout, Pass, PassOutput, Segment

_LOG = logging.getLogger("forerun")
KINDS = {"full_attention", "sliding_attention", "global"}
TOLERANCE = {torch.float16: 0.03, torch.bfloat16: 0.05}  # of the largest logit; a mask that is ignored changes more
EXACT = 1e-3  # the same in higher precisions


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of transformers' cache that stores in ours."""

    is_sliding = False

    def __init__(self, index: int, work: Pass, cache: Cache) -> None:
        super().__init__()
        self.index, self.work, self.cache = index, work, cache
        self.held = work.segments[0].past + work.segments[0].base

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (part[0].transpose(0, 1) for part in (key_states, value_states))
        self.cache.write(self.index, self.work, keys, values)
        keys, values = self.cache.read(self.index, self.work.segments[0])
        return keys.unsqueeze(0), values.unsqueeze(0)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.held + query_length, 0

    def get_seq_length(self) -> int:
        return self.held

    def get_max_length(self) -> int:
        return -1


class OtherModel(Model):
    """A model of transformers under forerun's contract."""

    def __init__(self, model: Any, info: ModelInfo) -> None:  # noqa: ANN401
        self.info, self._model = info, model
        self._windows = _windows(model.config)
        self._blocks = next(
            m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == info.num_layers
        )

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        if work.plan is not None:
            message = f"{self.info.name} runs through transformers, which runs every layer"
            raise ConfigError(f"{message}; use a family that forerun runs itself for methods that skip layers.")
        with torch.inference_mode():
            parts = [self._segment(work, segment, cache) for segment in work.segments]
        logits = torch.cat([part.logits for part in parts])
        if work.logits is not None:
            logits = logits[work.logits]
        return PassOutput(logits, {at: torch.cat([part.hidden[at] for part in parts]) for at in work.hidden})

    def _segment(self, work: Pass, s: Segment, cache: Cache) -> PassOutput:
        rows = slice(s.start, s.start + s.rows)
        own = s._replace(start=0)
        alone = Pass(work.tokens[rows], work.positions[rows], (own,), None, work.hidden)
        layers = [_Layer(index, alone, cache) for index in range(self.info.num_layers)]
        with self._captured(work.hidden) as hidden:
            out = self._model(
                input_ids=alone.tokens[None],
                position_ids=alone.positions[None],
                attention_mask=_masks(own, self._windows, self.info.layout.dtype, work.tokens.device),
                past_key_values=TheirCache(layers=layers),
                use_cache=True,
            )
        return PassOutput(out.logits[0], hidden)

    @contextmanager
    def _captured(self, wanted: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
        """What the wanted layers return while the context is open."""
        found: dict[int, torch.Tensor] = {}

        def keep(layer: int) -> Any:  # noqa: ANN401
            def hook(_module: Any, _inputs: Any, output: Any) -> None:  # noqa: ANN401
                found[layer] = (output[0] if isinstance(output, tuple) else output)[0]

            return hook

        handles = [self._blocks[layer].register_forward_hook(keep(layer)) for layer in wanted]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()


def load_other(folder: Path, dtype: torch.dtype, device: torch.device, info: ModelInfo) -> Model:
    """The model in `folder` by transformers' own code; says that it is slower."""
    model = _load(folder, dtype).to(device).eval()
    family = model.config.model_type
    _LOG.warning("%s runs through transformers' own code: correct, but slower than forerun's families.", family)
    return adopt(model, info)


def adopt(model: Any, info: ModelInfo) -> Model:  # noqa: ANN401
    """A model of transformers as it is; `info` says its name, ends, precision and device."""
    family, dtype, device = model.config.model_type, info.layout.dtype, info.layout.device
    kinds = {
        kind for key in ("layer_types", "attention_layers") for kind in getattr(model.config, key, None) or []
    } - KINDS
    if kinds:
        raise ModelError(
            f"{family} has layers of type {', '.join(sorted(kinds))}, which keep no tree; use another model."
        )
    try:
        layout = replace(_trial(model, dtype, device), kept=info.layout.kept)
    except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError, IndexError, KeyError) as error:
        first = str(error).partition("\n")[0]
        raise ModelError(
            f"{family} cannot run trees of tokens in transformers ({first}); use another model."
        ) from error
    config = model.config
    context = getattr(config, "max_position_embeddings", None) or 2048
    info = replace(
        info,
        vocab_size=config.vocab_size,
        context_length=context,
        hidden_size=config.hidden_size,
        num_layers=len(layout.heads),
        layout=layout,
        weight_bytes=sum(p.nbytes for p in model.parameters()),
    )
    return OtherModel(model, info)


def _load(folder: Path, dtype: torch.dtype) -> Any:  # noqa: ANN401
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        model, news = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # whatever transformers raises at a folder that it cannot load
        first = str(error).strip().splitlines()[:1]
        message = f"transformers cannot load {folder} ({first[0] if first else type(error).__name__})"
        raise ModelError(f"{message}; give a causal language model in Hugging Face form.") from error
    finally:
        if shown:
            bars.enable_progress_bar()
    problems = [f"missing {name}" for name in sorted(news["missing_keys"])]
    problems += [f"unexpected {name}" for name in sorted(news["unexpected_keys"])]
    problems += [f"{name[0]} has the wrong shape" for name in sorted(news["mismatched_keys"])]
    if problems:
        message = f"the weights in {folder} do not fit its config.json: {'; '.join(problems)}."
        raise ModelError(f"{message} Use the config.json that belongs to these weights.")
    return model


def _windows(config: Any) -> dict[str, int | None]:  # noqa: ANN401
    """Window by layer type; one entry "" where all layers are alike."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    types = set(getattr(config, "layer_types", None) or [])
    if not types:
        return {"": window}
    return {kind: window if kind == "sliding_attention" else None for kind in types}


def _masks(s: Segment, windows: dict[str, int | None], dtype: torch.dtype, device: torch.device) -> Any:  # noqa: ANN401
    """Additive masks [1, 1, count, keys]: one, or one per layer type."""
    made = {kind: bias(s, window, dtype, device)[None, None] for kind, window in windows.items()}
    return made.get("", made)


def _trial(model: Any, dtype: torch.dtype, device: torch.device) -> KVLayout:  # noqa: ANN401
    """Run a small tree and the chain inside it, and compare; returns what the model stores per layer."""
    family, vocab = model.config.model_type, model.config.vocab_size
    with torch.inference_mode():
        chain, tree, layers = _chain_and_tree(model, dtype, device)
    gap, size = (tree - chain).abs().max().item(), chain.abs().max().item()
    if not gap <= TOLERANCE.get(dtype, EXACT) * max(size, 1e-6):
        message = f"{family} in transformers ignores tree masks or positions (logits differ by {gap:.2g})"
        raise ModelError(f"{message}; use another model.")
    if any(layer.keys.shape != layer.values.shape for layer in layers):
        message = f"{family} stores keys and values of different sizes, which no cache here holds"
        raise ModelError(f"{message}; use another model.")
    if chain.shape[-1] != vocab:
        raise ModelError(f"{family} gives {chain.shape[-1]} logits for a vocabulary of {vocab}; correct config.json.")
    return KVLayout(
        tuple(layer.keys.shape[1] for layer in layers), tuple(layer.keys.shape[3] for layer in layers), dtype, device
    )


def _chain_and_tree(model: Any, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, Any]:  # noqa: ANN401
    """Logits of the last two of three tokens, in a chain and as a branch of a tree after the first."""
    tokens = torch.tensor([[3, 5, 7]], device=device) % model.config.vocab_size
    _, left, leaf = tokens[0].tolist()
    other = (leaf + 1) % model.config.vocab_size
    sees = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool, device=device)
    cache = DynamicCache(config=model.config)
    chain = model(input_ids=tokens, use_cache=False).logits[0]
    model(input_ids=tokens[:, :1], past_key_values=cache, use_cache=True)
    tree = model(
        input_ids=torch.tensor([[other, left, other, leaf]], device=device),
        position_ids=torch.tensor([[1, 1, 2, 2]], device=device),
        attention_mask=_masks(Segment(0, 0, 4, 1, 0, sees), _windows(model.config), dtype, device),
        past_key_values=cache,
        use_cache=True,
    ).logits[0]
    return chain[1:], tree[[1, 3]], cache.layers
