"""`python -m chatpaged.engine.model_executor.convert_gguf SOURCE TARGET`: a GGUF file to a model directory.

transformers reads the file and takes the quantisation back, so the weights are float32 and exactly those of the file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import transformers

from chatpaged.engine.model_executor.models.hf import silence_transformers


def convert(source: Path, target: Path) -> None:
    """Writes `config.json`, safetensors, tokenizer and chat template of a GGUF file to `target`."""
    silence_transformers()
    names = {"gguf_file": source.name, "local_files_only": True}
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source.parent, **names)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(source.parent, dtype="float32", **names)
    # The weights are plain by now, but their marks would keep them from being saved.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
