"""A monitor of your own: only names that a namespace has may be written as Python identifiers."""

import keyword
import re
from collections.abc import Callable
from pathlib import Path

import forerun
from forerun import LLM, Sampling
from forerun.types import Constraint

NAMES = {"total", "items", "item", "index", "print", "len"}
OTHERS = [chr(code) for code in range(32, 127) if not (chr(code).isalnum() or chr(code) == "_")]


def only(names: set[str]) -> Callable[[str], list[str]]:
    """What may come: the rest of a known name, a digit within a number, and after either any other character."""
    known = names | set(keyword.kwlist)

    def monitor(text: str) -> list[str]:
        begun = re.search(r"\w*$", text)[0]
        if begun.isdigit():
            return [*"0123456789", *OTHERS, "\n", ""]
        rest = [name[len(begun) :] for name in known if name.startswith(begun) and name != begun]
        whole = begun in known
        return [*rest, *(f"{word} " for word in rest), *([*OTHERS, "\n", ""] if whole or not begun else [])]

    return monitor


llm = LLM(str(Path(forerun.__file__).parent / "reference" / "target"), monitors={"names": only(NAMES)})
wish = Sampling(temperature=0.0, max_tokens=24, constraint=Constraint("monitors", "names"))
text = llm.generate("total = ", wish)[0].text
unknown = set(re.findall(r"[A-Za-z_]\w*(?=\W)", text)) - NAMES - set(keyword.kwlist)
assert not unknown, unknown
print(text)
