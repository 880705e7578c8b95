"""forerun's loop for a model of transformers that is in memory already, under transformers' own `generate`.

    generate = Generate(model, drafter="ngram")
    model.generate(**inputs, max_new_tokens=100, custom_generate=generate)

Greedy tokens are those of `model.generate`; drawn ones follow the same distribution, by forerun's seeds.
Does not: stream; search beams; return scores or states; run processors and criteria that it does not know: it refuses.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from forerun.build import build_engine
from forerun.config import Config
from forerun.engine.desk import Desk
from forerun.errors import ConfigError, ForerunError, RequestError
from forerun.llm import STEPS
from forerun.models.contract import ModelInfo
from forerun.models.hf import adopt
from forerun.models.tokenizer import Message, Piece, Tokenizer
from forerun.rng import sample_seed
from forerun.types import KVLayout, Sampling

MODES = {"greedy_search", "sample", "assisted_generation"}  # the last: drafts are made here, whoever was asked for them
PROCESSORS = {  # transformers' class -> its setting, and ours
    "TemperatureLogitsWarper": ("temperature", "temperature"),
    "TopKLogitsWarper": ("top_k", "top_k"),
    "TopPLogitsWarper": ("top_p", "top_p"),
    "MinPLogitsWarper": ("min_p", "min_p"),
    "TypicalLogitsWarper": ("typical_p", "typical_p"),
    "EpsilonLogitsWarper": ("epsilon_cutoff", "epsilon_cutoff"),
    "EtaLogitsWarper": ("eta_cutoff", "eta_cutoff"),
    "RepetitionPenaltyLogitsProcessor": ("repetition_penalty", "repetition_penalty"),
    "NoRepeatNGramLogitsProcessor": ("no_repeat_ngram_size", "no_repeat_ngram"),
    "MinNewTokensLengthLogitsProcessor": ("min_new_tokens", "min_tokens"),
}
CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria"}
EXTRAS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


class Ids(Tokenizer):
    """Token ids without texts: callers have a tokenizer of their own."""

    bos = eos = template = None

    def __init__(self, size: int) -> None:
        self.vocab_size = size

    def encode(self, text: str, *, specials: bool = False, bos: bool = True) -> list[int]:
        raise RequestError("there is no tokenizer here; give token ids.")

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return ""

    def token_text(self, token: int) -> str:
        return str(token)

    def pieces(self) -> list[Piece]:
        return [None] * self.vocab_size

    def encode_within(self, text: str) -> list[int]:
        return self.encode(text)

    def chat(self, messages: Sequence[Message], functions: Sequence[Message] = ()) -> list[int]:
        raise RequestError("there is no tokenizer here; give token ids.")


class Generate:
    """A `custom_generate` for one model; keywords are those of LLM: fields of Config, and options of the drafter."""

    def __init__(self, model: Any, **keywords: Any) -> None:  # noqa: ANN401 - transformers has no types here
        if not isinstance(model, PreTrainedModel):
            raise ConfigError(f"{type(model).__name__} is no model of transformers; give one, or use LLM for a folder.")
        _check_mode(model)
        weight = next(model.parameters())
        layout = KVLayout((), (), weight.dtype, weight.device)
        info = ModelInfo(model.name_or_path or model.config.model_type, 0, 0, 0, 0, layout)
        self.model, adopted = model, adopt(model, info)
        config, options = Config.parse(**{"device": weight.device.type, **keywords, "model": adopted.info.name})
        self.engine = build_engine(config, adopted, Ids(adopted.info.vocab_size), options)
        self._desk = Desk(self.engine)

    def __call__(
        self,
        model: Any,  # noqa: ANN401
        input_ids: torch.Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: Any,  # noqa: ANN401
        forerun_seed: int | None = None,
        **model_kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Token ids [rows, longest], or transformers' output object with them; a seed for what is drawn."""
        if model is not self.model:
            raise ConfigError("this Generate was made for another model; make one for each.")
        _check_mode(model)
        _check(stopping_criteria, generation_config)
        sampling = _sampling(logits_processor, generation_config, input_ids.shape[1])
        prompts = _prompts(input_ids, **model_kwargs)
        seed = int(torch.randint(2**62, (1,))) if forerun_seed is None else forerun_seed
        asks = [replace(sampling, seed=sample_seed(seed, i)) for i in range(len(prompts))]
        texts = self._write(prompts, asks)
        found = _joined(input_ids, texts, generation_config)
        return GenerateDecoderOnlyOutput(sequences=found) if generation_config.return_dict_in_generate else found

    def _write(self, prompts: Sequence[list[int]], asks: Sequence[Sampling]) -> list[list[int]]:
        """What follows each prompt."""
        texts: dict[int, list[int]] = {}
        running = set[int]()
        try:
            for prompt, sampling in zip(prompts, asks, strict=True):
                texts[self._desk.add(running, prompt, sampling).id] = []
            while running:
                for event in self._desk.hear(running, STEPS):
                    if event.error is not None:
                        raise ForerunError(event.error)
                    texts[event.request] += [emission.token for emission in event.emissions]
        finally:
            self._desk.leave(running)
        return list(texts.values())


def _check_mode(model: PreTrainedModel) -> None:
    if model.training:
        raise ConfigError("the model is in training mode, where dropout changes what it says; call model.eval().")


def _prompts(
    input_ids: torch.Tensor,  # [rows, longest]
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    **others: Any,  # noqa: ANN401
) -> list[list[int]]:
    """What is no padding of every row; ConfigError for what else would change its meaning."""
    for name, value in others.items():  # caches and switches mean nothing here; numbers would
        if isinstance(value, torch.Tensor) and name != "cache_position":
            raise ConfigError(f"{name} is given, and passes here read token ids alone; leave it out.")
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if mask.shape != input_ids.shape:
        raise ConfigError(f"attention_mask is {list(mask.shape)}; give one number per token, {list(input_ids.shape)}.")
    if position_ids is not None:
        fits = position_ids.shape[-1] == mask.shape[1]  # some models have several of them for a token
        if not fits or ((position_ids != mask.bool().cumsum(1) - 1) & mask.bool()).any():
            raise ConfigError("position_ids do not count the tokens of a row from 0; leave them out.")
    return [row[m.bool()].tolist() for row, m in zip(input_ids, mask, strict=True)]


def _check(stopping_criteria: Sequence[Any], config: Any) -> None:  # noqa: ANN401
    """ConfigError for what nobody here would heed."""
    mode = config.get_generation_mode()
    if mode.value not in MODES:
        raise ConfigError(
            f"generation mode {mode.value!r} is not forerun's; leave its settings out, or custom_generate."
        )
    for criterion in stopping_criteria:
        name = type(criterion).__name__
        if name not in CRITERIA:
            raise ConfigError(f"stopping criterion {name} is not known here; use {' or '.join(sorted(CRITERIA))}.")
    asked = [name for name in EXTRAS if getattr(config, name, None)] if config.return_dict_in_generate else []
    if asked:
        raise ConfigError(f"{asked[0]} is asked for, and drafted passes keep none of that; leave it out.")


def _sampling(processors: Sequence[Any], config: Any, length: int) -> Sampling:  # noqa: ANN401
    """What transformers would do to logits, said in our words."""
    values: dict[str, Any] = {} if config.do_sample else {"temperature": 0.0}
    for processor in processors:
        name = type(processor).__name__
        if name in PROCESSORS:
            theirs, ours = PROCESSORS[name]
            values[ours] = getattr(config, theirs)
        elif name == "MinLengthLogitsProcessor":
            values["min_tokens"] = max(0, config.min_length - length)
        elif name == "NoBadWordsLogitsProcessor":
            values["bad_words"] = tuple(tuple(word) for word in config.bad_words_ids)
        else:
            known = ", ".join(sorted(PROCESSORS))
            raise ConfigError(f"logits processor {name} is not known here; use {known}, or bad_words_ids.")
    ends = config._eos_token_tensor  # noqa: SLF001 - what `generate` made of eos_token_id
    return Sampling(
        **values,
        max_tokens=config.max_length - length,
        stop_token_ids=() if ends is None else tuple(ends.tolist()),
        ignore_eos=True,  # the model's own: the line above says which end a text
    )


def _joined(input_ids: torch.Tensor, texts: Sequence[list[int]], config: Any) -> torch.Tensor:  # noqa: ANN401
    """Prompts and what follows them, padded on the right."""
    pad = config._pad_token_tensor  # noqa: SLF001 - as above
    longest = max(map(len, texts))
    rows = [text + [0 if pad is None else int(pad)] * (longest - len(text)) for text in texts]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], 1)
