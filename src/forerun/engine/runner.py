"""One forward pass of a model over its own cache, and its captured graphs; knows shapes, not methods."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from forerun import host
from forerun.caches.contract import Cache
from forerun.engine.batch import flatten, masked, peaks_of, sent, summary, unpack
from forerun.engine.grid import Chain, Inputs, Shape, Shaping, chains, shape_of
from forerun.models.contract import Model
from forerun.types import Flat, Grown, Output, Pass, PassOutput, Sprout, Work

GRAPHS = 64  # passes of as many shapes are kept; the one that was not used for longest goes
CAPTURED = 256  # rows; larger passes are bound by arithmetic, and run as they are
WARM = 2  # passes before a capture, in which libraries choose their kernels and take their memory


class Result(NamedTuple):
    """What a padded pass leaves on the device."""

    output: PassOutput
    summary: torch.Tensor  # float64 [3, wanted]; see batch.summary


class ModelRunner:
    """A model and its cache. The target has one, a drafter with a second model has another.

    With a shaping, passes have fixed shapes, and on a GPU each shape is captured as a graph and replayed. The logits
    that `run` returns are then valid until the next pass: whoever keeps them makes a copy.
    """

    def __init__(self, model: Model, cache: Cache, shaping: Shaping | None = None) -> None:
        self.model, self.cache, self.info = model, cache, model.info
        self.padded = PaddedPasses(model, cache, shaping) if shaping is not None else None

    def run(self, work: Sequence[Work]) -> list[Output]:
        """One flat pass for all works with the same layer plan; their tokens are unjudged afterwards."""
        if self.padded is not None:
            return self.padded.finish([self.padded.start(work)])[0]
        flat = masked(flatten(work, self.cache), device := self.info.layout.device)
        model, cache = self.model, self.cache
        output = model.run(flat, cache) if model.follows else model.forward(sent(flat, device), cache)
        cache.advance(flat.segments)
        return unpack(work, output)

    @property
    def lends(self) -> bool:
        """Whether logits are valid until the next pass only."""
        return self.padded is not None

    def follows(self, *, asks: bool) -> bool:
        """Whether passes can feed each other without the host; `asks`: by more than best tokens and lots."""
        return self.padded is not None or (self.model.follows and not asks)

    def follow(self, steps: Iterable[Sequence[Work]]) -> list[list[Output]]:
        """Passes in a row, fetched together: from the second on, a work's one token is what its slot found before.

        What stands in `tokens` there does not matter; of all logits only those of the last pass, and of passes that
        draw, are whole. `steps` may keep the cache's books between passes, as long as nothing moves. Needs `follows`.
        """
        if self.padded is None:
            works: list[Sequence[Work]] = []
            outputs = self.model.follow(self._flat(steps, works), self.cache)
            return [unpack(work, output) for work, output in zip(works, outputs, strict=True)]
        begun: list[Begun] = []
        for work in steps:
            found = begun[-1].found() if begun else {}
            begun.append(self.padded.start(work, [found[w.slot] for w in work] if begun else None))
        return self.padded.finish(begun) if begun else []

    @property
    def branches(self) -> bool:
        """Whether whole trees can grow without the host."""
        return self.padded is None and self.model.follows

    def follow_best(self, sprouts: Sequence[Sprout]) -> list[Grown]:
        """Read tokens that the cache counts as read, and grow the best tree behind each (`opt-tree`). Needs `branches`.

        The nodes that were read are the first of those that await `keep`.
        """
        return self.model.follow_best(sprouts, self.cache)

    @property
    def aside(self) -> bool:
        """Whether whole trees can grow while the host does something else."""
        return self.branches and self.model.aside

    def begin_best(self, sprouts: Sequence[Sprout]) -> Callable[[], list[Grown]]:
        """The same beside what the host does meanwhile; what comes back waits for the trees.

        Nothing may touch the cache before that. Needs `aside`.
        """
        return self.model.begin_best(sprouts, self.cache)

    def _flat(self, steps: Iterable[Sequence[Work]], works: list[Sequence[Work]]) -> Iterator[tuple[Flat, list[int]]]:
        """Passes, and where each row's token is found; the cache is advanced behind each. Fills `works`."""
        rows: dict[int, int] = {}  # slot -> its last wanted row of the pass before
        for work in steps:
            flat = flatten(work, self.cache)
            yield flat, [rows[w.slot] for w in work] if works else []
            works.append(work)
            self.cache.advance(flat.segments)
            ends = accumulate(len(w.logits) for w in work)
            rows = {w.slot: end - 1 for w, end in zip(work, ends, strict=True)}


class Begun(NamedTuple):
    """A pass that the device was given, with what the host will fetch of it."""

    work: Sequence[Work]
    output: PassOutput
    facts: torch.Tensor  # float64 [3, wanted]
    asked: list[torch.Tensor | None]  # answers per work
    told: np.ndarray[Any, Any] | None = None  # the facts on the host, where the device writes them there itself

    def found(self) -> dict[int, torch.Tensor]:
        """Slot -> its next token, int64 [1], on the device: the one that was asked for, or the most likely one."""
        ends = accumulate(len(w.logits) for w in self.work)
        best = self.facts[0].long()
        return {
            w.slot: w.ask.token(answers) if w.ask is not None and answers is not None else best[end - 1 : end]
            for w, answers, end in zip(self.work, self.asked, ends, strict=True)
        }


class PaddedPasses:
    """Passes of fixed shapes, at one host synchronisation each, or one for several that follow each other."""

    def __init__(self, model: Model, cache: Cache, shaping: Shaping) -> None:
        self.model, self.cache, self.shaping = model, cache, shaping
        self.device = model.info.layout.device
        self.kept: OrderedDict[Hashable, Program] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.resident = model.resident(cache) if shaping.resident else None

    def start(self, work: Sequence[Work], tokens: Sequence[torch.Tensor] | None = None) -> Begun:
        """Pad, send and run; `tokens` [1] each replace those of works that have one."""
        flat, told = flatten(work, self.cache), None
        given = torch.cat(list(tokens)) if tokens else None
        whole = self.resident.run(flat, given) if self.resident is not None else None
        if whole is not None:
            output, facts, told = whole
        else:
            found = chains(flat, self.cache, split=self.shaping.invariant)
            program = self._program(flat, shape_of(flat, found, self.shaping))
            output, facts = program.run(flat, found, given)
            facts = facts[:, : len(flat.wanted)].clone()
        self.cache.advance(flat.segments)
        ends = accumulate(len(w.logits) for w in work)
        asked = [
            w.ask(output.logits[end - len(w.logits) : end]) if w.ask is not None else None
            for w, end in zip(work, ends, strict=True)
        ]
        hidden = {layer: rows.clone() for layer, rows in output.hidden.items()}  # drafters keep them
        return Begun(work, PassOutput(output.logits[: len(flat.wanted)], hidden), facts, asked, told)

    def finish(self, begun: Sequence[Begun]) -> list[list[Output]]:
        """Fetch what the host must know of every wanted row, and the answers to all questions, in one transfer.

        Without a transfer where the device has told the host on its way: then to wait for it is enough.
        """
        sent = [b.facts.flatten() for b in begun if b.told is None]
        sent += [part for b in begun for part in b.asked if part is not None]
        if sent:
            numbers = host.fetch(torch.cat(sent) if len(sent) > 1 else sent[0])
        else:
            host.wait(self.device)
        parts = iter(np.split(numbers, list(accumulate(len(part) for part in sent)))) if sent else iter(())
        facts = [b.told if b.told is not None else next(parts).reshape(b.facts.shape) for b in begun]
        outputs: list[list[Output]] = []
        for b, numbers in zip(begun, facts, strict=True):
            peaks = peaks_of(numbers)
            answers = [next(parts) if part is not None else None for part in b.asked]
            outputs.append(unpack(b.work, replace(b.output, peaks=peaks, answers=answers)))
        return outputs

    def _program(self, flat: Flat, shape: Shape) -> "Program":
        key = (shape, flat.hidden, flat.plan)
        program = self.kept.pop(key, None)
        if program is None:
            inputs = Inputs(shape, self.device, self.cache.rows.scratch)
            work = inputs.work(flat, self.shaping)
            program = Program(inputs, work, self._step(work), self.pool)
        self.kept[key] = program
        if len(self.kept) > GRAPHS:
            self.kept.popitem(last=False)
        return program

    def _step(self, work: Pass) -> Callable[[], Result]:
        def step() -> Result:
            with torch.inference_mode():
                output = self.model.forward(work, self.cache)
                return Result(output, summary(output.logits))

        return step


class Program:
    """A pass of one shape: called as it is, or captured at its first run and replayed from then on."""

    def __init__(self, inputs: Inputs, work: Pass, step: Callable[[], Result], pool: Any) -> None:  # noqa: ANN401 - torch names no type
        self.inputs, self.work, self.step, self.pool = inputs, work, step, pool
        self.captured = pool is None or inputs.shape.rows > CAPTURED

    def run(self, flat: Flat, found: Sequence[Chain], tokens: torch.Tensor | None) -> Result:
        self.inputs.fill(flat, found)
        if tokens is not None:
            self.inputs.tensors["tokens"][: len(tokens)] = tokens
        if not self.captured:
            self.step, self.captured = capture(self.step, self.pool), True
        return self.step()


def capture(step: Callable[[], Result], pool: Any) -> Callable[[], Result]:  # noqa: ANN401 - torch names no type
    """The same step as a CUDA graph over the same memory. It runs some times before, which changes nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool):
        result = step()

    def replay() -> Result:
        graph.replay()
        return result

    return replay
