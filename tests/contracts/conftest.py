"""Every law of every row of every table. A new row adds tests here without a line being edited."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forerun.build import FAMILIES
from forerun.testing.checks import TREE, Law, find, laws_of

# Law of a member -> why it cannot hold. Strict: an entry that is no longer needed fails.
KNOWN: dict[str, str] = {}
ALSO = {"drafter": (TREE,)}  # the same member in another shape

_LABELS: dict[str, str] = {}  # label -> the family whose file runs it; a law of two families is run once


def cases(family: str) -> Iterator[tuple[str, Law]]:
    for spelled in (*FAMILIES[family], *ALSO.get(family, ())):
        for label, law in laws_of(find(spelled, family)):
            yield f"{spelled} | {label}", law


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "law" not in metafunc.fixturenames:
        return
    family = Path(metafunc.module.__file__).stem.removeprefix("test_")
    ids, laws = [], []
    for name, law in cases(family):
        label = name.partition(" | ")[2]
        owner = _LABELS.setdefault(label, name) if " x " in label else name  # a whole engine
        if owner == name:
            marks = [pytest.mark.xfail(reason=KNOWN[name], strict=True)] if name in KNOWN else []
            ids.append(name)
            laws.append(pytest.param(law, marks=marks))
    metafunc.parametrize("law", laws, ids=ids)


@pytest.fixture(autouse=True)
def one_thread():
    """Toy passes are too small to share; waking threads would be most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
