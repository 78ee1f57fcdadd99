"""The list of devices, a choice that is kept, and a check that ends the conversation and begins it again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import events
from app.commands import Command, Quit
from app.config.load import Loaded, load_config
from app.errors import AgentError
from app.notices import NO_SIGNAL, SIGNAL_BACK
from app.viewmodel.device_list import DeviceList
from app.viewmodel.devices import CheckKind, Devices, DeviceTools, Show
from audio.block import SILENCE_DB
from audio.errors import DeviceError
from audio.io.identity import DeviceInfo, ServerDevice
from audio.io.server import ServerCard, ServerView

_PULSE = DeviceInfo(0, "pulse", "ALSA", 32, 32, 48_000.0, True, True)
_CARD = DeviceInfo(1, "Intel (hw:0,0)", "ALSA", 2, 2, 48_000.0, False, False)
_MIC = ServerDevice(1, "usb_mic", "Desk Microphone", True, bus="usb")
_SPK = ServerDevice(2, "pci_out", "Built-in Audio", False, bus="pci")
_MONITOR = ServerDevice(3, "pci_out.monitor", "Monitor of Built-in Audio", True, monitor_of="pci_out")
_VIEW = ServerView("pulseaudio", "usb_mic", "pci_out", (_MIC, _SPK, _MONITOR))
_OPENED = events.DeviceOpened(0, "usb_mic", "pci_out", 48_000, 20.0, "normal")
_LIMIT_S = 20.0


class Machine:
    """The devices of a machine, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.view: ServerView | None = _VIEW
        self.devices: Sequence[DeviceInfo] | None = (_PULSE, _CARD)
        self.lists = 0
        self.threads: set[str] = set()
        self.checked: list[tuple[CheckKind, str, str, int | None]] = []
        self.check_error: Exception | None = None
        self.may_check = threading.Event()
        self.may_check.set()
        self.saved: list[dict[str, object]] = []
        self.save_error: AgentError | None = None
        self.loaded = load_config(file=None, env={"HOME": str(folder)})
        self.sent: list[Command] = []
        self.restarted: list[Loaded] = []

    def model(self) -> Devices:
        tools = DeviceTools(self._look, self._list, self._check, self._save)
        return Devices(lambda: self.loaded, self.sent.append, self.restarted.append, tools)

    def configure(self, input_name: str, output_name: str) -> None:
        audio = self.loaded.config.audio.model_copy(update={"input": input_name, "output": output_name})
        self.loaded = replace(self.loaded, config=self.loaded.config.model_copy(update={"audio": audio}))

    def _look(self) -> ServerView | None:
        self.threads.add(threading.current_thread().name)
        return self.view

    def _list(self) -> Sequence[DeviceInfo] | None:
        self.lists += 1
        return self.devices

    def _check(self, kind: CheckKind, source: str, sink: str, rate_hz: int | None, show: Show) -> Sequence[Any]:
        self.checked.append((kind, source, sink, rate_hz))
        show("listening", -40.0)
        assert self.may_check.wait(_LIMIT_S)
        if self.check_error is not None:
            raise self.check_error
        return ["a finding"]

    def _save(self, loaded: Loaded, changes: dict[str, object]) -> Loaded:
        self.saved.append(changes)
        if self.save_error is not None:
            raise self.save_error
        audio = {key.removeprefix("audio."): value for key, value in changes.items()}
        config = loaded.config.model_copy(update={"audio": loaded.config.audio.model_copy(update=audio)})
        return replace(loaded, config=config)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _until(ready: Callable[[], bool], model: Devices, now_s: float) -> None:
    limit_s = time.monotonic() + _LIMIT_S
    while not ready():
        assert time.monotonic() < limit_s
        model.poll(now_s)
        time.sleep(0.002)


def _listed(machine: Machine, now_s: float = 0.0) -> Devices:
    model = machine.model()
    _until(lambda: model.list is not None, model, now_s)
    return model


# -- the list -----------------------------------------------------------------------------------------------


def test_what_can_be_chosen_is_the_default_then_the_servers_devices_then_portaudios(machine: Machine) -> None:
    model = _listed(machine)
    choices, index = model.choices(is_input=True)
    assert [(choice.value, choice.label, choice.detail) for choice in choices] == [
        ("", "Desk Microphone", ""),
        ("usb_mic", "Desk Microphone", ""),
        ("Intel (hw:0,0)", "Intel (hw:0,0)", "ALSA"),
    ]
    assert index == 0
    assert [choice.value for choice in model.choices(is_input=False)[0]] == ["", "pci_out", "Intel (hw:0,0)"]
    assert threading.current_thread().name not in machine.threads


@pytest.mark.parametrize(
    ("name", "value"),
    [("usb_mic", "usb_mic"), ("DESK MICROPHONE", "usb_mic"), ("desk", "usb_mic"), ("intel", "Intel (hw:0,0)")],
)
def test_a_configured_name_is_found_by_the_rules_that_open_it(machine: Machine, name: str, value: str) -> None:
    model = _listed(machine)
    machine.configure(name, "")
    choices, index = model.choices(is_input=True)
    assert (choices[index].value, choices[index].is_present) == (value, True)


@pytest.mark.parametrize("name", ["elsewhere", "pci_out.monitor2"])
def test_a_configured_device_that_is_not_there_can_be_seen(machine: Machine, name: str) -> None:
    model = _listed(machine)
    machine.configure(name, "")
    choices, index = model.choices(is_input=True)
    assert (choices[index].value, choices[index].is_present) == (name, False)
    assert index == len(choices) - 1


def test_twins_are_chosen_by_serial_number_or_port() -> None:
    twins = (
        ServerDevice(1, "usb_mic", "Microphone", True, port="usb-1", serial="A1", bus="usb"),
        ServerDevice(2, "usb_mic.2", "Microphone", True, port="usb-2", serial="A2", bus="usb"),
    )
    known = DeviceList((), ServerView("pulseaudio", "usb_mic", "", twins))
    choices = known.choices(is_input=True)
    assert [choice.value for choice in choices] == ["", "A1", "A2"]
    assert choices[2].detail == "serial A2, port usb-2"
    assert known.index_of("A2", is_input=True) == 2
    assert known.index_of("usb_mic", is_input=True) == -1  # it is the one or the other
    same = tuple(replace(twin, serial="") for twin in twins)
    known = DeviceList((), ServerView("pulseaudio", "usb_mic", "", same))
    assert [choice.value for choice in known.choices(is_input=True)] == ["", "usb-1", "usb-2"]


def test_a_name_that_several_host_apis_have_says_which() -> None:
    devices = tuple(DeviceInfo(i, "Mic", api, 1, 0, 48_000.0, i == 0, False) for i, api in enumerate(("MME", "WASAPI")))
    known = DeviceList(devices, None)
    assert [choice.value for choice in known.choices(is_input=True)] == ["", "Mic, MME", "Mic, WASAPI"]
    assert known.index_of("Mic, WASAPI", is_input=True) == 2


def test_portaudio_is_asked_again_only_when_the_server_has_other_devices(machine: Machine) -> None:
    model = _listed(machine)
    for now_s in (4.0, 8.0, 12.0):
        model.poll(now_s)
        _until(lambda: not model._lists.is_busy, model, now_s)
    assert machine.lists == 1
    machine.view = replace(_VIEW, devices=(_SPK, _MONITOR), default_input="pci_out.monitor")
    _until(lambda: machine.lists == 2, model, 16.0)
    _until(lambda: len(model.choices(is_input=True)[0]) == 2, model, 16.0)


def test_without_a_server_the_list_is_asked_for_every_few_seconds(machine: Machine) -> None:
    machine.view = None
    model = _listed(machine)
    assert [choice.value for choice in model.choices(is_input=True)[0]] == ["", "pulse", "Intel (hw:0,0)"]
    model.poll(4.0)
    _until(lambda: not model._lists.is_busy, model, 4.0)
    assert machine.lists == 1
    machine.devices = (_CARD,)
    _until(lambda: len(model.choices(is_input=True)[0]) == 2, model, 10.0)


@pytest.mark.parametrize(
    "event", [events.DeviceLost(0, "mic", "it is gone"), events.DeviceBack(0, "mic"), _OPENED], ids=lambda e: e.type
)
def test_a_loss_and_a_return_have_the_list_made_anew(machine: Machine, event: events.Event) -> None:
    model = _listed(machine)
    _until(lambda: not model._lists.is_busy, model, 0.0)
    model.take(event)
    _until(lambda: machine.lists == 2, model, 0.1)
    _until(lambda: not model._lists.is_busy, model, 0.1)


def test_a_portaudio_that_does_not_answer_is_said(machine: Machine) -> None:
    machine.devices = None
    model = _listed(machine)
    assert model.is_unanswered
    machine.devices = (_PULSE,)
    model.look_again()
    _until(lambda: not model.is_unanswered, model, 1.0)


# -- what is wrong --------------------------------------------------------------------------------------------


def test_no_signal_is_a_warning_until_it_is_back(machine: Machine) -> None:
    model = machine.model()
    model.take(events.Notice(0, "warning", NO_SIGNAL))
    assert model.has_no_signal
    model.take(events.Notice(0, "info", "something else"))
    assert model.has_no_signal
    model.take(events.Notice(0, "info", SIGNAL_BACK))
    assert not model.has_no_signal


def test_a_lost_device_is_told_until_another_is_open(machine: Machine) -> None:
    model = machine.model()
    model.take(_OPENED)
    model.take(events.Meters(0, -20.0, -30.0, -20.0, 0.0, 0.0, 0))
    assert (model.level_db, model.far_level_db) == (-20.0, -30.0)
    model.take(events.DeviceLost(0, "usb_mic", "usb_mic is gone"))
    assert model.lost is not None
    assert model.level_db == SILENCE_DB
    model.take(replace(_OPENED, input_name="other"))
    assert model.lost is None
    assert model.opened is not None
    assert model.opened.input_name == "other"


def test_a_bluetooth_headset_is_warned_of_before_it_is_taken(machine: Machine) -> None:
    headset = (
        ServerDevice(5, "bluez_input.1", "Headphones", True, bus="bluetooth", card=7),
        ServerDevice(6, "bluez_output.1", "Headphones", False, bus="bluetooth", card=7),
    )
    machine.view = replace(_VIEW, devices=(*_VIEW.devices, *headset), cards=(ServerCard(7, "a2dp-sink"),))
    model = _listed(machine)
    assert "drops it to telephone quality" in model.bluetooth_advice("bluez_input.1", "bluez_output.1")
    assert "Desk Microphone" in model.bluetooth_advice("bluez_input.1", "bluez_output.1")
    assert model.bluetooth_advice("usb_mic", "bluez_output.1") == ""
    machine.view = replace(machine.view, default_input="bluez_input.1")
    model = _listed(machine)
    advice = model.bluetooth_advice("", "bluez_output.1")
    assert advice.endswith("using Desk Microphone")  # no word about flags


# -- a choice -----------------------------------------------------------------------------------------------


def test_a_choice_is_kept_and_the_conversation_begins_with_it(machine: Machine) -> None:
    model = machine.model()
    model.apply("usb_mic", "")
    assert model.is_busy
    _until(lambda: not model.is_busy, model, 0.0)
    assert machine.saved == [{"audio.input": "usb_mic"}]  # what did not change is not written
    assert machine.restarted[0].config.audio.input == "usb_mic"
    assert (model.problem, model.outranked_by) == ("", "")


def test_nothing_new_is_nothing_to_keep(machine: Machine) -> None:
    model = machine.model()
    model.apply("", "")
    assert not model.is_busy
    assert machine.saved == []


def test_a_file_that_cannot_be_written_is_said_and_nothing_begins_anew(machine: Machine) -> None:
    machine.save_error = AgentError("Cannot write x", fix="Check the disk")
    model = machine.model()
    model.apply("usb_mic", "")
    _until(lambda: not model.is_busy, model, 0.0)
    assert model.problem == "Cannot write x. Check the disk"
    assert machine.restarted == []


def test_a_flag_that_counts_for_more_than_the_file_is_named(machine: Machine) -> None:
    model = machine.model()
    overruled = replace(machine.loaded, origins={"audio.output": "flag --set audio.output=x"})
    model._tools = replace(model._tools, save=lambda _loaded, _changes: overruled)
    model.apply("", "pci_out")
    _until(lambda: not model.is_busy, model, 0.0)
    assert model.outranked_by == "flag --set audio.output=x"


# -- a check ------------------------------------------------------------------------------------------------


def test_a_check_waits_for_the_conversation_to_end_and_begins_it_again(machine: Machine) -> None:
    machine.may_check.clear()
    model = machine.model()
    model.take(_OPENED)
    model.begin_check("pair", "usb_mic", "", 10.0)
    model.begin_check("tone", "", "", 10.0)  # one at a time
    assert machine.sent == [Quit()]
    assert (model.check.state, machine.checked) == ("stopping", [])
    model.settle(11.0)
    assert machine.checked == []
    model.take(events.SessionEnded(0, "quit"))
    _until(lambda: model.check.step == "listening", model, 11.0)
    assert machine.checked == [("pair", "usb_mic", "", None)]
    assert (model.check.state, model.check.level_db, machine.restarted) == ("running", -40.0, [])
    machine.may_check.set()
    _until(lambda: model.check.state == "done", model, 11.0)
    assert model.check.findings == ["a finding"]
    assert machine.restarted == [machine.loaded]
    assert not model.is_busy


def test_without_a_conversation_a_check_begins_at_once(machine: Machine) -> None:
    model = machine.model()
    model.begin_check("tone", "", "pci_out", 0.0)
    _until(lambda: model.check.state == "done", model, 0.0)
    assert machine.checked == [("tone", "", "pci_out", None)]


def test_a_device_that_does_not_open_is_said_and_the_conversation_begins_again(machine: Machine) -> None:
    machine.check_error = DeviceError("there is no input device", device="x", fix="Connect one")
    model = machine.model()
    model.begin_check("pair", "", "", 0.0)
    _until(lambda: model.check.state == "done", model, 0.0)
    assert model.check.problem == "there is no input device. Connect one"
    assert machine.restarted == [machine.loaded]


def test_a_conversation_that_does_not_end_is_not_waited_for_for_ever(machine: Machine) -> None:
    model = machine.model()
    model.take(_OPENED)
    model.begin_check("pair", "", "", 10.0)
    model.settle(19.0)
    assert model.check.state == "stopping"
    model.settle(21.0)
    assert model.check.is_stuck
    assert machine.checked == []
    assert not model.is_busy
