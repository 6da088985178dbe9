#!/usr/bin/env bash
# Make .venv from requirements.lock. `make` calls this whenever the lock or pyproject.toml changed.
#   PYTHON=/path/to/python3   the interpreter to use (default: the first that is 3.11 or newer)
#   FRENZY_TORCH=cpu|cuda     the build of torch (default: by whether there is an NVIDIA GPU)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

find_python() {
  local name
  for name in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
  fail "no Python 3.11 or newer among: ${PYTHON:-python3 python3.11 python3.12 python3.13}.
setup: install one (Debian 12, Ubuntu 24.04 and newer: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3"
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

# Debian splits venv off Python; ensurepip is the part that is missing then.
need_venv_module() {
  "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 && return
  local package
  package="$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  say "installing the Debian package $package"
  as_root apt-get -qq update && as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$package" \
    || fail "Python's venv module is missing and could not be installed; as root: apt-get install $package"
}

make_venv() {
  local python
  python="$(find_python)"
  need_venv_module "$python"
  say "making $venv with $("$python" --version) ($python)"
  "$python" -m venv --clear "$venv"
}

started=$SECONDS
"$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || make_venv
pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)

say "installing pip and setuptools"
"${pip[@]}" "pip>=25" "$(grep -m1 '^setuptools==' requirements.lock)"
"$venv/bin/python" scripts/torch_wheel.py requirements.lock
say "installing $(grep -c '==' requirements.lock) locked packages (a few minutes the first time)"
"${pip[@]}" -r requirements.lock
"${pip[@]}" --no-deps --no-build-isolation -e .
say "ready in $((SECONDS - started)) s"
