"""What Calibrant raises: one sentence naming the argument, what was expected, what came, what to do."""


class CalibrantError(Exception):
    """The root of Calibrant's own errors; the command line prints it as one line."""


class InputError(CalibrantError, ValueError):
    """An argument cannot mean what it would have to mean."""


class FitError(CalibrantError, RuntimeError):
    """A calibrator cannot be fitted to these data."""


class FormatError(CalibrantError, ValueError):
    """A file is not what its name or its caller says it is."""


class MissingPackageError(CalibrantError, ImportError):
    """Something needs a package that is not installed; the message says how to get it."""
