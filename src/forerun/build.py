"""Config -> engine: choose every member from its table, load the models, and refuse what cannot work together.

The only place that knows all families; the engine knows contracts, and members know nothing of each other.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from forerun.caches import CACHES
from forerun.config import PADDED, Choice, Config, choose
from forerun.constraints import CONSTRAINTS
from forerun.constraints.contract import Compiler, Guides
from forerun.decoders import DECODERS
from forerun.decoders.contract import Parts
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import Drafter
from forerun.engine import profiles
from forerun.engine.costs import FAR, SECONDS, WIDTHS, measure
from forerun.engine.engine import Engine, Limits, Members
from forerun.engine.grid import WIDE, Shaping
from forerun.engine.guard import Guard
from forerun.engine.planned import Planned
from forerun.engine.runner import ModelRunner
from forerun.engine.stats import EngineStats
from forerun.errors import ConfigError, ForerunError
from forerun.member import Member, check_branching
from forerun.models import parallel
from forerun.models.contract import Model, ModelInfo
from forerun.models.load import load_model
from forerun.models.native import cores, threads_for
from forerun.models.spelling import Speller
from forerun.models.tokenizer import Tokenizer
from forerun.planners import PLANNERS
from forerun.planners.contract import Planner
from forerun.registry import Registry
from forerun.rng import CounterRng
from forerun.schedulers import SCHEDULERS
from forerun.schedulers.contract import Scheduler
from forerun.sheet import Ahead
from forerun.stores.shelf import Shelf
from forerun.stores.tokenfile import mark_of
from forerun.trees import TREES
from forerun.trees.contract import Tree
from forerun.types import Bar, Costs, Monitor, Setup, Spelling
from forerun.verifiers import VERIFIERS

CHOSEN: dict[str, Registry] = {r.family: r for r in (DRAFTERS, VERIFIERS, PLANNERS, DECODERS, SCHEDULERS, CACHES)}
FAMILIES: dict[str, Registry] = {  # a tree is an option of a drafter, a constraint is a request's
    **CHOSEN,
    TREES.family: TREES,
    CONSTRAINTS.family: CONSTRAINTS,
}


@dataclass(frozen=True)
class Choices:
    """The chosen member of every family."""

    drafter: Choice
    verifier: Choice
    planner: Choice
    decoder: Choice
    scheduler: Choice
    cache: Choice


def choose_all(config: Config, options: Mapping[str, Any], companion: str | None) -> Choices:
    """Resolve every spelled method; `options` are further options of the drafter."""
    drafter = config.drafter
    if drafter == "auto":
        drafter = "draft-model" if companion else "ngram"
    chosen = {name: choose(registry, getattr(config, name)) for name, registry in CHOSEN.items() if name != "drafter"}
    return Choices(drafter=choose(DRAFTERS, drafter, options), **chosen)


def caveat(choices: Choices) -> str | None:
    """In which way the text is not the model's own, and what to do about it; None where it is."""
    lossy = [choice for choice in vars(choices).values() if not choice.member.facts.exact]
    if not lossy:
        return None
    said = " and ".join(_departure(c) for c in lossy)
    return f"{said}; leave {' and '.join(c.family for c in lossy)} out for the model's own."


def seed_caveat(choices: Choices) -> str | None:
    """Why a sampled text need not come again with its seed, and what to do about it; None where it does."""
    if choices.decoder.member.facts.learns:
        said = f"decoder {choices.decoder.name!r} goes by earlier requests"
        return f"{said}, so a seed may bring another sampled text the next time; leave it out for the same."
    if choices.verifier.member.facts.coupled:
        return None
    members = [(f"{c.family} {c.name!r}", c.member.facts) for c in vars(choices).values()]
    clocked = [f"{who} goes by measured times" for who, facts in members if facts.clocked]
    learnt = [f"{who} goes by earlier requests" for who, facts in members if facts.learns]
    if not clocked and not learnt:
        return None
    said = " and ".join((*clocked, *learnt))
    return f"{said}, so a seed may bring another sampled text the next time; use verifier='match' for the same."


def _departure(choice: Choice) -> str:
    law, who = choice.member.facts.law, f"{choice.family} {choice.name!r}"
    return f"{who} writes from {law}" if law else f"{who} changes the model's distribution"


def build_engine(
    config: Config,
    model: Model,
    tokenizer: Tokenizer,
    options: Mapping[str, Any] | None = None,
    monitors: Mapping[str, Monitor] | None = None,
) -> Engine:
    """An engine around `model`. Raises ConfigError for what cannot work, before anything large is made."""
    choices = choose_all(config, options or {}, model.info.companion)
    if config.tensor_parallel > 1 and choices.scheduler.member.saves is not Scheduler.saves:
        who = f"scheduler {choices.scheduler.name!r} copies keys and values out, which lie in several processes"
        raise ConfigError(f"{who} with tensor_parallel; use scheduler='fcfs'.")
    setup = replace(setup_for(config, model, tokenizer), monitors=dict(monitors or {}))
    engine = assemble(choices, config, model, setup, tokenizer.decode)
    if setup.store is not None and not setup.store.opened:
        message = f"draft_store is for drafters that learn, and drafter {choices.drafter.name!r} keeps nothing"
        raise ConfigError(f"{message}; leave it out, or use drafter='suffix-decoding'.")
    return engine


def assemble(choices: Choices, config: Config, model: Model, setup: Setup, decode: Callable[..., str]) -> Engine:
    """An engine of chosen members, which need not stand in a table."""
    runner = _runner(model, choices.cache, config, setup.context_length)
    stats = EngineStats()

    def fits(who: str, member: Member | type[Member]) -> None:
        check_branching(who, member.facts, choices.cache.name, choices.cache.member.facts)

    def guarded(spelled: str, given: Setup) -> Guard:
        sooner = config.draft_timeout / 4  # than the drafter that holds this one
        inner = setup.open_drafter(spelled, replace(given, bar=Bar()))  # who holds it decides what is worth a row
        fits(f"drafter {spelled!r}", inner)
        return Guard(inner, given, stats, sooner)

    def shaped(spelled: str) -> Tree:
        tree: Tree = setup.open_tree(spelled)
        fits(f"tree {spelled!r}", tree)
        return tree

    wide = choices.cache.member.facts.branches
    given = replace(setup, open_drafter=guarded, open_tree=shaped, branches=wide)
    drafter = choices.drafter.member(choices.drafter.options, given)
    fits(f"drafter {choices.drafter.name!r}", drafter)
    guard = Guard(drafter, setup, stats, config.draft_timeout)
    ahead = Ahead.SHEETS if runner.padded is not None else Ahead.DRAWS if model.follows else Ahead.NOTHING
    planner: Planner = choices.planner.member(choices.planner.options, replace(setup, drafter=drafter.facts))
    fits(f"decoder {choices.decoder.name!r}", choices.decoder.member)
    parts = Parts(Planned(guard, planner), choices.verifier.member(choices.verifier.options), setup, ahead)
    members = Members(
        guard,
        choices.decoder.member(choices.decoder.options, parts),
        planner,
        choices.scheduler.member(choices.scheduler.options, setup),
        guides_for(setup, beside=leaves_a_core(config, model.info)),
        partial(CounterRng, coupled=choices.verifier.member.facts.coupled),
    )
    most = min(config.max_step_tokens, WIDE) if config.passes == "invariant" else config.max_step_tokens
    sizes = model.info.vocab_size, setup.context_length, config.max_requests, most
    limits, caveats = Limits(*sizes, model.info.eos), (caveat(choices), seed_caveat(choices))
    return Engine(runner, members, limits, decode, stats, caveats)


def guides_for(setup: Setup, *, beside: bool = True) -> Guides:
    """What makes the guides of constrained texts. `beside`: whether a core is left for masks while a pass runs."""

    def compiler(spelled: str) -> Compiler:
        choice = choose(CONSTRAINTS, spelled)
        found: Compiler = choice.member(choice.options, setup)
        return found

    return Guides(compiler, setup.vocab, beside=beside)


def threads_of(config: Config, info: ModelInfo) -> int:
    """How many share a pass."""
    return config.threads or threads_for(info.weight_bytes)


def leaves_a_core(config: Config, info: ModelInfo) -> bool:
    """Whether others have one to themselves while a pass runs."""
    return info.layout.device.type != "cpu" or threads_of(config, info) < cores()


def load_target(config: Config) -> Model:
    """The target; torch gets as many threads as that needs."""
    if config.threads > cores():
        message = f"threads is {config.threads} and this process may use {cores()} of the machine's cores"
        raise ConfigError(f"{message}; more would wait for each other: use threads={cores()}, or 0.")
    if config.tensor_parallel > 1:
        return _load_part(config, parallel.join(config.tensor_parallel, device_of(config), partial(_other, config)))
    model = _load(config, config.model, config.dtype, config.kv_dtype)
    torch.set_num_threads(_beside(config, model))
    return model


def _beside(config: Config, model: Model) -> int:
    """How many threads torch needs for a model.

    Where passes are compiled these have threads of their own, and torch, which has a row to copy here and there, none:
    its threads look for more work for milliseconds after such a copy, on cores that the next pass wants.
    """
    return 1 if model.follows else threads_of(config, model.info)


def _load_part(config: Config, split: parallel.Split) -> Model:
    """The target where several processes share it; only the leading one comes back."""
    chosen = config.dtype, device_of(config), config.threads, config.kv_dtype
    model = load_model(config.model, *chosen, compiled=False, split=split)
    each = max(1, cores() // split.here)
    torch.set_num_threads(config.threads or min(each, threads_for(model.info.weight_bytes)))
    if split.rank:
        parallel.follow(model, split)
        raise SystemExit(0)
    return model


_OTHER = "import sys; from forerun.build import join_target; join_target(*sys.argv[1:])"


def _other(config: Config, rank: int, store: str) -> list[str]:
    """The command of another process of this machine that shares the target."""
    return [sys.executable, "-c", _OTHER, json.dumps(asdict(config)), str(rank), store]


def join_target(spelled: str, rank: str, store: str) -> None:
    """What such a process does: hold its part, and follow until the leading one ends."""
    config = Config(**json.loads(spelled))
    try:
        _load_part(config, parallel.meet(int(rank), config.tensor_parallel, device_of(config), store))
    except ForerunError as problem:
        sys.exit(f"forerun: {problem}")


def _load(config: Config, folder: str, dtype: str, kv_dtype: str = "auto") -> Model:
    compiled = config.passes not in PADDED  # these have shapes of their own
    return load_model(folder, dtype, device_of(config), config.threads, kv_dtype, compiled=compiled)


def device_of(config: Config) -> str:
    """Auto is CUDA where there is a GPU."""
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for and PyTorch finds no GPU; use device='cpu'.")
    return config.device


def setup_for(config: Config, model: Model, tokenizer: Tokenizer | None = None) -> Setup:
    """What the members may use while they are built; without a tokenizer the target's is that of its folder."""
    length = min(config.context_length or model.info.context_length, model.info.context_length)

    def open_model(folder: str, cache: str, dtype: str) -> ModelRunner:
        second = _load(config, folder, dtype)
        torch.set_num_threads(max(torch.get_num_threads(), _beside(config, second)))
        return _runner(second, choose(CACHES, cache), config, min(length, second.info.context_length))

    @cache
    def open_spelling(folder: str) -> Spelling:
        return Speller(Tokenizer.from_folder(folder) if folder else tokenizer or Tokenizer.from_folder(model.info.name))

    def open_drafter(spelled: str, given: Setup) -> Drafter:
        choice = choose(DRAFTERS, spelled)
        drafter: Drafter = choice.member(choice.options, given)
        return drafter

    @cache
    def costs() -> Costs:
        return costs_of(config, model, length)

    def open_tree(spelled: str) -> Tree:
        choice = choose(TREES, spelled)
        tree: Tree = choice.member(choice.options, setup)
        return tree

    setup = Setup(
        costs=costs,
        open_spelling=open_spelling,
        open_drafter=open_drafter,
        open_tree=open_tree,
        vocab=model.info.vocab_size,
        context_length=length,
        eos=model.info.eos,
        max_requests=config.max_requests,
        device=model.info.layout.device,
        dtype=model.info.layout.dtype,
        open_model=open_model,
        hidden_size=model.info.hidden_size,
        num_layers=model.info.num_layers,
        companion=model.info.companion,
        store=Shelf(Path(config.draft_store), lambda: mark_of(open_spelling(""))) if config.draft_store else None,
    )
    return setup


def costs_of(config: Config, model: Model, length: int, seconds: float | None = None) -> Costs:
    """What passes of a model cost: as it was measured before on this machine, or now; with `seconds` now, that long."""
    info, room = model.info, length if config.passes == "invariant" else min(length, FAR + max(WIDTHS))

    def measured() -> Costs:
        runner = _runner(model, choose(CACHES, "contiguous"), replace(config, max_requests=2), room)
        return measure(runner, room, SECONDS if seconds is None else seconds)

    about = profiles.subject(
        info,
        cores=cores(),
        threads=threads_of(config, info),
        passes=[config.passes, config.attention],
        room=room,
    )
    return profiles.recall(_profiles(config.profiles), about, measured, anew=seconds is not None)


def _profiles(choice: str) -> Path | None:
    """The folder in which costs are kept; None where they are not."""
    return profiles.folder() if choice == "auto" else None if choice == "off" else Path(choice).expanduser()


_SLACK = 64  # unjudged tokens that a slot may hold beyond the context: the nodes of a draft near its end


def _runner(model: Model, cache: Choice, config: Config, length: int) -> ModelRunner:
    rows = length + _SLACK
    auto = config.passes == "auto"
    shaping = Shaping(rows, config.passes == "invariant", config.attention, auto) if _pads(config, model.info) else None
    return ModelRunner(model, cache.member(cache.options, model.info.layout, config.max_requests, rows), shaping)


def _pads(config: Config, info: ModelInfo) -> bool:
    """Whether passes get fixed shapes: where it is asked for, and on a GPU unless told otherwise."""
    if config.passes in PADDED and not info.padded:
        raise ConfigError(f"passes {config.passes!r} cannot run {info.name}, which pads no pass; use passes='auto'.")
    return config.passes in PADDED or (config.passes == "auto" and info.padded and info.layout.device.type == "cuda")
