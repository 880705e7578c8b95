"""Lookahead decoding: n-grams that Jacobi iterations came by are kept, and guessed where they fit (2402.02057).

One pass reads two kinds of branches below the last token. The lookahead branch is a comb: a trunk of guessed tokens,
and behind the last token and every token of the trunk the newest guesses of one column, a tooth. What the target says
after a tooth completes an n-gram; the comb then moves on by the tokens that were written. The verification branch is
up to `guesses` n-grams that begin where the text ends. The paper's mask over its window is the mask of this tree.
Different from the paper: the comb's own nodes are judged, too, so a window that is right is taken at once; equal
beginnings are one node; teeth begin as pieces of the text, so there are no steps that only fill the window; where
nodes are few they are n-grams, which come true, before they are columns, which teach.
Does not: draw guesses; where a request samples, a guess is accepted with the probability of its token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.purse import Purse
from forerun.drafting.trie import ROOT, Trie
from forerun.errors import ConfigError
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

GUESS, TOOTH = 0.6, 0.05  # confidence in an n-gram's token, and in a column's
_NOTHING = Draft()
Gram = tuple[int, ...]


class _Pool:
    """For every token the n-grams that followed it, the latest last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.grams: dict[int, dict[Gram, None]] = {}

    def put(self, key: int, gram: Gram) -> None:
        grams = self.grams.setdefault(key, {})
        grams.pop(gram, None)
        grams[gram] = None
        if len(grams) > self.most:
            del grams[next(iter(grams))]

    def latest(self, key: int) -> list[Gram]:
        return list(reversed(self.grams.get(key, ())))


@dataclass(eq=False, slots=True)
class _State:
    purse: Purse
    pool: _Pool
    teeth: list[list[int]] = field(default_factory=list)  # by column
    trunk: list[int] = field(default_factory=list)  # column i + 1 hangs below token i
    ends: list[int] = field(default_factory=list)  # nodes of the last draft: of every column that it has, the last
    size: int = 0  # of the last draft
    filled: int = 0  # where the text was copied from last
    known: int = 0  # tokens of the text that the pool has


class LookaheadDrafter(SoloDrafter):
    """The target's own n-grams."""

    facts = Facts(
        keys=("lookahead",),
        paper="2402.02057",
        needs=frozenset({Need.LOGITS, Need.BRANCHING}),
        evidence="docs/results/README.md#parallel-greedy",
    )
    watches = False

    @dataclass(frozen=True)
    class Options:
        """`ngram` N, `window` W and `guesses` G of the paper; `text`: the text's own n-grams are kept, too.

        The branches have about (N - 1) (W + G) nodes; a planner that grants fewer gets fewer guesses and columns.
        `price`: steps that a node costs, 0.03 or more on a CPU; 0: never rest.
        """

        ngram: int = 4
        window: int = 5
        guesses: int = 5
        text: bool = True
        price: float = 0.01

        def __post_init__(self) -> None:
            if self.ngram < 3 or min(self.window, self.guesses) < 1 or not self.price >= 0:  # noqa: PLR2004 - a tooth has one
                told = f"ngram is {self.ngram}, window {self.window}, guesses {self.guesses} and price {self.price}"
                raise ConfigError(f"drafter 'lookahead': {told}; give at least 3, 1, 1 and 0.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(ngram=3, window=2, guesses=2)

    def start(self, context: Context) -> _State:
        return _State(Purse(self.options.price), _Pool(self.options.guesses))

    def propose_one(self, context: Context, budget: int) -> Draft:
        state: _State = context.state
        tokens = context.tokens
        state.ends, state.size = [], 0  # nothing may have been left of the last draft, and nobody been told
        if state.purse.rests():
            return _NOTHING
        self._read(state, tokens)
        self._fill(state, tokens)
        trie, span = Trie(budget), self.options.ngram - 1
        most = budget // 2 if budget >= 4 * span else budget  # room for two of both, or n-grams alone
        for gram in state.pool.latest(tokens[-1]):
            trie.add(gram[: most - len(trie)], ROOT, GUESS)
        state.ends, state.size = self._comb(state, trie), len(trie)
        return state.purse.pay(trie.draft("lookahead"))

    def _read(self, state: _State, tokens: Sequence[int]) -> None:
        """Keep the n-grams that the text has come by."""
        span = self.options.ngram
        for end in range(max(state.known + 1, span), len(tokens) + 1) if self.options.text else ():
            state.pool.put(tokens[end - span], tuple(tokens[end - span + 1 : end]))
        state.known = len(tokens)

    def _fill(self, state: _State, tokens: Sequence[int]) -> None:
        """New columns at the far end, with pieces of the text in turn."""
        span = self.options.ngram - 1
        while len(state.teeth) < self.options.window:
            state.filled = (state.filled + span) % len(tokens)
            piece = [tokens[(state.filled + i) % len(tokens)] for i in range(span)]
            if state.teeth:
                state.trunk.append(piece[0])
            state.teeth.append(piece[1:])

    def _comb(self, state: _State, trie: Trie) -> list[int]:
        """Columns from the near end on, as long as there is room for all of one; the last node of each."""
        below, ends = ROOT, list[int]()
        for column, teeth in enumerate(state.teeth):
            if column:
                found = trie.add(state.trunk[column - 1 : column], below, TOOTH)
                if not found:
                    break
                below = found[0]
            nodes = trie.add(teeth, below, TOOTH)
            if len(nodes) < len(teeth):
                break
            ends.append(nodes[-1])
        return ends

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            state: _State = context.state
            state.purse.settle(outcome)
            if outcome.verdict is None or outcome.draft is None:
                continue
            keys, judged = [context.tokens[-1], *state.trunk], len(outcome.draft) >= state.size
            for column, end in enumerate(state.ends if judged else ()):
                teeth = state.teeth[column]
                teeth.append(outcome.output.best[end + 1])
                state.pool.put(keys[column], tuple(teeth))
            self._move(state, len(state.ends) if judged else 0, len(outcome.verdict.path))
            state.ends, state.size = [], 0  # there may be steps without a draft

    @staticmethod
    def _move(state: _State, moved: int, accepted: int) -> None:
        """On by the tokens that were written: the first of every renewed tooth becomes part of the trunk."""
        fresh = [teeth.pop(0) for teeth in state.teeth[:moved]]
        state.trunk = [*fresh[1 + accepted :], *state.trunk[max(moved - 1, accepted) :]]
        state.teeth = state.teeth[accepted:]
