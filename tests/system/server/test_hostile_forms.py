"""S9: 500 hostile schemas, expressions and grammars through the API; each is compiled or refused, and soon.

25 families in 20 sizes, made here.
"""

import ctypes
import gc
import json
import logging
import random
import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from forerun import LLM
from forerun.constraints.contract import held
from forerun.models.tokenizer import ToyTokenizer
from forerun.models.toy import ToyModel
from forerun.types import Constraint

SIZES = 20
PATIENCE = 10.0  # seconds of processor time, of the whole server; a machine may be busy with other things
GAP = 60.0  # seconds by the clock between parts of a stream beside; docs/reliability.md has what they are alone


def chain(opening, size):
    """A schema within itself, so many times, as text: Python's own writer goes no deeper than 1000."""
    return opening * size + "true" + "}" * size * opening.count("{")


def branches(size):
    """Two at every level."""
    schema = {"type": "null"}
    for _ in range(size):
        schema = {"anyOf": [schema, {"items": schema}]}
    return schema


def grown(i, most):
    """Sizes from small to far too large, in even ratios."""
    return max(1, round(most ** ((i + 1) / SIZES)))


def doubled(i):
    """Branches that refer to twice as many each."""
    depth = grown(i, 60)
    rest = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"items": {"$ref": f"#/$defs/d{n + 1}"}}]}
        for n in range(depth)
    }
    return {"$defs": {**rest, f"d{depth}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def odd(i):
    """Schemas that are hardly any, or wrong ones."""
    return [
        {},
        False,
        [],
        None,
        5,
        ["string"],
        {"type": []},
        {"type": "any"},
        {"type": {"a": 1}},
        {"enum": []},
        {"enum": 5},
        {"required": "a"},
        {"properties": []},
        {"properties": {"a": 5}},
        {"items": 5},
        {"$ref": 5},
        {"format": "nonsense"},
        {"type": "string", "format": "date-time", "minLength": 10**9},
        {"not": {}},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
    ][i]


REFERENCES = [
    {"$ref": "#"},
    {"$ref": "#/nowhere"},
    {"$ref": "http://127.0.0.1:1/a.json"},
    {"$ref": "file:///etc/passwd"},
    {"$ref": "//evil.example/a"},
    {"$ref": "../a.json"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"properties": {"a": {"$ref": "#"}}},
    {"items": {"$ref": "#"}},
    {"anyOf": [{"$ref": "#"}]},
    {"allOf": [{"$ref": "#"}]},
    {"not": {"$ref": "#"}},
    {"$id": "http://a.example/", "$ref": "b.json"},
    {"$dynamicRef": "#a"},
    {"$recursiveRef": "#"},
    {"$ref": "#/" + "a/" * 9999},
    {"$ref": "#/" + "%25" * 9999},
    {"$ref": "\x00"},
    {"$ref": ""},
]
PATTERNS = [
    "(a+)+$",
    "(a|a)*b",
    "(a*)*(b*)*c",
    "(?=a)a",
    "(?!a)b",
    "(?<=a)b",
    "(?<!a)b",
    r"(a)\1",
    r"(?P<x>a)(?P=x)",
    "[",
    "(",
    "a{2,1}",
    "*",
    r"\p{L}{1,900}",
    r"\p{Greek}+\P{Latin}*",
    r"\u{110000}",
    "\\",
    "(?i)(ä|ö|ü){500}",
    ".{1000}.{1000}",
    r"[\x00-\U0010ffff]{900}",
]
LARK = [
    'start: start "a" | "b"',
    "start: x",
    "start: start",
    'start: ("a"*)*',
    "start: /a/ /(b+)+c/ start?",
    'start: ""',
    "",
    "%ignore /a*/",
    'start: "a"{100000}',
    'start: ("a"{100}){100}',
    "start: %json {",
    'start: %json {"$ref": "http://a.example"}',
    'start: "' + "a" * 60_000 + '"',
    "start: " + "(" * 9000 + '"a"' + ")" * 9000,
    "start: " + " | ".join(f'"{n}"' for n in range(7000)),
    "\n".join(["start: r0", *[f"r{n}: r{n + 1} r{n + 1}" for n in range(60)], 'r60: "a"']),
    "\n".join(["start: r0", *[f"r{n}: r{n + 1}?" for n in range(3000)], 'r3000: "a"']),
    "start: /(a|b)*a(a|b){20}/",
    "start: /(a|b)*a(a|b){200}/",
    "start: a b\na: /.*/\nb: /.*x{900}/",
]
FAMILIES = {
    "objects": lambda i: chain('{"type": "object", "properties": {"a": ', grown(i, 1500)),
    "arrays": lambda i: chain('{"items": ', grown(i, 5000)),
    "anyOf": lambda i: {"anyOf": [{"const": f"{n}" * 9} for n in range(grown(i, 4000))]},
    "anyOf, deep": lambda i: branches(min(11, 1 + i // 2)),
    "oneOf": lambda i: {"oneOf": [{"type": "string", "pattern": f"^a{{{n}}}"} for n in range(grown(i, 1000))]},
    "allOf": lambda i: {"allOf": [{"properties": {f"p{n}": {"minLength": n}}} for n in range(grown(i, 1500))]},
    "not": lambda i: chain('{"not": ', grown(i, 5000)),
    "doubled": doubled,
    "references": lambda i: REFERENCES[i],
    "properties": lambda i: {"properties": {f"p{n}": {"type": "string"} for n in range(grown(i, 2500))}},
    "required": lambda i: {"required": [f"p{n}" for n in range(grown(i, 5000))], "type": "object"},
    "enum": lambda i: {"enum": [f"v{n}" for n in range(grown(i, 50_000))]},
    "const": lambda i: {"const": "x" * grown(i, 2_000_000)},
    "lengths": lambda i: {"type": "string", "minLength": grown(i, 10**9), "maxLength": grown(i, 10**9) + i},
    "items": lambda i: {
        "type": "array",
        "minItems": grown(i, 10**9),
        "uniqueItems": i % 2 == 0,
        "items": {"type": "integer"},
    },
    "patternProperties": lambda i: {
        "patternProperties": {f"^a{n}.*b+$": {"type": "null"} for n in range(grown(i, 2000))}
    },
    "additionalProperties": lambda i: chain('{"additionalProperties": ', grown(i, 2500)),
    "integers": lambda i: {"type": "integer", "minimum": -grown(i, 10**30), "maximum": grown(i, 10**30)},
    "multiples": lambda i: {"type": "number", "multipleOf": 10.0 ** -(i - 10), "minimum": 0.1, "maximum": 1e30},
    "odd": odd,
    "pattern": lambda i: {"type": "string", "pattern": PATTERNS[i]},
    "regex": lambda i: ("guided_regex", PATTERNS[i]),
    "products": lambda i: ("guided_regex", f"((a{{1,{grown(i, 2000)}}}){{1,{grown(i, 2000)}}}b){{1,{grown(i, 900)}}}"),
    "alternations": lambda i: ("guided_regex", "|".join(f".*a{{{n}}}.*" for n in range(grown(i, 90)))),
    "grammars": lambda i: ("guided_grammar", LARK[i]),
}
CASES = [(name, i) for name in FAMILIES for i in range(SIZES)]


def body_of(name, i):
    made = FAMILIES[name](i)
    field, value = (
        made if isinstance(made, tuple) else ("guided_json", made if isinstance(made, str) else json.dumps(made))
    )
    return json.dumps({"prompt": "ab", "max_tokens": 8, "temperature": 1.0, "seed": 1, field: value}).encode()


def test_there_are_500():
    assert len(FAMILIES) == 25
    assert len(CASES) == 500
    assert len({body_of(*case) for case in CASES}) > 480


class Pulse:
    """What else happens meanwhile: steps of the engine, whose longest pause is kept."""

    def __init__(self, llm):
        self.longest, self._last = 0.0, time.process_time()
        step = llm.engine.step

        def watched():
            found = step()
            now = time.process_time()
            self.longest, self._last = max(self.longest, now - self._last), now
            return found

        llm.engine.step = watched

    def reset(self):
        self.longest, self._last = 0.0, time.process_time()


WORDS = [*map(chr, range(32, 127)), "\n", '{"', '": ', '"}', "null", "true", "false", "aa", "ab", "11", ", "]


@pytest.fixture(scope="module")
def served(serving):
    model = ToyModel(len(WORDS), context_length=10**6)
    llm = LLM(model, ToyTokenizer(*WORDS), threads=1, profiles="off", drafter="none", max_requests=4)
    with serving(llm, request_timeout=3000.0) as url:
        yield url, llm


@contextmanager
def neighbour(url, most=GAP):
    """A stream beside, which fails where a part of it comes later than so many seconds after the one before."""
    stop, gaps = threading.Event(), []

    def read():
        body = {"prompt": "ab", "max_tokens": 900_000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=2 * most) as found:
            came = time.perf_counter()
            for _ in found.iter_raw():
                gaps.append(time.perf_counter() - came)
                came += gaps[-1]
                if stop.is_set():
                    return

    stream = threading.Thread(target=read)
    stream.start()
    try:
        yield gaps
    finally:
        stop.set()
        stream.join()
    figures = 1000 * np.quantile(gaps, [0.5, 0.99, 1])
    logging.getLogger("tests").info("a neighbour's gaps: median %.1f, p99 %.1f, most %.1f ms", *figures)
    assert max(gaps) < most, "a neighbour waited"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_compiles_or_is_refused_soon(served, family):
    url, llm = served
    pulse = Pulse(llm)
    headers = {"content-type": "application/json"}
    with neighbour(url):
        for i in range(SIZES):
            pulse.reset()
            began = time.process_time()
            found = httpx.post(f"{url}/v1/completions", content=body_of(family, i), headers=headers, timeout=60)
            took = time.process_time() - began
            assert found.status_code in {200, 400}, (family, i, found.text)
            assert took < PATIENCE, (family, i)
            assert pulse.longest < PATIENCE, (family, i)


def test_a_neighbour_that_waits_is_seen(served, eventually, monkeypatch):
    """The same check with a shorter bound, beside an engine that stands still for longer."""
    url, llm = served
    step, slow, stood = llm.engine.step, threading.Event(), threading.Event()

    def standing():
        if slow.is_set() and not stood.is_set():
            time.sleep(1.5)
            stood.set()
        return step()

    monkeypatch.setattr(llm.engine, "step", standing)

    def beside():
        with neighbour(url, 1.0) as gaps:
            eventually(lambda: gaps)
            slow.set()
            assert stood.wait(30)

    with pytest.raises(AssertionError, match="a neighbour waited"):
        beside()


class Heap(ctypes.Structure):
    """What the C library says of its memory (mallinfo2)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "free", "small", "maps", "mapped", "peak", "fast", "used", "left", "top")
    ]


def allocated():
    gc.collect()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("this C library does not count what it gave")
    libc.mallinfo2.restype = Heap
    found = libc.mallinfo2()
    return found.used + found.mapped


GREEDY = [("const", 13), ("regex", 13), ("required", 15), ("grammars", 14), ("grammars", 16)]  # most of all 500


@pytest.mark.parametrize(("family", "i"), GREEDY)
def test_what_is_kept_takes_no_more_than_is_counted(library, family, i):
    """With all masks of 20 tokens; of the library's own memory, so other threads must rest."""
    made = FAMILIES[family](i)
    name, text = made if isinstance(made, tuple) else ("json_schema", json.dumps(made))
    wish = Constraint({"guided_regex": "regex", "guided_grammar": "lark"}.get(name, name), text)
    guides, chance = library.engine.members.guides, random.Random(0)  # noqa: S311 - draws tokens
    guides.prepare(Constraint("regex", "a"))
    before = allocated()
    guide = guides(wish, frozenset())
    for _ in range(20):
        allowed = guide.masks([()])[0].nonzero()[0]
        if not len(allowed) or guide.advance(int(chance.choice(allowed))):
            break
    del guide
    assert guides.knows(wish)
    assert 0 < allocated() - before <= held(wish)
