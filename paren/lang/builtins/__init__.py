"""The functions that are written in Python. Importing this package fills `BUILTINS`."""

from paren.lang.builtins import arithmetic, index, lists, product, random, reduce, shape
from paren.lang.builtins.registry import BUILTINS

__all__ = ["BUILTINS", "arithmetic", "index", "lists", "product", "random", "reduce", "shape"]
