"""`forerun bench quality`: what a precision costs in the model's own probabilities, beside its size.

The same windows of a text go through the exact model (weights as they are stored, float32 arithmetic) and through each
rounded one. Per predicted token: perplexity, the divergence KL(exact || rounded) in nats, and how often both would
choose the same token. Does not: measure speed; say what a divergence does to a task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine
from forerun.errors import ConfigError
from forerun.models.load import load_model
from forerun.models.tokenizer import Tokenizer
from forerun.quantize import one_pass

WINDOW = 512  # tokens that are read together; the first ones have little to go by
LETTERS = 32  # of a text per token, at most, so that a long one is not encoded whole
EXACT = "exact"


@dataclass(frozen=True)
class Order:
    """What to measure."""

    models: Sequence[str]  # the model, and packed folders made of it
    text: Path
    dtypes: Sequence[str] = ("int8", "int4")
    tokens: int = 8192
    threads: int = 0
    kv_dtypes: Sequence[str] = ()  # each weights' precision is measured with keys and values kept in these as well


@dataclass
class Tally:
    """What one model lost so far."""

    losses: list[torch.Tensor] = field(default_factory=list)  # nats per predicted token
    divergences: list[torch.Tensor] = field(default_factory=list)
    same: int = 0

    def add(self, logits: torch.Tensor, exact: torch.Tensor, answers: torch.Tensor) -> None:
        """Rows of logits, those of the exact model, and the tokens that followed."""
        q, p = logits.double().log_softmax(-1), exact.double().log_softmax(-1)
        self.losses.append(-q.gather(1, answers[:, None])[:, 0])
        self.divergences.append((p.exp() * (p - q)).sum(-1))
        self.same += int((logits.argmax(-1) == exact.argmax(-1)).sum())

    def figures(self) -> dict[str, Any]:
        losses, divergences = torch.cat(self.losses), torch.cat(self.divergences)
        return {
            "perplexity": round(float(losses.mean().exp()), 4),
            "kl": float(f"{float(divergences.mean()):.4g}"),
            "kl_error": float(f"{float(divergences.std() / len(divergences) ** 0.5):.2g}"),  # standard, of the mean
            "kl_p99": float(f"{float(np.quantile(divergences.numpy(), 0.99)):.4g}"),
            "same_token": round(self.same / len(losses), 4),
        }


def run(order: Order) -> dict[str, Any]:
    """Every model over the same windows."""
    first, *others = order.models
    exact = load_model(first, "auto", threads=order.threads)
    models = {EXACT: exact}
    models |= {dtype: load_model(first, dtype, threads=order.threads) for dtype in order.dtypes}
    models |= {
        f"{name} kv={kv}": load_model(first, dtype, threads=order.threads, kv_dtype=kv)
        for name, dtype in ((EXACT, "auto"), *zip(order.dtypes, order.dtypes, strict=True))
        for kv in order.kv_dtypes
    }
    models |= {name: load_model(name, threads=order.threads) for name in others}
    for name, model in models.items():
        if model.info.vocab_size != exact.info.vocab_size:
            raise ConfigError(f"{name} has another vocabulary than {first}; name a folder that was made of that model.")
    tallies = {name: Tally() for name in models}
    windows = list(_windows(order, exact.info.context_length))
    for window in track(windows, "reading", console=Console(stderr=True), transient=True):
        answers, seen = (
            torch.tensor(window[1:]),
            {name: one_pass(model, window[:-1], len(window) - 1) for name, model in models.items()},
        )
        for name, tally in tallies.items():
            tally.add(seen[name], seen[EXACT], answers)
    return {
        "title": "What a precision costs",
        "benchmark": "quality",
        **machine.circumstances(),
        "machine": machine.facts(exact.info),
        "model": first,
        "text": order.text.name,
        "tokens": sum(len(window) - 1 for window in windows),
        "window": min(WINDOW, exact.info.context_length),
        "cases": [
            {"name": name, "mib": round(models[name].info.weight_bytes / 2**20, 2), **tally.figures()}
            for name, tally in tallies.items()
        ],
    }


def _windows(order: Order, context: int) -> Iterator[list[int]]:
    """Windows of the text that follow each other, each begun as the model wants a text begun."""
    try:
        with order.text.open(encoding="utf-8") as file:
            text = file.read(order.tokens * LETTERS)
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot read {str(order.text)!r} ({problem}); name a text in UTF-8.") from problem
    tokenizer = Tokenizer.from_folder(order.models[0])
    begin = tokenizer.encode("", bos=True)
    ids = tokenizer.encode(text, bos=False)[: order.tokens]
    size = min(WINDOW, context) - len(begin)
    found = [begin + ids[at : at + size] for at in range(0, len(ids), size)]
    found = [window for window in found if len(window) > 1]
    if not found:
        raise ConfigError(f"{str(order.text)!r} has {len(ids)} tokens, too few to predict one; name a longer text.")
    yield from found


def show(found: dict[str, Any]) -> None:
    """A table for people."""
    title = f"{found['title']}: {found['model']} on {found['tokens']} tokens of {found['text']}; KL in nats per token"
    table = Table(title=title)
    for head in ("weights", "MiB", "perplexity", "KL", "99% below", "same token"):
        table.add_column(head, justify="left" if head == "weights" else "right")
    for c in found["cases"]:
        divergences = f"{c['kl']:.2e}", f"{c['kl_p99']:.2e}"
        sizes = f"{c['mib']:.1f}", f"{c['perplexity']:.3f}"
        table.add_row(Path(c["name"]).name, *sizes, *divergences, f"{c['same_token']:.1%}")
    Console().print(table)
