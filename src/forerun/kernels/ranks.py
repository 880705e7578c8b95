"""The likeliest tokens after rows of logits, in their order, with their chances and each row's entropy.

Trees ask it of every level they grow, so the compiled form (csrc/ranks.inl) answers in the time of two sweeps over a
row where PyTorch needs a dozen operations.
Does not: know of temperature or cut-offs; chances are those of the logits.
"""

import numpy as np
import torch

from forerun.host import fetch
from forerun.kernels import native
from forerun.types import Floats


def ranks(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Of [n, vocab], float64 [n, 2 * count + 1]: `count` ids, as many chances, entropy in nats; waits for no device.

    The lowest id comes first where several are equally likely. Count is at most vocab.
    """
    at = _order(logits).topk(count, -1).indices
    spread = logits.logsumexp(-1, keepdim=True)
    chances = (logits.gather(1, at).double() - spread).exp()
    entropy = torch.special.entr((logits - spread).exp()).sum(-1, keepdim=True)
    return torch.cat([at.double(), chances, entropy.double()], 1)


def ranks_here(logits: torch.Tensor, count: int) -> Floats:
    """The same on the host, by the compiled form where it can."""
    module = native.load_for(logits)
    if module is None or not logits.is_contiguous():
        return fetch(ranks(logits, count))
    found = np.empty((len(logits), 2 * count + 1))
    module.ranks(logits.data_ptr(), *logits.shape, count, found.ctypes.data)
    return found


def _order(logits: torch.Tensor) -> torch.Tensor:
    """Whole numbers in the order of the logits, and of falling ids where these are equal: no two are the same."""
    bits = logits.float().view(torch.int32)
    rising = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long()
    return rising << 32 | torch.arange(logits.shape[-1] - 1, -1, -1, device=logits.device)
