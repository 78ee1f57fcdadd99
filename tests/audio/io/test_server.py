"""What is reported of our streams, from views of a server that never ran."""

from __future__ import annotations

from dataclasses import replace

from audio.io.identity import ServerDevice
from audio.io.server import (
    DeviceBack,
    DeviceGone,
    DeviceResumed,
    DeviceSuspended,
    ServerStream,
    ServerView,
    StreamJudge,
    StreamMoved,
    exact_name,
    identity_key,
)

_PID = 77
_MIC = ServerDevice(1, "usb_mic", "Acme microphone", True, "usb-0:2", "A17", "usb")
_INNER = ServerDevice(2, "inner_mic", "Built-in", True, "pci-1", "", "pci")
_MONITOR = ServerDevice(3, "spk.monitor", "Monitor of speaker", True, monitor_of="spk")
_SPK = ServerDevice(1, "spk", "Speaker", False, "pci-1", "", "pci")
_HDMI = ServerDevice(2, "hdmi", "Screen", False, "pci-2", "", "pci")
_ALL = (_MIC, _INNER, _MONITOR, _SPK, _HDMI)


def _view(source: int | None = 1, sink: int | None = 1, devices: tuple[ServerDevice, ...] = _ALL) -> ServerView:
    placed = ((source, True), (sink, False))
    streams = tuple(ServerStream(_PID, is_input, index) for index, is_input in placed if index is not None)
    stranger = ServerStream(_PID + 1, True, 3)
    return ServerView("fake", "inner_mic", "spk", devices, (stranger, *streams))


def test_a_named_device_that_the_server_exchanges_is_reported_and_its_return_too() -> None:
    judge = StreamJudge("Acme", "")
    assert judge.push(_view(), _PID, 0.0) == []
    assert judge.push(_view(source=2), _PID, 0.1) == [StreamMoved(True, "usb_mic", "inner_mic", False)]
    assert judge.push(_view(source=2), _PID, 0.2) == []
    assert judge.push(_view(), _PID, 0.3) == [StreamMoved(True, "inner_mic", "usb_mic", True)]


def test_the_default_is_followed_silently_but_never_onto_our_own_monitor() -> None:
    judge = StreamJudge("", "")
    for source, sink in ((1, 1), (2, 1), (2, 2)):
        assert judge.push(_view(source, sink), _PID, 0.0) == []
    assert judge.push(_view(3, 1), _PID, 0.1) == [StreamMoved(True, "inner_mic", "spk.monitor", False, True)]
    assert judge.push(_view(1, 1), _PID, 0.2) == [StreamMoved(True, "spk.monitor", "usb_mic", True)]


def test_a_stream_that_opens_on_our_own_monitor_is_reported() -> None:
    for name in ("", "test_mic"):
        judge = StreamJudge(name, "")
        assert judge.push(_view(3), _PID, 0.0) == [StreamMoved(True, "", "spk.monitor", False, True)]


def test_a_name_that_only_alsa_knows_means_the_device_where_the_stream_is_first_seen() -> None:
    judge = StreamJudge("test_mic", "test_spk")
    assert judge.push(_view(), _PID, 0.0) == []
    without = tuple(device for device in _ALL if device is not _MIC)
    assert judge.push(_view(3, 1, without), _PID, 0.1) == [
        DeviceGone(True, "usb_mic"),
        StreamMoved(True, "usb_mic", "spk.monitor", False, True),
    ]
    back = replace(_MIC, index=40, name="usb_mic.2")
    assert judge.push(_view(None, None, (*without, back)), None, 0.2) == [DeviceBack(True, "usb_mic.2")]
    assert judge.push(_view(40, 1, (*without, back)), _PID + 5, 0.3) == []


def test_a_twin_that_was_there_beside_the_wanted_device_does_not_take_its_place() -> None:
    mic = replace(_MIC, serial="")
    twin = replace(mic, index=9, name="usb_mic.2", port="usb-0:4")
    judge = StreamJudge("usb-0:2", "")
    assert judge.push(_view(1, 1, (mic, twin, _SPK)), _PID, 0.0) == []
    assert judge.push(_view(9, 1, (twin, _SPK)), _PID, 0.1) == [
        DeviceGone(True, "usb_mic"),
        StreamMoved(True, "usb_mic", "usb_mic.2", False),
    ]


def test_for_the_default_the_last_device_counts() -> None:
    judge = StreamJudge("", "")
    assert judge.push(_view(), _PID, 0.0) == []
    assert judge.push(_view(2, 1, (_INNER, _MONITOR, _SPK)), _PID, 0.1) == []
    assert judge.push(_view(None, 1, (_MONITOR, _SPK)), _PID, 0.2) == [DeviceGone(True, "inner_mic")]
    assert judge.push(_view(None, 1, (_MONITOR, _SPK, _INNER)), _PID, 0.3) == [DeviceBack(True, "inner_mic")]


def test_a_suspended_device_is_reported_unless_it_is_for_a_moment_or_we_paused_ourselves() -> None:
    asleep = (replace(_MIC, is_suspended=True), _SPK)
    judge = StreamJudge("", "")
    assert judge.push(_view(1, 1, asleep), _PID, 1.0) == []
    assert judge.push(_view(1, 1, (_MIC, _SPK)), _PID, 1.05) == []
    assert judge.push(_view(1, 1, asleep), _PID, 2.0) == []
    assert judge.push(_view(1, 1, asleep), _PID, 2.2) == [DeviceSuspended(True, "usb_mic")]
    assert judge.push(_view(1, 1, asleep), _PID, 9.0) == []
    assert judge.push(_view(1, 1, (_MIC, _SPK)), _PID, 9.1) == [DeviceResumed(True, "usb_mic")]
    paused = replace(_view(1, 1, asleep), streams=(ServerStream(_PID, True, 1, is_corked=True),))
    assert [judge.push(paused, _PID, now_s) for now_s in (10.0, 11.0)] == [[], []]


def test_what_is_opened_is_the_servers_present_name_and_what_is_stored_stays_the_same() -> None:
    before, after = _view(), _view(devices=(replace(_MIC, index=40, name="usb_mic.2"), _SPK))
    assert exact_name(before, "acme", is_input=True) == "usb_mic"
    assert exact_name(after, "acme", is_input=True) == "usb_mic.2"
    assert exact_name(after, "test_mic", is_input=True) == "test_mic"
    assert exact_name(None, "acme", is_input=True) == "acme"
    keys = {identity_key(view, "Acme", is_input=True) for view in (before, after)}
    assert keys == {"usb_mic serial A17, port usb-0:2"}
    assert identity_key(before, "", is_input=False) == "spk port pci-1"
    assert identity_key(None, "", is_input=True) == "default"
