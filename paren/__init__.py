"""paren: neural networks described in one text file, planned before the first step, the same on every device."""

from paren.api import Experiment, Run, load, restore, sample
from paren.restored import RestoredModel
from paren.text.errors import ParenError

__all__ = ["Experiment", "ParenError", "RestoredModel", "Run", "load", "restore", "sample"]
