"""A guard that notes and refuses each attempt of this process to reach another machine."""

import socket
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

HERE = ("127.", "::1", "localhost")


@contextmanager
def no_network():
    """Yield the list of attempts; each also fails, as it would without a network."""
    attempts = []
    look_up = socket.getaddrinfo

    def refuse(attempt):
        attempts.append(attempt)
        raise OSError(f"expected no use of the network, got {attempt}")

    def guarded(method):
        def call(own, *arguments):
            address = arguments[-1]
            if own.family != socket.AF_UNIX and not str(address[0]).startswith(HERE):
                refuse(f"{method.__name__} {address}")
            return method(own, *arguments)

        return call

    def guarded_look_up(host, *arguments, **options):
        if host is not None and not str(host).startswith(HERE):
            refuse(f"getaddrinfo {host}")
        return look_up(host, *arguments, **options)

    with ExitStack() as stack:
        for name in ("connect", "connect_ex", "sendto"):
            stack.enter_context(patch.object(socket.socket, name, guarded(getattr(socket.socket, name))))
        stack.enter_context(patch.object(socket, "getaddrinfo", guarded_look_up))
        yield attempts
