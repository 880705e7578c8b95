"""What a verifier may ask of p, asked ahead, so that a pass on a device brings the answers instead of the rows of p.

Every node of a draft has p as it is, and what is left of it after each refused child (2211.17192, eq. 3). Of each of
these the sheet asks for the next child's probability and for the token that the request's own number would draw. What
is asked beyond that still finds the truth: the row is fetched then.
Does not: judge anything; verifiers read its distributions as they read those on the host.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import torch

from forerun.errors import RequestError
from forerun.host import fetch, send
from forerun.kernels.race import first
from forerun.rng import Purpose
from forerun.sampling import Shaper, States, path_to
from forerun.types import Context, Dist, Draft, Floats, Lot

_NOTHING = Draft()


class Ahead(Enum):
    """What a pass may be asked of its logits before there are any, so that less is left to do behind it."""

    NOTHING = 0
    DRAWS = 1  # the tokens that a coupled verifier draws (`lot`)
    SHEETS = 2  # all that a verifier asks of p, which lies on a device


def lot(context: Context, draft: Draft = _NOTHING, eos: tuple[int, ...] = ()) -> Lot | None:
    """The draws of the next tokens, where a pass can make them and they are not the rows' best ones in any case."""
    if context.sampling.best:
        return None
    shaper = Shaper.of(context, eos)
    if not shaper.drawable or (draft.tokens and shaper.bends):
        return None
    keys = [context.rng.ahead(Purpose.TARGET, depth) for depth in range(draft.depth + 1)]
    return shaper.lot([key for key in keys if key is not None], draft) if keys[0] is not None else None


class Sheet:
    """A `Question` about the logits of a draft's root and nodes; `read` makes a `Target` of the answers."""

    def __init__(self, context: Context, draft: Draft = _NOTHING, eos: tuple[int, ...] = ()) -> None:
        self.draft, self.rng, self.greedy = draft, context.rng, context.sampling.greedy
        self.shaper = Shaper.of(context, eos)
        self.rows = torch.empty(0)  # p [rows, vocab], on the device; what it is made of where the request is greedy

    @property
    def worthwhile(self) -> bool:
        """Whether there is anything that the best token of every row does not say."""
        return not self.greedy or self.shaper.bends

    def children(self, row: int) -> tuple[int, ...]:
        """Drafted nodes below a row; row 0 is the root, row i + 1 node i."""
        return self.draft.children(row - 1)

    @cached_property
    def numbers(self) -> list[int | None]:
        """The key that each row's draw uses."""
        return [self.rng.ahead(Purpose.TARGET, depth) for depth in (0, *self.draft.depths)]

    @cached_property
    def stages(self) -> list[list[int]]:
        """Rows that have something left after 0, 1, ... refused children."""
        most = max(len(self.children(row)) for row in range(len(self.numbers)))
        every = range(len(self.numbers))
        return [[row for row in every if len(self.children(row)) >= refused] for refused in range(most + 1)]

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        bent, stuck = self.shaper.bent(logits, lambda row: path_to(self.draft, row - 1))
        parts = [stuck if stuck is not None else bent.new_zeros(len(bent))]
        if self.greedy:
            self.rows = bent
            parts.append(bent.argmax(-1))
        else:
            self.rows = self.shaper.shape(bent)
            parts += self._asked(self.rows)
        return torch.cat([part.double().flatten() for part in parts])

    def token(self, answers: torch.Tensor) -> torch.Tensor:
        rows = len(self.numbers)
        return answers[rows : rows + 1].long()

    def _asked(self, p: torch.Tensor) -> Iterator[torch.Tensor]:
        """Per stage: the token that every row would draw, its probability, and that of the child to be judged next."""
        for refused, rows in enumerate(self.stages):
            tokens = first(p, [self.numbers[row] or 0 for row in rows])
            yield from (tokens, p.gather(1, tokens))
            judged = [i for i, row in enumerate(rows) if len(self.children(row)) > refused]
            if judged:
                nodes = [self.children(rows[i])[refused] for i in judged]
                p = p[send(judged, p.device)]
                yield p.gather(1, send([[self.draft.tokens[node]] for node in nodes], p.device))
                p = self._left(p, nodes)

    def _left(self, p: torch.Tensor, nodes: Sequence[int]) -> torch.Tensor:
        """As `Dist.minus` does for one row; row i was refused node i."""
        rest = p.clone()
        for row, q in enumerate(map(self.draft.drawn_from, nodes)):
            if q.ids is not None:
                rest[row].index_add_(0, send(q.ids, p.device), send(-q.probs, p.device, p.dtype))
            else:
                there = q.far.there if q.far is not None else None
                rest[row] -= there if there is not None else send(q.probs, p.device, p.dtype)
        total = rest.clamp_(min=0).sum(-1, keepdim=True, dtype=torch.float64)
        return torch.where(total > 0, rest / total.to(rest.dtype), p)

    def read(self, answers: Floats) -> "Answers":
        """The answers to this sheet; RequestError where bans leave no token at the root."""
        count = len(self.numbers)
        stuck, rest = answers[:count], answers[count:]
        if stuck[0]:
            raise RequestError(self.shaper.stuck)
        found = Answers(self, frozenset((np.flatnonzero(stuck) - 1).tolist()))
        if self.greedy:
            found.best = [int(token) for token in rest]
            return found
        left = iter(rest.tolist())
        for refused, rows in enumerate(self.stages):
            tokens, masses = [int(next(left)) for _ in rows], [next(left) for _ in rows]
            for row, token, mass in zip(rows, tokens, masses, strict=True):
                found.stages[row, refused] = Stage(found, row, refused, token, mass)
            for row in rows:
                if len(self.children(row)) > refused:
                    found.next[row, refused] = next(left)
        return found


class Answers:
    """p after every node, as far as the host knows it. `stuck`: nodes after which bans leave nothing."""

    def __init__(self, sheet: Sheet, stuck: frozenset[int]) -> None:
        self.sheet, self.stuck = sheet, stuck
        self.states = States({}, 0)  # of the pass that brought the answers
        self.best: list[int] = []  # of every row, where the request is greedy
        self.stages: dict[tuple[int, int], Stage] = {}  # by row and number of refused children
        self.next: dict[tuple[int, int], float] = {}  # the same -> probability of the child that is judged next

    def __getitem__(self, node: int) -> Dist:
        return Dist.point(self.best[node + 1]) if self.best else Dist(self.stages[node + 1, 0])

    @property
    def text(self) -> Sequence[int]:
        """Prompt and output so far."""
        return self.sheet.shaper.tokens

    @cached_property
    def _soft(self) -> Floats:
        return fetch(self.sheet.shaper.soft(self.sheet.rows))

    def soft(self, node: int) -> Dist:
        """As the answer, at temperature 1 where the request is greedy; fetched, as nobody asks ahead for it."""
        return Dist(self._soft[node + 1]) if self.best else self[node]

    def hidden(self, layer: int, node: int) -> Floats:
        """What the layer made of the node's token; fetched as well."""
        return self.states.at(layer, node)


@dataclass(frozen=True, slots=True)
class Stage:
    """What is left of p in one row after some refused children: a `types.Far`."""

    answers: Answers
    row: int
    refused: int
    token: int  # the one that the request's number draws
    mass: float  # its probability

    @property
    def sheet(self) -> Sheet:
        return self.answers.sheet

    @property
    def there(self) -> torch.Tensor | None:
        return self.sheet.rows[self.row] if not self.refused else None

    @property
    def probs(self) -> Floats:
        p = Dist(fetch(self.sheet.rows[self.row]))
        for node in self.sheet.children(self.row)[: self.refused]:
            p = p.minus(self.sheet.draft.drawn_from(node))
        return p.probs

    def prob(self, token: int) -> float | None:
        if token == self.token:
            return self.mass
        return self.answers.next.get((self.row, self.refused)) if token == self._judged()[0] else None

    def drawn(self, key: int) -> int | None:
        return self.token if key == self.sheet.numbers[self.row] else None

    def minus(self, q: Dist) -> Dist | None:
        return Dist(self.answers.stages[self.row, self.refused + 1]) if q is self._judged()[1] else None

    def _judged(self) -> tuple[int, Dist | None]:
        """Token and q of the child that is judged next."""
        children, draft = self.sheet.children(self.row), self.sheet.draft
        if self.refused == len(children):
            return -1, None
        node = children[self.refused]
        return draft.tokens[node], draft.drawn_from(node)
