"""S3: a chat template gets a second and some memory, whatever it does, and nothing but its values."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from forerun.errors import RequestError
from forerun.models.template import Renderer, cell

NEST = "{% for a in range(9999) %}"
LONG = {
    "a loop": NEST * 3 + "{% endfor %}" * 3,
    "a power": "{{ (9 ** (9 ** 9)) | string | length }}",
    "a constant": "{% set x = 9 ** (9 ** 9) %}",
    "a recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a sort": "{% set x = namespace(l=[]) %}" + NEST * 2 + "{% set x.l = (x.l + [a]) | sort %}" + "{% endfor %}" * 2,
}
LARGE = {
    "a text": "{{ 'x' * 10 ** 9 }}",
    "a width": "{{ '%1000000000d' % 1 }}",
    "a doubling": "{% set x = namespace(s='xxxxxxxx') %}{% for a in range(99) %}{% set x.s = x.s + x.s %}{% endfor %}",
    "many texts": NEST + NEST + "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "an indent": "{{ [1] | tojson(indent=10 ** 9) }}",
}
CURIOUS = [
    "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__ }}{{ ''['__cl' ~ 'ass__'].__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__.sys }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ (messages | map(attribute='__class__') | list) [0].__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{0.__class__}'.format_map({'0': 1}) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '/etc/passwd' %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 1}) }}",
    "{{ messages[0] | attr('__class__') | attr('__mro__') }}",
    "{{ (1).__reduce_ex__(4) }}",
    "{{ messages.pop.__self__.clear() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ range.__self__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ dict(a=1).__class__.fromkeys }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__dict__ }}",
    "{{ loop }}{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{{ loop }}{% for m in messages %}{{ loop._iterable.__class__ }}{% endfor %}",
    "{% macro f() %}{{ caller.__globals__ }}{% endmacro %}{% call f() %}{% endcall %}",
    "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "{% macro f() %}{% endmacro %}{{ f.__init__.__func__.__code__ }}",
    "{{ messages | map('attr', '__class__') | map('attr', '__base__') | list }}",
    "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "{{ messages | groupby('__class__') | list }}",
    "{{ messages | selectattr('__class__') | map(attribute='__class__') | list }}",
    "{{ messages | sum(attribute='__class__', start='') }}",
    "{{ messages | sort(attribute='__class__.__name__') | map(attribute='__class__') | list }}",
    "{{ '%s' | format(messages.__class__) }}",
    "{{ ('{0.__cl' ~ 'ass__}') | attr('format')(1) }}",
    "{{ '' | attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ ''['\\x5f_class_\\x5f'] }}",
    "{{ (messages | list).__iter__().__reduce__() }}",
    "{{ namespace(__class__=1).__class__ }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "{% set ns = namespace() %}{{ ns.__getattribute__('__class__') }}",
    "{{ tojson.__globals__ }}{{ messages | tojson(cls=messages.__class__) }}",
    "{{ messages | tojson(default=raise_exception) | attr('__class__') }}",
    "{{ undefined.__class__.__init__ }}",
    "{{ (undefined | default(messages)).__class__ }}",
    "{{ strftime_now('%Y').__class__.__mro__ }}",
    "{% from '/etc/passwd' import root %}{{ root }}",
    "{% include ['/etc/passwd', 'sandbox.py'] ignore missing %}",
    "{{ messages.sort(key=raise_exception) }}",
    "{{ messages.__setitem__(0, 1) }}",
]
MESSAGES = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("name", LONG)
def test_a_template_that_takes_long_is_ended(name):
    began = os.times()
    render = Renderer(LONG[name])
    with pytest.raises(RequestError, match=r"takes more than 1 s|too much memory|recursion"):
        render(MESSAGES)
    del render
    used = os.times()
    assert used.children_user + used.children_system - began.children_user - began.children_system < 3


@pytest.mark.parametrize("name", LARGE)
def test_a_template_that_takes_much_is_refused(name):
    with pytest.raises(RequestError, match=r"too much memory|more than 16777216 characters|takes more than 1 s|ended"):
        Renderer(LARGE[name])(MESSAGES)


@pytest.fixture(scope="module")
def shared():
    """One process for many templates, as their own would each take a moment to begin."""
    return cell()


def test_there_are_sixty():
    assert len({*LONG.values(), *LARGE.values(), *CURIOUS}) >= 60


@pytest.mark.parametrize("template", CURIOUS)
def test_a_template_sees_its_values_alone(template, shared):
    """It is refused, or the sandbox gives it nothing."""
    try:
        found = Renderer(template, shared)(MESSAGES)
    except RequestError:
        return
    assert not {"class", "<", "root", "module"} & set(found.replace("'", " ").split())
    assert "object" not in found


def test_the_next_rendering_goes_on():
    """After a template was ended for what one conversation made of it, and after its process was killed."""
    render = Renderer(
        "{% if messages[0].content == 'long' %}" + LONG["a loop"] + "{% endif %}{{ messages[0].content }}"
    )
    ask = lambda text: render({"messages": [{"content": text}]})  # noqa: E731 - one line, many uses
    assert ask("a\n\u00e9\U0001f600") == "a\n\u00e9\U0001f600"
    with pytest.raises(RequestError, match="takes more than 1 s"):
        ask("long")
    assert ask("b") == "b"
    os.kill(render._cell._process.pid, signal.SIGKILL)
    render._cell._process.wait()
    with pytest.raises(RequestError, match="its process ended"):
        ask("c")
    assert ask("d") == "d"


def test_many_short_renderings_are_not_one_long_one():
    render = Renderer("{% for a in range(30000) %}{% endfor %}{{ n }}")
    assert [render({"n": n}) for n in range(300)] == [str(n) for n in range(300)]


def test_several_threads_get_their_own():
    render = Renderer("{{ n }}")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: render({"n": n}), range(200))) == [str(n) for n in range(200)]


def test_the_process_ends_with_who_asks():
    render = Renderer("{{ 1 }}")
    render({})
    process = render._cell._process
    assert process.poll() is None
    del render
    assert process.poll() is not None


def test_what_json_cannot_hold_is_text():
    assert Renderer("{{ a }}{{ b | length }}")({"a": {1}, "b": (1, 2)}) == "{1}2"
    assert json.loads(Renderer("{{ a | tojson }}")({"a": "\ud800"})) == "\ud800"
