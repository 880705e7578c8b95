"""Engines in processes of their own, with engines made up here."""

import sys
import time
from pathlib import Path

import pytest

from forerun.bench.children import Child, DiedError, Engine, FailedError, MissingError, RefusedError, cpu_seconds

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

GOOD = """
import os, sys, threading
from time import sleep

class Engine:
    version = "1.0"

    def decode(self, prompt, tokens):
        print("noise on standard output")
        return {"seconds": 2.0, "tokens": tokens, "prompt": prompt}

    def spin(self):
        threading.Thread(target=self._spin, daemon=True).start()

    def _spin(self):
        while True:
            pass

    def refuse(self):
        raise NotImplementedError("this cannot be done.")

    def fail(self):
        raise ValueError("first line\\nsecond line")

    def lack(self):
        import no_such_package

    def die(self):
        sys.stderr.write("about to go\\n")
        os._exit(3)

    def hang(self):
        sleep(60)
"""


@pytest.fixture
def child(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    made = Child(Engine(sys.executable, tmp_path / "good.py"), tmp_path / "logs" / "good.log")
    yield made
    made.close()


def test_an_order_is_answered_and_what_is_printed_does_not_disturb(child):
    assert child.ask("begin") == {"version": "1.0", "can": ["decode"]}
    for tokens in (3, 4):
        assert child.ask("decode", prompt=[1, 2], tokens=tokens) == {"seconds": 2.0, "tokens": tokens, "prompt": [1, 2]}


@pytest.mark.parametrize(
    ("do", "error", "sentence"),
    [
        ("refuse", RefusedError, "this cannot be done."),
        ("fail", FailedError, "ValueError: first line"),
        ("lack", MissingError, "no_such_package"),
        ("unheard_of", FailedError, "unheard_of"),
    ],
)
def test_an_engine_that_cannot_says_so_and_lives_on(child, do, error, sentence):
    with pytest.raises(error, match=sentence):
        child.ask(do)
    assert child.ask("begin")["version"] == "1.0"


def test_a_death_is_told_with_the_last_words(child):
    with pytest.raises(DiedError, match="ended with code 3: about to go"):
        child.ask("die")
    with pytest.raises(DiedError, match="ended with code 3"):
        child.ask("begin")


def test_silence_is_a_death(child):
    child.ask("begin")
    with pytest.raises(DiedError, match="no answer within 0 s"):
        child.ask("hang", timeout=0.2)


def test_an_interpreter_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DiedError, match="does not start"):
        Child(Engine(str(tmp_path / "none"), tmp_path / "good.py"), tmp_path / "log")


@linux
def test_an_idle_engine_takes_no_cpu_even_if_it_spins(child):
    child.ask("spin")
    before = cpu_seconds(child.process)
    time.sleep(0.3)
    assert cpu_seconds(child.process) - before < 0.05
    child.ask("begin")
    assert child.idle_seconds >= 0.3
    assert child.idle_cpu_seconds < 0.05


@linux
def test_the_peak_memory_is_that_of_the_child(child):
    found = child.ask("memory")["peak_bytes"]
    own = int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")).split()[1])
    assert 0 < found < own * 1024
