"""Every error streamrf raises on purpose.

Each is also a builtin, so that code which knows nothing of streamrf can catch it. Each carries the exit code of the
command line::

    StreamRFError                    exit 1
    ├── InputError (ValueError)      exit 2   an option or argument that cannot be right
    ├── DataError (ValueError)       exit 3   the data: a missing column, NaN, one class only, a corrupt chunk
    ├── FileFormatError (ValueError) exit 4   a model, checkpoint or statistics file that is damaged or too new
    ├── MismatchError (ValueError)   exit 5   two things that do not belong together; the message names both
    ├── BudgetError (MemoryError)    exit 6   the plan does not fit; the message has both numbers
    ├── ExistsError (FileExistsError) exit 7  the output already exists
    ├── StorageError (OSError)       exit 8   no space, no permission, no such file
    ├── NumericalError (ArithmeticError) exit 9  a system that cannot be solved, a sum that would overflow
    ├── MissingDependencyError (ImportError) exit 10  an extra that is not installed; the message names it
    └── ClusterError (RuntimeError)  exit 11  no scheduler, no workers, or workers that keep dying

Messages name a setting as Python spells it, in backticks: "`length_scale` must be positive", "set `overwrite=True`".
The command line prints them with flags (``settings.with_flags``).
"""


class StreamRFError(Exception):
    """Base of all errors. The message says what happened, with the numbers, and how to fix it."""

    exit_code = 1


class InputError(StreamRFError, ValueError):
    exit_code = 2


class DataError(StreamRFError, ValueError):
    exit_code = 3


class FileFormatError(StreamRFError, ValueError):
    exit_code = 4


class MismatchError(StreamRFError, ValueError):
    exit_code = 5


class BudgetError(StreamRFError, MemoryError):
    exit_code = 6


class ExistsError(StreamRFError, FileExistsError):
    exit_code = 7


class StorageError(StreamRFError, OSError):
    exit_code = 8


class NumericalError(StreamRFError, ArithmeticError):
    exit_code = 9


class MissingDependencyError(StreamRFError, ImportError):
    exit_code = 10


class ClusterError(StreamRFError, RuntimeError):
    exit_code = 11
