"""What simulations of measures share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Thousands of small tensors: a second thread would only be waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
