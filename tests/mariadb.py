"""A MariaDB (or MySQL) server for the test session: one that is named or offered, else one of the session's own.

Its own is started from installed binaries, such as Debian's package mariadb-server, in a temporary folder.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import pymysql

from .postgres import Server, ServerError, _open_folder, end_process, free_port

#: Names a server: mysql://user:password@host:port/name, whose user may make databases.
URL_VARIABLE = "WORKPOOL_TEST_MARIADB"
#: Where one is often offered on machines of developers and of CI.
OFFERED = "mysql://root@127.0.0.1:3306/workpool"
#: Where distributions keep servers that are not on PATH.
FOLDERS = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/mysql/bin")
UNPRIVILEGED_USERS = ("mysql", "nobody")
START_SECONDS, STOP_SECONDS = 60, 20


@contextmanager
def server() -> Iterator[Server]:
    """Yield a server: the one that the environment names, else the one that is offered on this machine, else its own.

    Raises:
        ServerError: there is none; the text says why.
    """
    for variable in (URL_VARIABLE, "DATABASE_URL"):
        url = os.environ.get(variable, "")
        if url.startswith("mysql:"):
            yield Server(url, f"named by {variable}")
            return
    try:
        version(OFFERED)
    except pymysql.Error as error:
        offered = f"none is offered at {OFFERED} ({error})"
    else:
        yield Server(OFFERED, "offered on this machine")
        return
    program = _find("mariadbd", "mysqld")
    if program is None:
        raise ServerError(f"{URL_VARIABLE} names no server, {offered}, and none is installed (Debian: mariadb-server).")
    with _own(program) as started:
        yield started


def version(url: str) -> str:
    """Return the version of a server."""
    with closing(connect(url)) as connection:
        # What old clients of a replica want to read comes first.
        return str(connection.get_server_info()).removeprefix("5.5.5-")


def connect(url: str) -> Any:
    """Connect to a server, to none of its databases."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return pymysql.connect(host=parts.hostname, port=parts.port or 3306, user=user, password=password, connect_timeout=5)


@contextmanager
def own_database(url: str) -> Iterator[str]:
    """Make a database on a server, yield its DATABASE_URL, and drop it at the end."""
    name = f"workpool_check_{secrets.token_hex(4)}"
    _execute(url, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    finally:
        _execute(url, f"DROP DATABASE {name}")


def _execute(url: str, statement: str) -> None:
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)


def _find(*names: str) -> Path | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS])
    return next((Path(found).resolve() for name in names if (found := shutil.which(name, path=path))), None)


@contextmanager
def _own(program: Path) -> Iterator[Server]:
    told = subprocess.run([program, "--no-defaults", "--version"], capture_output=True, text=True, check=False).stdout
    user, password = _user(), secrets.token_hex(16)
    folder = Path(tempfile.mkdtemp(prefix="workpool-mariadb-", dir=_open_folder()))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        data, log = folder / "data", folder / "log"
        # Its own account, with a password: TCP on a shared machine is open to its other users.
        first = folder / "first.sql"
        first.touch(mode=0o644)
        first.write_text(
            "".join(
                # The server reads it line by line.
                f"CREATE USER workpool@'{host}' IDENTIFIED BY '{password}';\nGRANT ALL ON *.* TO workpool@'{host}';\n"
                for host in ("localhost", "127.0.0.1")
            )
        )
        identity = ["--no-defaults", f"--datadir={data}", *([f"--user={user}"] if os.geteuid() == 0 else [])]
        _make(program, identity, mariadb="MariaDB" in told)
        port = free_port()
        command: list[Any] = [program, *identity, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder / 'socket'}"]
        command += [f"--pid-file={folder / 'pid'}", f"--init-file={first}", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0"]
        command += ["--max-connections=300", "--innodb-buffer-pool-size=64M"]
        with open(log, "wb") as output:
            # Its own session: Ctrl-C must reach it only after the tests that use it.
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True)
        try:
            url = f"mysql://workpool:{password}@127.0.0.1:{port}/workpool"
            _wait_until_ready(process, url, log)
            yield Server(url, f"own server from {program}")
        finally:
            end_process(process, (signal.SIGTERM, signal.SIGKILL), STOP_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str:
    import pwd

    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    for name in UNPRIVILEGED_USERS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise ServerError(f"MariaDB does not run as root, and none of the users {', '.join(UNPRIVILEGED_USERS)} exists.")


def _make(program: Path, identity: list[str], *, mariadb: bool) -> None:
    """Make the data folder."""
    command: list[Any] = [program, *identity, "--initialize-insecure"]
    if mariadb:
        script = _find("mariadb-install-db", "mysql_install_db")
        if script is None:
            raise ServerError(f"{program} is installed without mariadb-install-db.")
        command = [script, *identity, "--skip-test-db", "--auth-root-authentication-method=socket"]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
    if made.returncode != 0:
        raise ServerError(f"{command[0]} failed: {made.stdout.decode(errors='replace')[-2000:].strip()}")


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            version(url)
            return
        except pymysql.Error:
            time.sleep(0.1)
    told = re.sub(r"\s+", " ", log.read_text(errors="replace")[-2000:])
    raise ServerError(f"{process.args!r} did not start: {told.strip()}")
