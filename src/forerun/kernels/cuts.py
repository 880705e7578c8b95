"""Logits -> p by temperature and cut-offs: top-k, top-p, min-p, typical-p, epsilon, eta.

Each cut-off sees the renormalised result of the one before (as in transformers). Ties go to the lowest id everywhere.
To order a row of 50,000 tokens takes PyTorch as long as a pass of a small model takes, so the compiled form
(csrc/cuts.inl) looks for the few that can stay, and orders these; to draw one of them it writes no p.
Does not: know penalties or bans (`sampling.py`), or draw.
"""

from collections.abc import Callable

import torch

from forerun.kernels import native
from forerun.kernels.race import words
from forerun.types import Sampling

Cut = Callable[[torch.Tensor], torch.Tensor]  # p [n, vocab] -> the tokens that stay, bool [n, vocab]


def chances(logits: torch.Tensor, s: Sampling) -> torch.Tensor:
    """P of rows [n, vocab] in float32 or float64 at a temperature above 0 -> [n, vocab]."""
    module = native.load_for(logits)
    if module is None:
        return plain(logits, s)
    rows, p = logits.contiguous(), torch.empty(logits.shape)
    module.chances(rows.data_ptr(), *rows.shape, *asked(s), p.data_ptr())
    return p


def draw(logits: torch.Tensor, s: Sampling, key: int) -> int | None:
    """The token that `race.winner` draws from p of a row [vocab], without p; None where nothing is compiled for it."""
    module = native.load_for(logits)
    if module is None:
        return None
    row = logits.contiguous()
    return int(module.draw(row.data_ptr(), len(row), *asked(s), *words(key)))


def asked(s: Sampling) -> tuple[float, ...]:
    """What the compiled form is told of a sampling."""
    return s.temperature, s.top_k, s.top_p, s.min_p, s.typical_p, s.epsilon_cutoff, s.eta_cutoff


def plain(logits: torch.Tensor, s: Sampling) -> torch.Tensor:
    """The same in PyTorch, on any device."""
    p = torch.softmax(logits if s.temperature == 1 else logits / s.temperature, -1)
    for cut in _cuts(s):
        p = torch.where(cut(p), p, 0)
        p = p / p.sum(-1, keepdim=True)
    return p


def _cuts(s: Sampling) -> list[Cut]:
    """The cut-offs that are asked for, in their order."""
    cuts: list[Cut] = []
    if s.top_k > 0:
        cuts.append(lambda p: _top_k(p, s.top_k))
    if s.top_p < 1:
        cuts.append(lambda p: _top_p(p, s.top_p))
    if s.min_p > 0:
        cuts.append(lambda p: p >= s.min_p * p.amax(-1, keepdim=True))
    if s.typical_p < 1:
        cuts.append(lambda p: _typical(p, s.typical_p))
    if s.epsilon_cutoff > 0:
        cuts.append(lambda p: _above(p, torch.full_like(p[:, :1], s.epsilon_cutoff)))
    if s.eta_cutoff > 0:
        cuts.append(lambda p: _above(p, _eta(p, s.eta_cutoff)))
    return cuts


def _top_k(p: torch.Tensor, k: int) -> torch.Tensor:
    least = p.topk(min(k, p.shape[-1]), -1).values[:, -1:]
    above, level = p > least, p == least
    room = k - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= room))


def _first(order: torch.Tensor, p: torch.Tensor, mass: float) -> torch.Tensor:
    """The shortest beginning of `order` with at least this mass, as a mask; the first is always in."""
    sorted_p = p.gather(-1, order)
    inside = sorted_p.cumsum(-1) - sorted_p < mass
    inside[:, 0] = True
    return torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, inside)


def _top_p(p: torch.Tensor, mass: float) -> torch.Tensor:
    return _first(torch.sort(p, dim=-1, descending=True, stable=True).indices, p, mass)


def _entropy(p: torch.Tensor) -> torch.Tensor:
    entropy: torch.Tensor = torch.special.entr(p).sum(-1, keepdim=True)
    return entropy


def _typical(p: torch.Tensor, mass: float) -> torch.Tensor:
    surprise = torch.where(p > 0, (-p.log() - _entropy(p)).abs(), torch.inf)
    return _first(torch.sort(surprise, dim=-1, stable=True).indices, p, mass)


def _above(p: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Tokens of at least this probability; the most likely one always stays, the lowest id where several are."""
    keep = p >= floor
    return keep.scatter(-1, p.argmax(-1, keepdim=True), value=True)


def _eta(p: torch.Tensor, eta: float) -> torch.Tensor:
    return torch.minimum(torch.full_like(p[:, :1], eta), eta**0.5 * torch.exp(-_entropy(p)))
