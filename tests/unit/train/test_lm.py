"""From a recipe and a data folder to a model folder that transformers loads."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from transformers import AutoTokenizer, LlamaForCausalLM

from forerun.errors import TrainError
from forerun.llm import LLM
from forerun.train import cli, data, export, lm, loop, recipe, tokenizer, written
from forerun.train.checkpoint import FILE
from forerun.types import Sampling

STORY = "One day, a {} dog named Max saw {} cats in the park. He ran and ran until the sun went down over the hill.\n"
RECIPE = """
name = "toy"
vocab_size = 300
threads = 1
companion = "../drafter"
model = { hidden_size = 32, num_layers = 1, num_heads = 2, num_kv_heads = 1, head_dim = 16, ffn_size = 48 }
mixture = { stories = 0.5, smalltalk = 0.5 }
schedule = { steps = 2, warmup_steps = 1, lengths = [[0.0, 16]] }
optimise = { tokens_per_step = 32, tokens_per_pass = 32 }
"""


@pytest.fixture
def inputs(tmp_path):
    """A recipe file and a data folder with a hundred stories."""
    folder = tmp_path / "data/tinystories"
    folder.mkdir(parents=True)
    told = "<|endoftext|>\n".join(STORY.format(n, n + 3) for n in range(100))
    (folder / "cased_2316.txt").write_text(told, encoding="utf-8")
    (folder / "lowercase_rest.txt").write_text(told.lower(), encoding="utf-8")
    (tmp_path / "toy.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_command_trains_and_exports_a_folder(inputs):
    where = ["--data", str(inputs / "data"), "--run", str(inputs / "run"), "--out", str(inputs / "model")]
    result = CliRunner().invoke(cli.command, ["lm", str(inputs / "toy.toml"), *where], catch_exceptions=False)
    assert result.exit_code == 0
    model = LlamaForCausalLM.from_pretrained(inputs / "model", dtype=torch.float32)
    assert AutoTokenizer.from_pretrained(inputs / "model").vocab_size == model.config.vocab_size == 300
    assert model.generation_config.eos_token_id == [0, 4]
    assert json.loads((inputs / "model/forerun.json").read_text()) == {"drafter": "../drafter"}
    with safe_open(inputs / "model/model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 (not a dict)
        assert {file.get_slice(k).get_dtype() for k in file.keys()} == {"BF16"}  # noqa: SIM118
    check_second_run(inputs, where)
    check_measures(inputs)


def check_measures(inputs):
    """A finished folder can be measured, against itself as teacher too."""
    with (inputs / "toy.toml").open("a", encoding="utf-8") as file:
        file.write(f'distil = {{ teacher = "{inputs / "model"}" }}\n')
    before = sorted(path.name for path in (inputs / "model").iterdir())
    call = ["evaluate", str(inputs / "toy.toml"), str(inputs / "model"), "--data", str(inputs / "data")]
    result = CliRunner().invoke(cli.command, call, catch_exceptions=False)
    assert "training tokens  stories" in result.output
    assert "same greedy token 1.000  sum min(p,q) 1.000" in result.output
    assert sorted(path.name for path in (inputs / "model").iterdir()) == before


def check_second_run(inputs, where):
    """A run is not overwritten by accident; its checkpoint exports to the same weights."""
    with pytest.raises(TrainError, match="already holds a run"):
        CliRunner().invoke(cli.command, ["lm", str(inputs / "toy.toml"), *where], catch_exceptions=False)
    again = lm.export_run(inputs / "toy.toml", inputs / "run", inputs / "again")
    assert (again / "model.safetensors").read_bytes() == (inputs / "model/model.safetensors").read_bytes()


def test_failed_export_leaves_the_old_folder(inputs, monkeypatch):
    out = inputs / "model"
    lm.train_lm(inputs / "toy.toml", data_folder=inputs / "data", run_folder=inputs / "run", out=out)
    before = (out / "model.safetensors").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "swap", full)
    with pytest.raises(TrainError, match="No space left on device"):
        lm.export_run(inputs / "toy.toml", inputs / "run", out)
    assert (out / "model.safetensors").read_bytes() == before
    assert (inputs / "run" / FILE).is_file()
    assert not list(inputs.glob("*.part"))


@pytest.mark.parametrize("room", [500, 20_000])  # for the tokenizer, and for the weights
def test_a_full_disk_leaves_the_old_folder(inputs, disk_of, room):
    out = inputs / "model"
    lm.train_lm(inputs / "toy.toml", data_folder=inputs / "data", run_folder=inputs / "run", out=out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with disk_of(room), pytest.raises(TrainError, match=r"^cannot (export|write) .* \(File too large\); free space"):
        lm.export_run(inputs / "toy.toml", inputs / "run", out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert not list(inputs.glob("*.part"))


def test_teacher_without_config_is_said(inputs):
    with pytest.raises(TrainError, match="train that model first"):
        lm.train_lm(
            inputs / "toy.toml", {"distil.teacher": "nowhere"}, data_folder=inputs / "data", run_folder=inputs / "r"
        )


def test_pairs_are_toml_values():
    assert cli.parse_pair("schedule.steps=3") == ("schedule.steps", 3)
    assert cli.parse_pair("name=abc") == ("name", "abc")
    with pytest.raises(TrainError, match="write KEY=VALUE"):
        cli.parse_pair("steps")


def test_a_run_may_begin_with_the_weights_of_a_folder(inputs):
    first = lm.train_lm(inputs / "toy.toml", {}, data_folder=inputs / "data", run_folder=inputs / "one")
    names = {"init": str(first), "tokenizer": str(first)}
    again = lm.train_lm(
        inputs / "toy.toml",
        {**names, "schedule.learning_rate": 0.0, "schedule.steps": 1},
        data_folder=inputs / "data",
        run_folder=inputs / "two",
    )
    weights = [LlamaForCausalLM.from_pretrained(folder).state_dict() for folder in (first, again)]
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())
    with pytest.raises(TrainError, match=r"does not have the recipe's shape"):
        lm.train_lm(
            inputs / "toy.toml",
            {**names, "model.ffn_size": 64},
            data_folder=inputs / "data",
            run_folder=inputs / "three",
        )


def test_layers_that_the_first_weights_lack_change_nothing_at_first(inputs):
    first = lm.train_lm(inputs / "toy.toml", {}, data_folder=inputs / "data", run_folder=inputs / "one")
    small = lm.load_folder(first, torch.device("cpu"))
    more = {"init": str(first), "model.num_layers": small.config.num_hidden_layers + 2}
    grown = lm.begin(recipe.load(inputs / "toy.toml", more), torch.device("cpu"))
    tokens = torch.arange(5, 25)[None]
    assert torch.equal(grown(tokens).logits, small(tokens).logits)
    grown(tokens).logits.square().sum().backward()
    last = grown.model.layers[-1]
    assert last.self_attn.o_proj.weight.grad.any()  # and it can learn
    assert last.mlp.down_proj.weight.grad.any()
    grown.save_pretrained(inputs / "grown")
    with pytest.raises(TrainError, match=r"does not have the recipe's shape"):  # no layer is left out
        lm.begin(recipe.load(inputs / "toy.toml", {"init": str(inputs / "grown")}), torch.device("cpu"))


@pytest.fixture
def taught(inputs):
    """A recipe with a teacher, and a file with what that wrote."""
    teacher = lm.train_lm(inputs / "toy.toml", data_folder=inputs / "data", run_folder=inputs / "one")
    (inputs / "pupil.toml").write_text(
        RECIPE + f'distil = {{ teacher = "{teacher}" }}\ntokenizer = "{teacher}"\n', encoding="utf-8"
    )
    where = ["--data", str(inputs / "data"), "--tokens", "600", "--length", "5"]
    call = ["written", str(inputs / "pupil.toml"), str(inputs / "texts"), *where]
    result = CliRunner().invoke(cli.command, call, catch_exceptions=False)
    assert result.output.endswith(f"tokens written to {inputs / 'texts'}\n")
    assert int(result.output.split()[-5].replace(",", "")) >= 600
    return inputs, teacher


def test_a_teacher_goes_on_behind_beginnings_of_its_training_texts(taught):
    inputs, teacher = taught
    packed, words = data.load(inputs / "texts"), tokenizer.load(teacher)
    texts = np.split(packed.ids, packed.starts[1:])
    assert len(texts) == len(packed.starts) > written.TOGETHER
    assert all(text[-1] == 0 for text in texts)
    told = STORY.format(3, 6)
    seen = [words.decode(text.tolist(), skip_special_tokens=False) for text in texts]
    assert any(text.startswith(told[:8]) for text in seen)
    chats = [text for text in seen if text.startswith("<|user|>")]
    assert chats
    assert all("<|assistant|>" in text for text in chats)
    llm = LLM(str(teacher), drafter="none", decoder="autoregressive")
    greedy = Sampling(temperature=0.0, max_tokens=5)
    for text in [text.tolist() for text in texts[:: len(written.TEMPERATURES)][:4]]:
        cuts = range(max(1, len(text) - 6), len(text))
        assert any(text[:at] + list(llm.generate([text[:at]], greedy)[0].tokens) in (text, text[:-1]) for at in cuts)


def test_a_student_learns_behind_its_teachers_own_texts(taught):
    inputs, _ = taught
    wanted = {"distil.written": str(inputs / "texts"), "distil.written_share": 0.75}
    chosen = recipe.load(inputs / "pupil.toml", wanted)
    run, _ = lm.prepare(chosen, inputs / "data", inputs / "two", resume=False)
    assert run.sampler.weights == pytest.approx({"stories": 0.125, "smalltalk": 0.125, "written": 0.75})
    assert run.sampler.packed["written"].ids.tolist() == data.load(inputs / "texts").ids.tolist()
    assert loop.weighted(run, {"stories": 1.0, "smalltalk": 3.0}) == 2.0  # what a teacher writes has no held-out part
    loop.train(run)


def test_texts_need_a_teacher_and_a_file(inputs, tmp_path):
    with pytest.raises(TrainError, match=r"names no teacher to write; set distil\.teacher"):
        written.train_written(recipe.load(inputs / "toy.toml"), tmp_path / "texts", inputs / "data", 1, 1)
    (tmp_path / "texts").write_bytes(b"no tensors")
    with pytest.raises(TrainError, match=r"no written texts can be read .* forerun train written"):
        data.load(tmp_path / "texts")
