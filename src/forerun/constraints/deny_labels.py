"""A text without given labels: a model that was taught to label what is bad then avoids it (2309.09826).

The labels' prefixes are the states of an automaton over bytes, so that a label is seen whatever tokens write it.
Does not: teach a model to write labels; look at the prompt, or at special tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.constraints.contract import Compiler, listed, within
from forerun.guide import Matcher
from forerun.types import Facts, Setup
from forerun.walk import BYTES, ByteRules, States, Walk, letters


class DenyLabelsCompiler(Compiler):
    """Text: the labels with commas between, or a JSON list of them where these have commas."""

    facts = Facts(keys=("deny-labels",), paper="2309.09826", evidence="docs/results/README.md#guided")
    example = "ab,ca"

    @dataclass(frozen=True)
    class Options:
        """`most` characters of all labels together."""

        most: int = 4096

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        labels = listed("deny-labels", within("deny-labels", text, self.options.most))
        spelling, vocab = self.setup.open_spelling(""), self.setup.vocab
        table = automaton(labels)
        rules = ByteRules(table, [True] * len(table), letters(spelling, vocab), vocab, silent=True)
        return lambda: Walk(rules)


def automaton(labels: Sequence[bytes]) -> States:
    """Which state follows a state and a byte [states, 256] (Aho and Corasick 1975); the last one: a label was written.

    State 0 is the start; every other one a proper prefix of some label.
    """
    prefixes = sorted({label[:end] for label in labels for end in range(len(label))}, key=len)
    nodes, written = {prefix: state for state, prefix in enumerate(prefixes)}, len(prefixes)
    edges: dict[bytes, list[tuple[int, int]]] = {prefix: [] for prefix in prefixes}
    for word in (*prefixes[1:], *labels):
        edges[word[:-1]].append((word[-1], written if word in labels else nodes[word]))
    table = np.full((written + 1, BYTES), written, np.int32)
    table[0] = 0
    behind = [0] * written  # the state of each prefix without its first byte
    for state, prefix in enumerate(prefixes):
        if len(prefix) > 1:
            behind[state] = int(table[behind[nodes[prefix[:-1]]], prefix[-1]])
        if prefix:
            table[state] = table[behind[state]]
        for byte, target in edges[prefix]:
            if table[state, byte] != written:  # a label may end within another one
                table[state, byte] = target
    return table
