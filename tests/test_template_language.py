"""Templates come with models from anywhere: they reach nothing, and they end."""

from __future__ import annotations

import time

import pytest

from chatpaged import template_sandbox
from chatpaged.errors import InvalidRequestError
from chatpaged.template_language import TemplateProgram, TemplateRefusalError, one_line, parse_template_argument

DOUBLING = "{% set x = 'aaaaaaaa' %}"
# Small, and without end for whoever looks into each of its parts.
TANGLED = (
    "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}"
    "{% for i in range(40) %}{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}"
)
HOSTILE = [
    "{{ 'a' * 10**10 }}",
    "{{ 'a' * 10000000000 }}",
    "{{ [messages] * 100000000 }}",
    "{{ 9**9**9 }}",
    "{{ 9**99999999 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in text %}{% for b in text %}{% for c in text %}{% for d in text %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) if n > 0 }}{{ f(n - 1) if n > 0 }}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ ''.ljust(10000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (100000000, 1) }}",
    "{{ '%.*f' % (100000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**8) }}",
    "{{ [[1]] | tojson(indent=1000000000) }}",
    "{{ ('a\n' * 100000) | indent(1000000) }}",
    "{{ ('\t' * 100000).expandtabs(1000000) }}",
    "{{ range(100000) | join('a' * 1000000) }}",
    "{{ range(100000) | map('string') | join('a' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('', 'b' * 100000) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 100000) }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    DOUBLING + "{% set x = x ~ x %}" * 60,
    DOUBLING + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60 + "{{ x }}",
    "{% set x = ['a'] %}" + "{% set x = [x] * 16 %}" * 30 + "{{ x }}",
    "{% set x = ['a'] %}" + "{% set x = [x] * 16 %}" * 30 + "{{ x | string }}",
    "{% set x = ['a'] %}" + "{% set x = [x] * 16 %}" * 30 + "{{ x ~ 'a' }}",
    "{% set x = {'a': 1} %}" + "{% set x = {1: x, 2: x, 3: x, 4: x, 5: x, 6: x, 7: x, 8: x} %}" * 30 + "{{ x }}",
    "{% set y %}{% for i in range(100000) %}" + "x" * 100000 + "{% endfor %}{% endset %}",
    "{% for i in range(100000) %}" + "x" * 100000 + "{% endfor %}",
    TANGLED + "{{ a.x == b.x }}",
    TANGLED + "{{ a.x != b.x }}{{ a.x < b.x }}",
    TANGLED + "{{ a.x in [b.x] }}{{ [a.x, b.x] | unique | list }}{{ [a.x, b.x] | sort }}",
    TANGLED.replace("[a.x, a.x]", "(a.x, a.x)").replace("[b.x, b.x]", "(b.x, b.x)") + "{{ a.x == b.x }}",
    TANGLED.replace("[a.x, a.x]", "dict(p=a.x, q=a.x)").replace("[b.x, b.x]", "dict(p=b.x, q=b.x)") + "{{ a.x == b.x }}",
    TANGLED.replace("[a.x, a.x]", "{1: a.x, 2: a.x}").replace("[b.x, b.x]", "{1: b.x, 2: b.x}") + "{{ a.x == b.x }}",
    "{{ lipsum(n=100000) }}",
    "{{ ''.__class__.__mro__ }}",
]


@pytest.mark.parametrize("source", HOSTILE, ids=lambda source: source[:60])
def test_hostile_templates_end_in_one_line(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(TemplateRefusalError) as raised:
        TemplateProgram(source).render({"messages": [], "text": "a" * 5000}, 0)
    assert "\n" not in str(raised.value)
    assert str(raised.value)
    assert time.monotonic() - began < 5, "a limit stops it, not the machine"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' if x" + " or x" * 50000 + " }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for i in range(2) %}" * 30 + "{% endfor %}" * 30,
        "{{ 1" + "0" * 5000 + " }}",
        "{% if %}",
        "line\n{{ x | nosuch }}",
    ],
    ids=lambda source: source[:30],
)
def test_templates_that_cannot_be_compiled(source: str) -> None:
    with pytest.raises(ValueError, match=r"^.{5,300}$"):
        TemplateProgram(source)
    with pytest.raises(ValueError, match="line 2: No filter named 'nosuch'"):
        TemplateProgram("line\n{{ x | nosuch }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%s is %d%%' % ('123456789', 5) }}", "123456789 is 5%"),
        ("{{ '{} {:>3}'.format('1234567', 8) }}", "1234567   8"),
        ("{{ '%05.1f' | format(3.14159) }}", "003.1"),
        ("{{ 2**10 }}{{ 7 % 4 }}{{ 1 + 2 }}{{ 'ab' * 2 }}{{ [1] * 2 }}{{ 1.5 * 2 }}", "102433abab[1, 1]3.0"),
        ("{{ ('a' ~ 1 ~ none ~ [2]) }}", "a1None[2]"),
        ("{{ text | length }}{{ text.replace('a', 'bc') | length }}{{ (text ~ text) | upper | length }}", "50000001000000010000000"),
        ("{{ text[:1000000].split('a') | length }}{{ text in text }}{{ text.startswith(text) }}", "1000001TrueTrue"),
        ("{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}", "1/3False 2/3False 3/3True "),
        ("{% for i in nothing %}x{% else %}none{% endfor %}", "none"),
        ("{% for a, b in {'x': 1}.items() recursive %}{{ a }}{{ b }}{% endfor %}", "x1"),
        ("{% for i in range(5) if i is odd %}{{ loop.previtem }}{{ i }}{{ loop.nextitem }} {% endfor %}", "13 13 "),
        ("{% set a, b = (1, [2, 3]) %}{{ a }}{{ b[1] }}{% for k, v in [(1, {'x': 2})] %}{{ k }}{{ v.x }}{% endfor %}", "1312"),
        ("{{ [text, text] | length }}{{ {'a': text}['a'] | length }}{{ (text,) == (text,) }}", "25000000True"),
        ("{{ [3, 1, 2] | sort | join(', ') }}{{ {'b': 1} | dictsort }}", "1, 2, 3[('b', 1)]"),
    ],
)
def test_honest_templates_are_let_through(source: str, text: str) -> None:
    assert TemplateProgram(source).render({"text": "a" * 5_000_000}, 80_000_000) == text


def test_long_conversations_are_let_through() -> None:
    messages = [{"role": "user", "content": "word " * 2000} for _ in range(2000)]
    program = TemplateProgram("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + '\n' }}{% endfor %}")
    size = sum(len(message["content"]) for message in messages)
    assert len(program.render({"messages": messages}, 16 * size)) == size + 9 * 2000 - 2000


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("{{ messages[0].content }}{{ bos_token }}{{ tools }}{{ raise_exception }}{{ range(3) }}{{ namespace() }}", ()),
        ("{% if enable_thinking is defined and not enable_thinking %}{% endif %}", ("enable_thinking",)),
        ("{% if not date_string is defined %}{% set date_string = 'x' %}{% endif %}{{ date_string }}", ("date_string",)),
        ("{% set x = y | default('z') %}{% for m in messages %}{% set q = m %}{{ q }}{% endfor %}{{ x }}", ("y",)),
        ("{% if messages %}{% set role = 'model' %}{% else %}{% set role = 'user' %}{% endif %}{{ role }}", ()),
        ("{% macro f(a) %}{{ a }}{{ effort }}{% endmacro %}{{ f(1) }}", ("effort",)),
    ],
)
def test_arguments_are_what_a_template_does_not_set_itself(source: str, arguments: tuple[str, ...]) -> None:
    assert TemplateProgram(source).arguments == arguments


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("enable_thinking=false", ("enable_thinking", False)),
        ("effort=high", ("effort", "high")),
        ('effort="high"', ("effort", "high")),
        ("n=3", ("n", 3)),
        ("x=[1, {}]", ("x", [1, {}])),
        ("date=26 Jul = x", ("date", "26 Jul = x")),
        ("empty=", ("empty", "")),
        ("none=null", ("none", None)),
    ],
)
def test_argument_values_are_json_or_text(text: str, argument: tuple[str, object]) -> None:
    assert parse_template_argument(text) == argument


@pytest.mark.parametrize("text", ["enable_thinking", "=x", "", "a b=1", "a.b=1", "9=1"])
def test_arguments_without_a_name(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="not of the form name=value"):
        parse_template_argument(text)


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "tools", "range", "raise_exception"])
def test_names_of_the_application_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{name}' is set by the application"):
        parse_template_argument(f"{name}=1")


def test_messages_of_a_template_do_no_harm_to_a_terminal() -> None:
    with pytest.raises(TemplateRefusalError, match=r"^red .*text$"):
        TemplateProgram("{{ raise_exception('red\n \x1b[31m text') }}").render({}, 0)
    assert one_line("a\nb\x1b\x07") == "a b\ufffd\ufffd"
    assert len(one_line("x" * 1000)) == 300
