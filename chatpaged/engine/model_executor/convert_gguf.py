"""`python -m chatpaged.engine.model_executor.convert_gguf SOURCE TARGET`: a GGUF file to a model directory.

transformers reads the file and takes the quantisation back, so the weights are float32 and exactly those of the file.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from chatpaged.engine.model_executor.memory import format_bytes, free_memory, require_memory
from chatpaged.engine.model_executor.models.hf import silence_transformers
from chatpaged.engine.weight_files import NOTE
from chatpaged.errors import ChatpagedError, ModelError

_WEIGHT_BYTES = torch.float32.itemsize
_PEAK = 1.9  # memory at its peak, in sizes of the float32 weights: 1.7 were measured with the starter model
_NEEDED_PACKAGES = ("gguf", "accelerate")


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What the file's header says.

    Attributes:
        quantization: as llama.cpp names it, such as Q4_K_M.
        num_parameters: elements of all tensors.
    """

    quantization: str
    num_parameters: int


def read_facts(source: Path) -> GgufFacts:
    """Reads a GGUF file's header.

    Raises:
        ModelError: it is no GGUF file, cut short, or one part of several.
    """
    import gguf  # noqa: PLC0415 - it may be missing, which is told in words

    try:
        reader: Any = gguf.GGUFReader(source)
        counts: Counter[str] = Counter()
        for tensor in reader.tensors:
            counts[tensor.tensor_type.name] += int(tensor.n_elements)
        parts = reader.get_field("split.count")
        kind = reader.get_field("general.file_type")
        names = {int(value): value.name for value in gguf.LlamaFileType}
        named = names.get(int(kind.contents()), "") if kind is not None else ""
    except Exception as error:  # whatever the reader makes of a damaged file
        raise ModelError(f"not a whole GGUF file ({' '.join(str(error).split()) or type(error).__name__}); fetch it again") from error
    if parts is not None and int(parts.contents()) > 1:
        raise ModelError(f"one of {int(parts.contents())} parts; join them first with llama.cpp's llama-gguf-split --merge")
    if not counts:
        raise ModelError("holds no tensors (a vocabulary or metadata only)")
    most = max(counts, key=lambda name: counts[name])
    return GgufFacts(named.removeprefix("MOSTLY_").removeprefix("ALL_") or most, sum(counts.values()))


def check_room(facts: GgufFacts, target: Path) -> None:
    """Refuses a conversion that memory or disk could not hold.

    Raises:
        ModelError: not enough disk.
        MemoryBudgetError: not enough memory.
    """
    size = facts.num_parameters * _WEIGHT_BYTES
    free = shutil.disk_usage(target.parent).free
    if free < size:
        raise ModelError(f"its weights take {format_bytes(size)} of disk as float32, {format_bytes(free)} are free in {target.parent}")
    advice = "free some memory, or use a smaller model or a safetensors version of it"
    require_memory("converting it", int(size * _PEAK), free_memory(torch.device("cpu")), advice)


def convert(source: Path, target: Path) -> None:
    """Writes `config.json`, safetensors, tokenizer and chat template of a GGUF file to `target`.

    Raises:
        ModelError: the file cannot be converted.
        MemoryBudgetError: not enough memory.
    """
    utils: Any = transformers.utils  # its functions have no types
    lacking = [name for name in _NEEDED_PACKAGES if not getattr(utils, f"is_{name}_available")()]
    if lacking:
        raise ModelError(f"reading GGUF files needs {' and '.join(lacking)}: pip install 'chatpaged[gguf]'")
    facts = read_facts(source)
    check_room(facts, target)
    silence_transformers()
    names = {"gguf_file": source.name, "local_files_only": True}
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source.parent, **names)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype="float32", output_loading_info=True, **names)
    except Exception as error:  # an architecture or a quantisation that transformers does not read
        raise ModelError(" ".join(str(error).split()) or type(error).__name__) from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:  # transformers fills them with random numbers and goes on
        raise ModelError(f"transformers finds no weights for {missing[0]} in it" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    # The weights are plain by now, but their marks would keep them from being saved.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / NOTE).write_text(json.dumps({"quantization": facts.quantization}), encoding="utf-8")


def main() -> int:
    """Runs the conversion that the command line names. Returns the exit status."""
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ChatpagedError as error:
        sys.stderr.write(f"\n{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
