"""Chat templates as programs: compiled once, run with messages and arguments (the language itself: `template_sandbox.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

import jinja2
import jinja2.meta
import jinja2.nodes

from chatpaged.errors import InvalidRequestError
from chatpaged.template_sandbox import MAX_CHARACTERS, Budget, TemplateEnvironment

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
RESERVED = frozenset({"messages", "add_generation_prompt", "continue_final_message", "tools", "documents", *SPECIAL_TOKENS})
"""Names that a template gets from the application."""
# What a template can run into: its own words, and Python's.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
_COMPILE_ERRORS = (jinja2.TemplateError, MemoryError, OverflowError, RecursionError, SyntaxError, ValueError)

# Tests and filters by which a template finds out whether a variable was given.
_QUESTIONS = frozenset({"defined", "undefined", "none", "default", "d"})


class TemplateRefusalError(Exception):
    """A template does not take what it was given, or did not come to an end."""


class TemplateProgram:
    """A compiled template. Not thread-safe: the budget of the running render belongs to it.

    Attributes:
        source: the template as it is written.
        arguments: names of the variables it looks at that the application does not set.
    """

    def __init__(self, source: str) -> None:
        """Compiles a template.

        Raises:
            ValueError: it has a syntax error; the message says where.
        """
        self.source = source
        self._environment = TemplateEnvironment()
        try:
            names = _free_names(self._environment.parse(source))
            self._template = self._environment.from_string(source)
        except _COMPILE_ERRORS as error:
            line = getattr(error, "lineno", None)
            raise ValueError(one_line(f"line {line}: {error}" if line else str(error))) from error
        self.arguments = tuple(sorted(names - RESERVED - frozenset(self._environment.globals)))

    def render(self, variables: Mapping[str, object], max_characters: int) -> str:
        """Runs the template.

        Args:
            variables: what it sees.
            max_characters: how many it may write and handle, beyond what a template itself needs.

        Raises:
            TemplateRefusalError: it raised an error, did something that it may not, or took too long.
        """
        budget = self._environment.budget = Budget(MAX_CHARACTERS + max_characters)
        pieces = []
        try:
            for piece in self._template.generate(**variables):
                budget.spend(len(piece))
                pieces.append(piece)
        except _RENDER_ERRORS as error:
            raise TemplateRefusalError(one_line(str(error) or type(error).__name__)) from error
        return "".join(pieces)


def parse_template_argument(text: str) -> tuple[str, object]:
    """Reads `name=value`; a value that is JSON is taken as such (`false`, `3`, `[1]`), any other as text.

    Raises:
        InvalidRequestError: there is no name, or one that is not free.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name.isidentifier():
        raise InvalidRequestError(f"template argument {text!r} is not of the form name=value")
    if name in RESERVED or name in _environment_names():
        raise InvalidRequestError(f"template argument {name!r} is set by the application; choose another name")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def one_line(text: str) -> str:
    """Text of an error without line ends and what a terminal would obey."""
    line = " ".join(text.split())
    return "".join(character if character.isprintable() else "\ufffd" for character in line[:300])


def _environment_names() -> frozenset[str]:
    return frozenset(TemplateEnvironment().globals)


def _free_names(tree: jinja2.nodes.Template) -> frozenset[str]:
    """Variables that a template does not set itself, or sets only where they are not given."""
    own = {name.name for name in tree.find_all(jinja2.nodes.Name) if name.ctx != "load"}
    questions = [question for question in tree.find_all((jinja2.nodes.Test, jinja2.nodes.Filter)) if question.name in _QUESTIONS]
    asked = {question.node.name for question in questions if isinstance(question.node, jinja2.nodes.Name)}
    return frozenset(jinja2.meta.find_undeclared_variables(tree) - (own - asked))
