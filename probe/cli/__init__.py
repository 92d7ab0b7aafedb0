"""The command line: parse, call one public function, print.

Results go to standard output, progress and errors to standard error. A usage error exits with
2, a failure with 1, each with one line that says what was wrong.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from models.errors import InputError, ProbeError
from probe.cli import (
    ablate,
    calibrate,
    heads,
    hypothesis,
    logits,
    patch,
    report,
    reversal,
    run,
    sample,
    train,
    verify,
)

app = typer.Typer(
    name="probe",
    help="Train, probe and ablate the attention heads of small transformers.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (
    reversal,
    train,
    heads,
    ablate,
    hypothesis,
    patch,
    calibrate,
    sample,
    logits,
    run,
    report,
    verify,
):
    module.add(app)


INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit; a request to terminate counts as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def execute(arguments: Sequence[str]) -> int:
    """Run a command; the exit status."""
    try:
        status = app(list(arguments) or ["--help"], prog_name="probe", standalone_mode=False)
        sys.stdout.flush()
        if status == INTERRUPTED:  # what typer makes of Ctrl-C
            return _fail("interrupted", INTERRUPTED)
        return status if isinstance(status, int) else 0
    except TyperException as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "probe")
        message = f"{error.format_message().rstrip('.')} (see {where} --help)"
        return _fail(message, error.exit_code)
    except InputError as error:
        return _fail(str(error), 2)
    except ProbeError as error:
        return _fail(str(error), 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away
        return 1
    except (MemoryError, OverflowError) as error:
        return _fail(f"too large for this machine: {error}", 1)
    except RuntimeError as error:
        if "alloc" not in str(error):
            raise
        return _fail(f"too large for this machine: {str(error).splitlines()[0]}", 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"probe: {' '.join(message.split())}\n")
    return status
