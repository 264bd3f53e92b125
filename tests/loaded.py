"""All that a run of `paren` loads, for the process that `warm` forks its own from."""

from paren.environment import quieten_stores

quieten_stores()  # before torch is loaded

import numpy  # noqa: E402, F401
import pytest  # noqa: E402, F401  # whose main module Python loads again in each process that it forks
import torch.distributed  # noqa: E402, F401
import warm  # noqa: E402, F401

import paren.__main__  # noqa: E402
import paren.api  # noqa: E402
import paren.cli.app  # noqa: E402
import paren.runtime.cpu  # noqa: E402, F401
