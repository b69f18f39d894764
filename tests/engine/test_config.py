from __future__ import annotations

from typing import Any

import pytest

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.generation_defaults import DEFAULT_TEMPERATURE, generation_defaults
from chatpaged.engine.sampling_params import MAX_SEED, SamplingParams
from chatpaged.errors import InvalidRequestError, ModelError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 12}, "power of two up to 4,096, not 12: 16 suits most"),
        ({"block_size": 0}, "power of two"),
        ({"block_size": 2**20}, "power of two up to 4,096, not 1048576"),
        ({"kv_blocks": 0}, "kv_blocks must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"kv_blocks": 4, "kv_memory": 1000}, "give one of them"),
        ({"memory_utilization": 0.0}, "memory_utilization"),
        ({"memory_utilization": 1.5}, "memory_utilization"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, r"\(7\) must be at least max_num_seqs \(8\)"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
    ],
)
def test_engine_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        EngineConfig(**options)


def test_good_engine_options() -> None:
    config = EngineConfig(block_size=1, kv_blocks=5, memory_utilization=1.0, max_num_seqs=4, max_num_batched_tokens=4)
    assert config.kv_blocks == 5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": MAX_SEED + 1}, "seed"),
        ({"n": 0}, "n must be"),
        ({"n": 100_000}, "n must be"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("a", "")}, "stop text"),
    ],
)
def test_sampling_parameters_are_checked(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(**params)


@pytest.mark.parametrize("params", [{"temperature": 0, "top_p": 0.9}, {"top_k": -1}, {"top_k": 0, "top_p": 1}, {"seed": MAX_SEED}])
def test_good_sampling_parameters(params: dict[str, Any]) -> None:
    assert SamplingParams(**params).n == 1


@pytest.mark.parametrize(
    ("configuration", "temperature", "top_k", "top_p"),
    [
        ({}, DEFAULT_TEMPERATURE, 0, 0.95),
        ({"temperature": 0.6, "top_k": 20, "top_p": 0.9, "eos_token_id": 2}, 0.6, 20, 0.9),
        ({"do_sample": True, "top_k": 50}, 1.0, 50, 1.0),
        ({"do_sample": False, "temperature": 0.6}, 0.0, 0, 1.0),
        ({"temperature": None}, DEFAULT_TEMPERATURE, 0, 0.95),
    ],
)
def test_a_model_recommends_its_sampling(configuration: dict[str, Any], temperature: float, top_k: int, top_p: float) -> None:
    assert generation_defaults(configuration).values == {"temperature": temperature, "top_k": top_k, "top_p": top_p}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"seed": MAX_SEED, "n": 2}, "seeds of 2 samples"),
        ({"repetition_penalty": 11}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"logit_bias": {5: 101}}, "logit_bias.*token 5"),
        ({"logprobs": 101}, "logprobs"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens .5. is more than max_tokens .4."),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": True}, "temperature must be a number, not True"),
        ({"temperature": None}, "temperature must be a number, not None"),
        ({"max_tokens": 2.5}, "max_tokens must be a whole number, not 2.5"),
        ({"n": 1.5}, "n must be a whole number"),
        ({"stop": "abc"}, "stop must be a tuple of texts, not 'abc'"),
        ({"stop_token_ids": (1, "x")}, "stop_token_ids must be a tuple of token ids"),
    ],
)
def test_more_sampling_parameters_are_checked(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(**params)


def test_the_rest_of_a_models_recommendation() -> None:
    defaults = generation_defaults(
        {
            "do_sample": True,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "max_new_tokens": 500,
            "stop_strings": "END",
            "no_repeat_ngram_size": 3,
            "typical_p": 1.0,
            "bad_words_ids": [],
            "num_beams": 1,
        }
    )
    assert defaults.values == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "max_tokens": 500,
        "stop": ("END",),
    }
    assert defaults.ignored == ("no_repeat_ngram_size",)


def test_a_recommendation_out_of_range_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match=r"generation_config.json cannot be used: top_p must be"):
        generation_defaults({"top_p": 3})
    with pytest.raises(ModelError, match=r"generation_config.json"):
        generation_defaults({"stop_strings": ["a", ""]})
    with pytest.raises(ModelError, match=r"temperature must be a number, not 'hot'"):
        generation_defaults({"temperature": "hot"})
    with pytest.raises(ModelError, match=r"top_k must be a whole number, not 50.5"):
        generation_defaults({"top_k": 50.5})
