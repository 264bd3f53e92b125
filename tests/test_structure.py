"""How the sources are arranged: the direction of imports, the size of files, whole records of operations.

The ranks are those of the table in ARCHITECTURE.md, which is read and not repeated here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import paren.ir.ops  # noqa: F401 fills the table
from paren.codegen.operations import Operation
from paren.codegen.writer import Writer
from paren.ir.op import OPS, Array, Attrs, Op
from paren.ir.types import DType, TensorType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "paren"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 500
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers", "shared", "base"}

# What may be imported inside a function, and why: extras that may not be installed, and what is slow to load and not
# needed by most commands.
LATE = {
    "botocore": "optional: of the extra s3, for checkpoints in a bucket",
    "cuda": "optional: cuda-bindings, of the extra of that name",
    "cudnn": "optional: nvidia-cudnn-frontend, for attention and products on cards",
    "torch": "more than a second, and the CPU does without",
    "rich": "nothing is drawn when stderr is no terminal",
    "tokenizers": "4 MiB that bytes as tokens, token files and arrays do without",
    "PIL": "pictures in points, which most pages of results do without",
    "pandas": "optional: results as a DataFrame",
    "paren.api": "the language and the compiler; `paren format` and `paren help` do without",
    "paren.cli.app": "an interrupt while it is imported is an interrupt like any other",
    "paren.experiment.progress": "loads the language; `paren --help` does without",
    "paren.experiment.store.prune": "numpy and the training; `paren format` and `paren help` do without",
    "paren.experiment.store.verify": "the same",
    "paren.inspect.card_code": "the emitter for cards; a report on the machine itself does without",
    "paren.inspect.doctor": "looks for the packages that the rest of paren imports",
    "paren.inspect.machine": "loads the packages that the doctor looks for first",
    "paren.experiment.report.page": "numpy and what reads checkpoints; `paren format` and `paren help` do without",
    "paren.experiment.results.table": "as paren.experiment.report.page",
    "paren.runtime.cpu": "llvmlite",
    "paren.runtime.cuda.card": "torch",
    "paren.runtime.cuda.device": "the emitter for cards, which the CPU does without",
    "paren.runtime.cuda.nvrtc": "cuda-bindings",
    "paren.runtime.native": "llvmlite",
}

# Operations whose results carry no gradient though they may be floats: it is 0 almost everywhere, or cut on purpose, or
# they are parts of a gradient themselves.
WITHOUT_GRADIENT = {"sign", "floor", "ceil", "floor_divide", "stop_gradient", "input", "constant", "iota"}
WITHOUT_GRADIENT |= {"attention_statistics", "attention_gradient"}


def ranks() -> dict[str, int]:
    """Rank by name of folder or module, from the table of ARCHITECTURE.md."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    return {name: int(rank) for rank, places in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", places)}


def place(module: str) -> str:
    """The folder or module under `paren` that a dotted name lies in: the name that has a rank."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every import of a file, also those inside functions, classes and conditions, by the module's whole name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            base = node.module or ""
            for alias in node.names:
                below = PACKAGE.parent.joinpath(*base.split("."), alias.name)
                is_module = base.startswith("paren") and (below.is_dir() or below.with_suffix(".py").is_file())
                yield node, f"{base}.{alias.name}" if is_module else base


def upward(name: str, text: str, known: dict[str, int]) -> list[str]:
    """The imports of module `name` that do not go down, as sentences."""
    own = place(name)
    found = []
    for node, module in imports(ast.parse(text)):
        if module.split(".")[0] != "paren" or place(module) == own:
            continue
        if known[place(module)] >= known[own]:
            found.append(
                f"{name}, line {node.lineno}, of rank {known[own]} imports {module} of rank {known[place(module)]}"
            )
    return found


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def test_every_place_has_a_rank() -> None:
    assert {place(dotted(path)) for path in MODULES} == set(ranks())


def test_imports_go_down() -> None:
    known = ranks()
    assert [line for path in MODULES for line in upward(dotted(path), path.read_text(), known)] == []


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("from paren.plan.kernel import Kernel", "paren.plan.kernel"),
        ("import paren.cli.app", "paren.cli.app"),
        ("from paren import api", "paren.api"),
        ("import paren", "paren"),
        ("def load():\n    from paren.engine import make_plans", "paren.engine"),
        (
            "try:\n    if True:\n        from paren.passes import simplify\nexcept ImportError:\n    pass",
            "paren.passes.simplify",
        ),
    ],
)
def test_an_upward_import_is_found(text: str, module: str) -> None:
    """Also one that is indented, and one between folders of the same rank."""
    known = ranks()
    (line,) = upward("paren.lang.bind", text, known)
    assert line.startswith("paren.lang.bind, line ")
    assert line.endswith(f"of rank {known['lang']} imports {module} of rank {known[place(module)]}")


def test_imports_stand_at_the_top() -> None:
    """Except of the modules of `LATE`; and none is listed there that is no longer needed."""
    inside: dict[str, str] = {}
    for path in MODULES:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                for node, module in imports(function):
                    name = module if module.startswith("paren") else module.split(".")[0]
                    inside[name] = f"{dotted(path)}, line {node.lineno}, imports {module} inside a function"
    assert [line for name, line in inside.items() if name not in LATE] == []
    assert [name for name in LATE if name not in inside] == []


def test_files_stay_small() -> None:
    files = [path for folder in ("paren", "tests", "scripts", "bench") for path in (ROOT / folder).rglob("*.py")]
    files += PACKAGE.rglob("*.paren")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_modules_say_what_they_are_about() -> None:
    assert [dotted(path) for path in MODULES if {path.stem, path.parent.stem} & VAGUE] == []


def test_the_environment_is_read_in_one_place() -> None:
    """`os.environ`, `os.getenv` and their like, under any name."""
    readers = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
            if name in ("environ", "environb", "getenv", "getenvb") and path != PACKAGE / "environment.py":
                readers.append(f"{dotted(path)}, line {node.lineno}")
    assert readers == []


# Operations ---------------------------------------------------------------------------------------------------------


def tried(op: Op) -> list[tuple[list[Array], Attrs, list[TensorType], TensorType]]:
    """Samples of an operation with float32 for float64: operands, attributes, and the types of operands and result."""
    found = []
    for sample in op.samples(np.random.default_rng(0)):
        args = [arg.astype(np.float32) if arg.dtype == np.float64 else arg for arg in sample.args]
        types = [TensorType(DType(str(arg.dtype)), arg.shape) for arg in args]
        found.append((args, sample.attrs, types, op.infer(types, sample.attrs)))
    return found


@pytest.mark.parametrize("name", sorted(OPS))
def test_records_are_complete(name: str) -> None:
    op = OPS[name]
    assert callable(op.infer)
    assert callable(op.evaluate)
    assert name == "input" or op.samples(np.random.default_rng(0))
    if op.vjp is None and name not in WITHOUT_GRADIENT:
        assert not any(type_.dtype.is_float for *_, type_ in tried(op)), f"{name} gives floats and has no gradient"
    if name in WITHOUT_GRADIENT:
        assert op.vjp is None


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.kind == "elementwise"))
def test_elementwise_operations_work_on_scalars(name: str) -> None:
    """In LLVM and in numpy, for the element types of every sample."""
    for args, attrs, types, result in tried(OPS[name]):
        scalars = [np.asarray(arg.reshape(-1)[0]) for arg in args]
        assert OPS[name].evaluate(scalars, attrs).dtype == result.dtype.numpy
        numbers = {key: value for key, value in attrs.items() if isinstance(value, int)}
        operands = [f"%operand{i}" for i in range(len(args))]
        Operation(Writer(), set()).write(name, operands, [type_.dtype for type_ in types], result.dtype, numbers)
