"""Drafters that need no model, as custom proposers of vLLM: its `speculative_config` names one of them.

    {"method": "custom_class", "model": "forerun.vllm.suffix_decoding", "num_speculative_tokens": 8}

Any drafter of `forerun methods` that goes by tokens alone, `-` written as `_`; options of it stand in vLLM's
`additional_config`, as {"forerun": {"nodes": 32}}. vLLM judges chains: of a tree the likeliest path is given. A drafter
that raises, hangs or returns nonsense costs its drafts, never vLLM's engine.
Does not: import vLLM; know requests but by their tokens: one that leaves vLLM's batch for a while begins anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch

from forerun.config import Config, choose
from forerun.drafters import DRAFTERS
from forerun.engine.guard import Guard
from forerun.engine.stats import EngineStats
from forerun.errors import ConfigError
from forerun.rng import CounterRng
from forerun.types import Context, Draft, Sampling, Setup

Rows = np.ndarray[Any, Any] | torch.Tensor


@dataclass
class _Request:
    """A row of vLLM's batch, while it is the same text that grows."""

    context: Context
    tokens: list[int]
    seen: np.ndarray[Any, Any]  # the same, to compare with


class Proposer:
    """What vLLM makes of the class that it is told, and asks after every step."""

    def __init__(self, vllm_config: Any, drafter: str) -> None:  # noqa: ANN401 - vLLM's, which is not here
        options = dict((getattr(vllm_config, "additional_config", None) or {}).get("forerun", {}))
        choice = choose(DRAFTERS, drafter, options)
        self.most = int(vllm_config.speculative_config.num_speculative_tokens)
        self.setup = _setup(vllm_config, drafter)
        self.stats = EngineStats()
        self.drafter = Guard(choice.member(choice.options, self.setup), self.setup, self.stats, Config.draft_timeout)
        if self.drafter.listens:
            message = f"drafter {drafter!r} learns from the target's logits, which vLLM shows no proposer"
            raise ConfigError(f"{message}; use one that goes by tokens, such as suffix_decoding.")
        self.requests: list[_Request] = []
        self._next = 0

    def load_model(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - there is none
        """Nothing to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Rows,
        token_ids_cpu: Rows,
        slot_mappings: Any = None,  # noqa: ANN401 - where keys lie, which nobody needs
    ) -> list[list[int]]:
        """Drafts [rows], each of at most num_speculative_tokens; none for a row whose prompt is still being read."""
        counts, table = np.asarray(num_tokens_no_spec), np.asarray(token_ids_cpu)
        found = [
            self._request(table[row, : counts[row]], len(sampled)) if len(sampled) else None
            for row, sampled in enumerate(sampled_token_ids)
        ]
        here = [request for request in found if request is not None]
        for request in self.requests:  # whoever is not among them has gone
            self.drafter.stop(request.context)
        self.requests = here
        budgets = [max(0, min(self.most, self.setup.context_length - len(r.tokens) - 1)) for r in here]
        drafts = iter(self.drafter.propose([r.context for r in here], budgets))
        return [_chain(next(drafts)) if request is not None else [] for request in found]

    def _request(self, tokens: np.ndarray[Any, Any], fresh: int) -> _Request:
        """The one whose text these tokens continue, with them; else a new one."""
        for request in self.requests:
            known = len(request.seen)
            if known <= len(tokens) and np.array_equal(request.seen, tokens[:known]):
                self.requests.remove(request)
                request.tokens += tokens[known:].tolist()
                request.seen = tokens.copy()
                return request
        return self._new(tokens, fresh)

    def _new(self, tokens: np.ndarray[Any, Any], fresh: int) -> _Request:
        text, number, self._next = tokens.tolist(), self._next, self._next + 1
        context = Context(number, text, len(text) - fresh, Sampling(), CounterRng(number))
        return _Request(replace(context, state=self.drafter.start(context)), text, tokens.copy())


def _chain(draft: Draft) -> list[int]:
    """The path of a tree that goes on with the likeliest child, the first of equal ones."""
    best: dict[int, int] = {}
    sure = draft.confidence or (1.0,) * len(draft)
    for node, parent in enumerate(draft.parents):
        if parent not in best or sure[node] > sure[best[parent]]:
            best[parent] = node
    path, node = list[int](), -1
    while node in best:
        node = best[node]
        path.append(int(draft.tokens[node]))
    return path


def _setup(vllm_config: Any, drafter: str) -> Setup:  # noqa: ANN401
    """What a drafter may use: sizes, and no model."""

    def nothing(what: str, *_: Any) -> NoReturn:  # noqa: ANN401
        raise ConfigError(f"drafter {drafter!r} asks for {what}, and a proposer of vLLM has none; use another drafter.")

    def no(what: str) -> Callable[..., NoReturn]:
        return partial(nothing, what)

    return Setup(
        vocab=int(vllm_config.model_config.get_vocab_size()),
        context_length=int(vllm_config.model_config.max_model_len),
        eos=(),
        max_requests=int(vllm_config.scheduler_config.max_num_seqs),
        device=torch.device("cpu"),
        dtype=torch.float32,
        open_model=no("a model"),
        open_spelling=no("a tokenizer"),
        open_drafter=no("a further drafter"),
        open_tree=no("a tree"),
        costs=no("measured costs"),
    )


def __getattr__(name: str) -> Callable[[Any], Proposer]:
    """`forerun.vllm.suffix_decoding`: what makes a proposer of that drafter."""
    drafter = name.replace("_", "-")
    if drafter not in DRAFTERS.table:
        raise AttributeError(f"forerun.vllm has no proposer {name!r}; use a drafter that `forerun methods` lists.")
    return partial(Proposer, drafter=drafter)
