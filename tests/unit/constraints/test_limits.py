"""S9: how large a schema may be, alone, within a grammar and as a tool's; and how much of what is compiled is kept."""

import json

import pytest

from forerun.constraints import contract
from forerun.errors import RequestError
from forerun.models.toy import ToyModel
from forerun.server.tools import BARE, held
from forerun.testing import Toy
from forerun.types import Constraint


@pytest.fixture
def guides():
    return Toy(model=ToyModel(3)).build().engine.members.guides


def alone(schema):
    return Constraint("json_schema", schema)


def within(schema):
    return Constraint("lark", f'start: "%json" a\na: %json {schema}\n')


@pytest.mark.parametrize("form", [alone, within])
@pytest.mark.parametrize(
    ("inside", "beyond", "why"),
    [
        ("[" * 63 + "]" * 63, "[" * 64 + "]" * 64, "65 levels"),
        (json.dumps({f"p{i}": True for i in range(256)}), json.dumps({f"p{i}": True for i in range(257)}), "257 names"),
        (json.dumps([1] * 1000), json.dumps([1] * 1001), "1001 entries"),
        (json.dumps([[[]] * 900, [[]] * 900]), json.dumps([[[]] * 999, [[]] * 999]), "2001 objects"),
    ],
    ids=["depth", "names", "entries", "nodes"],
)
def test_a_schema_has_a_size(guides, form, inside, beyond, why):
    """At a limit it is taken, and one beyond it refused before anything is compiled. `examples` change no text."""
    guides.prepare(form(f'{{"examples": {inside}}}'))
    with pytest.raises(RequestError, match=why):
        guides.prepare(form(f'{{"examples": {beyond}}}'))
    with pytest.raises(RequestError, match="hundreds of levels"):
        guides.prepare(form("[" * 30_000 + "]" * 30_000))


@pytest.mark.parametrize("schema", ['{"$ref": "http://a.example"}', '{"title": "%json", "items": {"$ref": "b.json"}}'])
def test_a_schema_in_a_grammar_refers_to_itself_alone(guides, schema):
    with pytest.raises(RequestError, match="put it into the schema's own"):
        guides.prepare(Constraint("lark", f"start: a | b\na: %json\n  {schema}\nb: %json {{}}"))


def test_tools_have_the_limits_of_schemas(guides):
    tools = [{"name": "a", "parameters": {"properties": {f"p{i}": True for i in range(257)}}}]
    with pytest.raises(RequestError, match="257 names"):
        guides.prepare(held(BARE, tools, several=True))


def test_what_is_kept_is_bounded_by_bytes(guides):
    """Small ones are kept longer than large ones, the last one always, and what is asked for again stays."""
    small = [Constraint("regex", f"a{{{n}}}b*") for n in range(1, 40)]
    for wish in small:
        guides.prepare(small[0])
        guides.prepare(wish)
    kept = [wish for wish in small if guides.knows(wish)]
    assert kept == [small[0], *small[-len(kept) + 1 :]]
    assert 8 < len(kept) < len(small)
    large = [Constraint("lark", f'start: "a"\n// {n}{"x" * 60_000}') for n in range(9)]
    for wish in large:
        guides.prepare(wish)
    assert 1 < sum(map(guides.knows, large)) < len(large)
    assert guides.knows(large[-1])
    assert sum(contract.held(wish) for wish in [*small, *large] if guides.knows(wish)) <= contract.KEPT
