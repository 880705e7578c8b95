"""Randomness per request and counter-based: same seed, same tokens, whatever else is in the batch.

Every draw names what it is for. A draw for the target's own token at a position is made once in a request's life,
so its key is the position alone: plain decoding and every verifier that draws there see the same number. All other
draws may be repeated at a position in a later step (a rejected draft is drafted again), and a verifier that judges
nodes jointly may have looked at them already; their key holds the step as well, so that no number is used twice.

Where the verifier is coupled, drafts are drawn with the target's own numbers: the text is decided before anything is
drafted, and a draft that was drawn from nearly the same distribution mostly guesses it.

Positions are counted from the end of what is committed (`depth`), so that a verifier need not know where it is.
"""

from abc import ABC, abstractmethod
from enum import IntEnum
from hashlib import blake2b
from struct import Struct

from forerun.kernels.race import winner
from forerun.types import Dist

_KEY = Struct("<QqqqB")
_SAMPLE = Struct("<QQ")  # of another length than _KEY, so that no seed is also a draw
_SEEDS = 2**64
_UNIT = 2.0**-53


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of many samples of a request: sample 0 has the seed itself, the others a hash of both.

    A sample is an ordinary request with this seed, so it can be had again alone.
    """
    if sample == 0:
        return seed
    key = _SAMPLE.pack(seed % _SEEDS, sample)
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


class Purpose(IntEnum):
    """What a draw is for."""

    TARGET = 0  # the target's token at a position
    ACCEPT = 1  # whether a drafted node is accepted
    DRAFT = 2  # a drafted token


class Rng(ABC):
    """Draws of one request. The engine calls `begin` at every step of the request, before anything is drawn."""

    step: int = 0
    position: int = 0  # tokens committed so far; depth 0 is the token that comes next

    def begin(self, step: int, position: int) -> None:
        """Say where the request stands."""
        self.step, self.position = step, position

    def ahead(self, purpose: Purpose, depth: int, index: int = 0) -> int | None:
        """The key that a draw will use, where it is known before there is anything to draw from (kernels/race.py)."""
        return None

    @abstractmethod
    def categorical(self, p: Dist, purpose: Purpose, depth: int, index: int = 0) -> int:
        """Draw a token id from p. `index` tells draws of the same purpose at the same depth apart."""

    @abstractmethod
    def bernoulli(self, chance: float, purpose: Purpose, depth: int, index: int = 0) -> bool:
        """True with the given probability; chance >= 1 is always True, chance <= 0 never."""


class CounterRng(Rng):
    """Numbers from a keyed hash of (seed, step, position, index, purpose): no state, so nothing can drift."""

    def __init__(self, seed: int, *, coupled: bool = False) -> None:
        self.seed, self.coupled = seed % _SEEDS, coupled

    def ahead(self, purpose: Purpose, depth: int, index: int = 0) -> int:
        if self.coupled and purpose is Purpose.DRAFT:
            purpose, index = Purpose.TARGET, 0
        step = 0 if purpose is Purpose.TARGET else self.step
        key = _KEY.pack(self.seed, step, self.position + depth, index, purpose)
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")

    def uniform(self, purpose: Purpose, depth: int, index: int = 0) -> float:
        """A float64 in [0, 1) with 53 random bits."""
        return (self.ahead(purpose, depth, index) >> 11) * _UNIT

    def categorical(self, p: Dist, purpose: Purpose, depth: int, index: int = 0) -> int:
        if p.only is not None:
            return p.only
        return winner(p, self.ahead(purpose, depth, index))

    def bernoulli(self, chance: float, purpose: Purpose, depth: int, index: int = 0) -> bool:
        return chance >= 1 or (chance > 0 and self.uniform(purpose, depth, index) < chance)


class RngPart(Rng):
    """One drafter's part of a request's numbers: two draws from one number would not be independent.

    Under a coupled verifier all drafters have the target's numbers, since only the target's draw decides.
    """

    def __init__(self, all_numbers: Rng, place: int, count: int) -> None:
        self._all, self._place, self._count = all_numbers, place, count

    def ahead(self, purpose: Purpose, depth: int, index: int = 0) -> int | None:
        return self._all.ahead(purpose, depth, index * self._count + self._place)

    def categorical(self, p: Dist, purpose: Purpose, depth: int, index: int = 0) -> int:
        return self._all.categorical(p, purpose, depth, index * self._count + self._place)

    def bernoulli(self, chance: float, purpose: Purpose, depth: int, index: int = 0) -> bool:
        return self._all.bernoulli(chance, purpose, depth, index * self._count + self._place)
