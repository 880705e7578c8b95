"""Constraints of requests are compiled beside the event loop and the engine, one after the other, and one of a key.

A grammar is compiled in a process first that can be ended (`compiles.py`), and only what that took in time and memory
is compiled here. One that is known already waits for nobody.
Does not: bound what masks cost; grammars have limits for that.
"""

import asyncio
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forerun.cell import Cell, CellError
from forerun.constraints.contract import Guides
from forerun.errors import RequestError
from forerun.grammars import BOUNDS, brief
from forerun.server.accounts import Accounts
from forerun.server.compiles import SECONDS
from forerun.types import Constraint


class Trial:
    """What compiles for all keys; belongs to the event loop."""

    def __init__(self, guides: Guides, accounts: Accounts) -> None:
        self._guides, self._accounts = guides, accounts
        self.cell = Cell(Path(__file__).with_name("compiles.py"), SECONDS)
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._thread = ThreadPoolExecutor(1, "forerun-compile")

    async def prepare(self, key: str, wish: Constraint) -> None:
        """Compile what the engine will need; RequestError where that cannot be, or takes too much."""
        if self._guides.knows(wish):
            return
        async with self._turns[key]:
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._compile, key, wish)
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:  # the thread goes on, and the key's turn with it
                await asyncio.wait({work})
                raise

    def _compile(self, key: str, wish: Constraint) -> None:
        with self._accounts.compiling(key):
            if self._guides.knows(wish):  # since it waited
                return
            grammar = self._guides.grammar(wish)
            if grammar is not None:
                self._try(wish.name, grammar)
            self._guides.prepare(wish)

    def _try(self, name: str, grammar: str) -> None:
        try:
            problem = self.cell.ask({"grammar": grammar, "limits": BOUNDS})["problem"]
        except CellError as ended:
            problem = str(ended)
        if problem:
            what = f"constraint {name!r} does not compile ({brief(problem)})"
            raise RequestError(f"{what}; correct it, or make it smaller.")

    def stop(self) -> None:
        """Nothing is compiled any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
