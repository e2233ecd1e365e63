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
# Renamed into place: writing into a module that a running process has mapped would kill it.
for module in "$build"/_native*.so; do
  cp "$module" "src/duologue/kernels/.new.so"
  mv "src/duologue/kernels/.new.so" "src/duologue/kernels/$(basename "$module")"
done
