"""No number that makes no sense gets into a rule: options of judges and trees, NaN or below their least value."""

from dataclasses import fields, replace

import pytest

from forerun.build import FAMILIES
from forerun.errors import ConfigError

RULES = ("verifier", "tree", "decoder", "planner")
ANY = {("reward-guided", "threshold"), ("lookahead-reasoning", "threshold")}  # on the scale of somebody else's function


def numbers():
    for family in RULES:
        for name, member in ((name, FAMILIES[family][name]) for name in FAMILIES[family]):
            for f in fields(member.Options):
                value = getattr(member.toy(), f.name)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    yield pytest.param(name, member, f.name, -1, id=f"{name}:{f.name}=-1")
                if isinstance(value, float):
                    yield pytest.param(name, member, f.name, float("nan"), id=f"{name}:{f.name}=nan")


@pytest.mark.parametrize(("name", "member", "option", "value"), list(numbers()))
def test_a_number_out_of_range_is_refused_with_a_remedy(name, member, option, value):
    if value == -1 and (name, option) in ANY:
        assert getattr(replace(member.toy(), **{option: value}), option) == -1
        return
    with pytest.raises(ConfigError) as refused:
        replace(member.toy(), **{option: value})
    sentence = str(refused.value)
    assert str(value) in sentence, "what was got"
    assert "; " in sentence, "what to do"
