#!/usr/bin/env bash
# Write requirements.lock from a fresh resolution of pyproject.toml, in a throw-away environment.
# torch is installed first in its CPU build, and recorded without its local version label.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
python="$work/venv/bin/python"
"$python" -m pip --disable-pip-version-check install --quiet --upgrade pip setuptools
sed -n 's/.*"\(torch==[0-9.]*\)".*/\1/p' pyproject.toml > "$work/torch.txt"
FRENZY_TORCH=cpu "$python" scripts/torch_wheel.py "$work/torch.txt"
"$python" -m pip --disable-pip-version-check install --quiet ".[dev]"
"$python" -m pip check
"$python" scripts/freeze.py > "$work/requirements.lock"
mv "$work/requirements.lock" requirements.lock
"$python" scripts/image_locks.py
echo "requirements.lock: $(grep -c '==' requirements.lock) packages"
