"""A file is the new one or the old one, whatever happens while it is written."""

import errno
import os
from pathlib import Path

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
