"""Starting: quick help, and one sentence for what cannot be."""

import socket
import subprocess
import sys

import httpx
import pytest

from forerun import LLM
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.server.run import listen
from forerun.server.settings import Settings


def test_help_loads_no_server():
    code = "import sys; from forerun.cli import main; sys.argv[1:] = ['serve', '--help']\n"
    code += "try:\n    main()\nfinally:\n    print('LOADED', {'fastapi', 'torch', 'uvicorn'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert "--drain-timeout" in found.stdout
    assert found.stdout.endswith("LOADED set()\n")


def test_a_port_that_is_taken_is_a_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another --port"):
        listen(Settings(port=taken.getsockname()[1]))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--host", "0.0.0.0"], "there is no API key"),  # noqa: S104 - it is refused
        (["--api-key-file", "/nowhere"], "cannot be read"),
        (["--drafter", "ngramm"], "did you mean 'ngram'"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(flags, sentence):
    command = [sys.executable, "-c", "from forerun.cli import main; main()", "serve", "toy:0:5", "--port", "0", *flags]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 2
    assert sentence in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_a_name_and_an_address_of_ones_own(serving):
    llm = LLM(ToyModel(5), threads=1, profiles="off")
    with serving(llm, served_model_name="mine", host="localhost") as url:
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "mine"
