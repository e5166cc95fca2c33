"""Compile every Triton kernel for real GPUs, without having one, and write down what comes out.

    make gpu-check

writes benchmarks/results/gpu_kernels.csv; rows of the kernels as they are now stay. Registers,
spills and shared memory are what the vendor's assembler reports for the compiled kernel. Bytes
moved and the time that follows from them are derived, not measured: see `Traffic`.
benchmarks/gpu.py measures.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import RESULTS

TABLE = RESULTS / "gpu_kernels.csv"
COLUMNS = (
    *("kernel", "variant", "target", "warps", "registers", "spilled_bytes", "shared_bytes"),
    *("fused_multiply_adds", "ratio", "read_bytes_a_value", "written_bytes_a_value"),
    *("gpu", "memory_gb_s", "derived_ms_a_gb", "triton", "source"),
)

#: The card a target stands for, and the bandwidth its maker gives: A100 80 GB SXM, H100 SXM,
#: MI300X.
TARGETS: dict[str, tuple[tuple[str, Any, int], str, int]] = {
    "sm_80": (("cuda", 80, 32), "A100", 2039),
    "sm_90": (("cuda", 90, 32), "H100", 3350),
    "gfx942": (("hip", "gfx942", 64), "MI300X", 5300),
}
_FUSED = {
    "cuda": r"\bfma\.rn|\bmad\.f",
    "hip": r"\bv_(?:pk_)?(?:fma|fmac|mac|mad)_f(?:16|32|64)|\bv_fmac_",
}

Count = float


@dataclass(frozen=True)
class Traffic:
    """Bytes that a kernel must read and write for each value, at a ratio that is stated.

    Payloads and inputs count once, whatever a cache does; what a program writes for its
    whole chunk is shared among the chunk's values. `of` is the size of a plain value, to
    which the time for one GB refers.
    """

    of: int
    ratio: float
    read: Count
    written: Count

    def milliseconds_a_gb(self, bandwidth: int) -> float:
        """Time for 1 GB (10^9 bytes) of plain values at `bandwidth` GB/s."""
        return 1e3 * (self.read + self.written) / self.of / bandwidth


@dataclass(frozen=True)
class Variant:
    """A kernel with its constants, the types of its pointers, and its traffic."""

    kernel: str
    name: str
    function: Any
    pointers: dict[str, str]
    constants: dict[str, Any]
    warps: int
    traffic: Traffic


FLOATS = {
    "float32": (1, 4, "*i32"),
    "float64": (2, 8, "*i64"),
    "float16": (3, 2, "*i16"),
    "bfloat16": (4, 2, "*i16"),
}
KINDS = {"plain": 0, "half": 1, "dither": 2, "pointwise": 3}
#: What `fixed` makes of GELU inputs at 2 % of their range (benchmarks/results/codecs.csv).
BITS = 4.4
_CHUNK, _BLOCK = 8192, 32


def fixed_variants() -> list[Variant]:
    from encke.ops.triton import fixed
    from encke.ops.triton.kernels import fixed_decode, fixed_encode

    found = []
    for dtype, kind in (
        *(("float32", kind) for kind in ("plain", "dither", "pointwise")),
        *((dtype, "dither") for dtype in ("float64", "float16", "bfloat16")),
    ):
        code, size, pointer = FLOATS[dtype]
        stored = BITS / 8
        constants = {"KIND": KINDS[kind], "DTYPE": code, "SIZE": size}
        name = f"{dtype} {kind}"
        pointers = {"values": pointer, "payload": "*u8", "state": "*i64", "statistics": "*fp64"}
        scan = 16 / _CHUNK  # a word of the scan, written twice
        measured = (False, True) if name == "float32 dither" else (False,)
        for statistics in measured:
            extra = 40 / _CHUNK if statistics else 0.0
            found.append(
                Variant(
                    "fixed encode",
                    name + (" statistics" if statistics else ""),
                    fixed_encode.encode,
                    pointers,
                    {**constants, "STATISTICS": statistics},
                    fixed.WARPS,
                    Traffic(size, size / stored, size + 8 / _CHUNK, stored + scan + extra),
                )
            )
        places = {"payload": "*u8", "ends": "*i64", "starts": "*i32", "wrong": "*i32"}
        found.append(
            Variant(
                "fixed decode",
                name,
                fixed_decode.decode,
                {**places, "values": pointer},
                {**constants, "ROWS": fixed.ROWS},
                fixed.ROWS_WARPS,
                Traffic(size, size / stored, stored + 4 / _BLOCK, float(size)),
            )
        )
        if name == "float32 dither":
            # Bitmaps lie among the codes: whatever holds one is read, and that is everything.
            found.append(
                Variant(
                    "fixed walk",
                    name,
                    fixed_decode.walk,
                    places,
                    {"KIND": KINDS[kind], "SIZE": size, "CHUNKS": fixed.WALKED},
                    1,
                    Traffic(size, size / stored, stored, 4 / _BLOCK),
                )
            )
    return found


def group_variants() -> list[Variant]:
    from encke.ops.triton import group
    from encke.ops.triton.kernels import group as kernels

    found = []
    for dtype, bits, stochastic, placed in (
        ("float32", 4, True, False),
        ("float32", 4, True, True),
        ("float16", 4, True, False),
        ("bfloat16", 2, True, False),
    ):
        code, size, pointer = FLOATS[dtype]
        numbers = (16 if dtype == "float64" else 8) / 256
        stored = bits / 8 + numbers
        name = f"{dtype} {bits} bits{' nearest' * (not stochastic)}{' placed' * placed}"
        pointers = {"values": pointer, "payload": "*u8", "raws": "*i32", "before": "*i64"}
        constants = {"BITS": bits, "DTYPE": code, "SIZE": size}
        found.append(
            Variant(
                "group encode",
                name,
                kernels.encode,
                pointers,
                {**constants, "STOCHASTIC": int(stochastic), "PLACED": placed},
                group.WARPS,
                Traffic(size, size / stored, float(size), stored + 4 / 256),
            )
        )
        if stochastic and not placed:
            found.append(
                Variant(
                    "group decode",
                    f"{dtype} {bits} bits",
                    kernels.decode,
                    pointers,
                    constants,
                    group.WARPS,
                    Traffic(size, size / stored, stored + 12 / 256, float(size)),
                )
            )
    return found


def index_variants() -> list[Variant]:
    from encke.ops.triton import index
    from encke.ops.triton.kernels import index as kernels

    found = []
    # Places in a pooling window of 2 × 2 or 3 × 3: four bits at most.
    for dtype, size in (("i64", 8), ("i32", 4)):
        stored = 0.5 + 9 / _CHUNK
        wide = {"WIDE": dtype == "i64"}
        pointers = {"values": f"*{dtype}", "payload": "*u8"}
        found += [
            Variant(
                "index encode",
                f"{dtype} 4 bits",
                kernels.encode,
                {**pointers, "state": "*i64"},
                wide,
                index.WARPS,
                Traffic(size, size / stored, size + 8 / _CHUNK, stored + 16 / _CHUNK),
            ),
            Variant(
                "index decode",
                f"{dtype} 4 bits",
                kernels.decode,
                {**pointers, "ends": "*i64"},
                {**wide, "ROWS": index.ROWS},
                index.ROWS_WARPS,
                Traffic(size, size / stored, stored + 8 / _CHUNK, float(size)),
            ),
        ]
    return found


def mask_variants() -> list[Variant]:
    from encke.ops.triton import mask
    from encke.ops.triton.kernels import mask as kernels

    found = []
    for dtype, (code, size, pointer, one) in {
        "bool": (0, 1, "*u8", 1),
        "float32": (1, 4, "*i32", 0x3F800000),
        "float16": (3, 2, "*i16", 0x3C00),
        "bfloat16": (4, 2, "*i16", 0x3F80),
    }.items():
        pointers = {"values": pointer, "payload": "*u8"}
        packing = Traffic(size, size * 8, float(size), 1 / 8)
        unpacking = Traffic(size, size * 8, 1 / 8, float(size))
        rows = {"ROWS": mask.ROWS}
        found += [
            Variant(
                "mask pack",
                dtype,
                kernels.pack,
                pointers,
                {**rows, "DTYPE": code},
                mask.WARPS,
                packing,
            ),
            Variant(
                "mask unpack",
                dtype,
                kernels.unpack,
                pointers,
                {**rows, "ONE": one},
                mask.WARPS,
                unpacking,
            ),
        ]
    floats = dict.fromkeys(("x", "gain", "shift", "out"), "*fp32")
    found.append(
        Variant(
            "mask affine",
            "float32",
            kernels.affine,
            {**floats, "payload": "*u8"},
            {"ROWS": 8 * mask.ROWS},
            mask.WARPS,
            Traffic(4, 32.0, 4 + 1 / 8, 4.0),
        )
    )
    return found


def statistics_variants() -> list[Variant]:
    from encke.ops.triton import statistics
    from encke.ops.triton.kernels import statistics as kernels

    return [
        Variant(
            "statistics",
            dtype,
            kernels.statistics,
            {"values": pointer, "target": "*fp64"},
            {"ROWS": statistics.ROWS, "DTYPE": code},
            statistics.WARPS,
            Traffic(size, 1.0, float(size), 40 / _CHUNK),
        )
        for dtype in ("float32", "float16", "bfloat16")
        for code, size, pointer in (FLOATS[dtype],)
    ]


def variants() -> list[Variant]:
    """Every kernel, with the constants that change most what it compiles to."""
    return [
        *fixed_variants(),
        *group_variants(),
        *index_variants(),
        *mask_variants(),
        *statistics_variants(),
    ]


def compiled(variant: Variant, target: str) -> Any:
    """What Triton makes of a variant for one target; needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = variant.function
    signature = {
        name: "constexpr" if name in variant.constants else variant.pointers.get(name, "i64")
        for name in function.arg_names
    }
    # Memory from torch is aligned, which Triton finds out for itself when it launches.
    aligned = {
        (function.arg_names.index(name),): [["tt.divisibility", 16]]
        for name in variant.pointers
    }
    source = ASTSource(function, signature, constexprs=variant.constants, attrs=aligned)
    options = {"num_warps": variant.warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget(*TARGETS[target][0]), options=options)


def resources(kernel: Any, target: str) -> tuple[int, int, int]:
    """Registers of a thread, bytes it spills, and shared memory of a program."""
    if TARGETS[target][0][0] == "hip":
        text = kernel.asm["amdgcn"]

        def number(key: str) -> int:
            found = re.search(rf"\.{key}:\s+(\d+)", text)
            return int(found.group(1)) if found else 0

        # Spilled scalar registers go to vector lanes; vector registers to memory, 4 bytes.
        return number("vgpr_count"), 4 * number("vgpr_spill_count"), kernel.metadata.shared
    import triton

    reader = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        command = [str(reader), "--dump-resource-usage", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    assert found is not None, done.stdout
    # These kernels call nothing and index no arrays: their stack holds what was spilled.
    return int(found.group(1)), int(found.group(2)), kernel.metadata.shared


def fused(kernel: Any, target: str) -> int:
    """Fused multiply-adds in the assembly that are not part of a division.

    AMD has no instruction that divides: five fused operations and a last one that puts
    the result right (`v_div_fixup`) give the correctly rounded quotient.
    """
    vendor = TARGETS[target][0][0]
    text = kernel.asm["ptx" if vendor == "cuda" else "amdgcn"]
    return len(re.findall(_FUSED[vendor], text)) - 5 * text.count("v_div_fixup_f32")


def source_digest() -> str:
    """A digest of the kernels' code, docstrings and comments apart."""
    import encke.ops.triton as package

    digest = hashlib.sha256()
    for path in sorted((Path(package.__file__).parent / "kernels").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_text(body[0]):
                del body[0]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:12]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def row(variant: Variant, target: str) -> dict[str, object]:
    """One line of the table."""
    import triton

    kernel = compiled(variant, target)
    registers, spilled, shared = resources(kernel, target)
    _, gpu, bandwidth = TARGETS[target]
    traffic = variant.traffic
    return {
        "kernel": variant.kernel,
        "variant": variant.name,
        "target": target,
        "warps": variant.warps,
        "registers": registers,
        "spilled_bytes": spilled,
        "shared_bytes": shared,
        "fused_multiply_adds": fused(kernel, target),
        "ratio": f"{traffic.ratio:.3g}",
        "read_bytes_a_value": f"{traffic.read:.4g}",
        "written_bytes_a_value": f"{traffic.written:.4g}",
        "gpu": gpu,
        "memory_gb_s": bandwidth,
        "derived_ms_a_gb": f"{traffic.milliseconds_a_gb(bandwidth):.4g}",
        "triton": triton.__version__,
        "source": source_digest(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="kernels whose name holds this; no file")
    arguments = parser.parse_args()
    try:
        import triton
    except ImportError:
        print("Triton is not installed: pip install 'encke[gpu]'", file=sys.stderr)
        return 1
    before = {_key(known): known for known in _known_rows()}
    rows: list[dict[str, object]] = []
    for variant in variants():
        if arguments.only not in variant.kernel:
            continue
        for target in TARGETS:
            key = variant.kernel, variant.name, target, source_digest(), triton.__version__
            shown = before.get(key) or row(variant, target)
            rows.append(shown)
            if key not in before and not arguments.only:
                before[key] = shown
                _write(list(before.values()))  # an interrupted run goes on from here
            print(
                f"{variant.kernel:<13} {variant.name:<28} {target:<7} "
                f"{shown['registers']:>4} registers, {shown['spilled_bytes']:>4} spilled, "
                f"{shown['shared_bytes']:>6} shared, {shown['fused_multiply_adds']} fused",
                flush=True,
            )
    if not arguments.only:
        _write(rows)
    return 0


def _key(known: dict[str, object]) -> tuple[object, ...]:
    return tuple(known[c] for c in ("kernel", "variant", "target", "source", "triton"))


def _known_rows() -> list[dict[str, object]]:
    if not TABLE.exists():
        return []
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))  # type: ignore[arg-type]


def _write(rows: list[dict[str, object]]) -> None:
    part = TABLE.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    part.replace(TABLE)


if __name__ == "__main__":
    raise SystemExit(main())
