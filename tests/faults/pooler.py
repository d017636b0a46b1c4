"""pgbouncer in transaction mode before a server."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ..postgres import free_port
from .drill import Skipped

START_SECONDS = 15
#: What Django and the pool send when they connect, and the pooler does not know.
IGNORED = "extra_float_digits,options"


@dataclass
class Pooler:
    """A running pgbouncer."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def reload(self) -> None:
        """Read its configuration again."""
        self.process.send_signal(signal.SIGHUP)


@contextmanager
def pooler(url: str, *, mode: str = "transaction", size: int = 20, **settings: object) -> Iterator[Pooler]:
    """Run pgbouncer before the database of ``url``.

    Raises:
        Skipped: it is not installed.
    """
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if binary is None:
        raise Skipped("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        # It refuses to run as root.
        entry = pwd.getpwnam("postgres")
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="workpool-pgbouncer-", dir="/tmp") as name:
        folder = Path(name)
        port = free_port()
        (folder / "pgbouncer.ini").write_text(_configuration(url, port, mode, size, settings))
        if identity:
            for path in (folder, folder / "pgbouncer.ini"):
                os.chown(path, identity["user"], identity["group"])
        log = folder / "log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [binary, folder / "pgbouncer.ini"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **identity,
            )
        try:
            _wait_until_open(port, process, log)
            place = urlsplit(url).netloc.rpartition("@")[0]
            yield Pooler(urlunsplit(urlsplit(url)._replace(netloc=f"{place}@127.0.0.1:{port}")), process, log)
        finally:
            process.terminate()
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _configuration(url: str, port: int, mode: str, size: int, settings: dict[str, object]) -> str:
    parts = urlsplit(url)
    server = f"host={parts.hostname} port={parts.port} user={parts.username} password={unquote(parts.password or '')}"
    values: dict[str, object] = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": size,
        "max_client_conn": 500,
        "ignore_startup_parameters": IGNORED,
        **settings,
    }
    lines = [f"{name} = {value}" for name, value in values.items()]
    return "\n".join(["[databases]", f"* = {server}", "[pgbouncer]", *lines, ""])


def _wait_until_open(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"pgbouncer did not start: {log.read_text(errors='replace')[-2000:]}")
