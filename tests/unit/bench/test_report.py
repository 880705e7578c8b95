import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from forerun.bench import report
from forerun.bench.figures import Spread, quantile
from forerun.errors import ForerunError

EVIL = "<script>alert('x')</script>[bold]&"


@pytest.fixture
def evil():
    """A report whose names come from somebody who means harm."""
    one = asdict(Spread.of([1.0, 2.0]))
    figures = {
        "speedup": one,
        "tokens_per_second": one,
        "tokens_per_step": 1.5,
        "acceptance_rate": 0.5,
        "acceptance_per_position": [0.5],
        "ms_per_step": {"draft": 1.0},
        "draft_failures": 2,
        "equality": {"compared": False, "why": EVIL},
    }
    lost = {"drafter": EVIL, "category": EVIL, "prompt": 1, "position": 0, "expected": 1, "found": None}
    return {
        "title": EVIL,
        "command": EVIL,
        "date": "today",
        "machine": {"cpu": EVIL},
        "model": {"name": EVIL, "weight_bytes": 1},
        "convention": "bonus included",
        "drafters": {"plain": {"all": figures}, EVIL: {EVIL: figures, "all": figures}},
        "differences": [{**lost, "gap": math.inf, "margin": 0.0, "kind": "divergence"}],
        "notes": [EVIL],
    }


def test_the_page_escapes_everything_and_needs_no_other_file(evil):
    page = report.as_html(evil, b"png")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page
    assert 'src="data:image/png;base64,' in page


def test_the_terminal_takes_names_as_text(evil, capsys):
    report.show(evil)
    shown = capsys.readouterr().out
    assert "[bold]" in shown
    assert "2 drafts failed" in shown


def test_the_json_line_is_json(evil):
    line = report.as_json(evil)
    assert "\n" not in line
    assert json.loads(line)["differences"][0]["gap"] is None  # infinity is not JSON


def test_files_are_written_whole(evil, tmp_path):
    paths = report.write(evil, tmp_path / "a" / "b")
    assert [path.name for path in paths] == ["bench.json", "bench.png", "bench.html"]
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == sorted(p.name for p in paths)
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_a_failed_write_names_the_option(evil, tmp_path):
    (tmp_path / "a").write_text("a file where the folder should be")
    with pytest.raises(ForerunError, match=r"cannot write .*bench.json.*--out\.$"):
        report.write(evil, tmp_path / "a")


def test_quantiles_are_those_of_numpy():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    for share in (0.0, 0.25, 0.5, 0.9, 1.0):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share))
    assert quantile([7.0], 0.9) == 7.0
    assert quantile([], 0.5) == 0.0


def test_a_spread_says_its_middle_half():
    spread = Spread.of([4.0, 1.0, 2.0, 3.0, 5.0])
    assert asdict(spread) == {"median": 3.0, "low": 2.0, "high": 4.0, "runs": 5}
    assert spread.shown(1) == "3.0 (2.0–4.0)"
    assert Spread.of([2.0]).shown() == "2.00"
