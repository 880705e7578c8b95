"""A tokenizer as what its tokens write, so that models with other tokenizers can be told the same text.

Does not: undo what a tokenizer normalises; whoever needs the same bytes back compares them.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from forerun.models.tokenizer import Piece, Tokenizer

_LONE = re.compile("([\udc80-\udcff])")  # a byte that is no part of a character, as Python escapes it
_ESCAPED = 0xDC00


class Speller:
    """The `types.Spelling` of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.pieces: Sequence[Piece] = tokenizer.pieces()
        self.ids: Mapping[bytes | str, int] = {p: i for i, p in enumerate(self.pieces) if p}
        self.begin: Sequence[int] = tokenizer.encode("", bos=True)
        letter = next((chr(byte) for byte in range(0x21, 0x7F) if bytes([byte]) in self.ids), "")
        first = self.spell(tokenizer.encode(letter, bos=False))[:1]
        self.lead = first[0].removesuffix(letter.encode()) if first and isinstance(first[0], bytes) else b""

    def spell(self, tokens: Sequence[int]) -> list[bytes | str]:
        pieces = (self.pieces[token] if token < len(self.pieces) else None for token in tokens)
        parts: list[bytes | str] = []
        for _, group in groupby(pieces, key=type):
            run = list(group)
            text = b"".join(piece for piece in run if isinstance(piece, bytes))
            parts += [text] if text else [name for name in run if isinstance(name, str)]
        return parts

    def encode(self, data: bytes, *, first: bool = False) -> list[int]:
        ids: list[int] = []
        for run in filter(None, _LONE.split(data.decode(errors="surrogateescape"))):
            if _LONE.fullmatch(run):
                token = self.ids.get(bytes([ord(run) - _ESCAPED]))
                ids += [token] if token is not None else []
            elif first and not ids:
                ids += self._tokenizer.encode(run, bos=False)
            else:
                ids += self._tokenizer.encode_within(run)
        return ids
