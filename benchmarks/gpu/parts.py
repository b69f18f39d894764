"""The parts of the script, in the order in which they run, and what share of the time each may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.gpu.rows import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part; it runs in a process of its own, so that nothing it breaks or keeps is another one's.

    Attributes:
        name: what it is called.
        share: of the time that is left, beside the shares of the parts that follow: what one does not use, those after it have.
        function: `module:name`, what runs it.
        about: what it finds out.
    """

    name: str
    share: float
    function: str
    about: str

    def load(self) -> Callable[[Report], None]:
        """The function; only now its module is imported."""
        module, _, name = self.function.partition(":")
        found: Callable[[Report], None] = getattr(import_module(module), name)
        return found


PARTS = (
    Part(name="models", share=45, function="benchmarks.gpu.models:write", about="random weights are made and written"),
    Part(name="kernels", share=75, function="benchmarks.gpu.kernels:run", about="Triton attention and KV writes against float64"),
    Part(name="fallbacks", share=30, function="benchmarks.gpu.families:run_fallbacks", about="engines with --attention flash and varlen"),
    Part(name="graphs", share=35, function="benchmarks.gpu.graphs:run", about="replayed graphs against the same engine without"),
    Part(name="families", share=40, function="benchmarks.gpu.families:run", about="engines against transformers"),
    Part(name="bandwidth", share=25, function="benchmarks.gpu.bandwidth:run", about="decode attention against the card's copies"),
    Part(name="qwen3", share=70, function="benchmarks.gpu.speed:run_qwen3", about="Qwen3-0.6B's shape: decode steps and tokens/s"),
    Part(name="many", share=60, function="benchmarks.gpu.many:run", about="256 requests of 100 to 1,024 tokens in and out"),
    Part(name="llama3", share=90, function="benchmarks.gpu.speed:run_llama3", about="Llama-3-8B's shape: decode steps and tokens/s"),
)
