"""File systems that behave on the workers of a Ray cluster as bad machines do, and well everywhere else."""

import os
import signal
import time
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem


class Deadly(LocalFileSystem):
    """The first worker that opens a file is killed, as by a machine that is out of memory.

    Args:
        victim: The end of the file's path.
        marker: A file where the worker leaves its process id.
        spared: Process id of the driver.
    """

    def open(self, path, mode="rb", **options):
        told = self.storage_options
        if path.endswith(told["victim"]) and os.getpid() != told["spared"]:
            try:
                with Path(told["marker"]).open("x") as marker:
                    marker.write(str(os.getpid()))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().open(path, mode, **options)


class Stuck(LocalFileSystem):
    """Nothing is read on one machine of the cluster, and on the others not before that one has begun.

    Args:
        node: Which machine.
        marker: A file that it makes when it begins.
        spared: Process id of the driver.
    """

    def open(self, path, mode="rb", **options):
        told = self.storage_options
        if os.getpid() != told["spared"]:
            import ray

            here = ray.get_runtime_context().get_node_id() == told["node"]
            if here:
                Path(told["marker"]).touch()
            until = time.monotonic() + 600  # then the test fails
            while time.monotonic() < until and (here or not Path(told["marker"]).exists()):
                time.sleep(0.05)
        return super().open(path, mode, **options)


class Blind(LocalFileSystem):
    """Workers do not see some file, as if it were on the driver's own disk.

    Args:
        hidden: The end of the file's path.
        spared: Process id of the driver.
    """

    def open(self, path, mode="rb", **options):
        told = self.storage_options
        if path.endswith(told["hidden"]) and os.getpid() != told["spared"]:
            raise FileNotFoundError(f"[Errno 2] No such file or directory: '{path}'")
        return super().open(path, mode, **options)


class Unknown(LocalFileSystem):
    """Workers lack the package of this file system."""

    def __reduce__(self):
        return _unknown, (os.getpid(),)


def _unknown(spared):
    if os.getpid() != spared:
        raise ModuleNotFoundError("No module named 'someones_store'")
    return Unknown()
