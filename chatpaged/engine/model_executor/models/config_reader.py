"""Values of a model's config.json, each of the type it has to be, or a reason not to rely on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class UnclearError(Exception):
    """A configuration says something that is not understood for certain. Its text says what."""


class ConfigReader:
    """Looks values up, first in a configuration, then among the defaults of its class. What is null counts as given."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, *, within: str = "") -> None:
        """Reads `config`; `within` is where it lies in the file, for messages."""
        self._config = config
        self._defaults = defaults if defaults is not None else {}
        self._within = f"{within}." if within else ""

    def value(self, name: str) -> Any:
        """Whatever there is; None if there is nothing."""
        return self._config[name] if name in self._config else self._defaults.get(name)

    def names(self) -> frozenset[str]:
        """Names that the configuration itself gives."""
        return frozenset(self._config)

    def count(self, name: str) -> int:
        """A positive whole number.

        Raises:
            UnclearError: it is something else.
        """
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.unclear(name)
        return value

    def optional_count(self, name: str) -> int | None:
        """A positive whole number, or None.

        Raises:
            UnclearError: it is something else.
        """
        return None if self.value(name) is None else self.count(name)

    def number(self, name: str) -> float:
        """A positive number, as it is written: transformers computes with whole numbers in another way here and there.

        Raises:
            UnclearError: it is something else.
        """
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.unclear(name)
        return value

    def optional_number(self, name: str) -> float | None:
        """A positive number, or None.

        Raises:
            UnclearError: it is something else.
        """
        return None if self.value(name) is None else self.number(name)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Several positive numbers.

        Raises:
            UnclearError: it is something else.
        """
        values = self.value(name)
        if not isinstance(values, list):
            raise self.unclear(name)
        return tuple(ConfigReader({name: value}, within=self._within.rstrip(".")).number(name) for value in values)

    def flag(self, name: str) -> bool:
        """True or false.

        Raises:
            UnclearError: it is something else.
        """
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.unclear(name)
        return value

    def require_absent(self, names: tuple[str, ...]) -> None:
        """Makes sure that nothing is asked for by these names: they are missing, null, false or zero.

        Raises:
            UnclearError: one of them asks for something.
        """
        for name in names:
            if self.value(name):
                raise self.unclear(name)

    def unclear(self, name: str) -> UnclearError:
        """The error that names a value that cannot be used."""
        text = repr(self.value(name))
        return UnclearError(f"{self._within}{name} is {text if len(text) <= 60 else f'{text[:57]}...'}")
