"""The likeliest few tokens of rows of logits, several times as fast as sorting finds them.

A row's k largest logits lie in the k blocks with the largest maxima: one pass over the row finds these, and only they
are looked through.
Does not: say which of equal logits comes first.
"""

import torch

BLOCK = 128
SMALL = 16_384  # columns that are sorted sooner than blocks of them are found


def likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, vocab] -> the largest logits and their tokens, [rows, count] each, the largest first."""
    whole = logits.shape[1] // BLOCK * BLOCK
    if whole < 4 * count * BLOCK or whole < SMALL:
        values, tokens = logits.topk(count)
        return values, tokens
    peaks = logits[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)
    blocks = peaks.topk(count, sorted=False).indices * BLOCK
    inside = (blocks[:, :, None] + torch.arange(BLOCK, device=logits.device)).flatten(1)
    behind = torch.arange(whole, logits.shape[1], device=logits.device).expand(len(logits), -1)
    tokens = torch.cat([inside, behind], 1)
    values, places = logits.gather(1, tokens).topk(count)
    return values, tokens.gather(1, places)
