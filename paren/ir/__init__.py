"""Tensors as data: types, operations, graphs and their meaning. Importing anything here registers all operations."""

from paren.ir import ops

__all__ = ["ops"]
