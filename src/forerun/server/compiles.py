"""The process in which clients' grammars are compiled first: one JSON line in, one out, until its input ends.

It is a program of its own that imports nothing of forerun, and knows no vocabulary but the single bytes: what a grammar
costs to compile is its own. The kernel ends it where that takes too much processor time, on whatever thread.
Does not: keep what it compiled; find masks.
"""

import json
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SECONDS = 2.0  # of processor time, for one grammar
MEMORY = 512 * 2**20  # bytes of addresses
STACK = 2**26  # bytes; what is nested deeper ends the process


def _answer(tokens: LLTokenizer, line: bytes) -> str:
    """Why a grammar does not compile, "" where it does, as JSON."""
    asked, found = json.loads(line), list[Any]()

    def compile_() -> None:
        limits = LLParserLimits(**asked["limits"], verbose_errors=False)
        found.append(LLMatcher(tokens, asked["grammar"], log_level=0, limits=limits).get_error())

    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    thread = threading.Thread(target=compile_)
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    return json.dumps({"problem": found[0] if found else "it needs too much memory"})


def main() -> None:
    """Every line is a grammar and the limits that it has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends it
    threading.stack_size(STACK)
    tokens = LLTokenizer("byte")
    with suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin.buffer:
        sys.stdout.write(_answer(tokens, line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
