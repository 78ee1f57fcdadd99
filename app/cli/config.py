"""`vivavoce config`: what is set, by whom, and what could be."""

from __future__ import annotations

import argparse
import json
import os

from app.cli.checks.models import configured
from app.cli.models import open_store
from app.cli.targets import check_folder
from app.config.keys import all_keys, flatten
from app.config.load import Loaded, unread_variables
from app.engine.builder import places
from app.errors import AgentError, ModelStoreError
from app.models.own import choose, engine_of, is_path


def run(args: argparse.Namespace, loaded: Loaded) -> int:
    """Carry out one action; 2 where `check` finds what cannot work. What is no configuration at all never gets here."""
    if args.action == "keys":
        for key in all_keys():
            print(f"{key.pattern}\n    {key.help}\n    Allowed: {key.allowed}")
        return 0
    if args.action == "check":
        return _check(loaded)
    values = flatten(loaded.config.model_dump())
    if args.json:
        rows = {key: {"value": value, "origin": loaded.origins.get(key, "default")} for key, value in values.items()}
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    print(f"# user file: {loaded.user_file}")
    for name, value in values.items():
        print(f"{name} = {json.dumps(value, ensure_ascii=False)}    # {loaded.origins.get(name, 'default')}")
    return 0


def _check(loaded: Loaded) -> int:
    """Say what in it names something that does not exist or cannot be used."""
    for remark in unread_variables(os.environ):
        print(f"note: {remark}")
    problems = [*_models(loaded), *_folders(loaded)]
    for problem in problems:
        print(f"wrong: {problem}")
    state = "read" if loaded.has_user_file else "not there, defaults apply"
    verdict = "cannot work" if problems else "is right"
    print(f"The configuration {verdict}. User file: {loaded.user_file} ({state})")
    return 2 if problems else 0


def _models(loaded: Loaded) -> list[str]:
    """What cannot be a model of its role. One of the catalog that is not yet in the store is only noted."""
    store, problems = open_store(loaded.config), []
    for role, name in configured(loaded.config).items():
        try:
            engine_of(name, role, store.catalog)
            choose(name, role, store)
        except ModelStoreError as error:
            model = None if is_path(name, store.catalog) else next((m for m in store.catalog if m.name == name), None)
            if model is not None and model.role == role:
                print(f"note: {error}")
            else:
                problems.append(f"the model for {role}: {error}")
    return problems


def _folders(loaded: Loaded) -> list[str]:
    """Folders that cannot be written; a store may be read-only, but it must be a folder."""
    problems = []
    try:
        check_folder(places(loaded.config, os.environ).data)
    except AgentError as error:
        problems.append(f"paths.data: {error}")
    root = open_store(loaded.config).root
    if root.exists() and not root.is_dir():
        problems.append(f"paths.store: {root} is no folder. Name another")
    return problems
