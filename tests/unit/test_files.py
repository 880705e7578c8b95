"""A file is the new one or the old one, whatever happens while it is written."""

import errno
import os
from pathlib import Path
from threading import Thread

import pytest

from forerun import files
from forerun.errors import ForerunError, TrainError
from forerun.files import write_whole


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_folders_are_made_and_nothing_else(tmp_path):
    path = tmp_path / "a" / "b" / "c.bin"
    for content in (b"old", b"new"):
        write_whole(path, content, "try again")
        assert path.read_bytes() == content
        assert [p.name for p in path.parent.iterdir()] == ["c.bin"]


@pytest.mark.parametrize("place", ["os.fsync", "Path.mkdir", "Path.replace"])
def test_a_full_disk_leaves_the_old_file_and_no_part(place, tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    owner, name = place.split(".")
    monkeypatch.setattr({"os": files.os, "Path": Path}[owner], name, full)
    with pytest.raises(TrainError, match=r"^cannot write '.*a\.bin' \(No space left on device\); eat less\.$"):
        write_whole(path, b"new", "eat less", TrainError)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
    assert path.read_bytes() == b"old"


def test_another_thread_may_write_the_same_file_meanwhile(tmp_path, monkeypatch):
    path, sync = tmp_path / "a.bin", files.os.fsync

    def meanwhile(descriptor):
        monkeypatch.setattr(files.os, "fsync", sync)
        other = Thread(target=write_whole, args=(path, b"theirs", "try again"))
        other.start()
        other.join()
        assert path.read_bytes() == b"theirs"

    monkeypatch.setattr(files.os, "fsync", meanwhile)
    write_whole(path, b"mine", "try again")
    assert path.read_bytes() == b"mine"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_an_interrupt_leaves_the_old_file_and_no_part(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new", "try again")
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
    assert path.read_bytes() == b"old"


def test_a_file_in_the_way_of_the_folder_is_said(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(ForerunError, match=r"cannot write .*; move it\.$"):
        write_whole(tmp_path / "a" / "b", b"new", "move it")
