"""What users can be told, and the exit code of each.

Every message is one line: what was wrong, what would be right, and where it helps the next command.
"""

from __future__ import annotations

# Of a DamagedError, wherever a model is asked.
NO_NUMBERS = (
    "the model answers with NaN or infinity: its weights are damaged, or diverged; fetch them again, or train them anew"
    " with a lower rate"
)


class ZooError(Exception):
    """Base of everything the zoo raises on purpose. The command line prints it as one line."""

    exit_code = 1


class UsageError(ZooError, ValueError):
    """An argument or option that makes no sense as given."""

    exit_code = 2


class NotFoundError(ZooError, LookupError):
    """A name, file, folder, data set or repository that is not there."""

    exit_code = 3


class DamagedError(ZooError):
    """A file, weight or input that is there and cannot be trusted or read."""

    exit_code = 4


class DeviceError(ZooError):
    """A device or an execution provider that was asked for and is not there."""

    exit_code = 5


class ValidationError(ZooError):
    """A result that was computed, checked, and found wrong."""

    exit_code = 6


class MissingDependencyError(ZooError, ImportError):
    """An optional package that a feature needs."""


class DivergedError(ZooError):
    """A training whose loss is no number any more."""


class InterruptedRun(ZooError):
    """A training stopped by Ctrl-C after it had saved its state."""

    exit_code = 130


class StoppedRun(InterruptedRun):
    """A training stopped after as many steps as was asked, its state saved: no failure."""

    exit_code = 0


def one_line(text: object) -> str:
    """What `text` says, an error mostly, with every run of blanks and line ends made one blank."""
    return " ".join(str(text).split())
