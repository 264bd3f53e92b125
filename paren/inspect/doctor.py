"""`paren doctor`: whether this machine has what paren needs, found out by using it."""

from __future__ import annotations

import sys

from paren.environment import Environment, given_names, read_environment
from paren.inspect import installation
from paren.inspect.examination import FAIL, PASS, Examination, Row
from paren.text.errors import ParenError


def examine(checkpoints: str | None = None) -> Examination:
    """Looks at everything, and at a place for checkpoints if one is given; takes a few seconds, because torch is loaded
    and a function compiled.

    Where the installation itself is incomplete, only its own rows are given.
    """
    rows = [
        installation.check_python(sys.version_info[:3]),
        *(installation.check_package(name) for name in installation.PACKAGES),
        installation.check_torch(),
    ]
    if any(row.state == FAIL for row in rows):
        return Examination(tuple(rows))
    from paren.inspect import machine  # loads the packages that were looked for

    environment, row = read_variables()
    rows += [
        machine.check_compiler(),
        machine.check_products(),
        machine.check_threads(),
        machine.check_memory(environment.memory if environment else None),
        row,
    ]
    if environment is not None:
        rows += [
            machine.check_cache(environment.cache),
            machine.check_device(environment.device),
            machine.check_ranks(environment.ranks, environment.device),
            machine.check_speed(environment.cache),
        ]
    rows += [
        *machine.check_cuda(environment.cache if environment else None),
        *(installation.check_optional(*entry) for entry in installation.OPTIONAL),
    ]
    if checkpoints is not None:
        rows.append(machine.check_place(checkpoints))
    return Examination(tuple(rows))


def read_variables() -> tuple[Environment | None, Row]:
    """The environment variables, if they are right, and their row."""
    try:
        environment = read_environment()
    except ParenError as error:
        return None, Row("environment", FAIL, error.message, error.code)
    return environment, Row("environment", PASS, ", ".join(given_names()) or "no variable is set")
