"""Measured costs are kept for the next start; a file that is not theirs costs a measurement and nothing more."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import LLM
from forerun.engine import profiles
from forerun.engine.profiles import FORMAT, digest, folder, read, recall, subject, text
from forerun.models.toy import ToyModel
from forerun.types import Costs

COSTS = Costs((1, 2, 4, 8), (1.0, 1.0, 1.1, 1.9), (0.0, 0.0, 0.001, 0.002), 100)
OTHER = replace(COSTS, seconds=(2.0, 2.0, 2.1, 2.9))
ABOUT = {"cpu": "a", "model": "b", "passes": ["auto", "sdpa"]}


def fail():
    raise AssertionError("measured, though it was kept")


def kept(place, about=ABOUT):
    return place / f"{digest(about)}.json"


def test_what_was_measured_is_not_measured_again(tmp_path):
    assert recall(tmp_path / "new", ABOUT, lambda: COSTS) == COSTS
    assert recall(tmp_path / "new", ABOUT, fail) == COSTS
    assert [path.name for path in (tmp_path / "new").iterdir()] == [kept(tmp_path).name]


def test_what_is_wanted_anew_is_measured_and_kept(tmp_path):
    recall(tmp_path, ABOUT, lambda: COSTS)
    assert recall(tmp_path, ABOUT, lambda: OTHER, anew=True) == OTHER
    assert recall(tmp_path, ABOUT, fail) == OTHER


def test_what_was_measured_beside_others_is_not_kept(tmp_path):
    assert recall(tmp_path, ABOUT, lambda: replace(OTHER, alone=False)).seconds == OTHER.seconds
    assert recall(tmp_path, ABOUT, lambda: COSTS) == COSTS
    recall(tmp_path, ABOUT, lambda: replace(OTHER, alone=False), anew=True)
    assert recall(tmp_path, ABOUT, fail) == COSTS


@pytest.mark.parametrize("name", ABOUT)
def test_another_subject_has_a_file_of_its_own(tmp_path, name):
    recall(tmp_path, ABOUT, lambda: COSTS)
    assert recall(tmp_path, {**ABOUT, name: "z"}, lambda: OTHER) == OTHER
    assert recall(tmp_path, ABOUT, fail) == COSTS


def edited(**changes):
    """A file whose checksum is right and whose content is not."""
    content = json.loads(text(COSTS, ABOUT))
    content.pop("checksum")
    content.update(changes)
    return json.dumps({**content, "checksum": digest(content)}).encode()


def costs(**changes):
    return edited(costs={**json.loads(text(COSTS, ABOUT))["costs"], **changes})


WHOLE = text(COSTS, ABOUT)
DAMAGED = {
    "empty": b"",
    "torn": WHOLE[: len(WHOLE) // 2],
    "no JSON": b"\x00\xff" + WHOLE,
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "a number changed": WHOLE.replace(b"1.9", b"1.8"),
    "no checksum": WHOLE.replace(b"checksum", b"sum"),
    "older": edited(format=FORMAT - 1),
    "of something else": edited(subject={**ABOUT, "model": "c"}),
    "no costs": edited(costs=None),
    "half the costs": costs(seconds=None),
    "words": costs(rows=["1", "2", "4", "8"]),
    "falling": costs(seconds=[1.0, 0.5, 1.1, 1.9]),
    "nothing": costs(seconds=[0.0, 0.0, 1.1, 1.9]),
    "not finite": costs(seconds=[1.0, 1.0, 1.1, float("inf")]),
    "rows twice": costs(rows=[1, 1, 4, 8]),
    "one width": costs(rows=[1], seconds=[1.0], slopes=[0.0]),
    "widths without seconds": costs(rows=[1, 2, 4, 8, 16]),
    "a context that pays": costs(slopes=[-1.0, 0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_file_that_cannot_be_trusted_is_written_anew(tmp_path, damage):
    assert DAMAGED[damage] != WHOLE
    kept(tmp_path).write_bytes(DAMAGED[damage])
    assert recall(tmp_path, ABOUT, lambda: OTHER) == OTHER
    assert read(kept(tmp_path), ABOUT) == OTHER


def test_the_damages_are_what_is_refused(tmp_path):
    for whole in (WHOLE, edited(), costs()):
        kept(tmp_path).write_bytes(whole)
        assert read(kept(tmp_path), ABOUT) == COSTS


def test_a_folder_that_cannot_be_written_is_said_and_no_more(tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "forerun"):
        assert recall(tmp_path / "file" / "in", ABOUT, lambda: COSTS) == COSTS
    assert "measured costs are not kept: cannot write" in caplog.text
    assert "choose another folder with --profiles" in caplog.text


def test_a_folder_in_the_files_place_is_no_file(tmp_path):
    kept(tmp_path).mkdir()
    assert recall(tmp_path, ABOUT, lambda: COSTS) == COSTS


def test_off_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for found in (COSTS, OTHER):
        assert recall(None, ABOUT, lambda found=found: found) == found
    LLM("toy:1", planner="free", profiles="off")
    assert list(tmp_path.iterdir()) == []


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path):
    many = [replace(COSTS, context=number) for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda costs: recall(tmp_path, ABOUT, lambda: costs, anew=True), many))
    assert found == many
    assert read(kept(tmp_path), ABOUT) in many
    assert [path.name for path in tmp_path.iterdir()] == [kept(tmp_path).name]


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ("/cache", "/cache/forerun/costs"),
        ("", "/home/me/.cache/forerun/costs"),
        ("relative", "/home/me/.cache/forerun/costs"),
    ],
)
def test_the_folder_is_the_users_cache(monkeypatch, cache, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("HOME", "/home/me")
    assert folder() == Path(expected)


@pytest.fixture
def busy(monkeypatch):
    """What is measured is kept although other tests run beside."""
    monkeypatch.setattr("forerun.engine.costs.ALONE", 0.0)


@pytest.mark.usefixtures("busy")
def test_an_engine_keeps_costs_there_unless_a_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    LLM("toy:1", planner="free")
    assert len(list((tmp_path / "cache/forerun/costs").glob("*.json"))) == 1
    LLM("toy:1", planner="free", profiles="~/mine")
    assert len(list((tmp_path / "home/mine").glob("*.json"))) == 1


def test_without_a_home_nothing_is_kept(monkeypatch):
    def nobody():
        raise RuntimeError("no home")

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(profiles.Path, "home", nobody)
    assert folder() is None


def test_the_subject_tells_models_precisions_and_versions_apart(monkeypatch):
    info = ToyModel().info
    same, about = subject(info, threads=1), subject(info, threads=1)
    assert same == about
    assert json.loads(json.dumps(about)) == about
    others = [
        subject(replace(info, **one), threads=1) for one in ({"name": "x"}, {"num_layers": 9}, {"rounded": "int8"})
    ]
    others += [subject(info, threads=2)]
    for name in ("cpu_name", "version"):
        with monkeypatch.context() as patch:
            patch.setattr(profiles, name, lambda *_: "another")
            others.append(subject(info, threads=1))
    assert len({digest(one) for one in [about, *others]}) == len(others) + 1


@pytest.mark.usefixtures("busy")
def test_an_engine_measures_once_for_all_that_follow(tmp_path):
    first, second = (LLM("toy:1", planner="free", profiles=str(tmp_path)) for _ in range(2))
    assert first.engine.members.planner.costs == second.engine.members.planner.costs
    assert len(list(tmp_path.iterdir())) == 1
    LLM("toy:1", planner="free", profiles=str(tmp_path), passes="padded")
    assert len(list(tmp_path.iterdir())) == 2
