"""Carries out the scheduler's steps with a real model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.executor import BlockExchange, ModelCode, StepResult
from chatpaged.engine.model_executor.attention.choice import KERNELS
from chatpaged.engine.model_executor.block_moves import BlockMoves, make_host_rows, swap_bytes
from chatpaged.engine.model_executor.fp8_kv_cache import Fp8KVCache
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache
from chatpaged.engine.model_executor.memory import format_bytes, free_memory, is_out_of_memory, release_unused, require_memory
from chatpaged.engine.model_executor.models.code_path import CodePath, choose_code
from chatpaged.engine.model_executor.models.loader import load_model
from chatpaged.engine.model_executor.models.step_model import StepModel
from chatpaged.engine.model_executor.models.stored_quantization import unpacked_type
from chatpaged.engine.model_executor.models.torch_path import num_threads
from chatpaged.engine.model_executor.native.interface import VERSION
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache
from chatpaged.engine.model_executor.pool_maker import make_pool
from chatpaged.engine.model_executor.step_draws import draw_step
from chatpaged.engine.model_executor.step_memory import StepSizes
from chatpaged.engine.model_executor.step_numbers import StepNumbers
from chatpaged.engine.model_executor.step_times import StepTimes
from chatpaged.engine.model_executor.weights import choose_dtype, stored_dtype
from chatpaged.engine.scheduler_output import BlockOperation, SchedulerOutput
from chatpaged.engine.weight_files import check_directory, model_name, weight_identity
from chatpaged.errors import InvalidRequestError, MemoryBudgetError

FORMAT = 1
"""Changes when keys and values are laid out in another way; the kernels have a version of their own."""
DEFAULT_BATCHED_TOKENS = {"cpu": 256, "mps": 512, "cuda": 2048}


class ModelRunner:
    """A model and its KV pool. Satisfies `ModelExecutor`."""

    def __init__(
        self,
        model: StepModel,
        kv_cache: KVCache | Fp8KVCache | NativeKVCache,
        device: torch.device,
        path: CodePath,
        *,
        fingerprint: bytes = b"",
        name: str = "",
        host: torch.Tensor | None = None,
    ) -> None:
        self._model = model
        self._moves = BlockMoves(kv_cache.pool, host)
        self._kv_cache = kv_cache
        self._device = device
        self.path = path
        self.code = with_graphs(path.code(model.instruction_set, model.weight_bytes), *model.graphs)
        self.fingerprint = fingerprint
        self.facts = {"model": name, "code": self.code.name, "weights": self.code.weights, "kv": self.code.kv}
        self.num_host_blocks = len(host) if host is not None else 0
        self.host_is_file = device.type == "cpu"
        self.num_blocks = kv_cache.num_blocks
        self.block_bytes = kv_cache.layout.block_bytes
        self.vocab_size = model.vocab_size
        self.max_model_len = model.max_model_len
        self.max_num_batched_tokens = DEFAULT_BATCHED_TOKENS[device.type]
        self.stop_token_ids = model.stop_token_ids

    @classmethod
    def load(cls, directory: Path, config: EngineConfig, *, progress: Callable[[str], None] | None = None) -> ModelRunner:
        """Loads weights and reserves the KV pool. Arguments and errors as for `LLMEngine.from_pretrained`."""
        tell = progress if progress is not None else _ignore
        device = choose_device(config.device)
        if device.type == "cpu":
            torch.set_num_threads(num_threads(config))
        release_unused(device)  # what an engine before this one has left
        files = check_directory(directory)
        path = choose_code(directory, files, config, device, choose_dtype(config.dtype, device, stored_dtype(unpacked_type(files))))
        needed = path.weight_bytes(files)
        require_memory(f"the model {model_name(directory)}", needed, free_memory(device), path.advice)
        tell("loading weights")
        with torch.inference_mode():
            loaded = load_model(directory, files, path, config, device, tell)
            kv_cache = make_pool(loaded, step_sizes(config, loaded.model.max_model_len, device), config, device, tell)
            is_asked_for = config.swap_space is not None
            host = make_host_rows(swap_bytes(config, device), loaded.layout.block_bytes, device, asked_for=is_asked_for)
        path, model = loaded.path, loaded.model
        # All that decides what a block holds. It need not be the same on another machine, as arithmetic is not.
        facts = (
            FORMAT,
            VERSION,
            torch.__version__,
            path.kind,
            path.dtype,
            path.quantize,
            path.kv_dtype,
            model.instruction_set,
            model.max_model_len,
            *((path.attention,) if path.attention in KERNELS else ()),
            *(("fused",) if path.fused else ()),
        )
        digest = hashlib.blake2b(digest_size=16)
        for part in (files.digest, (directory / "config.json").read_bytes(), *weight_identity(files.paths)):
            digest.update(part)
        digest.update(repr((*facts, config.block_size, device.type)).encode())
        return cls(model, kv_cache, device, path, fingerprint=digest.digest(), name=model_name(directory), host=host)

    def connect(self, exchange: BlockExchange) -> None:
        """See `ModelExecutor.connect`."""
        self._moves.exchange = exchange

    def move(self, operations: Iterable[BlockOperation]) -> float:
        """See `ModelExecutor.move`."""
        times = StepTimes(self._device)
        with torch.inference_mode():
            self._moves.apply(operations)
        times.mark()
        moved, _ = times.seconds()
        return moved

    def execute(self, output: SchedulerOutput) -> StepResult:
        """See `ModelExecutor.execute`."""
        times = StepTimes(self._device)
        try:
            with torch.inference_mode():
                self._moves.apply(output.operations)
                times.mark()
                numbers = StepNumbers.lay_out(output.rows, self._kv_cache.layout.block_size)
                times.mark()
                logits = self._model.replay(numbers)
                if logits is None:
                    logits = self._model.forward(InputBatch.upload(numbers, self._device), self._kv_cache)
                times.mark()
                token_ids, logprobs = draw_step(self._model.draw, logits, output.rows)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise self._no_memory(output) from error
            raise
        operations, prepare, forward, sample = times.seconds()
        return StepResult(
            token_ids=token_ids,
            logprobs=logprobs,
            operations=operations,
            prepare=prepare,
            forward=forward,
            sample=sample,
            padding=logits.padding,
        )

    def _no_memory(self, output: SchedulerOutput) -> MemoryBudgetError:
        pool = self.num_blocks * self.block_bytes
        return MemoryBudgetError(
            f"no memory for the intermediate results of a step of {output.num_tokens} tokens in {len(output.rows)} sequences: "
            f"{format_bytes(free_memory(self._device))} are free beside a KV pool of {format_bytes(pool)}; "
            "use a smaller --kv-memory, --memory-utilization or --max-batched-tokens"
        )

    def close(self) -> None:
        """Drops weights and pool."""
        self._model.close()
        del self._model, self._kv_cache, self._moves
        release_unused(self._device)


def step_sizes(config: EngineConfig, max_model_len: int, device: torch.device) -> StepSizes:
    """The largest steps that an engine with these options makes."""
    return StepSizes(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS[device.type],
        max_model_len=max_model_len,
        block_size=config.block_size,
    )


def with_graphs(code: ModelCode, count: int, reason: str) -> ModelCode:
    """What a model runs on, its graphs named, or why there are none."""
    name = f"{code.name}, {count} CUDA graphs" if count else code.name
    return replace(code, name=name, reason="; ".join(part for part in (code.reason, reason) if part))


def choose_device(name: str) -> torch.device:
    """The device to run on; automatic prefers CUDA, then MPS.

    Raises:
        InvalidRequestError: the device is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, present in available.items() if present))
    if not available[name]:
        raise InvalidRequestError(f"device {name} is not available here; use --device cpu")
    return torch.device(name)


def _ignore(_: str) -> None:
    """Nobody wants to know."""
