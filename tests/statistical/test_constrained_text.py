"""On the bundled pair: texts under a schema are plain decoding's for every drafter, and valid by another library."""

import json
from pathlib import Path

import jsonschema
import pytest

import forerun
from forerun.drafters import DRAFTERS
from forerun.llm import LLM
from forerun.types import Constraint, Sampling

FOLDER = Path(forerun.__file__).parent / "reference"
pytestmark = pytest.mark.skipif(
    not (FOLDER / "target" / "model.safetensors").is_file() or not (FOLDER / "drafter" / "model.safetensors").is_file(),
    reason="the bundled models are not in this checkout; train them with `forerun train lm`",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "animal": {"enum": ["cat", "dog", "bird"]},
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "age", "animal", "friends"],
    "additionalProperties": False,
}
WISH = Constraint("json_schema:whitespace=false", json.dumps(SCHEMA))
PROMPTS = ["Once upon a time there was a", "The girl's data: ", "def person():\n    return "]
NEED_MORE = {"rasd", "rest", "dresd", "prediction", "suffix-decoding"}  # a store, or a text that is expected
EVERY = [
    *(name for name in DRAFTERS if name not in NEED_MORE | {"none", "other-vocab"}),
    f"other-vocab:model={FOLDER / 'drafter'}",
    "draft-model:tree=(level:width=2)",
    "several:of=[grammar,(draft-model)]",
]


def texts(sampling, **members):
    llm = LLM(profiles="off", threads=1, planner="fixed:nodes=6", **members)
    results = llm.generate(PROMPTS, sampling)
    assert llm.engine.stats.draft_failures == 0
    return [(result.text, result.tokens, result.finish_reason) for result in results], results


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "sampled"])
def wanted(request):
    sampling = Sampling(temperature=request.param, max_tokens=150, seed=3, constraint=WISH)
    found, _ = texts(sampling, drafter="none", decoder="autoregressive")
    assert [reason for *_, reason in found].count("stop") >= 2, "few texts came to their end; the test shows little"
    return sampling, found


def test_texts_are_valid(wanted):
    for text, _, reason in wanted[1]:
        if reason == "stop":
            jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("drafter", EVERY)
def test_texts_are_plain_decodings(wanted, drafter):
    sampling, plain = wanted
    assert texts(sampling, drafter=drafter)[0] == plain


def test_forced_tokens_save_steps(wanted):
    sampling, plain = wanted
    found, results = texts(sampling, drafter="grammar")
    assert found == plain
    assert sum(r.stats.steps for r in results) < 0.8 * sum(len(tokens) for _, tokens, _ in plain)
