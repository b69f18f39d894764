"""`python -m tests.model_executor.triton.compile_kernels CASES`: compiles kernels ahead of time, without a GPU, and tells what came of it.

CASES is JSON: a list of objects with the fields of `Case`; so is what is told. Not to be run with TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from chatpaged.engine.model_executor.attention import triton_kernels as kernels
from chatpaged.engine.model_executor.models import fused_kernels
from tests.model_executor.triton.compile_cases import Case

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_POINTERS = {"cu_q": "*i32", "seq_lens": "*i32", "block_table": "*i32", "slots": "*i64", "positions": "*i64"}
_NUMBERS = {"num_seqs", "num_chunks"}
_FLOATS = {"sinks", "partial_values", "partial_sums", "key_scales", "value_scales"}
ONE_BY_ONE = r"cvt\.\S*bf16\.f16"
"""Instructions from float16 to bfloat16: for each number one, of a unit that is slower than the others."""
_ANYWHERE = {"key_scales", "value_scales"}


def compile_case(case: Case) -> dict[str, int]:
    """Compiles a kernel.

    Returns:
        The shared memory of a program and the size of its code, in bytes; how often it converts FP8, and other numbers one by one; and how
        many tiles of keys there is room for in shared memory, 0 where there is nothing that would be loaded ahead.
    """
    itemsize = _TYPES[case.dtype].itemsize
    single = case.kernel in {"single", "split"}
    launch = kernels.choose_launch(single=single, groups=case.groups, key_dim=case.head_dim, value_dim=case.head_dim, itemsize=itemsize)
    pad = max(16, kernels.padded(case.head_dim))
    constants = {
        "GROUPS": case.groups,
        "KEY_DIM": case.head_dim,
        "VALUE_DIM": case.head_dim,
        "KEY_PAD": pad,
        "VALUE_PAD": pad,
        "BLOCK_SIZE": 16,
        "ROWS": launch.rows,
        "TILE": launch.tile,
        "CHUNK": 512,
        "WINDOW": case.window,
        "HAS_SOFTCAP": case.softcap,
        "HAS_SINKS": case.sinks,
        "SINGLE": single,
        "DIRECT": case.kernel != "split",
        "FP8": case.fp8,
        "UPCAST": False,
        "HEADS": 8,
        "HEADS_PAD": 8,
        "FOLDED": kernels.FOLDED_CHUNKS,
    }
    kernel: Any = {"combine": kernels.combine_kernel, "write": kernels.write_kernel}.get(case.kernel, kernels.attention_kernel)
    return _compile(case, kernel, constants, {"num_warps": launch.warps, "num_stages": launch.stages})


def compile_fused(case: Case) -> dict[str, int]:
    """The same for the kernels of the dense decoder, of 32 query heads and 8 of keys."""
    name, _, norm = case.kernel.partition(" ")
    kernel: Any
    warps = 4
    if name == "residual":
        kernel, warps = fused_kernels.residual_kernel, fused_kernels.residual_warps(case.width)
        flags = ("HAS_CHANGE", "HAS_CHANGE_NORM", "HAS_SCALE", "HAS_NORM")
        constants: dict[str, Any] = {"WIDTH": case.width, "PAD": kernels.padded(case.width)} | dict.fromkeys(flags, True)
    elif name == "heads":
        kernel = fused_kernels.heads_kernel
        pad = kernels.padded(case.head_dim)
        constants = {"HEADS": 32, "KV_HEADS": 8, "DIM": case.head_dim, "PAD": pad, "TURNED": case.head_dim, "BLOCK_SIZE": 16}
        constants |= {"NORM": fused_kernels.NORMS[norm], "TILE": fused_kernels.heads_tile(48, case.head_dim), "FP8": case.fp8}
    else:
        kernel = fused_kernels.activation_kernel
        constants = {"WIDTH": case.width, "TILE": 1024, "IS_SILU": name == "silu"}
    return _compile(case, kernel, constants, {"num_warps": warps})


def _compile(case: Case, kernel: Any, constants: dict[str, Any], options: dict[str, int]) -> dict[str, int]:
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        kind = "constexpr" if name in constants else _type(name, case)
        signature[name] = kind
        if (kind.startswith("*") and name not in _POINTERS.keys() | _ANYWHERE) or (name.endswith("_stride") and name != "table_stride"):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={name: constants[name] for name in kernel.arg_names if name in constants},
        attrs=attributes,
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", case.capability, 32),
        options=options | {"enable_fp_fusion": True},
    )
    conversions = len(re.findall(r"cvt\.\S*e4m3x2", compiled.asm["ptx"]))
    room = [int(count) for count in re.findall(r"local_alloc : \(\) -> !ttg.memdesc<(\d+)x\d+x\d+x", compiled.asm["ttgir"])]
    return {
        "shared": compiled.metadata.shared,
        "bytes": len(compiled.asm["cubin"]),
        "fp8": conversions,
        "one by one": len(re.findall(ONE_BY_ONE, compiled.asm["ptx"])),
        "ahead": max(room, default=0),
    }


def _type(name: str, case: Case) -> str:
    if name in _POINTERS:
        return _POINTERS[name]
    if name in _FLOATS:
        return "*fp32"
    if name in {"norm", "change_norm", "q_norm", "k_norm", "cos", "sin"}:
        return "*fp32" if case.wide else f"*{case.dtype}"
    if name in {"scale", "softcap", "eps"}:
        return "fp32"
    if case.fp8 and name in {"keys", "values"}:
        return "*u8"
    return "i32" if name in _NUMBERS or name.endswith("_stride") else f"*{case.dtype}"


def main() -> None:
    """Compiles the cases of the command line. Of a chip that this Triton cannot compile the simplest kernel for, only that is told."""
    cases = [Case(**case) for case in json.loads(sys.argv[1])]
    unknown = {capability for capability in sorted({case.capability for case in cases}) if not is_known(capability)}
    print(json.dumps([_compile_any(case) if case.capability not in unknown else None for case in cases]))


def _compile_any(case: Case) -> dict[str, int]:
    return compile_fused(case) if case.kernel.partition(" ")[0] in {"residual", "heads", "silu", "gelu_tanh"} else compile_case(case)


def is_known(capability: int) -> bool:
    """Whether this Triton can compile the simplest kernel for a chip."""
    try:
        compile_case(Case("write", capability))
    except Exception:  # noqa: BLE001 - whatever it makes of a chip that it does not know
        return False
    return True


if __name__ == "__main__":
    main()
