"""Which laws bind whom: `check(member)` runs all that apply to one member of any family.

`check("ngram")`, `check("draft-model:model=toy:100,tree=level")`, or `check(MyDrafter)` for a class that stands in no
table yet. Members of the other families are taken from the tables, so a new row there is met here as well.
Does not: need a GPU, a model's weights or a network.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from forerun.build import FAMILIES
from forerun.caches import CACHES
from forerun.caches.contract import Cache
from forerun.config import Choice
from forerun.constraints.contract import Compiler
from forerun.decoders.contract import Decoder
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError, unknown
from forerun.models.toy import ToyModel
from forerun.planners.contract import Planner
from forerun.registry import Registry
from forerun.schedulers.contract import Scheduler
from forerun.testing import laws, serving
from forerun.testing.toy import KINDS, BushyDrafter, PickyPlanner, SiblingsDrafter, Spelled, Toy, chosen, target
from forerun.trees.contract import Tree
from forerun.types import Constraint, Sampling
from forerun.verifiers import VERIFIERS
from forerun.verifiers.contract import Verifier

CONTRACTS: dict[str, type[Any]] = {
    "drafter": Drafter,
    "verifier": Verifier,
    "planner": Planner,
    "decoder": Decoder,
    "scheduler": Scheduler,
    "cache": Cache,
    "tree": Tree,
    "constraint": Compiler,
}
TREE = "draft-model:model=toy:100,depth=2,tree=level"
GROWN = "draft-model:model=toy:100,depth=2"  # what trees are grown with
DEEP = "draft-model:model=toy:100,depth=3"
SEEDS = (0, 1, 2)  # of the toy targets
Law = Callable[[], None]


class _One(Registry):
    """A table of a single member, which need not be importable by name."""

    def __init__(self, choice: Choice) -> None:
        super().__init__(choice.family, "", {})
        self.choice = choice

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the class
        return self.choice.member


def check(member: Spelled, family: str | None = None) -> list[str]:
    """Run every law that binds this member; the names of those that held. Raises LawError for the first broken one."""
    choice = find(member, family)
    held: list[str] = []
    for name, law in laws_of(choice):
        law()
        held.append(name)
    return held


def find(member: Spelled, family: str | None = None) -> Choice:
    """The member that is meant, whichever family it is of."""
    if isinstance(member, Choice):
        return member
    names = [family] if family else list(FAMILIES)
    if isinstance(member, type):
        mine = [f for f in names if issubclass(member, CONTRACTS[f])]
    else:
        mine = [f for f in names if member.partition(":")[0] in FAMILIES[f]]
    if not mine:
        known = [name for f in names for name in FAMILIES[f]]
        raise ConfigError(unknown("forerun", "member", str(member), known))
    return chosen(FAMILIES[mine[0]], member)


def laws_of(choice: Choice) -> Iterator[tuple[str, Law]]:
    """Every law that binds the member, with a name that says under which circumstances."""
    yield "documented", partial(laws.is_documented, choice.member)
    yield "spelled", partial(laws.is_spelled, _One(choice), choice.name)
    yield from _OF[choice.family](choice)


def toys(**members: Spelled | None) -> list[Toy]:
    """Toy engines over several targets."""
    return [Toy(**members, model=target(seed)) for seed in SEEDS]  # type: ignore[arg-type]


def is_exact(toy: Toy) -> bool:
    """Whether every member claims to keep the target's law."""
    parts = toy.choices
    members = (parts.drafter, parts.verifier, parts.planner, parts.decoder, parts.scheduler, parts.cache)
    return all(part.member.facts.exact for part in members)


def law_of_output(engines: Sequence[Toy]) -> Iterator[tuple[str, Law]]:
    """Exact where everybody claims it, and otherwise really lossy."""
    name = laws.spelled(engines[0])
    if not is_exact(engines[0]):
        yield f"lossy: {name}", partial(laws.lossy_is_needed, engines)
        yield f"bans: {name}", partial(laws.bans_hold, engines[0])
        return
    for toy in engines:
        for how, sampling in laws.SAMPLINGS.items():
            yield f"exact: {name}, {how}, {toy.model.info.name}", partial(laws.exact_is_true, toy, sampling)
    yield f"constrained: {name}", partial(laws.exact_is_true, engines[0], laws.CONSTRAINED)
    yield f"greedy: {name}", partial(laws.greedy_equals_greedy, engines[0])


def law_of_cuts(toy: Toy) -> Iterator[tuple[str, Law]]:
    """A planner may drop nodes by their confidence."""
    cut = replace(toy, planner=PickyPlanner)
    yield f"cut: {laws.spelled(cut)}", partial(laws.exact_is_true, cut, laws.SAMPLINGS["plain"])


def law_of_company(toy: Toy) -> Iterator[tuple[str, Law]]:
    """Neighbours, memory and cancelling."""
    for law in (laws.neighbours_do_not_matter, laws.chunks_do_not_matter, laws.cancelling_is_free):
        yield f"{law.__name__.replace('_', ' ')}: {laws.spelled(toy)}", partial(law, toy)
    if laws.coupled(toy):
        yield f"seeds are plain decoding's: {laws.spelled(toy)}", partial(laws.seeds_are_plain_decodings, toy)
    if is_exact(toy):
        yield f"no trace: {laws.spelled(toy)}", partial(laws.rejection_leaves_no_trace, toy)


def kinds() -> set[str]:
    """One verifier of every kind: drafters meet verifiers in verdicts alone, so company is tried once per kind."""
    return set({(v.facts.exact, v.facts.coupled): name for name, v in reversed(list(VERIFIERS.items()))}.values())


def sorts() -> set[str]:
    """One drafter of every sort: decoders meet drafters in drafts alone, and all meet the usual decoder."""
    found = {}
    for name, drafter in reversed(list(DRAFTERS.items())):
        facts = drafter.facts
        found[facts.draws, facts.silent, facts.lesson > 0, facts.learns, facts.ahead, facts.clocked] = name
    return set(found.values())


def _of_drafter(drafter: Choice) -> Iterator[tuple[str, Law]]:
    for verifier in VERIFIERS:
        toy = Toy(drafter=drafter, verifier=verifier)
        yield f"a draft: {laws.spelled(toy)}", partial(laws.a_draft_is_a_draft, toy)
    yield from law_of_cuts(Toy(drafter=drafter))
    beside = [*({"verifier": name} for name in VERIFIERS), *({"cache": name} for name in CACHES)]
    every = [toys(drafter=drafter, **one) for one in beside]  # a verifier and a cache never meet
    for engines in {laws.spelled(engines[0]): engines for engines in every}.values():
        others = engines[0].choices.verifier, engines[0].choices.cache
        if all(other.member.facts.exact for other in others):  # else it proves nothing here
            yield from law_of_output(engines)
        if others[0].name in kinds():
            yield from law_of_company(engines[0])


def _of_verifier(verifier: Choice) -> Iterator[tuple[str, Law]]:
    for drafter in (*DRAFTERS, TREE, BushyDrafter):
        engines = toys(drafter=drafter, verifier=verifier)
        if verifier.member.facts.exact:
            yield from law_of_output(engines)
    for drafter in (TREE, BushyDrafter):
        yield from law_of_company(Toy(drafter=drafter, verifier=verifier))
    yield "no draft", partial(laws.no_draft_is_plain, verifier, target(0))
    yield from _of_siblings(verifier)
    if not verifier.member.facts.exact:
        engines = [toy for d in (TREE, BushyDrafter) for toy in toys(drafter=d, verifier=verifier)]
        yield "lossy", partial(laws.lossy_is_needed, engines)
        for drafter in (TREE, BushyDrafter):
            toy = Toy(drafter=drafter, verifier=verifier)
            yield f"bans: {laws.spelled(toy)}", partial(laws.bans_hold, toy)


def siblings(**options: Any) -> Choice:  # noqa: ANN401 - values of its Options
    """The toy drafter of one kind of siblings."""
    return Choice("drafter", "siblings", SiblingsDrafter, SiblingsDrafter.Options(**options))


def of_siblings(verifier: Choice) -> Iterator[tuple[str, Law]]:
    """Verdicts on drawn siblings of every kind, in trees, and on a drawn chain."""
    trees = [siblings(kind=kind, width=3) if kind == "mixed" else siblings(kind=kind, depth=2) for kind in KINDS]
    for drafter in (*trees, siblings(width=1, depth=3)):
        for how, sampling in laws.SAMPLINGS.items():
            law = partial(laws.verdicts_are_true, verifier, drafter, sampling, target(0))
            yield f"verdicts: {drafter.spelling}, {how}", law


def _of_siblings(verifier: Choice) -> Iterator[tuple[str, Law]]:
    """Drawn siblings, for which being exact takes more than for chosen ones; the engine's part is that of one level."""
    if not verifier.member.facts.coupled:  # whose drafts are not drawn apart from its verdict
        yield "acceptance", partial(laws.acceptance_is_told, verifier, (target(0), target(100)))
    if not verifier.member.facts.exact:
        return
    yield from of_siblings(verifier)
    for kind in KINDS:
        toy = Toy(drafter=siblings(kind=kind), verifier=verifier)
        for how, sampling in laws.SAMPLINGS.items():
            yield f"exact: {laws.spelled(toy)}, {how}", partial(laws.exact_is_true, toy, sampling)
        yield from law_of_company(toy)


def _of_planner(planner: Choice) -> Iterator[tuple[str, Law]]:
    """Where budgets depend on company, so may a seed's text, unless the verifier is coupled."""
    yield "shares fit", partial(laws.shares_fit, planner)
    coupled = next(name for name in VERIFIERS if VERIFIERS[name].facts.coupled)
    for drafter in (GROWN, TREE):
        toy = Toy(drafter=drafter, planner=planner)
        yield from law_of_output([toy])
        beside = toy if planner.member.facts.solo else replace(toy, verifier=coupled)
        for law in (laws.neighbours_do_not_matter, laws.cancelling_is_free):
            yield f"{law.__name__.replace('_', ' ')}: {laws.spelled(beside)}", partial(law, beside)


def _of_scheduler(scheduler: Choice) -> Iterator[tuple[str, Law]]:
    """Schedulers and drafters meet in budgets and memory only; a few drafters show it."""
    facts = scheduler.member.facts
    yield "picks fit", partial(serving.picks_fit, scheduler)
    yield "nobody starves", partial(serving.nobody_starves, scheduler)
    if facts.stall_free:
        yield "decodes never stall", partial(serving.decodes_never_stall, scheduler)
    if facts.fair:
        yield "scopes share alike", partial(serving.scopes_share_alike, scheduler)
    coupled = next(name for name in VERIFIERS if VERIFIERS[name].facts.coupled)
    for drafter in ("none", GROWN, TREE):
        toy = Toy(drafter=drafter, scheduler=scheduler)
        yield f"greedy: {laws.spelled(toy)}", partial(laws.greedy_equals_greedy, toy)
        yield from law_of_company(toy)
        short = replace(toy, verifier=coupled)
        yield f"preemption: {laws.spelled(short)}", partial(serving.preemption_does_not_matter, short)


def _of_decoder(decoder: Choice) -> Iterator[tuple[str, Law]]:
    usual = Toy().choices
    pairs: list[tuple[Spelled, str]] = [(name, usual.cache.name) for name in (*DRAFTERS, BushyDrafter)]
    others = [cache for cache in CACHES if cache != usual.cache.name]
    pairs += product((GROWN, BushyDrafter), others)  # all drafters meet all caches where decoders are the usual one
    alike = set[str]() if decoder.name == usual.decoder.name else {*DRAFTERS} - sorts()
    engines = [toys(drafter=drafter, decoder=decoder, cache=cache)[0] for drafter, cache in pairs]
    if not decoder.member.facts.exact:  # some are lossy by what is drafted alone
        yield "lossy", partial(laws.lossy_is_needed, engines)
    for toy in engines:
        if decoder.member.facts.exact:
            yield from law_of_output([toy])
        else:
            yield f"bans: {laws.spelled(toy)}", partial(laws.bans_hold, toy)
        if toy.choices.drafter.name not in alike:
            yield from law_of_company(toy)


def _of_cache(cache: Choice) -> Iterator[tuple[str, Law]]:
    for drafter in (*DRAFTERS, BushyDrafter):
        engines = toys(drafter=drafter, cache=cache)
        yield from law_of_output(engines[:1])
        yield from law_of_company(engines[0])


def _of_tree(tree: Choice) -> Iterator[tuple[str, Law]]:
    large = Toy(drafter=DEEP, tree=tree, planner="fixed:nodes=5")
    yield f"a large draft: {laws.spelled(large)}", partial(laws.a_draft_is_a_draft, large, first=True)
    for verifier in VERIFIERS:
        engines = toys(drafter=GROWN, tree=tree, verifier=verifier)
        yield f"a draft: {laws.spelled(engines[0])}", partial(laws.a_draft_is_a_draft, engines[0])
        if VERIFIERS[verifier].facts.exact:
            yield from law_of_output(engines[:1])
            judged = replace(large, verifier=verifier)
            for how, sampling in laws.SAMPLINGS.items():
                yield f"a step: {laws.spelled(judged)}, {how}", partial(laws.a_step_is_exact, judged, sampling)
        if verifier in kinds():
            yield from law_of_company(engines[0])


def _of_constraint(compiler: Choice) -> Iterator[tuple[str, Law]]:
    """Walks leave no trace; and in engines, whether or not the text's end is a token."""
    words = compiler.member.words
    letters = ToyModel(words=words, seed=0)
    wish = Constraint(compiler.spelling, compiler.member.example)
    yield "walks", partial(laws.walks_leave_no_trace, letters, wish)
    yield "limits", partial(laws.bad_constraints_are_refused, letters, compiler.name)
    for model in (letters, ToyModel(words=(*words, "$"), seed=0, eos=(len(words),))):
        for drafter in ("none", BushyDrafter, siblings(width=1, depth=2), "grammar"):
            toy = Toy(drafter=drafter, model=model)
            for temperature in (0.0, 1.0):
                sampling = Sampling(temperature=temperature, max_tokens=laws.LENGTH, constraint=wish)
                law = partial(laws.exact_is_true, toy, sampling, (0, 1))
                yield f"exact: {laws.spelled(toy)}, {temperature}, {model.info.name}", law
            yield f"texts: {laws.spelled(toy)}, {model.info.name}", partial(laws.ends_are_ends, toy, wish)


_OF: dict[str, Callable[[Choice], Iterator[tuple[str, Law]]]] = {
    "drafter": _of_drafter,
    "verifier": _of_verifier,
    "planner": _of_planner,
    "scheduler": _of_scheduler,
    "decoder": _of_decoder,
    "cache": _of_cache,
    "tree": _of_tree,
    "constraint": _of_constraint,
}
