"""`forerun train lm`: from a recipe to a model folder.

Does not: choose a recipe for the machine; train anything but a Llama-shaped language model.
"""

import ctypes
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from forerun.errors import TrainError
from forerun.models.inflate import SILENT
from forerun.train import checkpoint, data, loop, network, recipe, sources, tokenizer
from forerun.train.export import export
from forerun.train.recipe import Recipe
from forerun.train.report import Reporter

Split = tuple[list[sources.Document], list[sources.Document]]
WRITTEN = "written"  # the source of texts of the teacher's own
# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def train_lm(
    recipe_name: Path | str,
    overrides: dict[str, Any] | None = None,
    *,
    data_folder: Path | None = None,
    run_folder: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
) -> Path:
    """Train by a recipe and export a model folder; returns that folder."""
    chosen = recipe.load(recipe_name, overrides)
    keep_memory()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    folder = run_folder or Path("runs") / chosen.name
    run, words = prepare(chosen, data_folder or data.default_folder(), folder, resume=resume)
    loop.train(run)
    return finish(run, words, out or folder / "model")


def keep_memory() -> None:
    """Ask glibc to keep freed buffers: every step needs the same sizes again, and fresh pages are dear."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)  # the most that glibc accepts


def prepare(chosen: Recipe, data_folder: Path, folder: Path, *, resume: bool) -> tuple[loop.Run, Tokenizer]:
    """Read, split and pack the data; build or restore the model."""
    if not resume and (folder / checkpoint.FILE).exists():
        message = f"{str(folder)!r} already holds a run; continue it with --resume, or name another folder with --run."
        raise TrainError(message)
    make_folder(folder)
    parts, words = read(chosen, data_folder, folder)
    packed = {name: data.pack(train, words) for name, (train, _) in parts.items()}
    shares = dict(chosen.mixture)
    if chosen.distil.written:
        packed[WRITTEN] = data.load(Path(chosen.distil.written))
        own = chosen.distil.written_share
        shares = {**{name: share * (1 - own) for name, share in shares.items()}, WRITTEN: own * sum(shares.values())}
    sampler = data.Sampler(packed, shares, chosen.seed)
    run = assemble(chosen, folder, sampler, hold(chosen, parts, words))
    run.reporter.say(f"{sum(len(p.ids) for p in packed.values()):,} training tokens in {len(packed)} sources")
    if resume:
        loop.resume(run)
    return run, words


def read(chosen: Recipe, data_folder: Path, folder: Path) -> tuple[dict[str, Split], Tokenizer]:
    """The documents of the mixture, split, and the tokenizer for them."""
    parts = {name: data.split(documents) for name, documents in sources.read(data_folder, chosen.mixture).items()}
    return parts, vocabulary(chosen, parts, folder)


def hold(chosen: Recipe, parts: dict[str, Split], words: Tokenizer) -> dict[str, torch.Tensor]:
    """Validation windows of every source."""
    length, most = chosen.schedule.lengths[0][1], chosen.report.validation_windows
    return {name: data.windows(data.pack(rest, words), length, most) for name, (_, rest) in parts.items()}


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot make the run folder {str(folder)!r} ({error.strerror}); name another one with --run."
        raise TrainError(message) from error


def vocabulary(chosen: Recipe, parts: dict[str, Split], folder: Path) -> Tokenizer:
    """The tokenizer the recipe names, the one this run already has, or a new one."""
    if chosen.tokenizer:
        return tokenizer.load(Path(chosen.tokenizer))
    if (folder / "tokenizer.json").is_file():
        return tokenizer.load(folder)
    # Chats of stories and War and Peace would only repeat what other sources show, and weigh too much.
    told = {name: train for name, (train, _) in parts.items() if name not in {"story_chat", "war_and_peace"}}
    words = tokenizer.train((text for train in told.values() for text in data.texts(train)), chosen.vocab_size)
    tokenizer.write(words, folder, chosen.model.context)
    return words


def assemble(chosen: Recipe, folder: Path, sampler: data.Sampler, held: dict[str, torch.Tensor]) -> loop.Run:
    device = pick_device(chosen.device)
    return loop.Run(
        recipe=chosen,
        folder=folder,
        model=begin(chosen, device),
        sampler=sampler,
        validation=held,
        device=device,
        reporter=Reporter(Console(), chosen.name, folder, chosen.report.log_steps),
        teacher=load_teacher(chosen, device),
    )


def begin(chosen: Recipe, device: torch.device) -> torch.nn.Module:
    """A model to train: fresh, or with the weights of the folder that the recipe names.

    Layers that the folder lacks begin as ones that change nothing (2401.02415).
    """
    model: torch.nn.Module = network.make(chosen.model, chosen.vocab_size, device)
    if chosen.init:
        weights, own = load_folder(Path(chosen.init), device).state_dict(), model.state_dict()
        fresh = {name: part for name, part in own.items() if name not in weights and ".layers." in name}
        weights |= {name: torch.zeros_like(part) if name.endswith(SILENT) else part for name, part in fresh.items()}
        wrong = [name for name in own | weights if name not in own or own[name].shape != weights[name].shape]
        if wrong:
            message = (
                f"{chosen.init!r} does not have the recipe's shape: {wrong[0]} differs; set model.* to that folder's."
            )
            raise TrainError(message)
        model.load_state_dict(weights)
    return model


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def load_teacher(chosen: Recipe, device: torch.device) -> torch.nn.Module | None:
    """The frozen model to distil from, or None."""
    if not chosen.distil.teacher:
        return None
    teacher = load_folder(Path(chosen.distil.teacher), device)
    if teacher.config.vocab_size != chosen.vocab_size:
        got = teacher.config.vocab_size
        message = f"the teacher has {got} tokens, the recipe {chosen.vocab_size}; set vocab_size to the teacher's."
        raise TrainError(message)
    frozen: torch.nn.Module = teacher.eval()
    return frozen


def load_folder(folder: Path, device: torch.device) -> LlamaForCausalLM:
    if not (folder / "config.json").is_file():
        message = f"model folder {str(folder)!r} has no config.json; train that model first, or name another folder."
        raise TrainError(message)
    attention = network.attention(device)
    settings = {"dtype": torch.float32, "attn_implementation": attention}
    return LlamaForCausalLM.from_pretrained(folder, local_files_only=True, **settings).to(device)


def finish(run: loop.Run, words: Tokenizer, out: Path) -> Path:
    """Validate, export, and show what the exported folder says."""
    measure(run)
    export(run.model, words, out, run.recipe.companion)
    for prompt in run.recipe.report.prompts:
        run.reporter.say(prompt + sample(out, prompt))
    return out


def measure(run: loop.Run) -> None:
    """Validation loss per source and, with a teacher, how much of the student's drafts it would accept."""
    by_source = loop.validate(run)
    for name, loss in by_source.items():
        run.reporter.say(f"validation  {name:<18} {loss:.3f}")
    run.reporter.say(f"validation  {'all, weighted':<18} {loop.weighted(run, by_source):.3f}")
    if run.teacher is not None:
        accepted = loop.acceptance(run, run.teacher)
        for name, (same, overlap) in accepted.items():
            run.reporter.say(f"acceptance  {name:<18} same greedy token {same:.3f}  sum min(p,q) {overlap:.3f}")


def evaluate(recipe_name: Path | str, folder: Path, data_folder: Path | None = None, windows: int = 64) -> None:
    """Measure a finished model folder on the held-out documents of its recipe."""
    chosen = recipe.load(recipe_name, {"report.validation_windows": windows, "tokenizer": str(folder)})
    torch.set_num_threads(chosen.threads)
    parts, words = read(chosen, data_folder or data.default_folder(), folder)
    run = assemble(chosen, folder, data.Sampler({}, chosen.mixture, chosen.seed), hold(chosen, parts, words))
    run.model.load_state_dict(load_folder(folder, run.device).state_dict())
    for name, (train, _) in parts.items():
        run.reporter.say(f"training tokens  {name:<18} {len(data.pack(train, words).ids):,}")
    measure(run)


def export_run(recipe_name: Path | str, run_folder: Path, out: Path) -> Path:
    """Export the last checkpoint of a run, finished or not."""
    chosen = recipe.load(recipe_name, {"distil.teacher": ""})
    run = assemble(chosen, run_folder, data.Sampler({}, {}, 0), {})
    loop.resume(run)
    words = tokenizer.load(Path(chosen.tokenizer) if chosen.tokenizer else run_folder)
    export(run.model, words, out, chosen.companion)
    return out


def sample(folder: Path, prompt: str, num_tokens: int = 120) -> str:
    """A greedy continuation by the exported model, as any user of the folder would get it."""
    words = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    ids = words(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
    return str(words.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
