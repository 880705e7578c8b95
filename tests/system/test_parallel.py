"""The bundled target over two processes: one process's texts, and a sentence where one of them ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COMMON = """
import json, os, signal, sys, time
from forerun import LLM, Sampling

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in a shell's background ignores it
PROMPTS = ["Once upon a time", "The dog", "One day, Lily", "There was a", "Tom said", "In the garden", "She", "A bird",
    "It was", "He had a red", "Mom and", "The sun", "A boy named", "The cat saw", "They went", "Sam liked", "Can you",
    "Look at", "One night", "My name"]
common = {"model": "reference", "planner": "fixed", "threads": 1, "profiles": "off"}
greedy = Sampling(temperature=0, max_tokens=30)
two = LLM(**common, tensor_parallel=2, drafter="draft-model:tree=(level:width=3)", cache="paged:block_size=16")
"""
TEXTS = """
from urllib.error import HTTPError
from urllib.request import urlopen

from forerun.server.run import in_background
from forerun.server.settings import Settings


def health(url):
    try:
        return urlopen(url + "/health").status
    except HTTPError as refused:
        return refused.code


one = LLM(**common, drafter="none")
drawn = Sampling(temperature=1, seed=7, max_tokens=30)
print(json.dumps([
    [[r.tokens for r in llm.generate(PROMPTS, greedy)], [r.tokens for r in llm.generate(PROMPTS[:4], drawn, 2)]]
    for llm in (one, two)
]))
other = two.model.split.children[0]
with in_background(two, Settings(port=0)) as url:
    before = health(url)
    other.kill()
    other.wait()
    print(before, health(url))
for _ in range(2):
    print(two.generate("Once", greedy)[0].error)
"""
INTERRUPTED = """
import threading

threading.Timer(0.5, os.killpg, (0, signal.SIGINT)).start()
try:
    two.generate(PROMPTS, Sampling(temperature=0, max_tokens=400, ignore_eos=True))
except KeyboardInterrupt:
    other = two.model.split.children[0]
    other.terminate()
    time.sleep(0.5)
    print(other.poll(), two.generate("Once", greedy)[0].error)
"""
LEFT = """
two.generate("Once", greedy)
os.kill(os.getpid(), signal.SIGKILL)
"""


def python(source, *arguments):
    """What a process says and how it ends, all that it started included: they hold its pipes."""
    command = [sys.executable, *arguments, "-c", COMMON + source]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, start_new_session=True)


def test_texts_are_those_of_one_process():
    """Greedy and drawn: where sums differ in their last bits, no choice of the bundled model hangs on them here.

    Then the other process is killed: the server's health says so at once, and whoever asks is told.
    """
    found = python(TEXTS)
    assert found.returncode == 0, found.stderr
    texts, healths, *errors = found.stdout.splitlines()
    one, two = json.loads(texts)
    assert len(one[0]) == 20
    assert two == one
    assert healths == "200 503"
    assert len(errors) == 2
    assert all("one of the 2 processes that hold reference has ended" in error for error in errors), errors


def test_what_reaches_all_processes_is_for_the_leading_one():
    """Ctrl-C at a terminal ends the text and not the model; nor does a signal to end that all of a service get."""
    found = python(INTERRUPTED)
    assert (found.returncode, found.stdout) == (0, "None None\n"), found.stderr
    assert "Traceback" not in found.stderr


def test_nobody_is_left_alone():
    """The leading process is killed: the other one ends as well, with a sentence."""
    found = python(LEFT)
    assert found.returncode == -signal.SIGKILL
    assert "forerun: process 1 of 2 lost another one that holds reference; start all anew." in found.stderr


def test_torchrun_starts_them():
    flags = ["--drafter", "none", "--temperature", "0", "--max-tokens", "12", "--threads", "1", "--profiles", "off"]
    command = [str(Path(sys.executable).parent / "forerun"), "generate", "Once upon a time", *flags]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--no-python", *command]
    both = subprocess.run([*run, "--tensor-parallel", "2"], capture_output=True, text=True, timeout=300, check=False)
    assert both.returncode == 0, both.stderr
    assert both.stdout == alone.stdout != ""
