"""Entry point: parses the command line, loads the configuration, hands over to a command, turns errors to sentences.

Imports nothing heavy: `--version` and `--help` answer at once and start no second process.
"""

from __future__ import annotations

import argparse
import errno
import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from app.crash import describe_crash, outside_fault
from app.errors import AgentError
from app.version import VERSION

if TYPE_CHECKING:
    from app.bench.ui import WindowArm
    from app.config.load import Loaded

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BUG = 1

Command = Callable[[argparse.Namespace, "Loaded"], int]


def main(argv: Sequence[str] | None = None, *, talk: Command | None = None, window: WindowArm | None = None) -> int:
    """Run one command and return the exit code. `talk` is who talks where no command is given (None: the terminal).

    `window` is how `bench ui` talks in a window; the command line knows of none itself.

    0 done, 1 our bug, 2 bad input or something missing, 3 it does not fit into memory, 130 Ctrl-C.
    """
    multiprocessing.freeze_support()
    _prepare_streams()
    try:
        return _parse_and_run(argv, talk, window)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `vivavoce ... | head`: nobody reads on
        _drop_output()
        return 0
    except Exception as error:
        return _report(error)


def _parse_and_run(argv: Sequence[str] | None, talk: Command | None, window: WindowArm | None) -> int:
    try:
        return _run(build_parser(talk, window).parse_args(argv))
    finally:
        _flush_output()


def _prepare_streams() -> None:
    """Standard streams that were closed lead to nowhere: the next file to be opened must not take their place."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows another


def _flush_output() -> None:
    """What is in the buffer must be out before Python exits: it would only complain, with an exit code of its own.

    Raises:
        AgentError: the disk behind it is full. A terminal that was closed is no error.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        if error.errno != errno.EIO:
            fix = "Free some disk space, or write elsewhere"
            raise AgentError(f"the standard output cannot be written: {error.strerror}", fix=fix) from None


def _drop_output() -> None:
    """Python flushes once more while it exits: into nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser(talk: Command | None = None, window: WindowArm | None = None) -> argparse.ArgumentParser:
    """The whole command line. Without a sub-command it is the conversation."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--config", type=Path, metavar="FILE", help="configuration file instead of the user's own")
    common.add_argument("--set", action=_Collect, dest="overrides", metavar="KEY=VALUE",
                        help="set one configuration key, as in --set llm.seed=7; may be repeated")  # fmt: skip
    parser = argparse.ArgumentParser(prog="vivavoce", parents=[common], allow_abbrev=False,
                                     description="A voice agent that runs on your own machine.",
                                     epilog="Without a command: talk.")  # fmt: skip
    # Not `config`: set_defaults would change the option that the sub-parsers share, and they would reset it.
    parser.set_defaults(command=talk or talk_in_terminal)
    parser.add_argument("--version", action="version", version=f"vivavoce {VERSION}")
    _add_talk_flags(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_devices(commands, common)
    _add_simple_commands(commands, common)
    _add_models(commands, common)
    _add_plan(commands, common)
    _add_config(commands, common)
    _add_bench_and_replay(commands, common, window)
    return parser


class _Collect(argparse.Action):
    """Gathers values on every level of sub-commands in one list (`append` forgets those before a sub-command)."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, **options)
        self._values: list[str] = []

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        self._values.append(values)
        setattr(namespace, self.dest, self._values)


def _add_talk_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--no-ui", action="store_true", help="talk in the terminal even where there is a screen")
    add("--input", type=Path, metavar="WAV", help="take the user's voice from a file instead of the microphone")
    add("--output", type=Path, metavar="WAV", help="write what the loudspeaker plays to a file")
    add("--events", type=Path, metavar="JSONL", help="write every event, one JSON object a line")
    add("--fast", action="store_true", help="with --input: do not wait for the clock")
    add("--cost",
        metavar="fixed|fixed:FILE|measured|zero", type=_cost,
        help="what the models' work costs on the sample clock (default with --fast: fixed)")  # fmt: skip
    add("--seed", type=_seed, metavar="N", help="start of the random choices; the same as --set llm.seed=N")
    add("--persona", metavar="NAME", help="who speaks; the same as --set persona=NAME")
    add("--input-device", metavar="NAME", help="microphone; the same as --set audio.input=NAME")
    add("--output-device", metavar="NAME", help="loudspeaker; the same as --set audio.output=NAME")
    add("--journal", type=Path, metavar="PATH", help="where the conversation is kept")
    add("--resume", action="store_true", help="go on with the conversation in the journal")
    add("--record", type=Path, metavar="DIR", help="keep microphone, loudspeaker and events in a folder")
    add("--in-process", action="store_true",
        help="the scripted user on the simulated device, all in one process, for debugging")  # fmt: skip
    add("--simulate", action="store_true", help="a simulated sound device instead of a real one")


# What add_subparsers returns has no public name.
_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_simple_commands(commands: _Commands, common: argparse.ArgumentParser) -> None:
    text = "what was found, what is missing, and the fix for each"
    parser = commands.add_parser("doctor", parents=[common], help=text, description=text)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    parser.add_argument("--quick", action="store_true", help="do not measure how fast the models run")
    parser.set_defaults(command=_doctor)
    text = "show the log of the last conversation"
    log = commands.add_parser("log", parents=[common], help=text, description=text)
    which = log.add_mutually_exclusive_group()
    which.add_argument("--last", action="store_const", const="", dest="session", help="the last one (the default)")
    which.add_argument("--session", metavar="ID", default="", help="another one, by its id or the beginning of it")
    log.set_defaults(command=_log)


def _add_devices(commands: _Commands, common: argparse.ArgumentParser) -> None:
    text = "list microphones and loudspeakers, or test a pair of them (devices test)"
    parser = commands.add_parser("devices", parents=[common], help=text, description=text)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    parser.set_defaults(command=_devices, action="list")
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION")
    text = "hear the microphone, play a test tone, and measure the echo from the loudspeaker to the microphone"
    test = actions.add_parser("test", parents=[common], help=text, description=text,
                              argument_default=argparse.SUPPRESS)  # fmt: skip
    test.add_argument("--input", dest="input_device", metavar="NAME", help="microphone (default: as configured)")
    test.add_argument("--output", dest="output_device", metavar="NAME", help="loudspeaker (default: as configured)")
    test.add_argument("--json", action="store_true", help="one JSON document instead of text")


def _add_models(commands: _Commands, common: argparse.ArgumentParser) -> None:
    text = "list, fetch, verify, locate and remove models"
    offline = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    offline.add_argument("--offline", action="store_true",
                         help="fail where the network is needed; the same as VIVAVOCE_OFFLINE=1")  # fmt: skip
    parents = [common, offline]
    parser = commands.add_parser("models", parents=parents, help=text, description=text)
    parser.set_defaults(command=_models)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", parents=parents, help="every model of the catalog and its state")
    listing.add_argument("--json", action="store_true", help="one JSON document instead of text")
    fetching = actions.add_parser("fetch", parents=parents, help="bring models into the store")
    fetching.add_argument("names", nargs="*", metavar="NAME", help="default: the starter set")
    verifying = actions.add_parser("verify", parents=parents, help="read every byte again and compare the SHA-256")
    verifying.add_argument("names", nargs="*", metavar="NAME", help="default: what is in the store")
    for action, help_text in (("path", "print the folder of a model"), ("remove", "delete a model from the store")):
        one = actions.add_parser(action, parents=parents, help=help_text)
        one.add_argument("name", metavar="NAME")


def _add_plan(commands: _Commands, common: argparse.ArgumentParser) -> None:
    text = "whether a model fits into the memory that is free now, before anything loads"
    plan = commands.add_parser("plan", parents=[common], help=text, description=text)
    plan.add_argument("--model", metavar="NAME|PATH", help="language model (default: as configured)")
    plan.add_argument("--sessions", type=_count, default=1, metavar="N", help="conversations at once (default: 1)")
    plan.add_argument("--context", type=_tokens, metavar="TOKENS", help="window of each (default: llm.context_tokens)")
    plan.add_argument("--gpu-memory", type=_size_bytes, metavar="SIZE",
        help="pretend a GPU with so much free memory, as in 8GiB")  # fmt: skip
    plan.add_argument("--json", action="store_true", help="one JSON document instead of text")
    plan.set_defaults(command=_plan)


def _add_config(commands: _Commands, common: argparse.ArgumentParser) -> None:
    text = "show, check and explain the configuration"
    parser = commands.add_parser("config", parents=[common], help=text, description=text)
    parser.set_defaults(command=_config, json=False)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", parents=[common], help="every value and where it came from")
    show.add_argument("--json", action="store_true", help="one JSON document instead of text")
    actions.add_parser("check", parents=[common], help="say whether the configuration is right")
    actions.add_parser("keys", parents=[common], help="every key: what it is for, what is allowed")


def _add_bench_and_replay(commands: _Commands, common: argparse.ArgumentParser, window: WindowArm | None) -> None:
    text = "measure this machine, or check the committed documents (bench check)"
    bench = commands.add_parser("bench", parents=[common], help=text, description=text)
    bench.add_argument("name", metavar="NAME", help="talk, costs, audio, soak, kv, ui, check, ...")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the document to a file as well")
    bench.add_argument("--seed", type=_seed, default=0, metavar="N", help="start of the random choices (default: 0)")
    bench.add_argument("--turns", type=int, default=20, metavar="N", help="length of the run in turns (default: 20)")
    bench.add_argument("--seconds", type=_seconds, default=30.0, metavar="S",
        help="bench audio: seconds of tone in each arm (default: 30)")  # fmt: skip
    bench.add_argument("--monitor", default="", metavar="SOURCE",
        help="bench audio: the sound server's source that carries the loudspeaker, as in spk.monitor "
             "(default: the microphone must hear it)")  # fmt: skip
    bench.add_argument("--hours", type=_hours, default=1.0, metavar="H",
        help="bench soak: hours of conversation, faster than real time (default: 1)")  # fmt: skip
    bench.add_argument("--sessions", type=_count, default=200, metavar="N",
        help="bench soak: conversations that are opened and closed (default: 200)")  # fmt: skip
    bench.add_argument("--kills", type=_count_or_none, default=10, metavar="N",
        help="bench soak: kill -9 of each process, in real time, 40 s each (default: 10; 0: none)")  # fmt: skip
    bench.add_argument("--table", type=Path, metavar="FILE", help="bench costs: write the cost table to a file")
    bench.set_defaults(command=partial(_bench, window))
    text = "run a recorded log and its input again to the same decisions and the same audio"
    replay = commands.add_parser("replay", parents=[common], help=text, description=text)
    replay.add_argument("--events", type=Path, required=True, metavar="JSONL", help="the log")
    replay.add_argument("--input", type=Path, required=True, metavar="WAV", help="what the microphone heard")
    replay.add_argument("--output", type=Path, metavar="WAV", help="write the agent's audio to a file")
    replay.set_defaults(command=_replay)


def _cost(text: str) -> str:
    if text in ("fixed", "measured", "zero") or (text.startswith("fixed:") and len(text) > len("fixed:")):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of fixed, fixed:FILE, measured, zero")


def _seed(text: str) -> int:
    if text.isdecimal() and int(text) < 2**31:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {2**31 - 1}")


def _tokens(text: str) -> int:
    if text.isdecimal() and 256 <= int(text) <= 131_072:  # as llm.context_tokens
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number of tokens from 256 to 131072")


def _size_bytes(text: str) -> int:
    from app.cli.plan import size_bytes

    return size_bytes(text)


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if 0.01 <= hours <= 1000:
        return hours
    raise argparse.ArgumentTypeError(f"{text!r} is no number of hours from 0.01 to 1000")


def _count(text: str) -> int:
    if text.isdecimal() and 0 < int(text) <= 100_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 100000")


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _seconds(text: str) -> float:
    if text.isdecimal() and 1 <= int(text) <= 86_400:
        return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number of seconds from 1 to 86400")


def _run(args: argparse.Namespace) -> int:
    from app.config.load import load_config

    overrides = [*getattr(args, "overrides", []), *_shorthands(args)]
    loaded = load_config(file=getattr(args, "config", None), env=os.environ, overrides=overrides)
    command: Command = args.command
    return command(args, loaded)


def _shorthands(args: argparse.Namespace) -> list[str]:
    """Flags that stand for a configuration key; they win over --set."""
    pairs = (("seed", "llm.seed"), ("persona", "persona"), ("input_device", "audio.input"),
             ("output_device", "audio.output"))  # fmt: skip
    given = ((key, getattr(args, flag, None)) for flag, key in pairs)
    return [f"{key}={value}" for key, value in given if value is not None]


def talk_in_terminal(args: argparse.Namespace, loaded: Loaded) -> int:
    """The conversation with the terminal as its face."""
    from app.cli.talk import run

    return run(args, loaded.config)


def _replay(args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.replay import run

    return run(args, loaded.config)


def _bench(window: WindowArm | None, args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.bench import run

    return run(args, loaded.config, window)


def _devices(args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.devices import run

    return run(args, loaded.config)


def _doctor(args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.doctor import run

    return run(args, loaded)


def _log(args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.log import run

    return run(args, loaded.config)


def _models(args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.models import run

    return run(args, loaded.config)


def _plan(args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.plan import run

    return run(args, loaded.config)


def _config(args: argparse.Namespace, loaded: Loaded) -> int:
    from app.cli.config import run

    return run(args, loaded)


def _report(error: Exception) -> int:
    """One sentence for the user. What nobody raised on purpose is a bug: its traceback goes to the log."""
    from audio.errors import AudioError
    from gpu.errors import GpuError

    known = error if isinstance(error, AgentError | AudioError | GpuError) else outside_fault(error)
    with suppress(OSError):  # nobody may be there to read it
        print(f"vivavoce: {known or describe_crash(error)}", file=sys.stderr, flush=True)
    return EXIT_BUG if known is None else getattr(known, "exit_code", EXIT_USAGE)


if __name__ == "__main__":
    sys.exit(main())
