"""`python -m tests.model_executor.triton.compile_products CASES`: like `compile_kernels`, for objects with the fields of `ProductCase`."""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from chatpaged.engine.model_executor.models import fp8_product_kernels as kernels
from tests.model_executor.triton.compile_cases import ProductCase
from tests.model_executor.triton.compile_kernels import ONE_BY_ONE, is_known

WIDTH = 4096


def compile_product(case: ProductCase) -> dict[str, int]:
    """Compiles a kernel. Returns the shared memory of a program and the size of its code, in bytes, and how often it converts."""
    launch = kernels.choose_launch(case.rows, WIDTH, WIDTH, 4 if case.dtype == "fp32" else 2)
    is_sum = case.kernel == "sum"
    constants = {
        "ROWS": launch.rows,
        "OUTPUTS": 1024 if is_sum else launch.outputs,
        "INPUTS": launch.inputs,
        "PARTS": launch.parts,
        "HAS_BIAS": True,
        "UPCAST": False,
    }
    kernel = kernels.combine_kernel if is_sum else kernels.product_kernel
    types = {
        "partial": "*fp32",
        "scales": "*fp32",
        "codes": "*u8",
        "out": f"*{case.dtype}",
        "x": f"*{case.dtype}",
        "bias": f"*{case.dtype}",
    }
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    attributes = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(signature) if name not in {*constants, "num_rows"}}
    source = ASTSource(
        fn=kernel, signature=signature, constexprs={name: value for name, value in constants.items() if name in signature}, attrs=attributes
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", case.capability, 32),
        options={"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True},
    )
    return {
        "shared": compiled.metadata.shared,
        "bytes": len(compiled.asm["cubin"]),
        "fp8": len(re.findall(r"cvt\.\S*e4m3x2", compiled.asm["ptx"])),
        "one by one": len(re.findall(ONE_BY_ONE, compiled.asm["ptx"])),
    }


def main() -> None:
    """Compiles the cases of the command line; None where the chip is not known."""
    cases = [ProductCase(**case) for case in json.loads(sys.argv[1])]
    unknown = {capability for capability in sorted({case.capability for case in cases}) if not is_known(capability)}
    print(json.dumps([compile_product(case) if case.capability not in unknown else None for case in cases]))


if __name__ == "__main__":
    main()
