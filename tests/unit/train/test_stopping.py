"""`forerun train stopping`: a rule that traits do not show is found, rejections weigh more, the file is a head."""

import json

import pytest
import torch
from click.testing import CliRunner

from forerun.errors import TrainError
from forerun.heads import Network, network
from forerun.look import Traits
from forerun.train import stopping
from forerun.train.cli import command
from forerun.train.judge import Job
from forerun.train.stopping import Examples, Recipe

STORY = "Once upon a time there was a small dog who liked to run in the park with his friend Tom. "


def examples(seed, count=3000):
    """Acceptance depends on two numbers of a state together; the traits know the half of it."""
    states = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    odds = 4 * states[:, 0] * states[:, 1]
    return Examples(states, states[:, :1] * states[:, 1:2] + 2 * states[:, 2:3], torch.sigmoid(odds))


@pytest.mark.parametrize("tree", stopping.TREES)
def test_a_rule_that_traits_do_not_show_is_found(tree):
    generator = torch.Generator().manual_seed(0)
    layers = stopping.fit(examples(0), Recipe(tree, epochs=30, rate=3e-3), generator).parts()
    found = stopping.judged(Network(tree, -1, layers), examples(0), examples(1), generator)
    assert found["in_order"] > found["by_traits"] + 0.1 > 0.6


def test_weights_are_the_odds_of_a_rejection():
    """The best constant says accepted : weight * rejected."""
    chance = torch.tensor([0.9, 0.7, 0.8, 0.8])
    odds = torch.linspace(-4, 4, 801)
    for weight, best in ((1.0, 0.8), (6.0, 0.8 / (0.8 + 6 * 0.2))):
        losses = [float(stopping.loss(one.expand(4), chance, weight)) for one in odds]
        assert torch.sigmoid(odds[losses.index(min(losses))]) == pytest.approx(best, abs=0.01)


def test_at_first_the_added_layers_add_nothing():
    torch.manual_seed(0)
    layers, inputs = stopping.Layers([4, 4, 4, 1]), torch.randn(3, 4)
    assert torch.equal(layers(inputs), layers.each[-1](inputs)[:, 0])


def test_what_is_trained_is_what_runs():
    torch.manual_seed(0)
    layers, inputs = stopping.Layers([4, 4, 6, 1]), torch.randn(3, 4)
    torch.nn.init.normal_(layers.each[0].weight)
    said = Network("any", -1, layers.parts())(inputs.numpy())
    assert said.tolist() == pytest.approx(torch.sigmoid(layers(inputs)).tolist(), abs=1e-6)


def test_places_count_from_the_last_rejection():
    traits = [Traits(1.0, (0.5, 0.2, 0.1, 0.1))] * 20
    chance = torch.tensor([1.0, 1.0, 0.0, 1.0] + [1.0] * 16)
    places = stopping.placed(traits, chance, torch.Generator().manual_seed(0))[:, -1].exp()
    assert places.tolist() == pytest.approx([1, 2, 3, 1, *range(2, 13), *range(1, 6)])


@pytest.mark.parametrize(("tree", "reads"), [("specdec-pp", 128), ("disco", 6)])
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_command_writes_a_head(tree, reads, temperature, tmp_path):
    text, out = tmp_path / "story.txt", tmp_path / "head.safetensors"
    text.write_text(STORY * 60)
    keys = ["--set", f"tree={tree}", "--set", f"temperature={temperature}", "--set", "epochs=1"]
    given = ["stopping", "reference", str(out), "--text", str(text), "--tokens", "512", *keys]
    found = CliRunner().invoke(command, given)
    assert found.exit_code == 0, found.output
    figures = json.loads(found.output.splitlines()[-1])
    assert figures["examples"] > 0
    assert 0 < figures["accepted"] < 1
    assert network(str(out), tree, "x", "y").reads == reads


def test_a_target_alone_too_little_text_and_another_tree_are_refused(tmp_path):
    text = tmp_path / "short.txt"
    text.write_text(STORY)
    with pytest.raises(TrainError, match="at least two of them"):
        stopping.train_stopping("reference", tmp_path / "x", Job([text]), Recipe())
    with pytest.raises(TrainError, match="companion"):
        stopping.train_stopping("toy:0:5", tmp_path / "x", Job([text]), Recipe())
    with pytest.raises(TrainError, match="no tree 'svip'"):
        Recipe("svip")
