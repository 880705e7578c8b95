"""Settings: what cannot be is one sentence, and nobody serves the world without a key by mistake."""

import pytest

from forerun.errors import ConfigError
from forerun.server.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_this_machine_needs_no_key(host):
    assert Settings(host=host).keys() == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan", ""])  # noqa: S104 - it is refused
def test_other_machines_need_one(host, tmp_path):
    """S4."""
    with pytest.raises(ConfigError, match="there is no API key; give --api-key-file, or --insecure"):
        Settings(host=host)
    with pytest.raises(ConfigError, match="there is no API key"):
        Settings(host=host, api_key=("",))
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    assert Settings(host=host, api_key_file=str(file), api_key=("three",)).keys() == ("three", "one", "two")
    assert Settings(host=host, insecure=True).keys() == ()


def test_a_file_without_keys_is_refused(tmp_path):
    file = tmp_path / "keys"
    with pytest.raises(ConfigError, match="cannot be read"):
        Settings(api_key_file=str(file)).keys()
    file.write_text("\n")
    with pytest.raises(ConfigError, match="has no key"):
        Settings(api_key_file=str(file)).keys()


@pytest.mark.parametrize(
    "values",
    [{"port": -1}, {"port": "x"}, {"max_n": 0}, {"queue_timeout": -1.0}, {"insecure": 1}, {"metrics_prefix": "a b"}],
)
def test_what_is_out_of_range_is_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        Settings(**values)


@pytest.mark.parametrize(("text", "span"), [("", (1, 1)), ("3", (3, 3)), ("1-4", (1, 4))])
def test_replicas_are_a_number_or_a_range(text, span):
    assert Settings(replicas=text).span == span


@pytest.mark.parametrize("text", ["0", "4-1", "1-", "-2", "two", "1-2-3", "0-3"])
def test_other_replicas_are_refused(text):
    with pytest.raises(ConfigError, match="range such as 1-4"):
        Settings(replicas=text)
