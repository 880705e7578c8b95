"""R22: what /openapi.json says is what the server does, with right requests and with wrong ones."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.generation import GenerationMode

from forerun import LLM
from forerun.models.toy import ToyModel

EXAMPLES = int(os.environ.get("FORERUN_EXAMPLES", "200"))  # of each operation, right and wrong ones each
HELD = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
SETTINGS = settings(
    max_examples=EXAMPLES,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    deadline=None,
    database=None,
)
ROUNDS = 8
OPERATIONS = [
    *("POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "GET /v1/models/{name}", "GET /version"),
    *("POST /tokenize", "POST /detokenize", "GET /health", "GET /ready", "GET /metrics", "GET /usage"),
]


STRICT = [*HELD, checks.negative_data_rejection, checks.unsupported_method]


@pytest.fixture(scope="module")
def place(serving):
    with serving(LLM(ToyModel(6, context_length=64), threads=1, profiles="off")) as url:
        yield f"{url}/openapi.json"


@pytest.fixture(scope="module")
def described(place):
    return schemathesis.openapi.from_url(place)


def test_no_operation_is_left_out(described):
    found = [result.ok() for result in described.get_all_operations()]
    assert {f"{operation.method.upper()} {operation.path}" for operation in found} == set(OPERATIONS)


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_as_described(described, name, mode):
    method, path = name.split()
    operation = described[path][method]
    if mode is GenerationMode.NEGATIVE and method == "GET":
        return  # nothing in it can be wrong: any text may be a model's name

    @given(operation.as_strategy(generation_mode=mode))
    @SETTINGS
    def ask(case):
        case.call_and_validate(checks=STRICT if mode is GenerationMode.NEGATIVE else HELD, timeout=60)

    ask()


def test_every_edge_is_as_described(place, tmp_path):
    """What stands at a limit or just beyond it, field by field, and methods that no route has."""
    names = ",".join(check.__name__ for check in STRICT)
    words = ["run", place, "--phases=coverage", "--mode=all", f"--checks={names}", "--no-color", "--seed=1"]
    program = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) generated", done.stdout)[1]) > 1000


def test_where_an_answer_leads_is_answered(serving):
    """A model that is listed is found under the name that it has there; tokens have a text, and it has tokens."""
    found, told = Counter(), set()

    def validate_response(self, response, case, additional_checks=(), **_):
        case.validate_response(response, checks=HELD)
        if case.operation.path == "/v1/models/{name}":  # others are asked for, too
            found[case.path_parameters["name"] == "reference-drafter", response.status_code] += 1
        if case.operation.path in ("/tokenize", "/detokenize") and isinstance(case.body, dict):
            given = str(case.body.get("tokens", case.body.get("prompt")))
            found["followed", case.operation.path, response.status_code] += given in told
            if response.status_code == 200:
                told.update(str(value) for value in response.json().values())

    with serving(LLM("reference-drafter", threads=1, profiles="off")) as url:
        described = schemathesis.openapi.from_url(f"{url}/openapi.json")
        machine = described.as_state_machine()
        chained = type("Chained", (machine,), {"validate_response": validate_response})
        for again in range(ROUNDS):  # what the first one tries depends on what this process has imported before
            some = settings(SETTINGS, max_examples=100, stateful_step_count=6, derandomize=not again)
            chained.run(settings=some)
            if found[True, 200] > 10 and min(found["followed", f"/{to}tokenize", 200] for to in ("", "de")) > 2:
                break
    assert found[True, 200] > 10
    assert {key for key in found if key[0] in (True, False)} <= {(True, 200), (False, 404)}
    assert found["followed", "/detokenize", 200] > 2
    assert found["followed", "/tokenize", 200] > 2
