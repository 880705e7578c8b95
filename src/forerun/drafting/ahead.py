"""What the target itself has said of positions that are not written yet: the rows of a judged draft, rejected ones too.

A row is read behind its node's whole path, so what it says is a guess as soon as some token of that path was refused.
Does not: say anything of positions that no node of the draft stood before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.host import fetch
from forerun.rng import Purpose
from forerun.sampling import Shaper, path_to
from forerun.types import Context, Dist, Draft, Outcome


def speakers(draft: Draft, path: Sequence[int]) -> list[int]:
    """The node that speaks of each position after the verdict's token: of those at its depth the nearest to the path.

    Near is who has most accepted ancestors; of several the eldest.
    """
    accepted, shared, found = set(path), list[int](), dict[int, int]()
    for node, parent in enumerate(draft.parents):
        shared.append((shared[parent] if parent >= 0 else 0) + (node in accepted))
    for node, depth in enumerate(draft.depths):
        if depth > len(path) and (depth not in found or shared[node] > shared[found[depth]]):
            found[depth] = node
    return [found[depth] for depth in sorted(found)]


def filler(tokens: Sequence[int], count: int) -> list[int]:
    """Tokens for positions of which nobody has said anything: the text's last one, again and again."""
    return [tokens[-1]] * count


@dataclass(eq=False, slots=True)
class Window:
    """Guesses at the tokens that come next, one per position, each renewed by the pass that reads those before it."""

    guesses: list[Dist] = field(default_factory=list)  # of the positions from `begin` on
    begin: int = 0

    def _until_now(self, context: Context) -> list[Dist]:
        """The guesses after the committed tokens: there may have been steps that nobody was shown."""
        return self.guesses[len(context.tokens) - self.begin :]

    def draft(self, context: Context, size: int, source: str) -> Draft:
        """A chain of the next `size` guesses; where there are fewer it goes on with tokens of the text."""
        known = self._until_now(context)[:size]
        tokens = [context.rng.categorical(guess, Purpose.DRAFT, i, i) for i, guess in enumerate(known)]
        drawn = [guess if guess.only is None else None for guess in known]
        tokens += filler(context.tokens, size - len(known))
        drawn += [None] * (size - len(known))
        return Draft.chain(tokens, source, tuple(drawn) if any(drawn) else None)

    def advance(self, context: Context, outcome: Outcome, eos: tuple[int, ...], *, drawn: bool) -> None:
        """The guesses after what was committed; `drawn`: as distributions, which tokens are drawn from."""
        if outcome.draft is None or outcome.verdict is None:
            return
        draft, path = outcome.draft, outcome.verdict.path
        nodes = speakers(draft, path)
        older = self._until_now(context)[len(path) + 1 + len(nodes) :]
        self.begin = len(context.tokens) + len(path) + 1
        if drawn and nodes and not context.sampling.greedy:
            shaper = Shaper.of(context, eos)
            rows = outcome.output.logits[[node + 1 for node in nodes]]
            bent, _ = shaper.bent(rows, lambda row: path_to(draft, nodes[row]))
            self.guesses = [*map(Dist, fetch(shaper.shape(bent))), *older]
        else:
            self.guesses = [*(Dist.point(outcome.output.best[node + 1]) for node in nodes), *older]
