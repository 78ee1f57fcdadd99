"""Sound server, devices with the rates that each accepts, and the scheduling class of the audio process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from app.cli.checks.check import Check
from app.cli.probe import ask_in_child
from app.config.schema import Config
from audio.errors import AudioError
from audio.io.priority import AUDIO_FIFO_PRIORITY, raise_priority

_CHILD_LIMIT_S = 60.0
_SERVER_LIMIT_S = 5.0
_RATES_HZ = (16_000, 44_100, 48_000, 96_000)


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What one device accepts: rates in Hz, empty where it has no such side or accepts none."""

    name: str
    inputs: int
    outputs: int
    input_rates_hz: tuple[int, ...]
    output_rates_hz: tuple[int, ...]


def checks(config: Config) -> Iterator[Check]:
    """All of them."""
    yield sound_server()
    yield from devices(config)
    yield scheduling()


def sound_server() -> Check:
    """Kind and version, from the server itself."""
    if sys.platform != "linux":
        return Check("sound server", "ok", "the system's own")
    pactl = shutil.which("pactl")
    if pactl is None:
        return Check("sound server", "warning", "unknown: pactl is not installed", "Install pulseaudio-utils")
    env = {**os.environ, "LC_ALL": "C"}
    try:
        answer = subprocess.run(
            [pactl, "info"], capture_output=True, text=True, timeout=_SERVER_LIMIT_S, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        return Check("sound server", "warning", "does not answer", "Restart PipeWire or PulseAudio")
    lines = (line.partition(":") for line in answer.stdout.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in lines}
    if "Server Name" not in facts:
        fix = "Start PipeWire or PulseAudio; without a sound device the agent holds a scripted conversation"
        return Check("sound server", "warning", "none runs", fix)
    found = f"{facts['Server Name']} {facts.get('Server Version', '')}".strip()
    figures = {
        "name": facts["Server Name"],
        "version": facts.get("Server Version", ""),
        "default_source": facts.get("Default Source", ""),
        "default_sink": facts.get("Default Sink", ""),
    }
    return Check("sound server", "ok", found, "", figures)


def devices(config: Config) -> Iterator[Check]:
    """One line for all, then one for each device."""
    answer = ask_in_child(device_rates, timeout_s=_CHILD_LIMIT_S)
    if answer is None:
        fix = "Restart the sound server; another program may hold a device"
        yield Check("sound devices", "warning", "unknown: the sound system does not answer", fix)
        return
    if isinstance(answer, tuple):
        yield Check("sound devices", "warning", *answer)
        return
    found: list[DeviceRates] = answer
    inputs = sum(device.inputs > 0 for device in found)
    outputs = sum(device.outputs > 0 for device in found)
    text = f"{inputs} with a microphone, {outputs} with a loudspeaker"
    figures = {"inputs": inputs, "outputs": outputs, "wanted_input": config.audio.input,
               "wanted_output": config.audio.output}  # fmt: skip
    if not inputs or not outputs:
        fix = "Plug one in or start the sound server; until then the agent holds a scripted conversation"
        yield Check("sound devices", "warning", text, fix, figures)
    else:
        yield Check("sound devices", "ok", text, "", figures)
    yield from (_device(device) for device in found)


def _device(device: DeviceRates) -> Check:
    name = f"device {device.name}"
    sides = [
        ("microphone", device.inputs, device.input_rates_hz),
        ("loudspeaker", device.outputs, device.output_rates_hz),
    ]
    parts = [f"{side} at {_khz(rates_hz)}" for side, channels, rates_hz in sides if channels]
    figures = {"inputs": device.inputs, "outputs": device.outputs, "input_rates_hz": list(device.input_rates_hz),
               "output_rates_hz": list(device.output_rates_hz)}  # fmt: skip
    if not any(rates_hz for _, _, rates_hz in sides):  # a server's device often claims a side that it has not
        fix = "Close the program that holds it, or choose another one"
        return Check(name, "warning", "; ".join(parts), fix, figures)
    return Check(name, "ok", "; ".join(parts), "", figures)


def _khz(rates_hz: tuple[int, ...]) -> str:
    return f"{', '.join(f'{rate / 1000:g}' for rate in rates_hz)} kHz" if rates_hz else "no rate that was tried"


def device_rates() -> list[DeviceRates] | tuple[str, str]:
    """Every device of PortAudio, or (what is wrong, the fix). For a child: drivers print, and some hang."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    from audio.io.portaudio import list_devices

    try:
        listed = list_devices()
    except AudioError as error:
        return error.message, error.fix
    import sounddevice

    def accepted(index: int, channels: int, ask: object) -> tuple[int, ...]:
        return tuple(rate for rate in _RATES_HZ if channels and _accepts(ask, index, rate))

    return [
        DeviceRates(
            device.name,
            device.inputs,
            device.outputs,
            accepted(device.index, device.inputs, sounddevice.check_input_settings),
            accepted(device.index, device.outputs, sounddevice.check_output_settings),
        )
        for device in listed
    ]


def _accepts(ask: object, index: int, rate_hz: int) -> bool:
    import sounddevice

    assert callable(ask)
    try:
        ask(device=index, channels=1, samplerate=rate_hz, dtype="float32")
    except (sounddevice.PortAudioError, ValueError):
        return False
    return True


def scheduling() -> Check:
    """What a process that asks as the audio process does is really given."""
    got = ask_in_child(raise_priority, timeout_s=_CHILD_LIMIT_S)
    if got is None:
        return Check("scheduling", "warning", "unknown: the child that asked for it died", "Run vivavoce doctor again")
    figures = {"granted": got}
    if str(got).startswith("SCHED_FIFO") or sys.platform == "win32":
        return Check("scheduling", "ok", got, "", figures)
    limit = f"'@audio - rtprio {2 * AUDIO_FIFO_PRIORITY}'"
    fix = (
        f"Sound may break under load. Put {limit} and '@audio - nice -11' into /etc/security/limits.conf, join the "
        "group audio (sudo usermod -aG audio $USER) and log in again"
    )
    return Check("scheduling", "warning", f"{got} instead of SCHED_FIFO", fix, figures)
