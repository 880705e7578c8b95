"""A datastore: tokenized documents and their suffix array in one file, mapped and not read into memory.

`toy:SEED` and `toy:SEED:VOCAB` are small ones, made on the spot. Does not: tokenize (`forerun datastore build` does).
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.errors import ConfigError
from forerun.kernels.suffixes import END, build
from forerun.stores import tokenfile
from forerun.stores.tokenfile import Tokens
from forerun.types import Setup

KIND = "datastore"
REMEDY = "make one for this model with forerun datastore build"


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens, END after every document; and where their suffixes begin, in order."""

    tokens: Tokens
    suffixes: Tokens


def open_corpus(name: str, setup: Setup, who: str) -> Corpus:
    """The datastore that an option of `who` names; ConfigError where it is unfit for the target."""
    if not name:
        raise ConfigError(f"{who} needs a datastore and none is named; {REMEDY}.")
    if name.startswith("toy:"):
        return _toy(name, who)
    mark = tokenfile.mark_of(setup.open_spelling(""))
    _, (tokens, suffixes) = tokenfile.read(Path(name), KIND, mark, REMEDY)
    return Corpus(tokens, suffixes)


def _toy(name: str, who: str) -> Corpus:
    match = re.fullmatch(r"toy:(\d+)(?::(\d+))?", name)
    if match is None:
        raise ConfigError(f"{who}: {name!r} is no toy datastore; write toy:SEED or toy:SEED:VOCAB, as in toy:0:3.")
    tokens = np.random.default_rng(int(match[1])).integers(0, int(match[2] or 3), 60).astype(np.int32)
    tokens[29::30] = END
    return Corpus(tokens, build(tokens))
