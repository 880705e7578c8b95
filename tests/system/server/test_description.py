"""R22: what /openapi.json says is what the server does, with right requests and with wrong ones."""

import os
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.generation import GenerationMode

from forerun import LLM
from forerun.models.toy import ToyModel

EXAMPLES = int(os.environ.get("FORERUN_EXAMPLES", "20"))  # of each operation, right and wrong ones each
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
OPERATIONS = [
    *("POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "GET /v1/models/{name}", "GET /version"),
    *("POST /tokenize", "POST /detokenize", "GET /health", "GET /ready", "GET /metrics", "GET /usage"),
]


@pytest.fixture(scope="module")
def described(serving):
    with serving(LLM(ToyModel(6, context_length=64), threads=1, profiles="off")) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


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
        case.call_and_validate(checks=HELD, timeout=60)

    ask()


def test_where_an_answer_leads_is_answered(described):
    """A model that is listed is found under the name that it has there."""
    found = Counter()

    class Chained(described.as_state_machine()):
        def validate_response(self, response, case, additional_checks=(), **_):
            case.validate_response(response, checks=HELD)
            found[case.operation.path, response.status_code] += 1

    Chained.run(settings=settings(SETTINGS, stateful_step_count=4))
    assert found["/v1/models/{name}", 200] > 10
    assert found["/v1/models/{name}", 404] == 0
