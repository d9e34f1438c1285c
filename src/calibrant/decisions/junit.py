"""The verdicts of a gate as JUnit XML, which continuous integration shows as tests."""

import os
from xml.etree import ElementTree

from calibrant.decisions.gate import Gate, Verdict
from calibrant.files import write_file
from calibrant.text import visible


def junit_xml(gate: Gate, name: str = "predictions") -> str:
    """Return a test suite with a test for each requirement, as JUnit XML.

    A failed requirement is a failure, and an unknown one is an error, because readers count skipped tests as
    passed.

    Args:
        gate: The verdicts.
        name: What was evaluated; it becomes the class of the tests.

    Example:
        >>> from calibrant import Predictions
        >>> from calibrant.decisions import check_requirements
        >>> answers = Predictions(confidence=[0.8, 0.6] * 200, correct=[True, True, True, False] * 100)
        >>> print(junit_xml(check_requirements(answers, "accuracy > 0.5")).splitlines()[1])
        <testsuite name="calibrant" tests="1" failures="0" errors="0" skipped="0">
    """
    outcomes = [verdict.outcome for verdict in gate.verdicts]
    suite = ElementTree.Element(
        "testsuite",
        name="calibrant",
        tests=str(len(outcomes)),
        failures=str(outcomes.count("failed")),
        errors=str(outcomes.count("unknown")),
        skipped="0",
    )
    for verdict in gate.verdicts:
        suite.append(_case(verdict, name))
    ElementTree.indent(suite)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(suite, encoding='unicode')}\n"


def write_junit(gate: Gate, path: str | os.PathLike[str], name: str = "predictions") -> None:
    """Write the verdicts as JUnit XML, whole or not at all."""
    write_file(path, junit_xml(gate, name))


def _case(verdict: Verdict, name: str) -> ElementTree.Element:
    # Control characters are not allowed in XML.
    case = ElementTree.Element("testcase", classname=visible(name), name=visible(verdict.requirement))
    if verdict.outcome == "passed":
        ElementTree.SubElement(case, "system-out").text = visible(verdict.sentence)
    else:
        tag = "failure" if verdict.outcome == "failed" else "error"
        ElementTree.SubElement(case, tag, type=verdict.outcome, message=visible(verdict.sentence))
    return case
