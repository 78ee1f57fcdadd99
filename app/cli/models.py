"""`vivavoce models`: the store from the command line."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from app.config.schema import Config
from app.models.catalog import Model, load_catalog
from app.models.fetch import fetch
from app.models.store import Store
from app.paths import default_store


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
        return _fetch(store, args.names, offline=args.offline)
    if args.action == "verify":
        return _verify(store, args.names)
    if args.action == "path":
        store.resolve(args.name)
        print(store.folder(args.name))
        return 0
    freed = store.remove(args.name)
    print(f"Removed {args.name}: {freed / 1e6:.0f} MB freed.")
    return 0


def _list(store: Store, *, as_json: bool) -> int:
    rows = [_row(store, model) for model in store.catalog]
    if as_json:
        print(json.dumps({"store": str(store.root), "models": rows}, indent=2))
        return 0
    print(f"Store: {store.root}")
    for row in rows:
        words = "word times" if row["word_times"] else ""
        facts = (row["role"], f"{row['size_bytes'] / 1e6:.0f} MB", row["licence"], ",".join(row["languages"]), words)
        print(f"  {row['name']:<20}{row['state']:<10}{'  '.join(fact for fact in facts if fact)}")
    return 0


def _row(store: Store, model: Model) -> dict[str, Any]:
    problems = [state.problem for state in store.check(model) if state.problem]
    state = "ready" if not problems else "absent" if all(p == "is missing" for p in problems) else "damaged"
    return {
        "name": model.name,
        "role": model.role,
        "state": state,
        "size_bytes": model.size_bytes,
        "licence": model.licence,
        "licence_note": model.licence_note,
        "languages": list(model.languages),
        "word_times": model.word_times,
        "starter": model.starter,
        "source": model.source.requirement,
    }


def _fetch(store: Store, names: list[str], *, offline: bool) -> int:
    models = [store.catalog[name] for name in names] if names else list(store.catalog.starters())
    fetched = fetch(store, models, offline=offline, say=lambda line: print(line, flush=True))
    here = len(models) - len(fetched)
    print(f"Models in {store.root}: {here} were in place, {len(fetched)} fetched.")
    return 0


def _verify(store: Store, names: list[str]) -> int:
    models = [store.catalog[name] for name in names] if names else list(store.catalog)
    bad = 0
    for model in models:
        if not names and not store.folder(model.name).is_dir():
            continue
        problems = [state for state in store.check(model, rehash=True) if state.problem]
        print(f"{model.name}: {'damaged' if problems else 'ready'}")
        for state in problems:
            print(f"  {state.path.name} {state.problem}. Run: vivavoce models fetch {model.name}")
        bad += bool(problems)
    return 2 if bad else 0
