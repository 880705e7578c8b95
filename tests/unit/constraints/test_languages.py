"""The bundled languages, against their own interpreters: what these can read is allowed, and nothing else."""

import re
from dataclasses import replace

import numpy as np
import pytest

from forerun.bench.constrained import PARSERS
from forerun.build import guides_for, setup_for
from forerun.config import Config
from forerun.errors import RequestError
from forerun.models.toy import ToyModel
from forerun.types import Constraint

PIECES = ("def f", "):\n    ", "SELECT ", " FROM ", '{"', '": ', "12", " + ", "(x", "return ")  # across borders
WORDS = (*map(chr, range(32, 127)), "\n", *PIECES)
LINE = WORDS.index("\n")  # ends a statement, which few tokens do


class Letters:
    """A tokenizer that writes letter by letter, though its vocabulary has longer pieces."""

    pieces = tuple(word.encode() for word in WORDS)

    def encode(self, data, *, first=False):
        return [WORDS.index(chr(byte)) for byte in data]


LETTERWISE = Letters()
GUIDES = guides_for(replace(setup_for(Config(), ToyModel(2)), vocab=len(WORDS), open_spelling=lambda _: LETTERWISE))

GOOD = {
    "json": ['{"a": [1, -2.5e3, true, null, "x\\n"], "b": {}}', "[]", "0"],
    "arithmetic": ["1+2*(3 - x)/f(4, 5)**-2", "-7 % 2.50"],
    "python": [
        "def f(x, y=2):\n    if x > y and not y:\n        return [x, y][0]\n    return x\n",
        "for i in range(3):\n    while x:\n        x += i\n",
        "a, b = f(1, key='v'), {\"k\": (1, 2)}\nwhile a != b:\n    pass\n",
        "import os\nx = [i for i in y or z]  # note\n\nnotes = not inner\n",
    ],
    "sql": [
        "SELECT DISTINCT a.x AS y, COUNT(*) FROM t AS a LEFT JOIN u ON a.id = u.id WHERE x IS NOT NULL AND y IN (1, 2) "
        "GROUP BY a.x HAVING COUNT(*) > 2 ORDER BY y DESC LIMIT 3;".replace("COUNT", "count"),
        "SELECT * FROM (SELECT x FROM t WHERE n LIKE 'it''s%') AS s",
    ],
}
BAD = {
    "json": ["{a", "[1,]", "01", '"\n'],
    "arithmetic": ["1+*", "(1))", "1 1"],
    "python": ["def 1", "x = = ", "if x\n", "return(\n", "for = 1", "x = 1\n    y"],
    "sql": ["SELECT FROM", "SELECT * WHERE", "DROP", "SELECT a b", "SELECT * FROM a AS or", "SELECT order FROM a"],
}


def reads(name, text):
    """How much of a text is allowed, in letters, and whether it may end there."""
    guide = GUIDES(Constraint("syncode", name), frozenset())
    for count, letter in enumerate(text):
        token = WORDS.index(letter)
        if not guide.masks([()])[0, token]:
            return count, False
        guide.advance(token)
    return len(text), guide._matcher.may_end()


def sound(name, text):
    """Whether the language's own interpreter reads it."""
    return PARSERS["python"](re.sub(r"[a-z_]\w*", "x", text)) if name == "arithmetic" else PARSERS[name](text)


CASES = [(name, text) for name, texts in GOOD.items() for text in texts]
WRONG = [(name, text) for name, texts in BAD.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), CASES, ids=[f"{n}-{t[:16]!r}" for n, t in CASES])
def test_what_is_right_is_allowed(name, text):
    assert sound(name, text), "the example itself is wrong"
    assert reads(name, text) == (len(text), True)


@pytest.mark.parametrize(("name", "text"), WRONG, ids=[f"{n}-{t[:16]!r}" for n, t in WRONG])
def test_what_is_wrong_is_forbidden(name, text):
    assert not all(reads(name, text))


@pytest.mark.parametrize("name", GOOD)
def test_what_is_written_at_random_its_interpreter_reads(name):
    rng, complete = np.random.default_rng(0), 0
    for _ in range(30):
        guide, text = GUIDES(Constraint("syncode", name), frozenset()), ""
        for _ in range(24):
            allowed = np.flatnonzero(guide.masks([()])[0])
            if not len(allowed):
                break
            token = LINE if LINE in allowed and rng.random() < 0.3 else int(rng.choice(allowed))
            guide.advance(token)
            text += WORDS[token]
            if guide._matcher.may_end():
                complete += 1
                assert sound(name, text), text
    assert complete > 20, "hardly any text was complete; the test shows little"


def test_an_unknown_language_is_refused_with_those_that_are_known():
    for text in ("pyton", "../syncode", "/etc/passwd", ""):
        with pytest.raises(RequestError, match="'syncode': "):
            GUIDES(Constraint("syncode", text), frozenset())
    with pytest.raises(RequestError, match="did you mean 'python'"):
        GUIDES(Constraint("syncode", "pyton"), frozenset())
