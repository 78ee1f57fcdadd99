#!/usr/bin/env bash
# Creates the virtual environment with the first Python that fits:  make_venv.sh FOLDER [PYTHON]
set -euo pipefail
folder=$1 wanted=${2:-}

fits() { # a Python of a version that we support, able to make virtual environments
    command -v "$1" >/dev/null && "$1" -c '
import sys
import ensurepip, venv
sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

for python in ${wanted:-python3.12 python3.11 python3 python3.13}; do
    if fits "$python"; then
        echo "Creating $folder with $("$python" --version) ($(command -v "$python"))."
        "$python" -m venv --clear "$folder"
        exit 0
    fi
done
echo "No usable Python: vivavoce needs Python 3.11 or 3.12 (3.13 works without noise suppression) with its venv module." >&2
if command -v apt-get >/dev/null; then
    echo "Please run: sudo apt-get install python3 python3-venv   (or name one: make run PYTHON=/path/to/python3.12)" >&2
else
    echo "Install one, or name it: make run PYTHON=/path/to/python3.12" >&2
fi
exit 2
