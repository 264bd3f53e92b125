"""The `paren` command: its subcommands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from paren.cli import artifacts, formatting, inspection, machine, recorded, studies, training
from paren.cli.output import flush_result, print_result, report_errors, report_fault, say
from paren.environment import read_environment
from paren.parallel.agent import tell_agent
from paren.text.errors import InternalError, ParenError, describe_cause, did_you_mean

DONE, FAILED, WRONG_USE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

# The class of all usage errors; typer exports only this subclass of it, and where it comes from differs by version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# What the system refuses for reasons outside paren: no space, no permission, a disk that is read-only, failing or gone,
# a name that leads nowhere.
_SYSTEM_REFUSALS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.ELOOP, errno.ENAMETOOLONG),
)


class _Commands(TyperGroup):
    """The group of all commands; it says what a misspelt command may have meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first argument names, and the arguments behind it."""
        name = args[0] if args else ""
        if args and self.get_command(ctx, name) is None:
            suggestion = did_you_mean(name, self.list_commands(ctx))
            if not suggestion and (name.endswith(".paren") or Path(name).is_file()):
                suggestion = f" (did you mean paren run {name}?)"
            ctx.fail(f"no command `{name}`{suggestion}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command; the list of all shows the first sentence of its help, however long that is."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help and not command.short_help:
            command.short_help = " ".join(command.help.partition("\n\n")[0].split())
        return command


app = typer.Typer(
    name="paren",
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    help="Trains the network that a paren file describes.",
    epilog="`paren COMMAND --help` shows the options of a command.",
)
for group in (inspection, formatting, training, studies, recorded, artifacts, machine):
    group.register(app)


@app.callback(invoke_without_command=True)
def _prepare(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print_result(f"paren {importlib.metadata.version('paren')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(WRONG_USE)
    # `help` and `doctor` are what a user with a wrong environment turns to.
    if context.invoked_subcommand not in ("help", "doctor"):
        read_environment()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0 done; 1 an error with a code, or a fault of paren; 2 wrong use of the command line; 130 interrupted, 143 stopped
    by SIGTERM; 141 the reader of a pipe went away.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        code = _report(given)
        flush_result()
    except BrokenPipeError:
        _silence_stdout()
        code = BROKEN_PIPE
    return code


def _report(arguments: list[str]) -> int:
    """Runs one command; every error but a broken pipe becomes a message and an exit code."""
    as_json = "--json" in arguments
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except typer.Exit as request:
        code = request.exit_code
    except _UsageError as error:
        code = _report_usage(error, as_json=as_json)
    except ParenError as error:
        report_errors(error, as_json=as_json)
        code = FAILED
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        code = INTERRUPTED
    except OSError as error:
        code = _report_system(error, as_json=as_json)
    except MemoryError as error:
        report_errors(ParenError("E-CLI-005", f"memory ran out{f': {error}' if str(error) else ''}"), as_json=as_json)
        code = FAILED
    except ImportError as error:
        code = _report_missing(error, as_json=as_json)
    except InternalError as error:
        report_fault(error, as_json=as_json)
        code = FAILED
    except Exception as error:  # whatever no stage foresaw is a fault of paren, and says so
        report_fault(error, as_json=as_json)
        code = FAILED
    return code


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    with command.make_context("paren", arguments) as context:
        try:
            command.invoke(context)
        except typer.Exit:
            raise
        except Exception as error:
            tell_agent(describe_cause(error))
            raise
    return DONE


def _report_usage(error: Exception, *, as_json: bool) -> int:
    """Wrong use of the command line: what is wrong, what may have been meant, and where help is."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "paren"
    message = getattr(error, "message", None) or str(error)
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        parameters = context.command.params if context is not None else ()
        known = [name for parameter in parameters for name in parameter.opts if name.startswith("-")]
        message = f"no option `{option}`{did_you_mean(option, known)}"
    elif getattr(error, "param", None) is not None:
        message = error.format_message()  # type: ignore[attr-defined]  # a usage error has it
    message = f"{message[:1].lower()}{message[1:]}".rstrip(".")
    report_errors(ParenError("E-CLI-001", message, fix=f"{path} --help"), as_json=as_json)
    return WRONG_USE


def _report_system(error: OSError, *, as_json: bool) -> int:
    """A refusal of the system is shown with its code; any other OSError is a fault of paren."""
    if error.errno not in _SYSTEM_REFUSALS:
        report_fault(error, as_json=as_json)
        return FAILED
    place = f" ({error.filename})" if error.filename else ""
    reason = (error.strerror or "").lower()
    report_errors(ParenError("E-CLI-002", f"the system refused a file operation: {reason}{place}"), as_json=as_json)
    return FAILED


def _report_missing(error: ImportError, *, as_json: bool) -> int:
    """A library that the installation lacks or that cannot be loaded has a code; a missing part of paren is a fault."""
    package = (error.name or "").partition(".")[0]
    if package == "paren":
        report_fault(error, as_json=as_json)
        return FAILED
    if isinstance(error, ModuleNotFoundError):
        message = f"the library {package}, which paren needs, is not installed"
    else:
        message = f"a library that paren needs cannot be loaded: {error}"
    fix = "install paren again; paren doctor shows what is missing"
    report_errors(ParenError("E-CLI-006", message, fix=fix), as_json=as_json)
    return FAILED


def _prepare_streams() -> None:
    """A stream that was closed swallows what is written; characters its encoding lacks are written as escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence_stdout() -> None:
    """Sends what is still buffered nowhere, so that the interpreter does not complain about the pipe at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
