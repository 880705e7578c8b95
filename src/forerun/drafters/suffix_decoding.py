"""Continue as this text, or an earlier one of its scope, did after the same tokens (SuffixDecoding, 2411.04975).

Two kinds of suffix automata are looked up: the request's own, and those of earlier outputs. A context that occurred n
times and went on with a token c times gives it the chance c / n; the likeliest paths become a tree (alg. 1), of at most
`factor` nodes per matched token, so that long matches draft far and short ones little. The tree with the largest
expected number of accepted nodes is the draft. With `--draft-store` earlier outputs outlive the engine.
Does not: show one scope what another wrote; learn from a request before it ends; tell a seed's text apart from its
past (only a coupled verifier, as `match`, writes the same text again).
"""

from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.kernels.automaton import Guess
from forerun.stores.archive import Archive, Place, Volume, check_room
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()


def _guess(place: Place, budget: int, factor: float, least: float) -> tuple[Guess, Volume | None]:
    """The tree that promises most, and the volume it is from."""
    best, source = place.own.tree(place.own.earlier(place.end), budget, factor, least), None
    for volume, match in place.matches.items():
        if match[1] * factor > best[-1]:
            found = volume.automaton.tree(match, budget, factor, least)
            best, source = (found, volume) if found[-1] > best[-1] else (best, source)
    return best, source


class SuffixDecodingDrafter(SoloDrafter):
    """Frequencies in suffix automata; shared by the requests of a scope."""

    facts = Facts(keys=("suffix-decoding",), paper="2411.04975", learns=True, evidence="docs/results/README.md#hybrids")

    @dataclass(frozen=True)
    class Options:
        """`factor` nodes per matched token, at most `nodes`, of at least `least`; `room`: tokens of earlier outputs."""

        factor: float = 1.0
        nodes: int = 64
        least: float = 0.1
        room: int = 1_000_000

        def __post_init__(self) -> None:
            check_room(self.room, "drafter 'suffix-decoding'")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.archive = options, Archive(options.room, setup.store)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(nodes=3, least=0.0, room=1000)

    def start(self, context: Context) -> Place:
        return Place()

    def stop(self, context: Context) -> None:
        self.archive.learn(context)

    def propose_one(self, context: Context, budget: int) -> Draft:
        place, o = context.state, self.options
        place.read(context.tokens, self.archive.of(context.scope))
        (tokens, parents, chances, _), volume = _guess(place, min(budget, o.nodes), o.factor, o.least)
        if volume is not None:
            self.archive.use(volume)
        return Draft(tokens, parents, None, chances, "suffix-decoding") if tokens else _NOTHING
