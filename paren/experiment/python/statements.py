"""The statements of a Python file: what each binds, what it mentions, and whether running it can touch anything else.

A statement that is still only gives its own names their values: a `def`, a class, an import, an assignment without
calls into the experiment's own code. It counts for those who use its names. Everything else counts as soon as its file
is imported: a call, a loop, a decorator that may register what it decorates.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# Decorators of these modules keep to what they decorate.
_QUIET_DECORATORS = ("functools", "dataclasses", "contextlib", "typing", "abc", "enum", "numba")
_BUILTIN_DECORATORS = ("property", "staticmethod", "classmethod")
# Built-in functions that can reach any name of a file.
REACHES_FILE = frozenset({"exec", "eval", "compile", "globals", "locals", "vars"})
_CHANGES_OTHERS = REACHES_FILE | {"__import__", "setattr", "delattr"}
# Words in the names of functions that change something of their package, whatever they return: `np.seterr`,
# `torch.manual_seed`, `os.environ.setdefault`, `mpl.use`.
_CHANGES_PACKAGES = re.compile(
    "set|seed|environ|config|update|register|enable|disable|^use$|^(append|insert|pop|clear)$"
)
# Methods that run when a class is called, or when another is derived from it.
_CONSTRUCTORS = {"__new__", "__init__", "__post_init__", "__init_subclass__", "__set_name__", "__call__"}
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    """One name that an import binds: `bound` stands for the object that `path` leads to from `module`. A star import
    binds `*`. `loads` is the dotted name of the module that is imported; `level` counts the dots of a relative one."""

    bound: str
    module: str
    path: tuple[str, ...]
    loads: str
    level: int


@dataclass(frozen=True)
class Statement:
    """A statement at the top of a file; an import of several names is several.

    `mentions` are the names in it with the attributes behind them (`helper.draw`), `attributes` all names of
    attributes. `still`: see above. `ordered`: its place among others can matter, as for all but functions and imports.
    """

    node: ast.stmt
    names: tuple[str, ...]
    mentions: frozenset[tuple[str, ...]]
    attributes: frozenset[str]
    imports: tuple[Import, ...]
    still: bool
    ordered: bool

    def digest(self, documented: bool) -> str:
        """A digest of the syntax: comments, layout and, unless `documented`, docstrings change nothing."""
        return _digest(self.node, documented)


def read_statements(source: bytes, is_own: Callable[[Import], bool]) -> tuple[Statement, ...]:
    """The statements of a file; `is_own` says whether an import is of the experiment's own code. What runs only where
    the file is a program (`if __name__ == "__main__":`) is left out. Raises SyntaxError, ValueError, RecursionError."""
    nodes = [part for node in ast.parse(source).body for part in _parts(node)]
    scope = _Scope(nodes, is_own)
    return tuple(
        Statement(
            node,
            _names(node),
            frozenset(_mentions(node)),
            frozenset(each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)),
            tuple(_imports(node)),
            scope.is_still(node),
            not isinstance(node, ast.Import | ast.ImportFrom) and not _is_bare_function(node),
        )
        for node in nodes
        if not _is_program(node)
    )


def _parts(node: ast.stmt) -> list[ast.stmt]:
    match node:
        case ast.Import():
            return [ast.Import([alias]) for alias in node.names]
        case ast.ImportFrom():
            return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def _is_program(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _is_bare_function(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.decorator_list
        and not node.args.defaults
        and not any(node.args.kw_defaults)
    )


def _names(node: ast.stmt) -> tuple[str, ...]:
    """All names that may be bound at the top of the file by a statement, also in its blocks."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    if _is_text(node):
        return ("__doc__",)
    found = [each.bound for each in _imports(node)]
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            found.append(each.id)
        elif isinstance(each, _NAMED) and each.name:
            found.append(each.name)
    return tuple(dict.fromkeys(found))


def _imports(node: ast.AST) -> Iterator[Import]:
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            for alias in each.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield Import(alias.asname or module, module, (), alias.name, 0)
        elif isinstance(each, ast.ImportFrom):
            for alias in each.names:
                name, bound = each.module or "", alias.asname or alias.name
                yield Import(bound, name, (alias.name,), name, each.level)


def _mentions(node: ast.AST) -> Iterator[tuple[str, ...]]:
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, ast.Name):
            yield (each.id,)
        elif isinstance(each, ast.Attribute):
            chain, value = [each.attr], each.value
            while isinstance(value, ast.Attribute):
                chain.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name):
                yield (value.id, *reversed(chain))
            else:
                stack.append(value)
        else:
            stack.extend(ast.iter_child_nodes(each))


@dataclass
class _Scope:
    """What is known of the names at the top of a file before any statement is judged."""

    nodes: list[ast.stmt]
    is_own: Callable[[Import], bool]
    bound: Counter[str] = field(default_factory=Counter)
    mentioned: Counter[str] = field(default_factory=Counter)  # by how many statements
    foreign: dict[str, str] = field(default_factory=dict)  # names that stand for something of other packages -> module
    constants: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)  # classes whose call runs no code of the file

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.bound.update(_names(node))
            self.mentioned.update({chain[0] for chain in _mentions(node)} - set(_names(node)))
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for each in _imports(node):
                    if self.bound[each.bound] == 1 and not self.is_own(each):
                        self.foreign[each.bound] = each.module
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                if all(self.bound[name] == 1 for name in _names(node)) and self._is_constant(node.value):
                    self.constants.update(_names(node))
            elif isinstance(node, ast.ClassDef) and self.bound[node.name] == 1:
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                if not methods & _CONSTRUCTORS and self.is_still(node):
                    self.plain.add(node.name)

    def is_still(self, node: ast.stmt) -> bool:
        match node:
            case ast.ImportFrom():
                return node.module != "__future__"
            case ast.Import() | ast.Pass():
                return True
            case ast.Expr():
                return _is_text(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                defaults = [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
                return self._are_quiet(node.decorator_list, ()) and all(map(self._is_still_value, defaults))
            case ast.ClassDef():
                return self._is_still_class(node)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                value = node.value
                if value is None:
                    return True
                if not all(map(_is_name, targets)) or not self._is_still_value(value):
                    return False
                used = any(self.mentioned[name] or self.bound[name] > 1 for name in _names(node))
                return used or not any(isinstance(each, ast.Call) for each in ast.walk(value))
        return False

    def _is_still_class(self, node: ast.ClassDef) -> bool:
        inside = {name for each in node.body for name in _names(each)}
        bases = [*node.bases, *(each.value for each in node.keywords)]
        if any(self._is_own_name(chain[0]) for base in bases for chain in _mentions(base)):
            return False
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                defaults = [*each.args.defaults, *(value for value in each.args.kw_defaults if value is not None)]
                if not self._are_quiet(each.decorator_list, inside) or not all(map(self._is_still_value, defaults)):
                    return False
            elif isinstance(each, ast.Assign | ast.AnnAssign):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                if not all(map(_is_name, targets)) or (each.value and not self._is_still_value(each.value)):
                    return False
            elif not (isinstance(each, ast.Pass) or _is_text(each)):
                return False
        return self._are_quiet(node.decorator_list, ())

    def _are_quiet(self, decorators: list[ast.expr], inside: set[str] | tuple[()]) -> bool:
        """Whether decorators keep to what they decorate; `inside` are the names of a class body (`@size.setter`)."""
        for decorator in decorators:
            roots = [chain[0] for chain in _mentions(decorator.func if isinstance(decorator, ast.Call) else decorator)]
            root = roots[0] if len(roots) == 1 else ""
            package = self.foreign.get(root, "").partition(".")[0]
            known = root in _BUILTIN_DECORATORS and root not in self.bound
            if not (known or root in inside or package in _QUIET_DECORATORS) or not self._is_still_value(decorator):
                return False
        return True

    def _is_still_value(self, value: ast.expr) -> bool:
        """Whether an expression runs no code of the experiment, and hands nothing of it that can be changed to others.
        The body of a lambda is not run yet."""
        stack: list[ast.AST] = [value]
        while stack:
            each = stack.pop()
            if isinstance(each, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
                return False
            if isinstance(each, ast.Lambda):
                stack.extend(ast.iter_child_nodes(each.args))
                continue
            if isinstance(each, ast.Call) and not self._is_still_call(each):
                return False
            stack.extend(ast.iter_child_nodes(each))
        return True

    def _is_still_call(self, call: ast.Call) -> bool:
        for root, *attributes in _mentions(call.func):
            words = [root, *attributes] if root in self.foreign else attributes
            if any(map(_CHANGES_PACKAGES.search, words)):
                return False
        for each in ast.walk(call):
            if not isinstance(each, ast.Name):
                continue
            if each.id in _CHANGES_OTHERS or self.foreign.get(each.id, "").partition(".")[0] == "importlib":
                return False
            plain = each is call.func and each.id in self.plain
            if self._is_own_name(each.id) and not plain and each.id not in self.constants:
                return False
        return True

    def _is_own_name(self, name: str) -> bool:
        return name in self.bound and name not in self.foreign

    def _is_constant(self, value: ast.expr) -> bool:
        """Whether a value is made of numbers, texts and other constants, so that nothing can change it."""
        for each in ast.walk(value):
            match each:
                case ast.Constant() | ast.Tuple() | ast.UnaryOp() | ast.BinOp() | ast.operator() | ast.unaryop():
                    continue
                case ast.expr_context():
                    continue
                case ast.Name() if each.id in self.constants:
                    continue
            return False
        return True


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_name, target.elts))
    return isinstance(target, ast.Name) or (isinstance(target, ast.Starred) and _is_name(target.value))


def _digest(node: ast.AST, documented: bool) -> str:
    """SHA-256 (24 digits) of a tree, level by level: with the number of children of each node no two trees agree."""
    content = hashlib.sha256()
    queue = deque([node])
    while queue:
        each = queue.popleft()
        described = [type(each).__name__]
        for name, value in ast.iter_fields(each):
            if name in ("kind", "type_comment"):  # u"" and "" are the same text
                continue
            parts = value if isinstance(value, list) else [value]
            if name == "body" and not documented and isinstance(each, _DOCUMENTED) and parts and _is_text(parts[0]):
                parts = parts[1:]
            described.append(f"{name}:{len(parts)}")
            for part in parts:
                if isinstance(part, ast.AST):
                    queue.append(part)
                    described.append("+")
                else:
                    described.append(hex(part) if type(part) is int else repr(part))
        content.update("\n".join(described).encode("utf-8", "backslashreplace") + b"\0")
    return content.hexdigest()[:24]
