"""What all tests of training share."""

import os

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_fsync():
    """Leave files to the cache of the system: waiting for the disk takes a third of a small run."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        yield
