"""`vivavoce devices`: the sound devices as the audio process will see them."""

from __future__ import annotations

import argparse
import dataclasses
import json


def run(args: argparse.Namespace) -> int:
    """List them; 0 also where there is none, with the sentence that says so."""
    from audio.io.portaudio import list_devices

    devices = list_devices()
    if args.json:
        print(json.dumps([dataclasses.asdict(device) for device in devices], indent=2))
        return 0
    if not devices:
        print("No sound device. Start a sound server (PipeWire or PulseAudio), then try again.")
    for device in devices:
        print(device)
    return 0
