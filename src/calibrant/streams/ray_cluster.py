"""Connections to a Ray cluster: check its address, join or start it, and leave it afterwards."""

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from urllib.parse import urlsplit

from calibrant.errors import CalibrantError, InputError, MissingPackageError

# Seconds to wait for an address to answer; Ray itself would wait for minutes.
_PATIENCE = 10
_USAGE = "RAY_USAGE_STATS_ENABLED"
_LOCAL = "local"
_LOOPBACK = "127.0.0.1"


def import_ray() -> ModuleType:
    """Import Ray and check that Ray Data is installed."""
    try:
        import_module("ray.data")
        return import_module("ray")
    except ImportError as error:
        raise MissingPackageError("ray", f"ray with Ray Data ({in_short(error)})", "scale") from error


def check_address(ray: ModuleType, address: str | None) -> None:
    """Refuse an address where nothing answers, and any address if Ray is connected already."""
    if ray.is_initialized():
        if address is not None:
            raise InputError(
                f"address: expected none, since Ray is connected already, got {address}; leave it out, or "
                "call ray.shutdown() before"
            )
        return
    chosen = _chosen(address)
    try:
        place = urlsplit(chosen if "://" in chosen else f"//{chosen}")
        if place.hostname and place.port:
            socket.create_connection((place.hostname, place.port), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"address: expected that of a running Ray cluster, got {chosen}, where none answers "
            f"({in_short(error)}); check it, or leave it out to use this machine"
        ) from error


@contextmanager
def connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    """Connect to a cluster or start one, and leave it at the end; an existing connection stays.

    A cluster that is started here listens on the loopback address only and sends nothing to other machines.
    """
    if ray.is_initialized():
        yield
        return
    usage = os.environ.get(_USAGE)
    os.environ[_USAGE] = "0" if usage is None else usage
    try:
        try:
            if _chosen(address) == _LOCAL:
                _start(ray)
            else:
                ray.init(_chosen(address), log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            raise CalibrantError(
                f"ray: expected a cluster to connect to or to start, got {in_short(error)}"
            ) from error
        yield
    finally:
        ray.shutdown()
        if usage is None:
            del os.environ[_USAGE]


def is_client(ray: ModuleType) -> bool:
    """Say whether Ray is connected through ``ray://``, which does not support datasets."""
    return bool(ray.util.client.ray.is_connected())


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Keep a logger from writing to the terminal; its log files stay complete."""
    own = logging.getLogger(logger).handlers
    handlers = [handler for handler in own if isinstance(handler, logging.StreamHandler)]
    levels = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def in_short(error: Exception) -> str:
    """Return an error as one line: for a remote traceback, the error that was the first cause."""
    text = str(error).strip() or type(error).__name__
    found = re.search(r"^[\w.]*(?:Error|Exception): .+", text, re.MULTILINE)
    return (found[0] if found else text.splitlines()[-1].strip())[:200]


def _chosen(address: str | None) -> str:
    # Without an address, ray.init() would join any cluster that runs on this machine.
    return address or os.environ.get("RAY_ADDRESS") or _LOCAL


def _start(ray: ModuleType) -> None:
    constants, services = import_module("ray._private.ray_constants"), import_module("ray._private.services")
    # Ray replaces a loopback address by one that other machines reach, except on systems without clusters.
    # Without a dashboard it still starts that process, for reports of usage alone: even if these are switched
    # off, it asks the metadata servers of three clouds whether it runs there.
    with (
        replaced(constants, "ENABLE_RAY_CLUSTER", False),
        replaced(services, "start_api_server", lambda *_, **__: ("", None)),
    ):
        ray.init(
            _LOCAL,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address=_LOOPBACK,
        )
