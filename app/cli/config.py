"""`vivavoce config`: what is set, by whom, and what could be."""

from __future__ import annotations

import argparse
import json

from app.config.keys import all_keys, flatten
from app.config.load import Loaded


def run(args: argparse.Namespace, loaded: Loaded) -> int:
    """Carry out one action. A wrong configuration never gets here: loading it raised."""
    if args.action == "keys":
        for key in all_keys():
            print(f"{key.pattern}\n    {key.help}\n    Allowed: {key.allowed}")
        return 0
    if args.action == "check":
        state = "read" if loaded.user_file.is_file() else "not there, defaults apply"
        print(f"The configuration is right. User file: {loaded.user_file} ({state})")
        return 0
    values = flatten(loaded.config.model_dump())
    if args.json:
        rows = {key: {"value": value, "origin": loaded.origins.get(key, "default")} for key, value in values.items()}
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    print(f"# user file: {loaded.user_file}")
    for name, value in values.items():
        print(f"{name} = {json.dumps(value, ensure_ascii=False)}    # {loaded.origins.get(name, 'default')}")
    return 0
