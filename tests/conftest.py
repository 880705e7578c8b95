"""What every test gets: no network, few threads, a watch on its process, and GPU tests only where there is a GPU."""

import os
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that asks a model hub is wrong; say so at once
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forks after threads, with a warning
os.environ.setdefault("MPLBACKEND", "Agg")  # plots go to files
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

ROOT = Path(__file__).parents[1]
OURS = str(ROOT / "src" / "forerun")
KNOWN = (str(ROOT), sys.prefix, sys.base_prefix, sys.exec_prefix, "<")  # where code may come from
RAY = "/site-packages/ray/"  # its messages are pickles, and it asks the system for its own address
REWRITER = str(Path(pytest.__file__).parents[1] / "_pytest" / "assertion")
IMPORTERS = ("<frozen importlib", REWRITER)  # these read bytecode
COMPILERS = ("/torch/_inductor/", "/torch/_functorch/")  # they keep what they compiled as pickles of their own
INDUCTOR = "/torchinductor_"  # what PyTorch writes for a GPU when it compiles, and runs
FOULS: list[str] = []  # what the watch saw since somebody looked


class FoulError(AssertionError):
    """Code of forerun ran what it read, or something in this process called another machine."""


def _callers():
    """Files of the frames that led to an event, the nearest first; none where they are Ray's."""
    frame, files = sys._getframe(3), []  # behind this function, the event's and the watch
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    ours = next((i for i, file in enumerate(files) if file.startswith(OURS)), len(files))
    return [] if any(RAY in file for file in files[:ours]) else files


def _unpickled(module, name):
    files = _callers()
    ours = next((i for i, file in enumerate(files) if file.startswith(OURS)), None)
    if ours is not None and not any(part in file for file in files[:ours] for part in COMPILERS):
        FOULS.append(f"{module}.{name} was unpickled")


def _marshalled(*_):
    files = _callers()
    if any(file.startswith(OURS) for file in files) and not files[0].startswith(IMPORTERS):
        FOULS.append("code was unmarshalled")


def _ran(code):
    file = getattr(code, "co_filename", "")
    if INDUCTOR in file:
        return
    if file.startswith(KNOWN) and not sys._getframe(2).f_code.co_filename.startswith(OURS):
        return  # nearly always: an import, or a library that writes a method
    if any(file.startswith(OURS) for file in _callers()):
        FOULS.append(f"{file} was run")


def _called(_, address):
    if isinstance(address, tuple) and address[0] not in {"127.0.0.1", "::1", "localhost"} and _callers():
        FOULS.append(f"{address[0]} was called")


WATCHED = {
    "pickle.find_class": _unpickled,
    "marshal.loads": _marshalled,
    "marshal.load": _marshalled,
    "exec": _ran,
    "socket.connect": _called,
    "socket.sendto": _called,
}


def _watch(event, arguments):
    """S1, S12, S15: in the process of the tests, servers in threads and forked children included."""
    if event in WATCHED:
        WATCHED[event](*arguments)


sys.addaudithook(_watch)  # never taken away again


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """A foul fails the test in which it is found; one of a fixture or a thread may be found in the next test."""
    yield
    if FOULS:
        found = ", ".join(FOULS)
        FOULS.clear()
        raise FoulError(found)


@pytest.fixture(autouse=True, scope="session")
def _cache_folder(tmp_path_factory):
    """What is measured here is kept for the tests of one run, and not in the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # of the machine, not of the code
settings.register_profile("forerun", **TIMELESS, derandomize=True, print_blob=True)
settings.load_profile("forerun")  # the same examples every time: a red run can be run again
settings.register_profile("any failure", phases=(Phase.explicit, Phase.generate))  # for who wants no small one
# Before a release: `--hypothesis-profile thorough`. Tests count their examples in multiples of the profile's.
settings.register_profile("thorough", **TIMELESS, print_blob=True, max_examples=5000, stateful_step_count=100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture
def disk_of():
    """A context in which no file of this process grows beyond so many bytes, as on a disk that has no more."""

    @contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
