"""Recipes are frozen, complete, and refuse what they do not know."""

import dataclasses

import pytest

from forerun.errors import TrainError
from forerun.train import recipe, sources

BUNDLED = sorted(path.stem for path in recipe.RECIPES.glob("*.toml"))


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_recipes_load(name):
    chosen = recipe.load(name)
    assert set(chosen.mixture) == set(sources.READERS)
    assert sum(chosen.mixture.values()) == pytest.approx(1.0)
    assert chosen.model.head_dim % 16 == 0
    assert chosen.schedule.lengths[-1][1] <= chosen.model.context


def test_the_recipes_exist():
    assert BUNDLED == ["drafter", "drafter-cpu", "target", "target-cpu", "target-cpu-more"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"sede": 1}, "has no key 'sede'; did you mean 'seed'"),
        ({"model.hiden_size": 8}, "did you mean 'hidden_size'"),
        ({"schedule.steps": "many"}, "key 'steps' must be int, got 'many'"),
        ({"optimise.bf16": 1}, "must be bool"),
        ({"seed": True}, "must be int"),
        ({"vocab_size.deeper": 1}, "which is a single value"),
        ({"model": 3}, "must be Shape"),
    ],
)
def test_wrong_keys_and_values_are_refused_with_a_remedy(overrides, said):
    with pytest.raises(TrainError, match=said):
        recipe.load("target-cpu", overrides)


def test_overrides_change_one_key():
    chosen = recipe.load("target-cpu", {"schedule.steps": 7, "schedule.minutes": 2})
    assert (chosen.schedule.steps, chosen.schedule.minutes) == (7, 2.0)
    assert dataclasses.replace(chosen, schedule=recipe.load("target-cpu").schedule) == recipe.load("target-cpu")


def test_a_recipe_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.load("target-cpu").seed = 3


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(TrainError, match="did you mean 'target-cpu'"):
        recipe.load("target-cp")


def test_broken_toml_is_said(tmp_path):
    (tmp_path / "r.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(TrainError, match="is not valid TOML"):
        recipe.load(tmp_path / "r.toml")
