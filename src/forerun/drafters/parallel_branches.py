"""Items of a list are begun while the first of them is still being written (branches in one sequence, 2503.20533).

Once the text has come to an item, the marks of the next ones are put behind it, each as a branch that does not see the
others, and every pass writes one token more on each. When the text comes to such a mark, what was written ahead there
is the draft.
Different from the paper: a branch is a guess. There it is kept, which decodes several tokens per step and gives items
that were written without the ones before; here the target judges it behind the whole text, so the text is its own, and
the gain is how much of an item does not depend on the one before.
Does not: find out by itself how items are marked; keep a branch in the cache: it is read anew for every further token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.purse import Purse
from forerun.drafting.trie import Trie
from forerun.errors import ConfigError
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

_NOTHING = Draft()


@dataclass(eq=False, slots=True)
class _State:
    purse: Purse
    item: int = -1  # number of the mark that the text came to last
    begin: int = 0  # of the item, in tokens of the whole text
    known: int = 0  # tokens that were looked at
    tail: bytes = b""  # the end of what they write
    ahead: dict[int, list[int]] = field(default_factory=dict)  # by mark, what was written behind it
    ends: dict[int, int] = field(default_factory=dict)  # by mark, the last node of its branch in the last draft


class ParallelBranchesDrafter(SoloDrafter):
    """Writes later items beside the first."""

    facts = Facts(
        keys=("parallel-branches",),
        paper="2503.20533",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#parallel-greedy",
    )
    watches = False

    @dataclass(frozen=True)
    class Options:
        """`marks` of items in their order; `branches` are written ahead at a time, `length` tokens of each.

        `price`: steps that a node costs, 0.03 or more on a CPU; 0: never rest.
        """

        marks: tuple[str, ...] = ("\n1.", "\n2.", "\n3.", "\n4.", "\n5.", "\n6.", "\n7.", "\n8.", "\n9.")
        branches: int = 2
        length: int = 8
        price: float = 0.01

        def __post_init__(self) -> None:
            if not self.marks or not all(self.marks) or min(self.branches, self.length) < 1 or not self.price >= 0:
                told = f"marks is {self.marks}, branches {self.branches} and length {self.length}"
                raise ConfigError(f"drafter 'parallel-branches': {told}; give texts, numbers of at least 1, a price.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.spelling = setup.open_spelling("")
        self.marks = [mark.encode() for mark in options.marks]
        self.heads = [self.spelling.encode(mark) for mark in self.marks]

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(marks=("a", "b", "c"), length=2)

    def start(self, context: Context) -> _State:
        return _State(Purse(self.options.price))

    def propose_one(self, context: Context, budget: int) -> Draft:
        state: _State = context.state
        self._read(state, context.tokens)
        state.ends = {}  # nothing may have been left of the last draft, and nobody been told
        if state.item < 0 or state.purse.rests():
            return _NOTHING
        trie, ends = Trie(budget), dict[int, int]()
        known = state.ahead.get(state.item, [])
        written = list(context.tokens[state.begin : state.begin + len(known) + 1])
        if known[: len(written)] == written:
            trie.add(known[len(written) :])
        for item in range(state.item + 1, min(state.item + 1 + self.options.branches, len(self.marks))):
            branch = [*self.heads[item], *state.ahead.get(item, ())]
            if len(state.ahead.get(item, ())) < self.options.length and len(trie) + len(branch) <= budget:
                ends[item] = trie.add(branch)[-1]
        state.ends = ends
        return state.purse.pay(trie.draft("parallel-branches"))

    def _read(self, state: _State, tokens: Sequence[int]) -> None:
        """Which item the text has come to; the first mark begins a new list."""
        most = max(map(len, self.marks))
        for at, piece in enumerate(self.spelling.spell(tokens[state.known :]), state.known):
            state.tail = (state.tail + (piece if isinstance(piece, bytes) else b""))[-most - len(piece) :]
            following = state.item + 1
            if following < len(self.marks) and state.tail.endswith(self.marks[following]):
                state.item, state.begin = following, at + 1
            elif state.tail.endswith(self.marks[0]):
                state.item, state.begin, state.ahead = 0, at + 1, {}
        state.known = len(tokens)

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            state: _State = context.state
            state.purse.settle(outcome)
            if outcome.draft is not None and len(outcome.draft) > max(state.ends.values(), default=-1):
                for item, end in state.ends.items():
                    state.ahead.setdefault(item, []).append(outcome.output.best[end + 1])
            state.ends = {}  # there may be steps without a draft
