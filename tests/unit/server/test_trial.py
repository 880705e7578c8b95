"""S9: what a client wants compiled is tried where it can be ended, one after the other, and one at a time of a key."""

import asyncio
import os
import signal
import time

import pytest

from forerun import LLM
from forerun.errors import RequestError
from forerun.models.tokenizer import ToyTokenizer
from forerun.models.toy import ToyModel
from forerun.server.accounts import Accounts
from forerun.server.trial import Trial
from forerun.types import Constraint

WORDS = [*map(chr, range(32, 127))]
LONG = "grammar that never ends"  # what the process below takes for one


@pytest.fixture(scope="module")
def guides():
    return LLM(ToyModel(len(WORDS)), ToyTokenizer(*WORDS), threads=1, profiles="off").engine.members.guides


@pytest.fixture
def trial(guides):
    made = Trial(guides, Accounts())
    yield made
    made.stop()


def prepared(trial, wish, key="a"):
    asyncio.run(trial.prepare(key, wish))


def test_what_compiles_is_known_and_tried_once(trial):
    wish = Constraint("json_schema", '{"const": "tried once"}')
    prepared(trial, wish)
    assert trial._guides.knows(wish)
    os.kill(trial.cell._process.pid, signal.SIGKILL)
    trial.cell._process.wait()
    prepared(trial, wish)  # which asks nobody
    other = Constraint("regex", "after it was killed")
    with pytest.raises(RequestError, match=r"does not compile .its process ended"):
        prepared(trial, other)
    prepared(trial, other)


def test_an_automaton_needs_no_process(trial):
    prepared(trial, Constraint("choice", "some,others"))
    assert trial.cell._process is None


def test_what_takes_long_is_ended_and_others_go_on(trial, tmp_path):
    """By a program that has the same clock and no end."""
    program = tmp_path / "endless.py"
    text = trial.cell._program.read_text()
    begin = "found.append(LLMatcher"
    endless = text.replace(begin, f"while {LONG!r} in asked['grammar']: pass\n        {begin}")
    program.write_text(endless.replace("SECONDS = 2.0", "SECONDS = 0.2"))
    assert endless != text
    trial.cell._program = program
    with pytest.raises(RequestError, match=r"takes more than 2 s.*make it smaller"):
        prepared(trial, Constraint("regex", LONG))
    prepared(trial, Constraint("regex", "another one"))


def test_what_takes_much_memory_is_refused(trial, tmp_path):
    program = tmp_path / "small.py"
    program.write_text(trial.cell._program.read_text().replace("MEMORY = 512 * 2**20", "MEMORY = 2**20"))
    trial.cell._program = program
    with pytest.raises(RequestError, match=r"too much memory|its process ended"):
        prepared(trial, Constraint("regex", "in one mebibyte"))


def test_what_is_nested_too_deeply_ends_the_process_only(trial, tmp_path):
    """The stack is made small here."""
    program = tmp_path / "shallow.py"
    program.write_text(trial.cell._program.read_text().replace("STACK = 2**26", "STACK = 2**18"))
    trial.cell._program = program
    rules = "\n".join(["start: r0", *[f"r{n}: r{n + 1}?" for n in range(3500)], 'r3500: "a"'])
    with pytest.raises(RequestError, match="its process ended"):
        prepared(trial, Constraint("lark", rules))
    prepared(trial, Constraint("lark", 'start: "a" "a"'))


def test_a_key_has_one_at_a_time(trial):
    """Another key's goes before the second one of the first, though it came later."""
    order, compile_ = [], trial._compile

    def watched(key, wish):
        time.sleep(0.02)
        order.append(key)
        compile_(key, wish)

    trial._compile = watched

    async def main():
        wishes = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")]
        await asyncio.gather(*(trial.prepare(key, Constraint("regex", text)) for key, text in wishes))

    asyncio.run(main())
    assert order.index("b") == 1
    assert order.count("a") == 3


def test_who_goes_keeps_the_turn_until_the_thread_is_done(trial):
    done, compile_ = [], trial._compile

    def watched(key, wish):
        time.sleep(0.1)
        compile_(key, wish)
        done.append(wish.text)

    trial._compile = watched

    async def main():
        first = asyncio.create_task(trial.prepare("a", Constraint("regex", "left alone")))
        await asyncio.sleep(0.02)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert done == ["left alone"]

    asyncio.run(main())
