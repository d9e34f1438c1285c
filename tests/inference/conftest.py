"""Fixtures for simulations of measures."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Run with one thread: for thousands of small tensors a second one only adds waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
