#!/bin/sh
# Build the native module in place for development: scripts/build_native.sh [PYTHON] [BUILD_DIR] [extra cmake -D options...]
# The module lands beside the Python sources (git ignores it), so that PYTHONPATH=src runs this checkout.
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
build=${2:-build/dev}
[ $# -ge 1 ] && shift
[ $# -ge 1 ] && shift
cmake -S . -B "$build" -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" "$@" > "${TMPDIR:-/tmp}/duologue-cmake.log" ||
  { cat "${TMPDIR:-/tmp}/duologue-cmake.log"; exit 1; }
cmake --build "$build" -j "$(nproc)"
cp "$build"/_native*.so src/duologue/kernels/
