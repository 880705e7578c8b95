"""A further model that reads what the target reads: its logits after every node of a draft.

It has a cache of its own and reads in one pass whatever was committed since it last read, and the draft after it.
Does not: translate between tokenizers; both models must share one vocabulary. Share its weights or its cache with a
drafter that opened the same folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from forerun.errors import ConfigError
from forerun.types import Draft, Output, Runner, Setup, Work


@dataclass(frozen=True, slots=True)
class Page:
    """What is to be read for one request: everything committed, and a draft after it."""

    slot: int  # of the reader's own cache
    text: Sequence[int]
    draft: Draft
    said: torch.Tensor  # the target's logits after the text and after every node, [1 + nodes, vocab]


def second_model(setup: Setup, folder: str, who: str, cache: str = "contiguous", dtype: str = "auto") -> Runner:
    """A model of the target's vocabulary, "": its companion; `who` needs it, and says so where it cannot be had."""
    name = folder or setup.companion
    if not name:
        raise ConfigError(f"{who} needs another model, and the target's folder names none; give model=FOLDER.")
    runner = setup.open_model(name, cache, dtype)
    if runner.info.vocab_size != setup.vocab:
        sizes = f"{runner.info.vocab_size} tokens and the target {setup.vocab}"
        remedy = f"use a model that shares the target's tokenizer, or drafter='other-vocab:model={name}'"
        raise ConfigError(f"{who}: {name!r} has {sizes}; {remedy}.")
    return runner


def check_states(tree: str, hidden: Sequence[int], size: int, runner: Runner) -> None:
    """ConfigError where a tree reads states of another size, or of a layer that the drafter's model lacks."""
    info = runner.info
    if hidden and (size != len(hidden) * info.hidden_size or max(hidden) >= info.num_layers):
        reads = f"reads states of {size} numbers of layer {hidden[0]}"
        has = f"model {info.name!r} has {info.num_layers} layers of {info.hidden_size}"
        raise ConfigError(f"tree {tree!r} {reads}, and {has}; train a head with `forerun train stopping`.")


class Seat(Protocol):
    """What a member keeps of a request that has a slot in its model's cache."""

    slot: int


def leave(runner: Runner, seat: Seat) -> None:
    """Give a request's slot back, if it has one; it has none from then on."""
    if seat.slot >= 0:
        runner.cache.close(seat.slot)
        seat.slot = -1


class Reader:
    """One model that reads texts as long as the target does."""

    def __init__(self, setup: Setup, folder: str, dtype: str, who: str) -> None:
        self.runner = second_model(setup, folder, who, dtype=dtype)
        info = self.runner.info
        if info.context_length < setup.context_length:
            sizes = f"{info.context_length} tokens and the target {setup.context_length}"
            raise ConfigError(f"{who}: {info.name!r} reads {sizes}; set context_length={info.context_length}.")

    def open(self) -> int:
        """A slot for a request."""
        return int(self.runner.cache.open(())[0])

    def close(self, slot: int) -> None:
        """Give it back."""
        self.runner.cache.close(slot)

    def read(self, pages: Sequence[Page]) -> list[torch.Tensor]:
        """Logits after the last committed token and after every node, [1 + nodes, vocab] each."""
        works = [self._work(page) for page in pages]
        for page, work in zip(pages, works, strict=True):
            self.runner.cache.reserve(page.slot, len(work.tokens))
        outputs: list[Output] = self.runner.run(works) if works else []
        return [output.logits for output in outputs]

    def _work(self, page: Page) -> Work:
        draft, unread = page.draft, tuple(page.text[self.runner.cache.length(page.slot) :])
        last = len(unread) - 1
        parents = (*range(-1, last), *(last + 1 + parent for parent in draft.parents))
        return Work(page.slot, unread + draft.tokens, parents, logits=tuple(range(last, last + 1 + len(draft))))

    def keep(self, page: Page, path: Sequence[int]) -> None:
        """What `read` read of the text stays, and of the draft the nodes of `path`."""
        cache = self.runner.cache
        unread = page.text[cache.length(page.slot) :]
        nodes = [page.draft.tokens[node] for node in path]
        cache.keep(page.slot, [*unread, *nodes], [*range(len(unread)), *(len(unread) + node for node in path)])
