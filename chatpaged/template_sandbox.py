"""The language of chat templates: transformers' dialect of jinja, fenced in.

A template comes with a model from anywhere. It reaches nothing outside (jinja's sandbox), and it cannot run or grow without
end: every turn of a loop, call, concatenation and output is paid for from a budget of time and characters.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

MAX_SECONDS = 5.0
MAX_CHARACTERS = 2**26  # and as much again as the messages have, a few times over
_MAX_VALUE = 2**24
_MAX_ITEMS = 2**21  # of lists in lists: far more than a conversation has
_MAX_COST = 2**10  # that one list, which may hold whole messages, is charged with
_HUGE = 2**62
# Methods and filters whose result can be as long as the product of what they are given.
_GROWING = frozenset({"center", "expandtabs", "format", "format_map", "indent", "join", "ljust", "replace", "rjust", "wordwrap", "zfill"})
# Widths in a format: large ones, and those that are taken from a value.
_WIDE = re.compile(r"\d{6}|%[-#0 +]*\*|%[^%a-zA-Z]*\.\*|\{[^{}]*\{")
_PLAIN = (str, int, float, list, tuple, dict, range, Iterator)


class Budget:
    """What is left to one render."""

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, characters: int) -> None:
        """Takes from what is left.

        Raises:
            SecurityError: nothing is left.
        """
        self.characters -= characters
        if self.characters < 0:
            raise jinja2.exceptions.SecurityError("it writes without end")
        if time.monotonic() > self.deadline:
            raise jinja2.exceptions.SecurityError(f"it is not done after {MAX_SECONDS:g} s")


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    """Puts the budget's toll stations into the compiled template."""

    def visit_Template(self, node: jinja2.nodes.Template, frame: jinja2.compiler.Frame | None = None) -> None:  # noqa: N802
        for loop in node.find_all(jinja2.nodes.For):
            # Text that stands in the loop is written in every turn, be it into a variable.
            size = sum(len(data.data) for data in loop.find_all(jinja2.nodes.TemplateData))
            toll = jinja2.nodes.Const(1 + size)
            loop.iter = jinja2.nodes.Filter(loop.iter, "counted", [toll], [], None, None)
        super().visit_Template(node, frame)

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: jinja2.nodes.List, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self.write("environment.measured(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: jinja2.nodes.Dict, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self.write("environment.measured(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: jinja2.nodes.Tuple, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        if node.ctx != "load":  # names that something is unpacked into
            super().visit_Tuple(node, frame)
            return
        self.write("environment.measured(")
        super().visit_Tuple(node, frame)
        self.write(")")


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The dialect, without access to anything outside."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            autoescape=False,
            finalize=_paid_output,
            # Constants are not computed ahead, outside any budget.
            optimized=False,
        )
        self.budget = Budget(MAX_CHARACTERS)
        self.filters["tojson"] = _tojson
        self.filters = {name: _guarded(name, function) for name, function in self.filters.items()}
        self.filters["counted"] = self._counted
        del self.globals["lipsum"]
        helpers: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.globals.update(helpers)

    def _counted(self, items: Iterable[Any], toll: int) -> Iterator[Any]:
        for item in items:
            self.budget.spend(toll)
            yield item

    def measured(self, value: Any) -> Any:
        """A list, tuple or dict as it is written in a template.

        Lists that hold one another several times over are small, but to compare or search them takes time without end.
        """
        size = _size(value)
        _check(size < _HUGE)
        self.budget.spend(min(size, _MAX_COST))
        return value

    def concatenate(self, parts: tuple[object, ...]) -> str:
        """What the operator `~` does."""
        _check(all(isinstance(part, str) or _size(part) <= _MAX_VALUE for part in parts))
        texts = [str(part) for part in parts]
        self.budget.spend(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Carries out an operator whose result can be large."""
        if operator == "**":
            _check(abs(right) < 64 and abs(left) < 2**32)
        elif operator == "*":
            numbers = isinstance(left, int | float) and isinstance(right, int | float)
            _check(_size(left) * _size(right) <= (_HUGE * _HUGE if numbers else _MAX_VALUE))
        elif operator == "%" and isinstance(left, str):
            _check_growth("format", (left, right))
        result = super().call_binop(context, operator, left, right)
        self._pay_for(result)
        return result

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function or method for the template."""
        method = getattr(obj, "__wrapped__", obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_growth(getattr(method, "__name__", ""), (owner, *args, *kwargs.values()))
        self.budget.spend(1)
        result = super().call(context, obj, *args, **kwargs)
        self._pay_for(result)
        return result

    def _pay_for(self, result: object) -> None:
        if isinstance(result, dict):
            self.measured(result)
        if isinstance(result, str | list | tuple):
            self.budget.spend(len(result))


@jinja2.pass_environment
def _paid_output(environment: TemplateEnvironment, value: object) -> object:
    text = value if isinstance(value, str) else environment.concatenate((value,))
    environment.budget.spend(len(text))
    return text


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is refused arguments which would make it grow without measure."""

    @wraps(function)  # keeps what jinja2 has noted on the function
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _check_growth(name, tuple(value for value in (*args, *kwargs.values()) if isinstance(value, _PLAIN)))
        return function(*args, **kwargs)

    return guarded


def _check_growth(name: str, values: tuple[object, ...]) -> None:
    sizes = sorted(map(_size, values))
    _check(not sizes or sizes[-1] <= 4 * _MAX_VALUE)
    if name.startswith("format"):
        pattern = str(values[0]) if values else ""
        _check(not _WIDE.search(pattern) and (pattern.count("{") + pattern.count("%")) * sizes[-1] <= 16 * _MAX_VALUE)
    elif name in _GROWING:
        _check(len(sizes) < 2 or sizes[-1] * sizes[-2] <= 16 * _MAX_VALUE)


def _size(value: object) -> int:
    """Characters and items of a value, those of lists in lists included; far too many are not counted out."""
    if isinstance(value, int | float):
        return int(min(abs(value), _HUGE))
    if isinstance(value, str | range):
        return len(value)
    if isinstance(value, Iterator):
        return jinja2.sandbox.MAX_RANGE
    characters, items, todo = 0, 0, [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
        items += 1
        if items + len(todo) > _MAX_ITEMS:
            return _HUGE
    return characters + items


def _check(reasonable: bool) -> None:  # noqa: FBT001 - reads as a sentence where it is called
    if not reasonable:
        raise jinja2.exceptions.SecurityError("it asks for a value that is far too large")


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`, which marks replies for training; here only its contents count."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Parses the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by name or place, as transformers has it
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - likewise
) -> str:
    # jinja2's own filter escapes HTML, which no template expects.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_string: str) -> str:
    return datetime.now().astimezone().strftime(format_string)
