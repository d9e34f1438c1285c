"""All fuzzers."""

from tests.fuzz import arrays, calibrators, commands, readers, writing

FUZZERS = (
    *arrays.FUZZERS,
    *commands.FUZZERS,
    *readers.FUZZERS,
    *calibrators.FUZZERS,
    *writing.FUZZERS,
)
