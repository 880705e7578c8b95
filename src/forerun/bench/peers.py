"""`forerun bench compare-transformers`: transformers' own generate beside forerun, taking turns in one run.

Same weights, dtype, threads and prompts; greedy, one prompt at a time, key-value cache on. Where a drafter of forerun
has a counterpart there (a second model: `assistant_model`; prompt lookup: `prompt_lookup_num_tokens`), that runs too.
An enlarged model is enlarged there in the same way, layer by layer.
Does not: compile or quantise anything.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.drive import generate, turns
from forerun.bench.equality import Judge, last_logits
from forerun.bench.figures import Spread
from forerun.bench.measure import Entrant, entrants
from forerun.bench.paper import paper
from forerun.bench.speedup import MAX_TOKENS, Order, model_facts, open_plain
from forerun.bench.workloads import Item
from forerun.build import choose_all
from forerun.config import Choice, Config
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.models.contract import Model
from forerun.models.inflate import Growing
from forerun.models.load import folder_of
from forerun.types import Need, Sampling

BASE = "transformers"
_WARM_UP_TOKENS = 8

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Player:
    """An engine that continues a prompt greedily."""

    name: str
    play: Callable[[Sequence[int], int], Tokens]  # prompt, most tokens to write


@dataclass(frozen=True)
class Game:
    """One prompt, one round, one player."""

    player: int
    round: int
    item: int
    tokens: Tokens
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """The prompt's reading included."""
        return len(self.tokens) / self.seconds


def run(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The whole comparison."""
    most = _most(sampling)
    keywords, greedy = {"max_requests": 1, **config}, Sampling(temperature=0.0, max_tokens=most)
    prompts = workloads.load(order.categories, order.prompts, order.data)
    plain, notes = open_plain(keywords, order.inflate)
    load = workloads.encode(prompts, plain.tokenizer, plain.engine.limits.context_length - most)
    runners = entrants(plain, order.drafters, keywords, greedy)
    model = enlarged(_open(plain, config.get("model", Config.model)), plain.model)
    players = [*theirs(model, plain, runners[1:]), *(Player(f"forerun {e.name}", ours(e.llm)) for e in runners)]
    games = contest(players, load.items, order.repeats, most)
    verdicts = agreement(plain, players, load.items, games)
    return {
        "title": "forerun beside transformers, greedy, the same weights",
        "benchmark": "compare-transformers",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "transformers": _version(),
        "model": model_facts(plain, order.inflate),
        "settings": {"prompts": order.prompts, "repeats": order.repeats, "max_tokens": most},
        "players": _table(players, games, verdicts),
        "divergences": sum(verdict["divergences"] for verdict in verdicts),
        "notes": [*notes, *load.notes],
    }


def _most(sampling: Mapping[str, Any]) -> int:
    """The comparison is greedy; only the length can be chosen."""
    other = sorted(sampling.keys() - {"max_tokens", "temperature", "seed"})
    if other or sampling.get("temperature"):
        name = other[0] if other else "temperature"
        raise ConfigError(f"{name} was given and this comparison is greedy; leave it out.")
    return int(sampling.get("max_tokens", MAX_TOKENS))


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def ours(llm: LLM) -> Callable[[Sequence[int], int], Tokens]:
    """forerun as a player."""

    def play(prompt: Sequence[int], most: int) -> Tokens:
        return generate(llm, [prompt], [Sampling(temperature=0.0, max_tokens=most, seed=0)]).texts[0]

    return play


def theirs(model: Any, plain: LLM, drafted: Sequence[Entrant]) -> list[Player]:  # noqa: ANN401 - transformers' own
    """transformers' plain generate, and its counterpart of every drafter that has one."""
    info = plain.model.info
    players = [Player(BASE, _generate(model, info.eos))]
    for entrant in drafted:
        choice = choose_all(entrant.llm.config, {}, info.companion).drafter
        players += _assisted(choice, model, plain)
    return list({player.name: player for player in players}.values())


def _assisted(choice: Choice, model: Any, plain: LLM) -> list[Player]:  # noqa: ANN401 - transformers' own
    info = plain.model.info
    if Need.SECOND_MODEL in choice.member.facts.needs:
        folder = choice.options.model or info.companion
        assistant = _open(plain, folder or "")
        return [Player(f"{BASE} assisted", _generate(model, info.eos, assistant_model=assistant))]
    if choice.name == "ngram":  # the one drafter that transformers has under another name
        extra = {"prompt_lookup_num_tokens": choice.options.width, "max_matching_ngram_size": choice.options.max_match}
        return [Player(f"{BASE} prompt lookup", _generate(model, info.eos, **extra))]
    return []


def _open(plain: LLM, name: str) -> Any:  # noqa: ANN401
    """transformers' model of a name or folder, in the precision and on the device of ours."""
    from transformers import AutoModelForCausalLM, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    layout = plain.model.info.layout
    model = AutoModelForCausalLM.from_pretrained(folder_of(name), dtype=layout.dtype, local_files_only=True)
    return model.to(layout.device).eval()


def enlarged(model: Any, like: Model) -> Any:  # noqa: ANN401
    """The same added layers as those of `like`: as wide, and adding zero."""
    layers = model.get_decoder().layers
    first, layout = len(layers), like.info.layout
    added = like.widths[first:] if isinstance(like, Growing) else ()
    for index, width in enumerate(added, first):
        config = deepcopy(model.config)
        config.intermediate_size = width
        layer = type(layers[0])(config, index).to(layout.device, layout.dtype).eval()
        for name, weight in layer.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                torch.nn.init.zeros_(weight)
        layers.append(layer)
    model.config.num_hidden_layers = len(layers)
    return model


def _generate(model: Any, eos: tuple[int, ...], **extra: Any) -> Callable[[Sequence[int], int], Tokens]:  # noqa: ANN401
    """generate() as a player."""
    ends = {"eos_token_id": list(eos)} if eos else {}

    def play(prompt: Sequence[int], most: int) -> Tokens:
        ids = torch.tensor([list(prompt)], device=model.device)
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=most,
                pad_token_id=0,
                use_cache=True,
                **ends,
                **extra,
            )
        return tuple(found[0, len(prompt) :].tolist())

    return play


def contest(players: Sequence[Player], items: Sequence[Item], repeats: int, most: int) -> list[Game]:
    """Every player on every prompt in every round, in alternating order, after a warm-up."""
    for player in players:
        player.play(items[0].tokens, _WARM_UP_TOKENS)
    games: list[Game] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=len(players) * len(items) * repeats)
        for number, item in enumerate(items):
            for round_, order in turns(len(players), repeats):
                for who in order:
                    began = perf_counter()
                    tokens = players[who].play(item.tokens, most)
                    games.append(Game(who, round_, number, tokens, perf_counter() - began))
                    bar.advance(task)
    return games


def agreement(
    plain: LLM, players: Sequence[Player], items: Sequence[Item], games: Sequence[Game]
) -> list[dict[str, int]]:
    """Per player: how many texts are transformers' greedy texts, how many tie with them, how many diverge."""
    info = plain.model.info
    judge = Judge(last_logits(plain.engine.runner), info.layout.dtype, info.eos)
    base = {(g.item, g.round): g.tokens for g in games if g.player == 0}
    counts = [dict.fromkeys(("equal", "ties", "divergences"), 0) for _ in players]
    for game in games:
        expected = base[game.item, game.round]
        sampling = Sampling(temperature=0.0)
        difference = judge.compare(items[game.item].tokens, expected, game.tokens, sampling)
        kind = {"tie": "ties", "divergence": "divergences"}[difference.kind] if difference else "equal"
        counts[game.player][kind] += 1
    return counts


def _table(players: Sequence[Player], games: Sequence[Game], verdicts: Sequence[dict[str, int]]) -> dict[str, Any]:
    base = {(g.item, g.round): g for g in games if g.player == 0}
    found = {}
    for who, player in enumerate(players):
        mine = [g for g in games if g.player == who]
        gains = [g.tokens_per_second / base[g.item, g.round].tokens_per_second for g in mine]
        found[player.name] = {
            "tokens_per_second": asdict(Spread.of([g.tokens_per_second for g in mine])),
            "over_transformers": asdict(Spread.of(gains)),
            "texts": len(mine),
            **verdicts[who],
        }
    return found


def show(report: dict[str, Any]) -> None:
    """The table, then the notes."""
    console = paper()
    table = Table(title=report["title"], title_justify="left")
    for name in ("engine", "tokens/s", "over transformers", "equal to transformers' greedy"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for name, f in report["players"].items():
        speeds = Spread(**f["tokens_per_second"]).shown(0), Spread(**f["over_transformers"]).shown()
        equal = f"{f['equal']}/{f['texts']}, {f['ties']} tied, {f['divergences']} diverged"
        table.add_row(name.replace("[", "\\["), *speeds, equal)
    console.print(table)
    for note in report["notes"]:
        console.print(note, markup=False)
