"""A draft store's folder: one engine at a time, whole files only, and nothing lost to a kill."""

import logging
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from forerun.errors import ConfigError
from forerun.stores import shelf as module
from forerun.stores.shelf import NAME, Shelf

TEXTS = {"": [np.arange(5, dtype=np.int32)], "b": [np.arange(3, dtype=np.int32), np.array([9], np.int32)]}


def opened(folder, mark="mine", room=100):
    """A shelf and what it holds."""
    shelf = Shelf(folder, lambda: mark)
    return shelf, {scope: [t.tolist() for t in texts] for scope, texts in shelf.open(room).items()}


def kept(folder):
    shelf, before = opened(folder)
    assert before == {}
    shelf.save(TEXTS)


def test_what_is_saved_is_there_for_the_next(tmp_path):
    kept(tmp_path / "new" / "folder")
    assert opened(tmp_path / "new" / "folder")[1] == {"": [[0, 1, 2, 3, 4]], "b": [[0, 1, 2], [9]]}


def test_a_new_folder_is_its_owners_alone(tmp_path):
    kept(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_nothing_is_touched_before_it_is_opened(tmp_path):
    assert not Shelf(tmp_path / "a", lambda: "mine").opened
    assert not (tmp_path / "a").exists()


def test_two_engines_cannot_have_one_folder(tmp_path):
    first, _ = opened(tmp_path)
    with pytest.raises(ConfigError, match="is in use by another engine; stop that one, or use another folder"):
        opened(tmp_path)
    first.save(TEXTS)
    del first
    assert len(opened(tmp_path)[1]) == 2


def test_another_process_cannot_have_it_either(tmp_path):
    code = f"""
from pathlib import Path
from forerun.stores.shelf import Shelf
from forerun.errors import ConfigError
try:
    Shelf(Path({str(tmp_path)!r}), lambda: "mine").open(10)
except ConfigError as problem:
    print(problem)
"""
    first, _ = opened(tmp_path)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "is in use by another engine" in said
    assert first.opened


@pytest.mark.parametrize(
    ("mark", "room", "change", "sentence"),
    [
        ("yours", 100, lambda data: data, "another tokenizer"),
        ("mine", 8, lambda data: data, "holds 9 tokens and the drafter has room for 8; give it room=9, or use another"),
        ("mine", 100, lambda data: data[:-3], "should have"),
        ("mine", 100, lambda data: data[:8] + b"\2" + data[9:], "format version 2"),
        ("mine", 100, lambda data: data[:-1] + b"!", "not those that were written"),
    ],
)
def test_what_cannot_be_read_is_refused_stays_and_frees_the_folder(tmp_path, mark, room, change, sentence):
    kept(tmp_path)
    old = change((tmp_path / NAME).read_bytes())
    (tmp_path / NAME).write_bytes(old)
    for _ in range(2):
        with pytest.raises(ConfigError, match=sentence):
            opened(tmp_path, mark, room)
    assert (tmp_path / NAME).read_bytes() == old


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be used .*; name a folder that can be written to"):
        opened(tmp_path / "file" / "folder")


def test_saving_soon_is_once_in_a_while_and_off_the_engine(tmp_path, monkeypatch):
    shelf, _ = opened(tmp_path)
    shelf.save_soon(lambda: pytest.fail("it was just opened"))
    monkeypatch.setattr(module, "EVERY", 0.0)
    shelf.save_soon(lambda: TEXTS)
    deadline = time.monotonic() + 30
    while not (tmp_path / NAME).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    for thread in threading.enumerate():
        if thread.name == "forerun-shelf":  # it still holds the shelf
            thread.join()
    del shelf
    assert len(opened(tmp_path)[1]) == 2


def test_a_save_that_fails_is_said_and_the_old_file_stays(tmp_path, monkeypatch, caplog):
    kept(tmp_path)
    old = (tmp_path / NAME).read_bytes()
    shelf, _ = opened(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with caplog.at_level(logging.WARNING, "forerun"):
        shelf.try_save({})
    assert "what was learned is not kept: cannot write" in caplog.text
    assert (tmp_path / NAME).read_bytes() == old


WRITER = """
import sys
from pathlib import Path
import numpy as np
from forerun.stores.shelf import Shelf
shelf = Shelf(Path(sys.argv[1]), lambda: "mine")
shelf.open(10**7)
for turn in range(10**6):
    shelf.save({"": [np.full(200_000, turn, np.int32)]})
    print(turn, flush=True)
"""


def test_a_kill_in_the_middle_of_a_write_leaves_a_whole_file(tmp_path):
    for turn in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True) as process:
            for _ in range(2):
                written = int(process.stdout.readline())
            time.sleep(0.003 * turn)  # somewhere in a later write
            process.send_signal(signal.SIGKILL)
        shelf, texts = opened(tmp_path, room=10**7)
        assert len(texts[""][0]) == 200_000
        assert len(set(texts[""][0])) == 1
        assert texts[""][0][0] >= written
        assert not list(tmp_path.glob("*.part"))
        del shelf
