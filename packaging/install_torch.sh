#!/usr/bin/env bash
# Installs torch:  install_torch.sh PYTHON VERSION CPU_INDEX
# With an NVIDIA GPU: the default build of the user's package index (CUDA inside). Without: the much smaller CPU build
# from CPU_INDEX if that answers, else whatever the user's pip configuration gives for the version.
set -euo pipefail
python=$1 version=$2 index=$3
pip=("$python" -m pip install --quiet --disable-pip-version-check)

has_gpu() {
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }
}

answers() {
    "$python" - "$1/torch/" <<'PY' 2>/dev/null
import sys, urllib.request
urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=4)
PY
}

if "$python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '$version')" 2>/dev/null; then
    echo "torch $version is installed."
elif has_gpu; then
    echo "NVIDIA GPU found: installing torch $version with CUDA (about 3 GB to download, 6 GB on disk)."
    "${pip[@]}" "torch==$version"
elif answers "$index"; then
    echo "No NVIDIA GPU found: installing the CPU build of torch $version (about 0.2 GB to download)."
    "${pip[@]}" --index-url "$index" "torch==$version"
else
    echo "No NVIDIA GPU found, and the index of CPU builds ($index) does not answer: installing torch $version as pip finds it" \
         "(about 0.2 GB to download if that is a CPU build, 3 GB if not)."
    "${pip[@]}" "torch==$version"
fi
"$python" -c 'import torch' || { echo "torch was installed but cannot be imported. Try: make clean, then again." >&2; exit 2; }
