"""Losses of a language model: next-token cross-entropy, and distillation from a teacher's distribution.

p is the teacher (the target), q the student (the drafter). Acceptance of one drafted token is sum min(p, q) =
1 - TV(p, q), and KL(p || q) bounds TV(p, q) (Pinsker), so distillation raises what speculative decoding needs.
"""

import torch
from torch.nn.functional import cross_entropy, log_softmax


def next_token(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy; logits [batch, length, vocab], targets [batch, length]."""
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def distillation(
    student: torch.Tensor, teacher: torch.Tensor, targets: torch.Tensor, share: float, overlap: float = 0.0
) -> torch.Tensor:
    """(1 - share) x cross-entropy + share x ((1 - overlap) x KL(p || q) + overlap x TV(p, q)), means over positions.

    TV(p, q) = 1 - sum min(p, q) is what a draft loses; KL has a gradient where they do not overlap (2310.08461).
    """
    log_q = log_softmax(student.flatten(0, 1).float(), dim=-1)
    log_p = log_softmax(teacher.flatten(0, 1).float(), dim=-1)
    p = log_p.exp()
    loss = (1 - overlap) * (p * (log_p - log_q)).sum(-1).mean()
    if overlap:
        loss = loss + overlap * (1 - torch.minimum(p, log_q.exp()).sum(-1).mean())
    truth = -log_q.gather(1, targets.reshape(-1, 1)).mean()
    return (1 - share) * truth + share * loss


def agreement(student: torch.Tensor, teacher: torch.Tensor) -> tuple[float, float]:
    """Share of positions with the same most likely token, and mean sum min(p, q)."""
    p = torch.softmax(teacher.float(), dim=-1)
    q = torch.softmax(student.float(), dim=-1)
    same = (p.argmax(-1) == q.argmax(-1)).float().mean().item()
    return same, torch.minimum(p, q).sum(-1).mean().item()
