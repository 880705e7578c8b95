"""Continue as a datastore of texts does after the longest suffix that it holds (REST, 2311.08252).

The suffix is found in the suffix array; its continuations, weighed by how often each prefix of them occurs, are a trie,
and the most frequent prefixes are the draft.
Does not: learn; look at the request's own text (`several:of=[rest:store=FILE,ngram]` looks at both).
"""

from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.kernels.suffixes import search
from forerun.stores.corpus import open_corpus
from forerun.types import Context, Draft, Facts, Need, Setup

_NOTHING = Draft()


class RestDrafter(SoloDrafter):
    """Retrieval from a file made by `forerun datastore build`."""

    facts = Facts(
        keys=("rest",),
        paper="2311.08252",
        needs=frozenset({Need.DATASTORE}),
        evidence="docs/results/README.md#retrieval",
    )

    @dataclass(frozen=True)
    class Options:
        """`store`: the file; matches of `shortest` to `longest` tokens, `depth` tokens after up to `matches` of them.

        The draft has at most `nodes`, each of at least the share `least` of the matches.
        """

        store: str = ""
        longest: int = 16
        shortest: int = 2
        depth: int = 10
        matches: int = 512
        nodes: int = 64
        least: float = 0.02

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        corpus = open_corpus(options.store, setup, "drafter 'rest'")
        self.search = search(corpus.tokens, corpus.suffixes)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(store="toy:0", shortest=1, nodes=3, depth=2)

    def propose_one(self, context: Context, budget: int) -> Draft:
        o = self.options
        found = self.search.longest(context.tokens[-o.longest :], o.shortest)
        if not found[2]:
            return _NOTHING
        tokens, parents, chances, _ = self.search.prefixes(found, o.depth, o.matches, min(budget, o.nodes), o.least)
        return Draft(tokens, parents, None, chances, "rest")
