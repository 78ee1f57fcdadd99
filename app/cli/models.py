"""`vivavoce models`: the store from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.config.schema import Config
from app.errors import AgentError
from app.models.catalog import Model, load_catalog
from app.models.store import Store
from app.paths import default_store

OFFLINE_VARIABLE = "VIVAVOCE_OFFLINE"


def open_store(config: Config) -> Store:
    """The store that the configuration names (`VIVAVOCE_STORE` is one way to set `paths.store`)."""
    root = Path(config.paths.store).expanduser() if config.paths.store else default_store(os.environ)
    return Store(root, load_catalog())


def run(args: argparse.Namespace, config: Config) -> int:
    """Carry out one action; 0, or 2 where `verify` found something wrong."""
    store = open_store(config)
    if args.action == "list":
        return _list(store, as_json=args.json)
    if args.action == "fetch":
        return _fetch(store, args.names, is_offline=getattr(args, "offline", False) or is_offline(os.environ))
    if args.action == "verify":
        return _verify(store, args.names)
    if args.action == "path":
        store.resolve(args.name)
        print(store.folder(args.name))
        return 0
    freed = store.remove(args.name)
    print(f"Removed {args.name}: {freed / 1e6:.0f} MB freed.")
    return 0


def is_offline(env: Mapping[str, str]) -> bool:
    """Whether `VIVAVOCE_OFFLINE` forbids the network.

    Raises:
        AgentError: it is neither yes nor no.
    """
    text = env.get(OFFLINE_VARIABLE, "").lower()
    if text not in ("", "0", "no", "false", "off", "1", "yes", "true", "on"):
        raise AgentError(f"{OFFLINE_VARIABLE} cannot be {text!r}", fix="Allowed: 1 or 0")
    return text in ("1", "yes", "true", "on")


def _list(store: Store, *, as_json: bool) -> int:
    rows = [_row(store, model) for model in store.catalog]
    if as_json:
        print(json.dumps({"store": str(store.root), "models": rows}, indent=2))
        return 0
    print(f"Store: {store.root}")
    table = [("NAME", "ROLE", "STATE", "SIZE", "LICENCE", "LANGUAGES", "WORD TIMES"), *(_cells(row) for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    languages = ", ".join(row["languages"]) or "any"
    words = "yes" if row["word_times"] else "no"
    size = f"{row['size_bytes'] / 1e6:.0f} MB"
    return (row["name"], row["role"], row["state"], size, row["licence"], languages, words)


def _row(store: Store, model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "role": model.role,
        "state": store.state(model),
        "size_bytes": model.size_bytes,
        "licence": model.licence,
        "licence_note": model.licence_note,
        "languages": list(model.languages),
        "word_times": model.word_times,
        "starter": model.starter,
        "sources": [str(source) for source in model.sources],
    }


def _fetch(store: Store, names: list[str], *, is_offline: bool) -> int:
    from app.models.fetch import fetch  # with the network library, which is slow to import
    from app.models.progress import Progress

    models = [store.catalog[name] for name in names] if names else list(store.catalog.starters())
    try:
        fetched = fetch(store, models, env=os.environ, is_offline=is_offline, progress=Progress(sys.stdout))
    except KeyboardInterrupt:
        print("Interrupted. What was downloaded is kept: fetch again to go on from there.")
        raise
    here = len(models) - len(fetched)
    print(f"Models in {store.root}: {here} were in place, {len(fetched)} fetched.")
    return 0


def _verify(store: Store, names: list[str]) -> int:
    wanted = [store.catalog[name] for name in names]
    models = wanted or [model for model in store.catalog if store.state(model) != "missing"]
    if not models:
        print(f"There is no model in {store.root}.")
    bad = 0
    for model in models:
        problems = [state for state in store.check(model, rehash=True) if state.problem]
        print(f"{model.name}: {store.state(model)}")
        for state in problems:
            print(f"  {state.path.name} {state.problem}. Run: vivavoce models fetch {model.name}")
        bad += bool(problems)
    return 2 if bad else 0
