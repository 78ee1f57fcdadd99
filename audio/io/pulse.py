"""What PulseAudio or PipeWire knows of our streams and devices, through `pulsectl`. Both are optional.

PortAudio cannot tell that a server has moved its stream to another device; the server can. Runs in the
face, never in the audio process.
"""

from __future__ import annotations

import queue
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from audio.io.identity import ServerDevice
from audio.io.server import (
    ServerBack,
    ServerCard,
    ServerEvent,
    ServerGone,
    ServerStream,
    ServerView,
    StreamJudge,
)

_CLIENT = "vivavoce"
_LIMIT_S = 0.4
"""A server that has not answered for this long is taken for gone."""
_TICK_S = 0.15
"""Without news the server is asked so often whether it lives, which takes 0.3 ms."""
_RETRY_S = 0.1
_PATIENCE_S = 10.0
"""Of a connection attempt to a server that hangs: it answers as soon as the server does."""
_SLICE_S = 0.05
_JOIN_LIMIT_S = 1.0
_FACILITIES = ("sink", "source", "sink_input", "source_output", "server")


def look(limit_s: float = 1.0) -> tuple[ServerView | None, str]:
    """The server's state now, or None and the reason why there is none. Takes about `limit_s` at most."""
    connection = None
    try:
        connection = _Connection(lambda: False)
        connection.open(limit_s)
        view = connection.view(limit_s)
        with suppress(_NoServer):  # pulsectl does not survive a card that has no profile
            view = replace(view, cards=connection.cards(limit_s))
        return view, ""
    except _NoServer as error:
        return None, str(error)
    finally:
        if connection is not None:
            connection.close()


class ServerWatcher:
    """Reports what happens to the streams of one process and to the wanted devices. Never waits, never hangs.

    `follow` it to each new audio process; what it has learnt of the wanted devices stays.
    """

    def __init__(self, input_name: str = "", output_name: str = "") -> None:
        self.reason = ""
        """Why nothing is watched: no library, no server."""
        self.view: ServerView | None = None
        """The server's last answer; None while it is gone."""
        self._judge = StreamJudge(input_name, output_name)
        self._pid: int | None = None
        self._events: queue.SimpleQueue[ServerEvent] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vivavoce-server-watch", daemon=True)
        self._thread.start()

    def follow(self, pid: int | None) -> None:
        """The process whose streams are ours from now on; None while there is none."""
        self._pid = pid

    def poll(self) -> list[ServerEvent]:
        """What happened since the last call; does not wait."""
        return [self._events.get_nowait() for _ in range(self._events.qsize())]

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(_JOIN_LIMIT_S)

    def _run(self) -> None:
        limit_s = _LIMIT_S
        is_gone = False
        while not self._stop.is_set():
            connection = None
            was_there = False
            try:
                connection = _Connection(self._stop.is_set)
                connection.open(limit_s)
                view = connection.view(_LIMIT_S)
                was_there, limit_s = True, _LIMIT_S
                if is_gone:
                    is_gone = False
                    self._events.put(ServerBack(view.server))
                self.reason = ""
                self._watch(connection, view)
            except _NoServer as error:
                self.view, self.reason = None, str(error)
                if error.is_final:
                    return
                if was_there and not self._stop.is_set():
                    is_gone = True
                    self._events.put(ServerGone(str(error) if error.is_hung else "the sound server ended"))
                limit_s = _PATIENCE_S if error.is_hung else _LIMIT_S
            finally:
                if connection is not None:
                    connection.close()
            self._stop.wait(_RETRY_S)

    def _watch(self, connection: _Connection, view: ServerView) -> None:
        """Until the server is gone, which raises, or we are closed."""
        while not self._stop.is_set():
            self.view = view
            for event in self._judge.push(view, self._pid, time.monotonic()):
                self._events.put(event)
            if connection.wait(_TICK_S):
                view = connection.view(_LIMIT_S)
            else:
                connection.ping(_LIMIT_S)


class _NoServer(Exception):
    """No answer is to be had."""

    def __init__(self, reason: str, *, is_hung: bool = False, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_hung = is_hung
        self.is_final = is_final
        """No later attempt can succeed."""


class _Connection:
    """pulsectl with a time limit on every call.

    Its calls wait for the server in libpulse's poll, for ever. Ours gives up at the deadline, by marking the
    connection as closed, and so the call returns. After that the connection may only be closed.
    """

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        try:
            import pulsectl
        except ImportError:
            raise _NoServer("the package `pulsectl` is not installed", is_final=True) from None
        except OSError:
            raise _NoServer("the library libpulse is not installed", is_final=True) from None
        self._stop_loop: type[Exception] = pulsectl.PulseLoopStop
        self._is_stopped = is_stopped
        self._deadline_s = 0.0
        self._is_hung = False
        self._has_news = False
        self._pulse: Any = pulsectl.Pulse(_CLIENT, connect=False)
        self._pulse.set_poll_func(self._poll)

    def open(self, limit_s: float) -> None:
        """Connect and subscribe."""
        self._call(limit_s, self._pulse.connect)
        self._call(limit_s, self._pulse.event_mask_set, *_FACILITIES)
        self._pulse.event_callback_set(self._on_event)

    def view(self, limit_s: float) -> ServerView:
        """Everything that the judge wants to know."""
        ask = self._pulse
        self._has_news = False
        server = self._call(limit_s, ask.server_info)
        sources, sinks = self._call(limit_s, ask.source_list), self._call(limit_s, ask.sink_list)
        records, plays = self._call(limit_s, ask.source_output_list), self._call(limit_s, ask.sink_input_list)
        devices = [_device(source, is_input=True) for source in sources]
        devices += [_device(sink, is_input=False) for sink in sinks]
        streams = [_stream(record, record.source, is_input=True) for record in records]
        streams += [_stream(play, play.sink, is_input=False) for play in plays]
        return ServerView(
            server=server.server_name,
            default_input=server.default_source_name or "",
            default_output=server.default_sink_name or "",
            devices=tuple(devices),
            streams=tuple(streams),
        )

    def cards(self, limit_s: float) -> tuple[ServerCard, ...]:
        """Cards and their profiles."""
        found = self._call(limit_s, self._pulse.card_list)
        return tuple(ServerCard(card.index, card.profile_active.name) for card in found)

    def ping(self, limit_s: float) -> None:
        """Return if the server answers."""
        self._call(limit_s, self._pulse.server_info)

    def wait(self, timeout_s: float) -> bool:
        """Wait for something to change on the server; whether it did."""
        if not self._has_news:
            self._call(timeout_s + _LIMIT_S, self._pulse.event_listen, timeout_s)
        return self._has_news

    def close(self) -> None:
        """Let go of the server; waits for nothing."""
        self._pulse.connected = True  # or pulsectl would not disconnect what `_poll` has marked as closed
        self._pulse.close()

    def _call(self, limit_s: float, function: Callable[..., Any], *arguments: object) -> Any:
        self._deadline_s = time.monotonic() + limit_s
        try:
            answer = function(*arguments)
        except Exception as error:  # four unrelated classes of pulsectl, one of them not public
            if self._is_hung:
                raise _NoServer("the sound server does not answer", is_hung=True) from None
            raise _NoServer(f"there is no sound server ({error or type(error).__name__})") from None
        return answer

    def _on_event(self, _: Any) -> None:
        self._has_news = True
        raise self._stop_loop

    def _poll(self, files: Sequence[Any], timeout_s: float) -> int:
        """libpulse's poll: structs of fd, events and revents; how many are ready. Negative: without limit."""
        until_s = time.monotonic() + timeout_s if timeout_s >= 0 else float("inf")
        poller = select.poll()
        for file in files:
            poller.register(file.fd, file.events)
        while True:
            now_s = time.monotonic()
            left_s = max(0.0, min(_SLICE_S, until_s - now_s, self._deadline_s - now_s))
            ready = dict(poller.poll(left_s * 1000))
            for file in files:
                file.revents = ready.get(file.fd, 0)
            now_s = time.monotonic()
            if ready or now_s >= until_s:
                return len(ready)
            if now_s >= self._deadline_s or self._is_stopped():
                self._is_hung = True
                self._pulse.connected = False
                return 0


def _device(found: Any, *, is_input: bool) -> ServerDevice:
    """A source or sink of pulsectl."""
    about = found.proplist
    monitored = found.monitor_of_sink_name if is_input else None
    is_hardware = not monitored and bool(about.get("device.bus") or about.get("device.bus_path"))
    return ServerDevice(
        index=found.index,
        name=found.name,
        description=found.description,
        is_input=is_input,
        port=about.get("device.bus_path", "") or about.get("api.bluez5.address", ""),
        serial=about.get("device.serial", ""),
        bus=_bus(about) if is_hardware or _bus(about) == "bluetooth" else "",
        form_factor=about.get("device.form_factor", "") or about.get("device.form-factor", ""),
        card=-1 if found.card is None or found.card >= 2**32 - 1 else found.card,
        monitor_of=monitored or "",
        is_suspended=found.state == "suspended",
    )


def _stream(found: Any, device_index: int, *, is_input: bool) -> ServerStream:
    """A source output or sink input of pulsectl."""
    pid = str(found.proplist.get("application.process.id", ""))
    return ServerStream(int(pid) if pid.isdecimal() else -1, is_input, device_index, bool(found.corked))


def _bus(about: dict[str, str]) -> str:
    """PulseAudio and PipeWire tell it in different properties."""
    if about.get("device.api", "").startswith("bluez"):
        return "bluetooth"
    return about.get("device.bus", "")
