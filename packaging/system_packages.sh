#!/usr/bin/env bash
# Makes sure that Debian or Ubuntu packages are installed. Does nothing, and needs no network, where they are.
#   system_packages.sh "ESSENTIAL..." ["TOOLS..." ["SOUND SERVERS..."]]
# As root, or with sudo that asks no password, it installs what is missing. Otherwise it prints the line to run, and
# stops with exit code 2 if something essential is missing; without the others, the tests that need them are skipped.
# Never pipewire-alsa: it removes pulseaudio.
set -euo pipefail
read -ra essential <<<"${1:-}"
read -ra optional <<<"${2:-}"
read -ra servers <<<"${3:-}"

if ! command -v dpkg >/dev/null || ! command -v apt-get >/dev/null; then
    if ! ldconfig -p 2>/dev/null | grep -q 'libportaudio\.so\.2'; then
        echo "This is not Debian or Ubuntu, so please install by hand: PortAudio (libportaudio.so.2), the ALSA plugin for" \
             "PulseAudio/PipeWire (libasound_module_pcm_pulse.so) and Python 3.11 or 3.12 with its venv module. Then try again." >&2
        exit 2
    fi
    exit 0
fi

is_installed() { dpkg -s "$1" 2>/dev/null | grep -q '^Status: install ok installed'; }

missing() { # the packages of the list that are not installed, one a line
    local package
    for package in "$@"; do
        is_installed "$package" || echo "$package"
    done
}

# A second sound server beside the one of a running desktop would fight with it, so there we leave things alone.
# (In containers and on CI machines, where no systemd runs, there is nothing to disturb.)
is_desktop() {
    [ -d /run/systemd/system ] && [ -z "${CI:-}" ] && { is_installed pulseaudio || is_installed pipewire-pulse; }
}
is_desktop || optional+=("${servers[@]}")

mapfile -t essential < <(missing "${essential[@]}")
mapfile -t optional < <(missing "${optional[@]}")
[ "$((${#essential[@]} + ${#optional[@]}))" = 0 ] && exit 0

apt=(apt-get install --yes --no-install-recommends)
without_them() { # what it means to go on
    [ "${#essential[@]}" = 0 ] || exit 2
    echo "Going on without: the tests that need them are skipped." >&2
}

if [ "$(id -u)" = 0 ]; then
    as_root=(env DEBIAN_FRONTEND=noninteractive)
elif sudo -n true 2>/dev/null; then
    as_root=(sudo -n env DEBIAN_FRONTEND=noninteractive)
else
    echo "Missing system packages. Please run this line, then try again:" >&2
    echo "    sudo apt-get update && sudo ${apt[*]} ${essential[*]} ${optional[*]}" >&2
    without_them
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    [ $# = 0 ] && return
    echo "Installing system packages: $*"
    "${as_root[@]}" "${apt[@]}" "$@" >"$log" 2>&1 && return
    tail -n 20 "$log" >&2
    echo "apt-get could not install them (its last lines are above)." >&2
    return 1
}
"${as_root[@]}" apt-get update -qq || echo "apt-get update failed; trying with the package lists that are here." >&2
install "${essential[@]}" || exit 2
essential=()
install "${optional[@]}" || without_them
