"""One function from logits to p, used on every node with that node's own prefix, for the target and for drafts.

Order: bans and biases, penalties, temperature, cut-offs (`kernels/cuts.py`).
Does not: draw anything (`rng.py`), or report log-probabilities of the changed distribution (`logprobs` are raw).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from forerun.errors import RequestError
from forerun.host import fetch, send
from forerun.kernels import masks, native
from forerun.kernels.bends import bend
from forerun.kernels.cuts import chances, draw
from forerun.kernels.masks import Bits
from forerun.kernels.race import winner
from forerun.kernels.ranks import ranks
from forerun.types import Bools, Context, Dist, Draft, Floats, Guide, Ints, Logprob, Lot, Output, Sampling

Path = tuple[int, ...]  # tokens that a row has after the committed ones
_LARGE = 65_536  # numbers; p of fewer is sooner found for all rows at once than for some one by one
STUCK = (
    "bans, biases, allowed_tokens and the constraint leave no token to draw; allow at least one, or lower min_tokens."
)


@dataclass(frozen=True, slots=True)
class Shaper:
    """Logits -> p for one request. `eos` are the ids that end a text, banned before `min_tokens`."""

    sampling: Sampling
    tokens: Sequence[int]  # prompt and output so far
    prompt_length: int
    eos: tuple[int, ...] = ()
    guide: Guide | None = None  # of a sampling with a constraint

    @staticmethod
    def of(context: Context, eos: tuple[int, ...] = ()) -> "Shaper":
        """The one of a request as it stands."""
        return Shaper(context.sampling, context.tokens, context.prompt_length, eos, context.guide)

    def probabilities(self, logits: torch.Tensor, paths: Callable[[int], Path]) -> torch.Tensor:
        """P of every row [n, vocab] -> [n, vocab]; float32, or float64 where the logits are."""
        return self.shape(self.bend(logits, paths))

    def shape(self, bent: torch.Tensor) -> torch.Tensor:
        """P of rows that are bent already."""
        s = self.sampling
        if s.greedy:
            return torch.zeros_like(bent, dtype=_real(bent)).scatter_(-1, bent.argmax(-1, keepdim=True), 1)
        return chances(bent.to(_real(bent)), s)

    def soft(self, bent: torch.Tensor) -> torch.Tensor:
        """P of rows that are bent already, at temperature 1."""
        return replace(self, sampling=replace(self.sampling, temperature=1.0)).shape(bent)

    def bend(self, logits: torch.Tensor, paths: Callable[[int], Path]) -> torch.Tensor:
        """Logits after bans, biases and penalties; RequestError where these leave no token in some row."""
        bent, stuck = self.bent(logits, paths)
        if stuck is not None and fetch(stuck).any():
            raise RequestError(self.stuck)
        return bent

    def bent(self, logits: torch.Tensor, paths: Callable[[int], Path]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `bend`, and in which rows no token is left, bool [n]; token 0 has these. None: in no row."""
        if not self.bends:
            return logits, None
        rows, bent = [paths(i) for i in range(len(logits))], logits.to(_real(logits))
        if self._changes:
            bans = self._banned(rows) if self._bans else ()
            bent = bend(bent, self.sampling, self.tokens, self.prompt_length, rows, bans)
        if self.sampling.constraint is not None:
            bent = self._held(bent, rows)
        elif not self._bans:
            return bent, None  # penalties leave every token
        if bent.device.type == "cpu" and _finite(bent):
            return bent, None
        stuck = bent.amax(-1) == -torch.inf
        bent[:, 0].masked_fill_(stuck, 0)
        return bent, stuck

    @property
    def stuck(self) -> str:
        """Why no token is left."""
        return (self.guide.trouble if self.guide is not None else "") or STUCK

    @property
    def bends(self) -> bool:
        """Whether p depends on more than the logits of its own row."""
        return self.sampling.constraint is not None or self._changes

    @property
    def held_alone(self) -> bool:
        """Whether p is that of the logits, but for what a constraint takes out."""
        s = self.sampling
        return s.constraint is not None and not self._changes and (s.greedy or not s.cuts)

    @property
    def drawable(self) -> bool:
        """Whether tokens can be drawn before a mask has a say, and are not the best ones of their rows in any case."""
        s = self.sampling
        if s.greedy:
            return s.constraint is None and self._changes
        return s.constraint is None or self.held_alone

    def lot(self, keys: Sequence[int], draft: Draft) -> Lot:
        """What a pass needs to draw it, and those behind it; nothing bends rows that follow a draft."""
        banned = self._banned([()])[0] if self._bans else ()
        return Lot(self.sampling, keys, self.tokens, self.prompt_length, banned, draft.tokens, draft.parents)

    @property
    def _changes(self) -> bool:
        """Whether more than a constraint bends logits."""
        return self.sampling.penalizes or self._bans

    @property
    def _bans(self) -> bool:
        """Whether something other than a constraint may take out tokens."""
        return self.sampling.bans or len(self.tokens) - self.prompt_length < self.sampling.min_tokens

    def doubtful(self, best: Sequence[int], paths: Callable[[int], Path]) -> list[int]:
        """Rows whose most likely token may be another than `best`, that of the row's own logits, once these are bent.

        A constraint only takes tokens out: where it lets the best one be, that is found without a mask.
        """
        if self._changes:
            return list(range(len(best)))
        if self.sampling.constraint is None:
            return []
        guide, ahead = self._guided
        allowed = guide.allows([(*ahead, *paths(row), token) for row, token in enumerate(best)])
        return [row for row, fine in enumerate(allowed) if not fine]

    @property
    def _guided(self) -> tuple[Guide, Path]:
        """Who knows the constraint, and the output's tokens that he has not read."""
        if self.guide is None:
            name = self.sampling.constraint.name if self.sampling.constraint is not None else ""
            raise RequestError(f"constraint {name!r} has no guide here; ask an engine for a constrained text.")
        return self.guide, tuple(self.tokens[self.prompt_length + self.guide.written :])

    def _held(self, logits: torch.Tensor, rows: Sequence[Path]) -> torch.Tensor:
        """What the constraint leaves of logits [n, vocab], in memory of its own."""
        masks = self.masks(rows)
        if logits.device.type == "cpu":
            left = torch.empty_like(logits)
            for row, held, mask in zip(left.numpy(), logits.numpy(), masks, strict=True):
                _leave(row, held, mask)
            return left
        return logits.masked_fill(~send(masks, logits.device, torch.bool), -torch.inf)

    def masks(self, rows: Sequence[Path]) -> Bools:
        """What the constraint allows behind each path [n, vocab]."""
        guide, ahead = self._guided
        return guide.masks([(*ahead, *path) for path in rows])

    def bits(self, rows: Sequence[Path]) -> list[Bits]:
        """The same as bits."""
        guide, ahead = self._guided
        return guide.bits([(*ahead, *path) for path in rows])

    def _banned(self, rows: Sequence[Path]) -> list[list[int]]:
        """What must not follow the text and each path."""
        s = self.sampling
        text = np.asarray(self.tokens if s.bad_words or s.no_repeat_ngram else (), np.int64)
        return [list(self._after(text, path)) for path in rows]

    def _after(self, text: Ints, path: Path) -> set[int]:
        s, written = self.sampling, len(self.tokens) - self.prompt_length + len(path)
        banned = {*self.eos, *s.stop_token_ids} if written < s.min_tokens else set[int]()
        if s.bad_words or s.no_repeat_ngram:
            text = np.concatenate([text, np.asarray(path, np.int64)])
            for word in s.bad_words:
                if len(word) == 1 or tuple(text[1 - len(word) :].tolist()) == word[:-1]:
                    banned.add(word[-1])
            banned |= _repeats(text, s.no_repeat_ngram)
        return banned


class Rows:
    """p after every node of a draft (`Target`): row 0 of the logits belongs to the root, row i + 1 to node i.

    `stuck` are nodes after which bans leave nothing: the text ends there, and what p is does not matter. Where a
    constraint alone bends a row and allows its best token, the mask waits until it is asked for: draws seldom need it.
    So does p of a single or a large row on the host: it can be drawn from as it is, and a verdict seldom comes to the
    last row of a draft. What a pass has drawn itself is not drawn again.
    """

    stuck = frozenset[int]()

    def __init__(self, output: Output, context: Context, draft: Draft, eos: tuple[int, ...] = ()) -> None:
        self._output, self._context, self._draft, self._eos = output, context, draft, eos
        self._best, self._rows = output.best, dict[int, Dist]()  # the rows: all but what its best token says
        greedy = context.sampling.greedy
        if not context.sampling.best and (not greedy or self._shaper.bends):
            self._find(greedy=greedy)

    @cached_property
    def _shaper(self) -> Shaper:
        return Shaper.of(self._context, self._eos)

    def _find(self, *, greedy: bool) -> None:
        self._held = dict[int, Floats]()  # p of the rows that are drawn from without it
        self._free = dict[int, Dist]()  # p of those that a constraint holds, without it
        every, alone, drawn = range(len(self._best)), self._shaper.held_alone, self._output.drawn
        if drawn and self._shaper.sampling.constraint is None:
            only = drawn[0].token if greedy and drawn[0] is not None else None
            self._rows |= {row: Dist.point(only) if only is not None else Dist(Held(self, row - 1)) for row in every}
            return
        doubtful = self._shaper.doubtful(self._best, self._path) if alone or greedy else list(every)
        here = alone and self._logits.device.type == "cpu"
        judged = (self._judged(doubtful) if here else self._dists(self._bent(doubtful))) if doubtful else ()
        self._rows |= zip(doubtful, judged, strict=True)
        others = [row for row in every if row not in self._rows]
        if others and not greedy:
            logits = self._logits[others] if doubtful else self._logits
            self._free = dict(zip(others, self._dists(logits), strict=True))
            self._rows |= {row: Dist(Held(self, row - 1)) for row in others}

    @property
    def _logits(self) -> torch.Tensor:
        return self._output.logits

    def _path(self, row: int) -> Path:
        return path_to(self._draft, row - 1)

    def _bent(self, rows: Sequence[int]) -> torch.Tensor:
        """Some rows, bent; those in which no token is left are noted."""
        some = self._logits if len(rows) == len(self._logits) else self._logits[list(rows)]
        bent, stuck = self._shaper.bent(some, lambda i: self._path(rows[i]))
        if stuck is not None:
            self.stuck |= {rows[i] - 1 for i in fetch(stuck).nonzero()[0].tolist()}
        if -1 in self.stuck:
            raise RequestError(self._shaper.stuck)
        return bent

    def _dists(self, bent: torch.Tensor) -> list[Dist]:
        if self._shaper.sampling.greedy:
            return [Dist.point(token) for token in _best(bent)]
        if bent.device.type == "cpu" and (len(bent) == 1 or bent.numel() > _LARGE):
            return [Dist(Unasked(self._shaper, row)) for row in bent]
        return [Dist(p) for p in fetch(self._shaper.shape(bent))]

    def _judged(self, rows: Sequence[int]) -> Iterator[Dist]:
        """P of rows on the host that a constraint alone bends."""
        every = self._logits.to(_real(self._logits)).numpy()
        for row, bits in zip(rows, self._shaper.bits([self._path(row) for row in rows]), strict=True):
            yield self._among(every[row], bits) or self._dists(self._bent([row]))[0]

    def _among(self, logits: Floats, bits: Bits) -> Dist | None:
        """P of what a mask leaves of a row; None where no token is left."""
        if self._shaper.sampling.greedy:
            best = masks.likeliest(logits, bits)
            return Dist.point(best) if best is not None else None
        if 2 * masks.count(bits) < len(logits):
            ids = masks.ids(bits)
            return self._over(logits[ids], ids)
        left = logits.copy()
        left[masks.forbidden(bits, len(logits))] = -np.inf
        return self._over(left)

    def _over(self, logits: Floats, ids: Ints | None = None) -> Dist | None:
        """P of what is left of a row, all of it or the tokens with these ids; None where that is nothing."""
        if not len(logits) or logits.max() == -np.inf:
            return None
        left = torch.from_numpy(logits)[None]
        if ids is None:
            return self._dists(left)[0]
        return Dist(fetch(self._shaper.shape(left))[0], ids)

    def __getitem__(self, node: int) -> Dist:
        row = node + 1
        if row not in self._rows:
            self._rows[row] = Dist.point(self._best[row])
        return self._rows[row]

    def held(self, node: int) -> Floats:
        """P of a row that is drawn from without it."""
        if node + 1 not in self._held:
            self._held[node + 1] = fetch(self._shaper.shape(self._bent([node + 1])))[0]
        return self._held[node + 1]

    def drawn(self, node: int, key: int) -> int | None:
        """What a key draws from such a row as if no constraint held it; None where that forbids it, or is not known."""
        told, free = self._output.drawn[node + 1] if self._output.drawn else None, self._free.get(node + 1)
        if told is not None and told.key == key:
            token = told.token
        elif free is not None:
            token = winner(free, key)
        else:
            return None
        held = self._shaper.sampling.constraint is not None
        return None if held and self._shaper.doubtful([token], lambda _: self._path(node + 1)) else token

    @property
    def text(self) -> Sequence[int]:
        """Prompt and output so far."""
        return self._shaper.tokens

    @cached_property
    def _soft(self) -> Floats:
        return fetch(self._shaper.soft(self._bent(range(len(self._logits)))))

    def soft(self, node: int) -> Dist:
        """As the row, at temperature 1 where the request is greedy."""
        return Dist(self._soft[node + 1]) if self._shaper.sampling.greedy else self[node]

    def hidden(self, layer: int, node: int) -> Floats:
        """What the layer made of the node's token."""
        return self._states.at(layer, node)

    @cached_property
    def _states(self) -> "States":
        return States(self._output.hidden, len(self._draft))


class Unasked:
    """P of a row [vocab] on the host that nobody has asked for: a `types.Far`. A draw needs no p."""

    def __init__(self, shaper: Shaper, logits: torch.Tensor) -> None:
        self._shaper, self._logits = shaper, logits

    @property
    def there(self) -> None:
        return None

    @cached_property
    def probs(self) -> Floats:
        found: Floats = fetch(self._shaper.shape(self._logits[None]))[0]
        return found

    def prob(self, token: int) -> None:
        return None

    def drawn(self, key: int) -> int | None:
        return draw(self._logits, self._shaper.sampling, key) if "probs" not in vars(self) else None

    def minus(self, q: Dist) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Held:
    """What is left of p in one row whose draw the pass has made, or which a constraint holds: a `types.Far`.

    A draw is a race (kernels/race.py), and who is taken out makes nobody else arrive sooner or later: the winner of
    all is the winner of those that are left, if it is one of them. That needs no mask.
    """

    rows: Rows
    node: int

    @property
    def there(self) -> None:
        return None

    @property
    def probs(self) -> Floats:
        return self.rows.held(self.node)

    def prob(self, token: int) -> None:
        return None

    def drawn(self, key: int) -> int | None:
        return self.rows.drawn(self.node, key)

    def minus(self, q: Dist) -> None:
        return None


class States:
    """Hidden states of the last rows of a work, fetched layer by layer when they are asked for."""

    def __init__(self, hidden: Mapping[int, torch.Tensor], nodes: int) -> None:
        self.hidden, self.nodes, self._fetched = hidden, nodes, dict[int, Floats]()

    def at(self, layer: int, node: int) -> Floats:
        """[hidden] of a node; of the last committed token for -1."""
        if layer not in self._fetched:
            self._fetched[layer] = fetch(self.hidden[layer][-1 - self.nodes :].float())
        found: Floats = self._fetched[layer][node + 1]
        return found


def path_to(draft: Draft, node: int) -> Path:
    """Drafted tokens from the root down to `node`, itself included; () for -1."""
    found: list[int] = []
    while node >= 0:
        found.append(draft.tokens[node])
        node = draft.parents[node]
    return tuple(reversed(found))


def logprob(logits: torch.Tensor, token: int, count: int) -> Logprob:
    """Raw log-probability of `token` in one row [vocab], its rank, and the `count` best tokens."""
    module = native.load_for(logits)
    if module is not None:
        logits = logits.contiguous()
        value, rank, best = module.logprob(logits.data_ptr(), len(logits), token, count)
        return Logprob(value, rank, tuple(best[:count]))
    row, size = logits.to(_real(logits))[None], max(1, min(count, len(logits)))
    mine = row[:, token : token + 1]
    parts = ranks(row, size), mine, row.amax(-1, keepdim=True), (row > mine).sum(-1, keepdim=True)
    found: Floats = fetch(torch.cat([part.double() for part in parts], 1))[0]
    own, most, above = found[-3:].tolist()
    with np.errstate(divide="ignore"):  # of a token that the model itself rules out
        values = np.log(found[size : 2 * size]).tolist()
    top = tuple(zip(map(int, found[:size].tolist()), values, strict=True))[:count]
    return Logprob(own - most + values[0], int(above) + 1, top)


def _leave(row: Floats, logits: Floats, mask: Bools) -> None:
    """Write logits [vocab] without what their mask forbids; only the fewer of the two sorts are touched one by one."""
    if 2 * np.count_nonzero(mask) > len(mask):
        row[:] = logits
        row[np.flatnonzero(~mask)] = -np.inf
    else:
        allowed = np.flatnonzero(mask)
        row.fill(-np.inf)
        row[allowed] = logits[allowed]


def _finite(logits: torch.Tensor) -> bool:
    """Whether a token is left in every row on the host."""
    rows = logits.numpy()
    return all(row[best] > -np.inf for row, best in zip(rows, _best(logits), strict=True))


def _best(logits: torch.Tensor) -> list[int]:
    """The first most likely token of every row; on the CPU numpy finds it ten times as fast."""
    rows = logits.numpy() if logits.device.type == "cpu" else logits
    found: list[int] = rows.argmax(-1).tolist()
    return found


def _real(logits: torch.Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _repeats(text: Ints, n: int) -> set[int]:
    """Tokens that would complete an n-gram that `text` already has."""
    if n < 1 or len(text) < n:
        return set()
    places = len(text) - n + 1
    same = np.ones(places, np.bool_)  # where the last n - 1 tokens stand, these included
    for at, token in enumerate(text[places:]):
        same &= text[at : at + places] == token
    return set(text[n - 1 :][same].tolist())
