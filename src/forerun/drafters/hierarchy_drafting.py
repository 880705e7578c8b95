"""Several databases of n-grams, asked in the order of how soon what they hold comes again (2502.05609).

First the request's own text, then what earlier requests were answered, then the most frequent phrases of a corpus. Each
names continuations of the last `match` tokens, its newest or most frequent first; a lower one is asked where the higher
ones did not fill the draft. Continuations become one tree, in which a common beginning stands once.
Does not: fill the database of the model's own phrases in the background, as the paper does with parallel guesses;
forget by age (the databases of requests keep their newest phrases per key).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.pool import Pool
from forerun.errors import ConfigError
from forerun.types import Context, Draft, Facts, Need, Setup

Gram = tuple[int, ...]
SOURCES = ("context", "model", "statistics")


class Phrases:
    """Places in texts by the tokens before them: of each the newest, and of the keys those that came last."""

    def __init__(self, options: "HierarchyDrafter.Options") -> None:
        self._options = options
        self._places: dict[Gram, list[tuple[Sequence[int], int]]] = {}

    def add(self, text: Sequence[int], start: int, end: int) -> None:
        """The places of a text from `start` to before `end`; it may grow behind them."""
        options = self._options
        for place in range(max(start, options.match), end):
            key = tuple(text[place - options.match : place])
            held = self._places.pop(key, [])
            held.append((text, place))
            self._places[key] = held[-options.each :]
        while len(self._places) > options.keys:
            del self._places[next(iter(self._places))]

    def after(self, key: Gram) -> Iterator[Gram]:
        """What follows the tokens, the newest first."""
        for text, place in reversed(self._places.get(key, ())):
            yield tuple(text[place : place + self._options.width])


@dataclass(eq=False, slots=True)
class _Databases:
    """Those that a request has of its own, and with others."""

    context: Phrases
    model: Phrases
    known: int = 0  # places of the request's text that are in the first


class HierarchyDrafter(SoloDrafter):
    """Context, model and statistics."""

    facts = Facts(
        keys=("hierarchy-drafting",),
        paper="2502.05609",
        needs=frozenset({Need.BRANCHING}),
        learns=True,
        evidence="docs/results/README.md#drafts",
    )

    @dataclass(frozen=True)
    class Options:
        """`width` tokens of a continuation, after `match` tokens; at most `each` of them from a database.

        `corpus`: a text whose `frequent` most frequent phrases are the last database; "" for none. `keys`: tokens of
        which a database knows continuations. `shared`: what requests of a scope were answered serves those that follow.
        """

        width: int = 8
        match: int = 2
        each: int = 3
        corpus: str = ""
        frequent: int = 50_000
        keys: int = 200_000
        shared: bool = True

        def __post_init__(self) -> None:
            if self.corpus and not Path(self.corpus).is_file():
                message = f"drafter 'hierarchy-drafting': there is no corpus {self.corpus!r}"
                raise ConfigError(f"{message}; give a UTF-8 text, or leave it out.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.pool = Pool(lambda: Phrases(options), shared=options.shared)
        self.statistics = Phrases(options)
        if options.corpus:
            text = Path(options.corpus).read_bytes()
            if not text.strip():
                message = f"drafter 'hierarchy-drafting': the corpus {options.corpus!r} holds no text"
                raise ConfigError(f"{message}; give one that does, or leave it out.")
            for phrase in _frequent(setup.open_spelling("").encode(text), options):
                self.statistics.add(phrase, options.match, options.match + 1)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(width=2, match=1, each=2)

    def start(self, context: Context) -> _Databases:
        return _Databases(Phrases(self.options), self.pool.of(context))

    def stop(self, context: Context) -> None:
        context.state.model.add(tuple(context.tokens), context.prompt_length, len(context.tokens))

    def propose_one(self, context: Context, budget: int) -> Draft:
        held, tokens = context.state, context.tokens
        held.context.add(tokens, held.known, len(tokens))  # behind the text's own end there is nothing yet
        held.known = len(tokens)
        tree, key = _Trie(budget), tuple(tokens[-self.options.match :])
        for source, database in zip(SOURCES, (held.context, held.model, self.statistics), strict=True):
            if not tree.room:
                break
            for phrase in database.after(key):
                tree.add(phrase, source)
        return tree.draft()


def _frequent(tokens: Sequence[int], options: HierarchyDrafter.Options) -> list[Gram]:
    """The most frequent phrases, key and continuation; the most frequent last, so that they are the newest."""
    size = options.match + options.width
    counts = Counter(zip(*(tokens[i:] for i in range(size)), strict=False))
    return [gram for gram, _ in reversed(counts.most_common(options.frequent))]


class _Trie:
    """A draft of several chains."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._nodes: dict[tuple[int, int], int] = {}  # parent and token -> node
        self._source: list[str] = []

    def add(self, phrase: Gram, source: str) -> None:
        node = -1
        for token in phrase:
            place = self._nodes.get((node, token))
            if place is None:
                if not self.room:
                    return
                place = self._nodes[node, token] = len(self._nodes)
                self._source.append(f"hierarchy-drafting:{source}")
                self.room -= 1
            node = place

    def draft(self) -> Draft:
        tokens, parents = (tuple(key[part] for key in self._nodes) for part in (1, 0))
        return Draft(tokens, parents, source=tuple(self._source))
