"""The folders of the package import only from those before them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import encke

#: From first to last; what stands in one row may be imported by its neighbours.
LAYERS = (
    {"errors"},
    {"atomic"},
    {"memory"},
    {"head"},
    {"bound"},
    {"ops"},
    {"codec"},
    {"tape", "wire", "store", "feed"},
    {"control"},
    {"plan"},
    {"study"},
    {"encke"},  # the package itself: the public names
    {"integrations"},
    {"cli", "__main__"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
STRANGERS = ({"tape", "wire"},)
PACKAGE = Path(encke.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer_of(module: str) -> str:
    """`encke.codec.fixed` belongs to `codec`, `encke` to itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def name_of(path: Path) -> str:
    parts = ("encke", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, *, module: str, is_package: bool) -> set[str]:
    """Every module of this package that the code imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base] if base else parts)
            if base == "encke":  # `from encke import codec` imports the folder
                found.update(
                    f"encke.{alias.name}" if alias.name in RANK else "encke"
                    for alias in node.names
                )
            else:
                found.add(base)
    return {name for name in found if name.split(".")[0] == "encke"}


def violations(module: str, imports: set[str]) -> list[str]:
    own = layer_of(module)
    wrong = []
    for name in sorted(imports):
        other = layer_of(name)
        strangers = own != other and any({own, other} <= pair for pair in STRANGERS)
        if RANK[other] > RANK[own] or strangers:
            wrong.append(f"{module} imports {name}")
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_from_its_own_layer_or_earlier_ones(path: Path) -> None:
    module = name_of(path)
    assert layer_of(module) in RANK, f"{module}: give its folder a place in LAYERS"
    if module == "encke":
        return  # names every layer, but only for type checkers; see the test of lean imports
    tree = ast.parse(path.read_text())
    imports = imported(tree, module=module, is_package=path.name == "__init__.py")
    assert violations(module, imports) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("encke.bound.kinds", "from encke.ops import quantiser"),
        ("encke.codec.fixed", "import encke"),
        ("encke.codec.fixed", "from encke import control"),
        ("encke.codec.fixed", "def f():\n    from ..tape import pack"),
        ("encke.wire.bucket", "from encke.tape import hooks"),
        ("encke.tape.hooks", "import encke.wire.bucket"),
    ],
)
def test_the_check_finds_an_import_that_breaks_the_order(module: str, line: str) -> None:
    assert violations(module, imported(ast.parse(line), module=module, is_package=False))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("encke.store.files", "from encke.feed import reader"),
        ("encke.codec.fixed", "from .contract import Codec"),
        ("encke.cli.bench", "from encke import __version__"),
        ("encke.codec.fixed", "import torch"),
    ],
)
def test_the_check_accepts_what_the_order_allows(module: str, line: str) -> None:
    assert not violations(module, imported(ast.parse(line), module=module, is_package=False))


def modules_after(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_encke_alone_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "rich", "zstandard", "zfpy", "safetensors"}
    assert heavy & modules_after("import encke") == set()


def test_compressing_with_a_plain_codec_imports_no_optional_package() -> None:
    statement = (
        "import encke, torch\n"
        "encke.compress(torch.ones(9), encke.Absolute(0.1), codec='fixed').decompress()"
    )
    optional = {"rich", "zstandard", "zfpy", "safetensors", "triton"}
    assert optional & modules_after(statement) == set()
