"""`vivavoce devices`: the sound devices as the audio process will see them, and `devices test`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from contextlib import suppress
from typing import Any

from app.cli.probe import ask_in_child
from app.config.schema import Config
from audio.io.identity import DeviceInfo, ServerDevice, alike, distinction
from audio.io.server import ServerView

_RATES_HZ = (48_000, 44_100, 16_000)
_RATES_LIMIT_S = 20.0


def run(args: argparse.Namespace, config: Config) -> int:
    """List them; 0 also where there is none, with the sentence that says so. Or test a pair of them."""
    if args.action == "test":
        from app.cli.device_test import run as test

        return test(args, config)
    from audio.io.portaudio import list_devices
    from audio.io.pulse import look

    devices = list_devices()
    rates_hz: dict[int, list[int]] = ask_in_child(accepted_rates_hz, timeout_s=_RATES_LIMIT_S) or {}
    view, reason = look()
    if args.json:
        print(json.dumps(_document(devices, rates_hz, view, reason), indent=2))
        return 0
    if not devices:
        print("No sound device. Start a sound server (PipeWire or PulseAudio), then try again.")
        return 0
    for line in [*_portaudio_lines(devices, rates_hz), *_server_lines(view, reason)]:
        print(line)
    return 0


def accepted_rates_hz() -> dict[int, list[int]]:
    """Usual rates that each device takes, by index. Asked in a child: drivers print, and some of them hang."""
    import sounddevice as sd

    from audio.io.portaudio import list_devices

    devices = list_devices()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return {device.index: [rate for rate in _RATES_HZ if _accepts(sd, device, rate)] for device in devices}


def _accepts(sd: Any, device: DeviceInfo, rate_hz: int) -> bool:
    """In one direction at least: ALSA names both for a device of a server that has one."""
    for check, channels in ((sd.check_input_settings, device.inputs), (sd.check_output_settings, device.outputs)):
        with suppress(Exception):  # PortAudioError, or ValueError of a device that went away meanwhile
            check(device=device.index, channels=min(1, channels), dtype="float32", samplerate=rate_hz)
            return True
    return False


def _portaudio_lines(devices: list[DeviceInfo], rates_hz: dict[int, list[int]]) -> list[str]:
    lines = ["Devices (* default microphone, + default loudspeaker):"]
    for device in devices:
        marks = ("*" if device.is_default_input else " ") + ("+" if device.is_default_output else " ")
        rates = ", ".join(str(rate) for rate in rates_hz.get(device.index, ()))
        known = f"{device.default_rate_hz:.0f} Hz" + (f" (takes {rates})" if rates else "")
        channels = f"{device.inputs} in, {device.outputs} out"
        place = distinction(device)
        parts = [f"{device.name}, {device.host_api}", channels, known, *([place] if place else [])]
        lines.append(f" {marks} {'; '.join(parts)}")
    return lines + [f" ! {line}" for line in _alike_lines(devices)]


def _server_lines(view: ServerView | None, reason: str) -> list[str]:
    if view is None:
        return [f"Sound server: {reason}"]
    lines = [f"Devices of the sound server ({view.server}):"]
    for device in view.devices:
        if device.monitor_of:
            continue
        default = view.default_input if device.is_input else view.default_output
        mark = ("*" if device.is_input else "+") if device.name == default else " "
        kind = "microphone" if device.is_input else "loudspeaker"
        place = distinction(device)
        parts = [f"{device.name} ({device.description})", kind, *([device.bus] if device.bus else []),
                 *([place] if place else [])]  # fmt: skip
        lines.append(f" {mark}  {'; '.join(parts)}")
    return lines + [f" ! {line}" for line in _alike_lines(_real(view))]


def _alike_lines(devices: list[DeviceInfo] | list[ServerDevice]) -> list[str]:
    """One sentence for each group of devices that share a name."""
    return [
        f"{len(group)} devices are alike; name one by its serial number or port: "
        + " / ".join(distinction(device) for device in group)
        for group in alike(devices)
    ]


def _real(view: ServerView) -> list[ServerDevice]:
    return [device for device in view.devices if not device.monitor_of]


def _document(
    devices: list[DeviceInfo], rates_hz: dict[int, list[int]], view: ServerView | None, reason: str
) -> dict[str, object]:
    return {
        "devices": [{**dataclasses.asdict(d), "rates_hz": rates_hz.get(d.index, [])} for d in devices],
        "server": view.server if view else None,
        "server_missing": reason,
        "default_input": view.default_input if view else "",
        "default_output": view.default_output if view else "",
        "server_devices": [dataclasses.asdict(device) for device in (view.devices if view else ())],
        "alike": _alike_lines(devices) + (_alike_lines(_real(view)) if view else []),
    }
