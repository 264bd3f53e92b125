"""All operations, one record each. Importing this package fills the table `paren.ir.op.OPS`."""

from paren.ir.ops import attention, contract, elementwise, index, leaf, reduce, select, shape, windows

__all__ = ["attention", "contract", "elementwise", "index", "leaf", "reduce", "select", "shape", "windows"]
