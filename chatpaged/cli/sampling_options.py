"""Options that say how answers are drawn and when they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

import click

from chatpaged.cli.setting_options import add_options, group_options
from chatpaged.engine.generation_defaults import GenerationDefaults
from chatpaged.engine.sampling_params import MAX_LOGPROBS, MAX_SAMPLES, MAX_SEED, SamplingParams

F = TypeVar("F", bound=Callable[..., Any])


class _LogitBias(click.ParamType[tuple[int, float]]):
    """`ID=BIAS`."""

    name = "ID=BIAS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        """Reads the pair."""
        token_id, equals, bias = str(value).partition("=")
        try:
            return int(token_id), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not of the form ID=BIAS, such as 42=-100" if equals else f"{value!r} has no '='", param, ctx)


_CHAT_OPTIONS = (
    *group_options("sampling"),
    click.option("--min-tokens", type=click.IntRange(min=0), help="Let no answer end before so many tokens."),
    click.option("--seed", type=click.IntRange(0, MAX_SEED), help="Makes the answer repeatable."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text (repeatable).  [default: the model's]"),
    click.option("--stop-token-id", "stop_token_ids", type=click.IntRange(min=0), multiple=True, help="End at this token (repeatable)."),
    click.option("--ignore-eos", is_flag=True, help="Do not end at the model's end tokens."),
    click.option("--stop-on-repeat", is_flag=True, help="End an answer that goes round in circles."),
    click.option("--logit-bias", type=_LogitBias(), multiple=True, help="Add to a token's score, -100 to 100 (repeatable)."),
)
_OPTIONS = (
    *_CHAT_OPTIONS,
    click.option("--logprobs", type=click.IntRange(0, MAX_LOGPROBS), help="With --json: log-probabilities, and the K likeliest tokens."),
    click.option("-n", "n", type=click.IntRange(1, MAX_SAMPLES), default=1, show_default=True, help="Answers to give."),
)


def sampling_options(function: F) -> F:
    """Adds the options that `given_sampling` takes."""
    return add_options(function, _OPTIONS)


def chat_sampling_options(function: F) -> F:
    """The same for chats: alternatives are asked for there one by one, and nobody sees log-probabilities."""
    return add_options(function, _CHAT_OPTIONS)


def given_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the sampling options out of a command's parameters.

    Returns:
        Those that were given, by their names in `SamplingParams`.
    """
    names = {field.name for field in fields(SamplingParams)}
    taken = {name: options.pop(name) for name in names & options.keys()}
    taken["logit_bias"] = dict(taken["logit_bias"])
    return {name: value for name, value in taken.items() if not (value is None or value is False or value in ((), {}))}


def with_defaults(given: dict[str, Any], defaults: GenerationDefaults) -> SamplingParams:
    """The parameters that hold: those given, the model's for the others."""
    return replace(SamplingParams(**defaults.values), **given)


def effective_sampling(params: SamplingParams) -> dict[str, Any]:
    """The parameters as they are told to the user."""
    told = asdict(params) | {"stop": list(params.stop), "stop_token_ids": list(params.stop_token_ids)}
    told["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    del told["seed"]  # the one that was used is told in a place of its own
    return told
