"""Where a request went before: by its session, and by the start of its prompt, which that replica has in its cache.

A prompt is known by a chain of digests, one for every so many characters, so that the longest common start is found.
Does not: know Ray; keep a text, only digests; share what it knows with another front.
"""

import json
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

BLOCK = 256  # characters; a cached prefix shorter than that saves little
BLOCKS = 64  # a longer start is told apart by its first ones
KNOWN = 65536  # digests that are remembered


def keys_of(tenant: str, session: str, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Digests of what a request has in common with others of its tenant, the most telling first."""
    named = session or body.get("prompt_cache_key") or body.get("user")
    found = [_digest(tenant, "session", named)] if isinstance(named, str) else []
    said = body.get("messages", body.get("prompt"))
    text = said if isinstance(said, str) else json.dumps(said)
    chain, last = list[str](), tenant
    for start in range(0, min(len(text), BLOCK * BLOCKS) - BLOCK + 1, BLOCK):
        last = _digest(last, "prefix", text[start : start + BLOCK])
        chain.append(last)
    return (*found, *reversed(chain))


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


class Memory:
    """Which replica saw a key last; the least recent are forgotten."""

    def __init__(self, most: int = KNOWN) -> None:
        self.most = most
        self._places: OrderedDict[str, str] = OrderedDict()

    def place(self, keys: Iterable[str], here: Container[str]) -> str | None:
        """The replica that saw the first of the keys that any of those `here` has seen."""
        return next((place for key in keys if (place := self._places.get(key)) in here and place is not None), None)

    def remember(self, keys: Sequence[str], place: str) -> None:
        """A request with these keys went there."""
        for key in reversed(keys):
            self._places[key] = place
            self._places.move_to_end(key)
        for key in list(islice(self._places, max(0, len(self._places) - self.most))):
            del self._places[key]


def much_busier(place: str, queues: Mapping[str, int], slack: int) -> bool:
    """Whether a replica has so many more requests than the least busy one that its cache is not worth the wait."""
    return queues.get(place, 0) > min(queues.values(), default=0) + slack
