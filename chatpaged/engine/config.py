"""Engine options, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chatpaged.errors import InvalidRequestError

MAX_BLOCK_SIZE = 4096
"""Tokens. A sequence takes whole blocks: larger ones would take all memory for a few words."""
DEFAULT_BLOCK_SIZE = 16
MAX_THREADS = 1024
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")
QUANTIZE = ("auto", "none", "fp16", "int8", "int4", "fp8")
KV_DTYPES = ("auto", "fp32", "fp16", "int8", "fp8")
ATTENTIONS = ("auto", "torch", "triton", "flash", "varlen")
CODE_PATHS = ("auto", "native", "dense", "universal")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine is built. None means: decided from the model and the machine when it is loaded.

    Attributes:
        block_size: tokens a KV block holds; a power of two up to `MAX_BLOCK_SIZE`.
        kv_blocks: usable KV blocks (the null block comes on top). Excludes `kv_memory`.
        kv_memory: bytes for the KV pool. Excludes `kv_blocks`.
        memory_utilization: share of the free memory that the KV pool may take when neither of the two is given, 0 to 1.
        max_num_seqs: sequences that may run in one step.
        max_num_batched_tokens: tokens one step may compute; small values keep streams smooth, large ones favour throughput.
        max_model_len: longest sequence in tokens, prompt and answer; at most the model's context.
        swap_space: bytes of host memory for blocks that make room; 0 is none. Beside a CPU it is a file.
        disk_cache: bytes of files for blocks of this and of later runs, those of all models together; 0 is none.
        disk_cache_directory: where these lie; None is the user's cache.
        enable_prefix_caching: share computed blocks between sequences with the same beginning.
        device: where the model runs: auto, cpu, cuda or mps.
        dtype: type of the arithmetic, and of weights and KV where they are not quantised: auto, float32, float16, bfloat16 or float64.
        quantize: how weights are stored: auto or none; on a CPU fp16, int8 or int4; on CUDA fp8.
        kv_dtype: how keys and values are stored: auto; on a CPU fp32, fp16 or int8; on CUDA fp8.
        attention: how tokens attend on devices where there is a choice: auto, torch, triton, flash or varlen.
        code_path: which code runs the model, for comparing them: auto, native, dense or universal.
        enforce_eager: beside a GPU, launch each operation of a step by itself instead of replaying recorded graphs.
        threads: CPU threads for the model; None is one per physical core.
        trust_remote_code: run Python code that comes with a model, for architectures that transformers does not know.
    """

    block_size: int = DEFAULT_BLOCK_SIZE
    kv_blocks: int | None = None
    kv_memory: int | None = None
    memory_utilization: float | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    swap_space: int | None = None
    disk_cache: int = 0
    disk_cache_directory: Path | None = None
    enable_prefix_caching: bool = True
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "auto"
    kv_dtype: str = "auto"
    attention: str = "auto"
    code_path: str = "auto"
    enforce_eager: bool = False
    threads: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        self._check_sizes()
        if not 1 <= self.block_size <= MAX_BLOCK_SIZE or self.block_size & (self.block_size - 1):
            raise InvalidRequestError(f"block size must be a power of two up to {MAX_BLOCK_SIZE:,}, not {self.block_size}: 16 suits most")
        if self.threads is not None and self.threads > MAX_THREADS:
            raise InvalidRequestError(f"threads must be at most {MAX_THREADS}, not {self.threads}")
        if self.kv_blocks is not None and self.kv_memory is not None:
            raise InvalidRequestError("kv_blocks and kv_memory both set the size of the KV pool; give one of them")
        if self.memory_utilization is not None and not 0 < self.memory_utilization <= 1:
            raise InvalidRequestError(f"memory_utilization must be above 0 and at most 1, not {self.memory_utilization}")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidRequestError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs ({self.max_num_seqs}), "
                "so that every running sequence gets its token in a step"
            )
        for name, allowed in (
            ("device", DEVICES),
            ("dtype", DTYPES),
            ("quantize", QUANTIZE),
            ("kv_dtype", KV_DTYPES),
            ("attention", ATTENTIONS),
            ("code_path", CODE_PATHS),
        ):
            if getattr(self, name) not in allowed:
                raise InvalidRequestError(f"unknown {name} {getattr(self, name)!r}; one of {', '.join(allowed)}")

    def _check_sizes(self) -> None:
        for name in ("kv_blocks", "kv_memory", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequestError(f"{name} must be at least 1, not {value}")
        for name in ("swap_space", "disk_cache"):
            if (getattr(self, name) or 0) < 0:
                raise InvalidRequestError(f"{name} must not be negative, but is {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The limits the scheduler works with, all decided.

    Attributes:
        max_num_seqs: sequences that may run in one step.
        max_num_batched_tokens: tokens one step may compute.
        max_model_len: longest sequence in tokens, prompt and answer.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
