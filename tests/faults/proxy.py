"""A TCP proxy before a server: it delays, cuts, swallows, holds back and refuses, and is normal again."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

PIECE = 64 * 1024
#: Seconds for anything that is asked of the proxy's thread.
PATIENCE = 10


class Proxy:
    """Passes connections on to ``host:port``, on a thread of its own. A context manager."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = (host, port)
        self.port = 0
        self._delay = 0.0
        self._swallows = self._refuses = False
        self._flows = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        #: Connections that have lost bytes: they cannot go on.
        self._tainted: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="drill-proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._run(self._listen()).result(PATIENCE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.refuse()
        self.cut()
        self._do(self._server.close)
        self._run(self._end()).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def before(self, url: str) -> str:
        """Return the URL that leads through the proxy to where ``url`` leads."""
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{place}@127.0.0.1:{self.port}"))

    # Faults -----------------------------------------------------------------------------------------------------

    def normal(self) -> None:
        """Pass everything on at once; connections that have lost bytes meanwhile are closed."""
        self._do(self._be_normal)

    def delay(self, milliseconds: float) -> None:
        """Pass everything on that much later, in both directions together."""
        self._do(lambda: setattr(self, "_delay", milliseconds / 2000))

    def cut(self) -> None:
        """Close all connections."""
        self._do(self._cut)

    def swallow(self) -> None:
        """Take all bytes and pass none on, also of new connections: both ends believe in a connection that is no more."""
        self._do(lambda: setattr(self, "_swallows", True))

    def hold(self) -> None:
        """Pass nothing on until ``normal``, and then all of it: a network that is away and comes back."""
        self._do(self._flows.clear)

    def refuse(self) -> None:
        """Close each new connection at once."""
        self._do(lambda: setattr(self, "_refuses", True))

    # The thread -------------------------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _do(self, step: Callable[[], object]) -> None:
        async def run() -> None:
            step()

        self._run(run()).result(PATIENCE)

    async def _listen(self) -> None:
        self._flows.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _be_normal(self) -> None:
        self._delay, self._swallows, self._refuses = 0.0, False, False
        self._flows.set()
        for writer in self._tainted:
            writer.transport.abort()
        self._tainted.clear()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._tainted.clear()

    async def _end(self) -> None:
        pumps = asyncio.all_tasks() - {asyncio.current_task()}
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, back}
        self._writers |= pair
        try:
            pumps = [asyncio.create_task(self._pump(reader, back, pair)), asyncio.create_task(self._pump(there, writer, pair))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        finally:
            self._writers -= pair
            self._tainted -= pair
            for one in pair:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: set[asyncio.StreamWriter]) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                await self._flows.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                if self._swallows:
                    self._tainted |= pair
                elif not pair & self._tainted:
                    writer.write(piece)
                    await writer.drain()
            if self._swallows:
                # That one end has gone is not passed on either.
                await asyncio.Event().wait()
