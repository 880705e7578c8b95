"""What a tree asks of a drafter's distributions: the likeliest tokens after some nodes, or tokens drawn there.

A look is asked of one pass, for one request: on a device it is answered there, and the answers come with the pass.
Siblings without replacement are drawn one after the other, each from what its elders left: the order in which the
Gumbel-top-k trick finds them (1903.06059).
Does not: know why it is asked; trees do.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from forerun.host import fetch
from forerun.kernels.race import first
from forerun.kernels.ranks import ranks, ranks_here
from forerun.rng import Purpose, Rng
from forerun.sampling import Path, Shaper
from forerun.types import Dist, Floats, Ints, Lot, Output

TOPS = 4  # of the largest probabilities, which `Traits` holds
_NODES = 32  # bits of a draw's index that say which node it is below


@dataclass(eq=False, slots=True)
class Child:
    """A token that may follow a node; all zeros while its look is not answered."""

    token: int = 0
    q: Dist | None = None  # what it was drawn from, its elder siblings refused; None: chosen
    chance: float = 0.0  # of this token after its node, whatever its siblings are
    confidence: float = 0.0  # as types.Draft has it: of a drawn token, nothing that the draw decides


@dataclass(frozen=True, slots=True)
class Origin:
    """What a look must know of its request's draft."""

    shaper: Shaper
    rng: Rng
    path: Callable[[int], Path]  # tokens after the committed ones, down to a node, itself included


@dataclass(frozen=True, slots=True)
class Traits:
    """What a distribution is like, whatever is drawn from it."""

    entropy: float  # nats
    tops: tuple[float, ...]  # the largest probabilities, in falling order
    state: Floats | None = None  # the hidden state that it was made of [hidden], where a look asks for it

    @staticmethod
    def of(numbers: Sequence[float], state: Floats | None = None) -> "Traits":
        """One row of what `traits_of` finds."""
        return Traits(numbers[0], tuple(numbers[1:]), state)


class Look(ABC):
    """A `Question`: at most `count` children of every node, and the traits of their distributions where asked for."""

    def __init__(
        self, origin: Origin, nodes: Sequence[int], count: int, *, traits: bool, hidden: tuple[int, ...] = ()
    ) -> None:
        self.origin, self.nodes, self.count, self.asks_traits = origin, nodes, count, traits
        self.hidden = hidden  # layers whose states the traits are to have, side by side; the pass is asked for them
        self.answered = False
        self.promised: list[tuple[Child, int, int]] = []  # children that were asked for before the answers came
        self.found_traits: Floats = np.empty(0)
        self.states: Floats | None = None  # behind every node [nodes, hidden]

    @property
    @abstractmethod
    def worthwhile(self) -> bool:
        """Whether there is anything that the best token of every row does not say."""

    @property
    @abstractmethod
    def early(self) -> bool:
        """Whether it can be asked before the tokens are known that it looks behind."""

    @property
    def lot(self) -> Lot | None:
        """All that is asked as one draw, where it comes to that and a pass can make it."""
        return None

    @abstractmethod
    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """The answers to logits [nodes, vocab], flat."""

    @abstractmethod
    def _read(self, output: Output) -> None:
        """Take what came with the pass, or find it now."""

    @abstractmethod
    def _child(self, row: int, i: int) -> Child | None:
        """As `child`, once answered."""

    def token(self, answers: torch.Tensor) -> torch.Tensor:
        """The first child of the first node."""
        return answers[1:2].long()

    def read(self, output: Output) -> None:
        """The pass is done."""
        self._read(output)
        if self.hidden:
            rows = [output.hidden[layer][-len(self.nodes) :] for layer in self.hidden]
            self.states = fetch(torch.cat(rows, 1).float())
        self.answered = True
        for child, row, i in self.promised:
            found = self._child(row, i) or Child()
            child.token, child.q, child.chance, child.confidence = found.token, found.q, found.chance, found.confidence

    def child(self, row: int, i: int = 0) -> Child | None:
        """The i-th child of a node, elders before the younger; None where there are fewer tokens than that."""
        if self.answered:
            return self._child(row, i)
        self.promised.append((Child(), row, i))
        return self.promised[-1][0]

    def traits(self, row: int) -> Traits:
        """Of the distribution after a node."""
        return Traits.of(self.found_traits[row].tolist(), self.states[row] if self.states is not None else None)

    def _bent_here(self, output: Output) -> tuple[torch.Tensor, Floats | None]:
        """The same of a pass that is done, on the host; None: in no row."""
        if not self.origin.shaper.bends:
            return output.logits, None
        bent, stuck = self._bent(output.logits)
        return bent, fetch(stuck)

    def _bent(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Shaper.bent`, and in which rows bans leave nothing [n, 1]."""
        bent, stuck = self.origin.shaper.bent(logits, lambda row: self.origin.path(self.nodes[row]))
        return bent, (stuck if stuck is not None else bent.new_zeros(len(bent)))[:, None]


class Likeliest(Look):
    """The most likely tokens, the lowest ids first where several are; chances before temperature and cut-offs."""

    best: Sequence[Child] = ()  # one per node, where no more is asked for and the pass has found it anyway

    @cached_property
    def tokens(self) -> Ints:
        """[nodes, count], once answered."""
        return np.array([[child.token] for child in self.best])

    @cached_property
    def chances(self) -> Floats:
        """Of these; 0 where there is no such child."""
        return np.array([[child.chance] for child in self.best])

    @property
    def worthwhile(self) -> bool:
        return self.count > 1 or self.asks_traits or self.origin.shaper.bends

    @property
    def early(self) -> bool:
        return not self.origin.shaper.bends

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        bent, stuck = self._bent(logits)
        return torch.cat([stuck.double(), ranks(bent, self._ranked(bent))], 1).flatten()

    def _read(self, output: Output) -> None:
        if output.mass is not None and not self.worthwhile:
            chances = [1 / mass for mass in output.mass]
            self.best = [Child(token, None, c, c) for token, c in zip(output.best, chances, strict=True)]
            return
        stuck, found = self._found(output)
        ranked = found.shape[1] // 2
        here = min(self.count, ranked)
        self.tokens = found[:, :here].astype(np.int64)
        self.chances = found[:, ranked : ranked + here]
        if stuck is not None:
            self.chances = np.where(stuck > 0, 0, self.chances)
        if self.asks_traits:
            tops = found[:, ranked : min(ranked + TOPS, 2 * ranked)]
            self.found_traits = np.pad(np.hstack([found[:, -1:], tops]), ((0, 0), (0, TOPS - tops.shape[1])))

    def _found(self, output: Output) -> tuple[Floats | None, Floats]:
        """In which rows nothing is left [n, 1], where that can be, and `ranks` of all."""
        if output.answers is not None:
            rows = output.answers.reshape(len(self.nodes), -1)
            return rows[:, :1], rows[:, 1:]
        bent, stuck = self._bent_here(output)
        return stuck, ranks_here(bent, self._ranked(bent))

    def _ranked(self, logits: torch.Tensor) -> int:
        """How many tokens of a row are looked at."""
        return min(max(self.count, TOPS if self.asks_traits else 0), logits.shape[-1])

    def _child(self, row: int, i: int) -> Child | None:
        if self.best:
            return self.best[row] if i == 0 else None
        return self.chosen(row, i) if i < self.tokens.shape[1] and self.chances[row, i] > 0 else None

    def chosen(self, row: int, i: int) -> Child:
        """The i-th child, which is there: its chance is not 0."""
        chance = float(self.chances[row, i])
        return Child(int(self.tokens[row, i]), None, chance, chance)


class Drawn(Look):
    """Tokens drawn from q, the distribution that the request's sampling makes of the logits.

    Their numbers are known before there is anything to draw from, so that a device can draw. Those of the rng that
    visits every outcome are not: its tokens are drawn on the host.
    """

    worthwhile = True

    def __init__(
        self,
        origin: Origin,
        nodes: Sequence[int],
        count: int,
        *,
        traits: bool,
        again: bool,
        hidden: tuple[int, ...] = (),
    ) -> None:
        super().__init__(origin, nodes, count, traits=traits, hidden=hidden)
        self.again = again  # with replacement, so that the same token may come twice
        self.children: list[list[Child]] = [[] for _ in nodes]
        self.left: list[torch.Tensor] = []  # q of every draw [nodes, vocab], where the device draws
        self.logits = torch.empty(0)  # that q is made of [1, vocab], where a pass on the host has drawn
        self.rows: Floats | None = None  # q of the first draw [nodes, vocab], where the host draws
        self.drawn: Floats = np.empty(0)  # else token, probability and confidence of every draw [nodes, count, 3]
        self.stuck: Floats = np.empty(0)  # [nodes]

    @property
    def early(self) -> bool:
        return self.foretold and not self.origin.shaper.bends

    @property
    def lot(self) -> Lot | None:
        if self.count > 1 or len(self.nodes) > 1 or self.asks_traits or not self.early:
            return None
        return Lot(self.origin.shaper.sampling, (self.numbers[0][0] or 0,), odds=True)

    @property
    def foretold(self) -> bool:
        """Whether the numbers are known."""
        return all(None not in row for row in self.numbers)

    @cached_property
    def numbers(self) -> list[list[int | None]]:
        """The key that each draw uses, [nodes, count]."""
        return [
            [self.origin.rng.ahead(*self._key(row, i)) for i in range(self.count)] for row in range(len(self.nodes))
        ]

    def _key(self, row: int, i: int) -> tuple[Purpose, int, int]:
        """Which number decides draw i below a node."""
        node = self.nodes[row]
        return Purpose.DRAFT, len(self.origin.path(node)), i << _NODES | node + 1

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        bent, stuck = self._bent(logits)
        self.left = [self.origin.shaper.shape(bent)]
        parts = [stuck, *(part for i in range(self.count) for part in self._draw(i))]
        if self.asks_traits:
            parts.append(traits_of(self.left[0]))
        return torch.cat([part.double() for part in parts], 1).flatten()

    @cached_property
    def whole(self) -> Floats:
        """Q of the only draw [vocab], where a pass on the host has made it."""
        found: Floats = fetch(self.origin.shaper.shape(self.logits))[0]
        return found

    def _draw(self, i: int) -> tuple[torch.Tensor, ...]:
        """Token, probability and confidence of draw i below every node, as the host would draw them."""
        p = self.left[i]
        at = first(p, [row[i] or 0 for row in self.numbers])
        if i + 1 < self.count:
            self.left.append(p if self.again else _without(p, at))
        return at, p.gather(1, at), p.norm(dim=-1, keepdim=True)

    def _read(self, output: Output) -> None:
        if output.answers is not None:
            rows = output.answers.reshape(len(self.nodes), -1)
            self.stuck, self.drawn = rows[:, 0], rows[:, 1 : 1 + 3 * self.count].reshape(len(rows), self.count, 3)
            self.found_traits = rows[:, 1 + 3 * self.count :]
            self.rows = None if self.foretold else fetch(self.left[0])
            return
        if output.drawn and output.drawn[0] is not None:
            self.stuck, self.drawn, self.logits = np.zeros(1), np.array([[output.drawn[0][1:]]]), output.logits
            return
        bent, stuck = self._bent_here(output)
        p = self.origin.shaper.shape(bent)
        self.rows, self.stuck = fetch(p), stuck[:, 0] if stuck is not None else np.zeros(len(p))
        if self.asks_traits:
            self.found_traits = fetch(traits_of(p))

    def _child(self, row: int, i: int) -> Child | None:
        found = self.children[row]
        while len(found) <= i:
            child = self._next(row, found) if not self.stuck[row] else None
            if child is None:
                return None
            found.append(child)
        return found[i]

    def _next(self, row: int, elders: Sequence[Child]) -> Child | None:
        """One draw more; None where the elders have taken all there is.

        The root of the sum of q squared is the guess at sum min(p, q), how often a token drawn from q is accepted.
        """
        if self.rows is None:
            token, mass, guess = self.drawn[row, len(elders)].tolist()
            q = elders[0].q if self.again and elders else Dist(_Drawable(self, row, len(elders)))
            chance = mass if self.again else mass * (1 - sum(elder.chance for elder in elders))
        else:
            q = self._left(self.rows[row], elders)
            if q is None:
                return None
            token = self.origin.rng.categorical(q, *self._key(row, len(elders)))
            chance, guess = float(self.rows[row, token]), float(np.dot(q.probs, q.probs)) ** 0.5
        refused = max(1 - sum(elder.confidence for elder in elders), 0.0)
        return Child(int(token), q, chance, guess * refused) if chance > 0 else None

    def _left(self, p: Floats, elders: Sequence[Child]) -> Dist | None:
        """What the next draw on the host is from."""
        if self.again or not elders:
            return elders[0].q if elders else Dist(p)
        rest = p.copy()
        rest[[elder.token for elder in elders]] = 0
        total = rest.sum(dtype=np.float64)
        return Dist(rest / rest.dtype.type(total)) if total > 0 else None


@dataclass(frozen=True, slots=True)
class _Drawable:
    """What one draw in a pass was from: a `types.Far`."""

    look: Drawn
    row: int
    draw: int

    @property
    def there(self) -> torch.Tensor | None:
        return self.look.left[self.draw][self.row] if self.look.left else None

    @property
    def probs(self) -> Floats:
        return fetch(self.there) if self.there is not None else self.look.whole

    def prob(self, token: int) -> float | None:
        same = range(self.look.count) if self.look.again else (self.draw,)
        drawn = self.look.drawn[self.row]
        return next((float(drawn[i, 1]) for i in same if drawn[i, 0] == token), None)

    def drawn(self, key: int) -> int | None:
        return None

    def minus(self, q: Dist) -> Dist | None:
        return None


def _without(p: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Norm(p but for one token per row); zeros where nothing is left."""
    rest = p.scatter(1, tokens, 0.0)
    total = rest.sum(-1, keepdim=True, dtype=torch.float64)
    return torch.where(total > 0, rest / total.to(rest.dtype), 0)


def traits_of(p: torch.Tensor) -> torch.Tensor:
    """`Traits` of distributions [n, vocab] -> [n, 1 + TOPS]."""
    tops = p.topk(min(TOPS, p.shape[-1]), -1).values
    return torch.cat([torch.special.entr(p).sum(-1, keepdim=True), _pad(tops)], 1)


def _pad(tops: torch.Tensor) -> torch.Tensor:
    """Zeros where the vocabulary is smaller than what is asked of it."""
    return torch.nn.functional.pad(tops, (0, TOPS - tops.shape[-1]))
