"""`forerun bench quality`: what a precision costs in the model's own probabilities, beside its size.

The same windows of a text go through the exact model (weights as they are stored, float32 arithmetic) and through each
rounded one. Per predicted token: perplexity, the divergence KL(exact || rounded) in nats, and how often both would
choose the same token. An engine whose interpreter is named reads the same windows in a process of its own, with what it
made of the same checkpoint in a temporary folder; its size is that of its file.
Does not: measure speed; say what a divergence does to a task; count a text that an engine failed to read whole.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine
from forerun.bench.children import ENGINES, Child, DiedError, Engine, FailedError, MissingError, RefusedError
from forerun.bench.engines import PEERS, Entrant, Peer, entrants
from forerun.bench.paper import paper
from forerun.errors import ConfigError, unknown
from forerun.models.contract import Model
from forerun.models.load import folder_of, load_model
from forerun.models.tokenizer import Tokenizer
from forerun.quantize import one_pass
from forerun.weights.load import Checkpoint

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
    pythons: Mapping[str, str] = field(default_factory=dict)  # engine to read the windows too -> its interpreter


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


@dataclass
class Case:
    """One way to keep the model, and what it lost so far."""

    name: str
    nbytes: int
    read: Callable[[list[int]], torch.Tensor]  # a text from its start -> logits after every token
    facts: dict[str, str] = field(default_factory=dict)  # of an engine that is not forerun
    tally: Tally = field(default_factory=Tally)

    def figures(self, weights: int) -> dict[str, Any]:
        bits = round(8 * self.nbytes / weights, 2)  # of a weight, with everything else that the file holds
        sizes = {"mib": round(self.nbytes / 2**20, 2), "bits": bits}
        return {"name": self.name, **self.facts, **sizes, **self.tally.figures()}


def run(order: Order, peers: Sequence[Peer] = PEERS) -> dict[str, Any]:
    """Every case over the same windows; what an engine fails at is left out, with a note."""
    entered, notes = asked(order, peers), list[str]()
    weights = sum(math.prod(entry.shape) for entry in Checkpoint(folder_of(order.models[0])).entries.values())
    models = _models(order)
    exact = models[EXACT].info
    cases = [Case(name, model.info.weight_bytes, partial(_read, model)) for name, model in models.items()]
    windows = list(_windows(order, exact.context_length))
    with TemporaryDirectory(prefix="forerun-") as folder, ExitStack() as stack:
        for entrant in entered:
            with _noted(entrant.name, notes):
                cases.append(_enter(entrant, order, Path(folder), exact.vocab_size, stack))
        for window in track(windows, "reading", console=Console(stderr=True), transient=True):
            cases = list(_read_by_all(cases, window, notes))
    return {
        "title": "What a precision costs",
        "benchmark": "quality",
        **machine.circumstances(),
        "machine": machine.facts(exact),
        "model": order.models[0],
        "text": order.text.name,
        "tokens": sum(len(window) - 1 for window in windows),
        "window": min(WINDOW, exact.context_length),
        "cases": [case.figures(weights) for case in cases],
        "notes": notes,
    }


def _models(order: Order) -> dict[str, Model]:
    """forerun's own: the exact model first, its roundings, and the folders made of it."""
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
    coarse = [name for name in others if "w8a8" in order.dtypes and models[name].info.rounded == "int8"]
    models |= {f"{name} w8a8": load_model(name, "w8a8", threads=order.threads) for name in coarse}  # the same weights
    for name, model in models.items():
        if model.info.vocab_size != exact.info.vocab_size:
            raise ConfigError(f"{name} has another vocabulary than {first}; name a folder that was made of that model.")
    return models


def _read_by_all(cases: Sequence[Case], window: list[int], notes: list[str]) -> Iterator[Case]:
    """One window by everyone, the exact model first; whoever came to its end goes on."""
    *tokens, _ = window
    answers, exact = torch.tensor(window[1:]), cases[0].read(tokens)
    for case in cases:
        with _noted(case.name, notes):
            case.tally.add(exact if case is cases[0] else case.read(tokens), exact, answers)
            yield case


def _read(model: Model, tokens: list[int]) -> torch.Tensor:
    return one_pass(model, tokens, len(tokens))


def asked(order: Order, peers: Sequence[Peer]) -> list[Entrant]:
    """The engines' variants that are to read the windows too; ConfigError for what cannot be asked for."""
    known = {peer.name: peer for peer in peers}
    for name in order.pythons:
        if name not in known:
            raise ConfigError(unknown("forerun bench quality", "engine", name, known))
        if not known[name].variants.keys() & order.dtypes:
            kinds = ", ".join(known[name].variants)
            raise ConfigError(f"{name} has no weights of {', '.join(order.dtypes)}; name one of: {kinds}.")
    return entrants([known[name] for name in order.pythons], order.dtypes)


@contextmanager
def _noted(name: str, notes: list[str]) -> Iterator[None]:
    """Go on without an engine's variant that does not."""
    try:
        yield
    except (RefusedError, FailedError, DiedError) as problem:
        notes.append(f"{name} was left out: {str(problem).rstrip('.')}.")


def _enter(entrant: Entrant, order: Order, work: Path, vocabulary: int, stack: ExitStack) -> Case:
    """Convert the checkpoint, and open what came of it."""
    peer, place = entrant.peer, work / entrant.name.replace(" ", "-")
    python, threads = order.pythons[peer.name], order.threads or torch.get_num_threads()
    place.mkdir()
    try:
        child, version = _begin(peer, python, place.with_suffix(".log"), stack)
        child.ask("prepare", source=str(folder_of(order.models[0])), target=str(place), variant=entrant.kind)
        child.ask("load", path=str(place), variant=entrant.variant, threads=threads)
    except MissingError as problem:
        raise ConfigError(f"{peer.name} cannot be asked: {peer.remedy(str(problem), python)}.") from problem
    nbytes = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    read = partial(_score, child, place.with_suffix(".npy"), vocabulary)
    return Case(entrant.name, nbytes, read, {"engine": peer.name, "version": version})


def _begin(peer: Peer, python: str, log: Path, stack: ExitStack) -> tuple[Child, str]:
    """The engine's process and version; ConfigError where it cannot be asked."""
    try:
        child = Child(Engine(python, ENGINES / peer.file), log)
        stack.callback(child.close)
        begun = child.ask("begin")
    except DiedError as problem:
        raise ConfigError(f"{peer.name} cannot be asked: {problem}; name an interpreter that has it.") from problem
    if "score" not in begun["can"]:
        raise ConfigError(f"{peer.name} gives no logits of a whole text here; leave its --python out.")
    return child, begun["version"]


def _score(child: Child, file: Path, vocabulary: int, tokens: list[int]) -> torch.Tensor:
    """Logits after every token of a text, by an engine."""
    child.ask("score", tokens=tokens, file=str(file))
    logits = np.load(file)
    if logits.shape != (len(tokens), vocabulary) or not np.isfinite(logits).all():
        due = f"{len(tokens)} x {vocabulary} finite ones were due"
        raise FailedError(f"its logits are {' x '.join(map(str, logits.shape))}, and {due}")
    return torch.from_numpy(logits)


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
    others = dict.fromkeys(f"{c['engine']} {c['version']}" for c in found["cases"] if "engine" in c)
    table = Table(title=title, caption=", ".join(others))
    for head in ("weights", "MiB", "bits", "perplexity", "KL", "99% below", "same token"):
        table.add_column(head, justify="left" if head == "weights" else "right")
    for c in found["cases"]:
        divergences = f"{c['kl']:.2e}", f"{c['kl_p99']:.2e}"
        sizes = f"{c['mib']:.1f}", f"{c['bits']:.2f}", f"{c['perplexity']:.3f}"
        table.add_row(Path(c["name"]).name, *sizes, *divergences, f"{c['same_token']:.1%}")
    console = paper()
    console.print(table)
    for note in found["notes"]:
        console.print(note, markup=False)
