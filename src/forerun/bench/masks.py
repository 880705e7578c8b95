"""What masks cost by the size of the vocabulary: of one place, and of all the places of a draft of eight tokens.

Instances of schemas are read; at every fourth token the masks behind it and behind each of the next eight are asked
for: nine rows of one step, none of which was looked at before, as if all of the draft had just been guessed. Once they
are asked for as they are needed, and once they were foreseen, as the engine does while a pass runs: then it counts what
is left for the step's own thread. All is processor time.
Does not: ask whether the other thread finds a core; count what applying a mask to logits takes; cut texts into tokens
as a tokenizer would where only its vocabulary is given: the longest token goes first.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import thread_time
from typing import Any

from forerun.bench.covered import Row
from forerun.bench.figures import quantile
from forerun.build import guides_for, setup_for
from forerun.config import Config
from forerun.errors import ConfigError, RequestError
from forerun.guide import Guide
from forerun.models.spelling import Speller
from forerun.models.tokenizer import FolderTokenizer, Piece, Tokenizer
from forerun.models.toy import toy_by_name
from forerun.types import Setup, Spelling

NODES, EVERY, LONGEST = 8, 4, 240  # of a draft; tokens between looks, and of an instance
PASS_MS = 13.0  # a step of 350 million 8-bit parameters on two cores
_RANKS = ".tiktoken.gz"


class Ranks:
    """The `types.Spelling` of a vocabulary in tiktoken's file format."""

    def __init__(self, path: Path) -> None:
        lines = [line.split() for line in gzip.decompress(path.read_bytes()).splitlines() if line]
        self.ids: Mapping[bytes | str, int] = {base64.b64decode(piece): int(rank) for piece, rank in lines}
        pieces: list[Piece] = [None] * (max(self.ids.values()) + 1)
        for piece, rank in self.ids.items():
            pieces[rank] = piece
        self.pieces: Sequence[Piece] = pieces
        self.begin: Sequence[int] = ()
        self.lead = b""
        self._longest = max(map(len, self.ids))

    def spell(self, tokens: Sequence[int]) -> list[bytes | str]:
        return [b"".join(piece for piece in map(self.pieces.__getitem__, tokens) if isinstance(piece, bytes))]

    def encode(self, data: bytes, *, first: bool = False) -> list[int]:
        found: list[int] = []
        at = 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next(size for size in sizes if data[at : at + size] in self.ids)  # every byte is a token
            found.append(self.ids[data[at : at + size]])
            at += size
        return found


def vocabulary(tokenizer: str) -> Setup:
    """What compiles constraints over a tokenizer, without its model."""
    blank, path = setup_for(Config(), toy_by_name("toy:0")), Path(tokenizer)
    if tokenizer.endswith(_RANKS):
        if not path.is_file():
            raise ConfigError(f"vocabulary {tokenizer!r} is not there; name a file that ends with {_RANKS}.")
        return _over(blank, Ranks(path), None)
    spoken = FolderTokenizer(path) if path.is_dir() else Tokenizer.from_folder(tokenizer)
    return _over(blank, Speller(spoken), spoken.eos)


def _over(blank: Setup, spelling: Spelling, eos: int | None) -> Setup:
    end = eos if eos is not None else len(spelling.pieces)  # a token of its own, where there is none
    size = max(len(spelling.pieces), end + 1)
    return replace(blank, vocab=size, eos=(end,), open_spelling=lambda _: spelling)


@dataclass
class Times:
    """Microseconds over one vocabulary."""

    one: list[float] = field(default_factory=list)  # of a mask, in plain decoding
    draft: list[float] = field(default_factory=list)  # of all masks of a draft
    left: list[float] = field(default_factory=list)  # of these, where they were foreseen

    def figures(self) -> dict[str, Any]:
        """As the report has them: median, 99 % and worst, and how many take more than a tenth of the pass."""
        return {
            name: {
                "us": [quantile(times, share) for share in (0.5, 0.99, 1.0)],
                "over_a_tenth": sum(time > 100 * PASS_MS for time in times) / max(len(times), 1),
                "looks": len(times),
            }
            for name, times in vars(self).items()
        }


def measure(setup: Setup, rows: Iterator[Row]) -> Times:
    """Read the first valid instance of every schema."""
    found = Times()
    for row in rows:
        value = next((value for value, valid in row.tests if valid), None)
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        tokens = setup.open_spelling("").encode(text)[:LONGEST]
        try:
            guides = [guides_for(setup)(row.constraint, frozenset(setup.eos)) for _ in vars(found)]
        except RequestError:
            continue
        found.one += _looks(guides[0], tokens, 1, 0)
        found.draft += _looks(guides[1], tokens, EVERY, NODES)
        found.left += _looks(guides[2], tokens, EVERY, NODES, ahead=True)
    return found


def _looks(guide: Guide, tokens: Sequence[int], every: int, nodes: int, *, ahead: bool = False) -> list[float]:
    """Microseconds of this thread for the masks behind a text and behind each of the next tokens."""
    found: list[float] = []
    for at in range(0, len(tokens) - nodes, every):
        paths = [tuple(tokens[at : at + count]) for count in range(nodes + 1)]
        began = thread_time()
        if ahead:
            guide.foresee(paths)
        guide.masks(paths)
        found.append(1e6 * (thread_time() - began))
        for token in tokens[at : at + every]:
            if not guide.masks([()])[0, token]:
                return found
            guide.advance(token)
    return found
