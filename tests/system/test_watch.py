"""S1: the watch on every test sees code that comes out of data, and calls to other machines."""

import marshal
import pickle
import socket
from pathlib import Path

import pytest
import torch

INSIDE = str(Path(__file__).parents[2] / "src" / "forerun" / "imagined.py")
COMPILER = str(Path(torch.__file__).parent / "_inductor" / "imagined.py")
PICKLED = pickle.dumps(Path)
MARSHALLED = marshal.dumps(compile("1", "<text>", "eval"))


def as_forerun(source, **names):
    """Run lines as if they stood in the package."""
    exec(compile(source, INSIDE, "exec"), names)  # noqa: S102 - the very thing that is watched for


def call(address):
    """Connecting a socket for datagrams sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect((address, 9))


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the watch fails what does this")
@pytest.mark.parametrize(
    "foul",
    [
        lambda _: as_forerun("import pickle; pickle.loads(given)", given=PICKLED),
        lambda _: as_forerun("import marshal; marshal.loads(given)", given=MARSHALLED),
        lambda _: as_forerun("eval('1')"),
        lambda folder: as_forerun("import runpy; runpy.run_path(given)", given=str(folder / "model.py")),
        lambda _: call("192.0.2.1"),  # an address that is nobody's
    ],
    ids=["pickle", "marshal", "eval", "a file of a model", "a call"],
)
def test_a_foul_is_seen(foul, tmp_path):
    (tmp_path / "model.py").write_text("1")
    foul(tmp_path)


def test_harmless_things_pass():
    pickle.loads(PICKLED)  # noqa: S301 - a test's own, as libraries do it
    call("127.0.0.1")
    as_forerun("import dataclasses; dataclasses.make_dataclass('A', ['a'])")
    as_forerun("import colorsys, importlib; importlib.reload(colorsys)")
    compiler = {}
    exec(compile("import pickle\ndef fetch(given): return pickle.loads(given)", COMPILER, "exec"), compiler)  # noqa: S102
    as_forerun("fetch(given)", given=PICKLED, fetch=compiler["fetch"])  # what PyTorch compiled before
    for _ in range(2):  # pytest writes its own bytecode of some libraries, and reads it the next time
        as_forerun("import sys; sys.modules.pop('anyio.to_process', None); import anyio.to_process")
