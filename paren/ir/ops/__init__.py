"""All operations, one record each. Importing this package fills `paren.ir.op.OPS`; `Builder.emit` needs that done."""

from paren.ir.ops import contract, elementwise, index, leaf, reduce, select, shape, windows

__all__ = ["contract", "elementwise", "index", "leaf", "reduce", "select", "shape", "windows"]
