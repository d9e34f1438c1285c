"""The one place where arguments of the library become options of the command line, in error messages."""

import re
from collections.abc import Collection

# Arguments whose option has another name.
_OTHER_NAMES = {
    "changes": "--set",
    "class_names": "--read classes",
    "classes": "--read classes",
    "folder": "--out",
    "foreign": "--ood",
    "layout": "--read layout",
    "masses": "--read masses",
    "missing": "--read missing",
    "n_bins": "--bins",
    "classifier": "--model",
    "n_folds": "--folds",
    "ids": "--id",
    "percent": "--read percent",
    "scale": "--read scale",
    "falling": "--read falling",
    "policies": "--policy",
    "units": "--unit",
    "validation": "--val",
    "words": "--read words",
}
_HINTS = (
    (re.compile(r"\b(percent|masses|words|falling)=True"), r"--read \1"),
    (re.compile(r"\bscale=\((\S+), (\S+)\)"), r"--read scale=\1,\2"),
    (re.compile(r"\bscore= "), "--score "),
    (re.compile(r"\b(logits|probs)=NAME"), r"--scores \1=NAME"),
    (re.compile(r"\b(missing|layout)='(\w+)'"), r"--read \1=\2"),
    (re.compile(r"\bclass_names="), "--read classes=NAMES"),
    (re.compile(r"\b(words=FILE|classes=\S+)"), r"--read \1"),
    (re.compile(r"\blayout="), "--read layout"),
    (re.compile(r"\b(logits|probs|labels|weights|options|answer)='(.+?)'"), r"--column \1=\2"),
    (re.compile(r"\b(confidence|correct|score|outcome)='(.+?)'"), r"--\1 \2"),
    (re.compile(r"\bgroups="), "--by COLUMN"),
    (re.compile(r"\b(unit|id)s="), r"--\1 COLUMN"),
    (re.compile(r"\bsmall='include'"), "--include-small"),
    (re.compile(r"\bpaired=False"), "--unpaired"),
    (re.compile(r"\bresume=True"), "--resume"),
    (re.compile(r"\b(labelled|prior|adapt|person)="), r"--\1"),
    (re.compile(r"\b(undo|old)_(resampling|prior)="), r"--\1-\2"),
)
# A message often begins with the name of a column, which is not what an option is about.
_COLUMNS = ("confidence", "correct", "score", "outcome", "groups")


def flag_of(argument: str) -> str:
    """Return the option for an argument of the library.

    Example:
        >>> flag_of("old_prior"), flag_of("validation")
        ('--old-prior', '--val')
    """
    return _OTHER_NAMES.get(argument, f"--{argument.replace('_', '-')}")


def with_flags(message: str, options: Collection[str]) -> str:
    """Return an error message of the library in which arguments are named as options.

    Args:
        message: The message, such as ``"alpha: expected ..."``, with hints such as ``percent=True``.
        options: The options of the command.

    Example:
        >>> with_flags("validation: expected percent, got 1; leave out percent=True", ["--val", "--read"])
        '--val: expected percent, got 1; leave out --read percent'
    """
    for pattern, words in _HINTS:
        message = pattern.sub(words, message)
    first, colon, rest = message.partition(": ")
    if first not in _COLUMNS and flag_of(first).split()[0] in options and rest.startswith("expected"):
        return f"{flag_of(first)}{colon}{rest}"
    return message
