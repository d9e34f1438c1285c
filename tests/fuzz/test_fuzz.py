"""Every fuzzer finds nothing: a few cases of each here, more with ``make test-long`` or ``make fuzz``."""

import os

import pytest
from hypothesis import strategies as st

from calibrant.errors import InputError
from tests.fuzz.every import FUZZERS
from tests.fuzz.fuzzer import Fuzzer, WrongError, bounded_memory, expect, judged
from tests.fuzz.mutations import changed_bytes, changed_value

pytestmark = pytest.mark.slow

# Cases of a cheap fuzzer; the same ones each time unless a number is asked for.
ASKED = os.environ.get("CALIBRANT_FUZZ", "")
CASES = int(ASKED or 10)


@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: f"{fuzzer.part} {fuzzer.kind}")
def test_all_that_is_tried_is_right_or_refused_in_one_sentence(fuzzer):
    fuzzer.check(CASES, random=bool(ASKED))


@pytest.mark.long
@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: f"{fuzzer.part} {fuzzer.kind}")
def test_all_of_many_other_cases_are_right_or_refused_in_one_sentence(fuzzer):
    fuzzer.check(20 * CASES, random=True)


def _refuse(text):
    raise InputError(text)


DEFECTS = {
    "traceback": lambda _: judged(lambda: 1 // 0, lambda _: None),
    "wrong": lambda _: judged(lambda: 2, lambda two: expect(two == 3, "not three")),
    "two lines": lambda _: judged(lambda: _refuse("one\ntwo"), lambda _: None),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_fuzzer_notices_and_counts_what_is_not_right(defect):
    fuzzer = Fuzzer("test", defect, st.just(0), DEFECTS[defect])
    with pytest.raises((ZeroDivisionError, WrongError)):
        fuzzer.check(3)
    tally = fuzzer.count(3)
    assert (tally.tried, len(tally.failures)) == (1, 1)
    assert tally.counts == {"traceback" if defect == "traceback" else "wrong": 1}


def test_refused_and_right_cases_are_counted():
    def judge(number):
        return judged(lambda: _refuse("no") if number % 2 else number, lambda _: None)

    tally = Fuzzer("test", "numbers", st.integers(0, 7), judge, share=2).count(4)
    assert tally.counts == {"refused": 4, "right": 4}


def test_much_memory_for_a_small_file_is_noticed():
    with pytest.raises(WrongError, match="bytes of memory for a file of 10"), bounded_memory(10):
        bytearray(64 << 20)


def test_changes_of_bytes_and_of_values():
    changes = {
        "flip": (b"ab", ("flip", 1 << 15, 0), b"ac"),
        "set": (b"ab", ("set", 0, 120), b"xb"),
        "delete": (b"abcd", ("delete", 1 << 14, 2), b"ad"),
        "insert": (b"ab", ("insert", 1 << 15, b"-"), b"a-b"),
        "replace": (b"abcd", ("replace", 1 << 14, b"--"), b"a--d"),
        "truncate": (b"abcd", ("truncate", 1 << 15, None), b"ab"),
        "repeat": (b"abcd", ("repeat", 1 << 14, 2), b"abcbcd"),
        "exchange": (b"abcd", ("exchange", 0, 1 << 15), b"cdab"),
    }
    for before, change, after in changes.values():
        assert changed_bytes(before, [change]) == after, change
    table = {"a": [1, {"b": 2}], "c": 3}
    assert changed_value(table, [0, 1, 0], "x", remove=False) == {"a": [1, {"b": "x"}], "c": 3}
    assert changed_value(table, [1], "x", remove=True) == {"a": [1, {"b": 2}]}
    assert table == {"a": [1, {"b": 2}], "c": 3}
