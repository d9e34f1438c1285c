"""No command reaches for the network; ``demo`` is checked in tests/test_clean_environment.py."""

import socket

import numpy as np
import pytest

from tests.conftest import draw
from tests.offline import no_network
from tests.training.small import arguments

pytestmark = pytest.mark.slow


def test_the_guard_notes_what_leaves_this_machine_and_nothing_else(tmp_path):
    with no_network() as attempts, socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        with socket.socket(socket.AF_UNIX) as unix, pytest.raises(FileNotFoundError):
            unix.connect(str(tmp_path / "nobody"))
        assert attempts == []
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.settimeout(0.01)
            for call in (
                lambda: tcp.connect(("192.0.2.1", 80)),
                lambda: udp.sendto(b"", ("192.0.2.1", 53)),
                lambda: socket.create_connection(("example.org", 80)),
            ):
                with pytest.raises(OSError, match="expected no use of the network"):
                    call()
    assert attempts == ["connect ('192.0.2.1', 80)", "sendto ('192.0.2.1', 53)", "getaddrinfo example.org"]


def test_commands_that_calibrate_report_train_evaluate_and_apply_stay_on_this_machine(run, tmp_path):
    val, test, out, trained = (tmp_path / name for name in ("val.npz", "test.npz", "out", "run"))
    for seed, path in enumerate((val, test)):
        logits, labels = draw(300, 3, seed=seed, sharpen=3.0)
        np.savez(path, logits=logits, labels=labels)
    with no_network() as attempts:
        for words in (
            ("calibrate", val, "--test", test, "--methods", "uncalibrated,temperature,smart", "--out", out),
            ("report", test, "--out", tmp_path / "report.html"),
            ("evaluate", test),
            ("apply", out / "calibrator.safetensors", test, "--out", tmp_path / "honest.npz"),
            ("train", *arguments("training.epochs=1"), "--out", trained),
        ):
            assert run(*words)[0] == 0, words
            assert attempts == [], words
