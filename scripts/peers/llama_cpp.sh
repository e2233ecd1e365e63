#!/usr/bin/env bash
# Build the llama.cpp peer that benchmarks are compared with and tokenizer golden data comes from.
#
# Both come from one archive, the llama-cpp-python source distribution: the llama.cpp it vendors is built
# natively, and the Python package is installed over those same libraries, so that a speed and a token id
# in our documents always speak of the same revision. A second call does nothing but print the settings.
#
#   DUOLOGUE_PEERS_DIR   where to build (default: .peers in the repository root, ignored by git)
#   DUOLOGUE_PEERS_JOBS  compile jobs (default: 2, as a full-width build can exhaust a small machine's memory)
#   PYTHON               interpreter for the peer's own environment (default: python3)
#
# Needs: cmake 3.21+, a C++17 compiler, Python 3.10+ with venv and pip, and about 1 GB of disk.
set -euo pipefail

version=0.3.36
sdist_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
tools=(llama-bench llama-batched-bench llama-quantize llama-tokenize llama-perplexity llama-server)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "${DUOLOGUE_PEERS_DIR:-$root/.peers}"
peers=$(cd "${DUOLOGUE_PEERS_DIR:-$root/.peers}" && pwd)
jobs=${DUOLOGUE_PEERS_JOBS:-2}
python=${PYTHON:-python3}

sdist=$peers/llama_cpp_python-$version.tar.gz
source_dir=$peers/llama_cpp_python-$version
build=$peers/llama.cpp
venv=$peers/venv
log=$peers/llama.cpp-build.log

fail() {
  printf 'llama.cpp peer: %s\n' "$1" >&2
  exit 1
}

print_settings() {
  printf 'export DUOLOGUE_PEERS_DIR=%q\n' "$peers"
  printf 'export LLAMA_CPP_LIB_PATH=%q\n' "$build/bin"
  printf '# tools:  %s\n# python: %s\n' "$build/bin" "$venv/bin/python"
}

# The stamp names everything that decides the result, so a new version, compiler or processor rebuilds.
identity="$version $sdist_sha256 ${tools[*]} $(${CXX:-c++} --version | head -n 1) \
$(grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null | sha256sum | cut -c 1-16)"
stamp=$peers/llama.cpp.stamp
if [[ -f $stamp && $(<"$stamp") == "$identity" ]]; then
  print_settings
  exit 0
fi

exec 9>"$peers/.llama_cpp.lock"
if command -v flock >/dev/null; then
  flock 9
fi
rm -f "$stamp"

command -v cmake >/dev/null || fail 'cmake is missing; install cmake 3.21 or newer'
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"

if ! sha256sum --check --status <<<"$sdist_sha256  $sdist" 2>/dev/null; then
  # Only this package from source: its build requirements may come as wheels. pip reads the metadata
  # through the build backend, which compiles nothing.
  "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    --dest "$peers" "llama-cpp-python==$version"
  sha256sum --check --status <<<"$sdist_sha256  $sdist" ||
    fail "$sdist does not have the expected SHA-256 $sdist_sha256; delete it and run again"
fi
[[ -f $source_dir/.unpacked ]] || {
  rm -rf "$source_dir"
  tar -xzf "$sdist" -C "$peers"
  touch "$source_dir/.unpacked"
}

printf 'building llama.cpp in %s (log: %s)\n' "$build" "$log" >&2
# Release, native and OpenMP are llama.cpp's own defaults on Linux, spelled out since a comparison rests on
# them. The web page is off because it would be fetched from the network during the build. TLS and tests are
# off because nothing here uses them.
cmake -S "$source_dir/vendor/llama.cpp" -B "$build" \
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON \
  -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_LLAMAFILE=ON -DGGML_CPU_REPACK=ON -DGGML_CCACHE=OFF \
  -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
  >"$log" 2>&1 || fail "configuring failed; see $log"
cmake --build "$build" --parallel "$jobs" --target "${tools[@]}" >>"$log" 2>&1 ||
  fail "compiling failed; see $log"

# The Python package without its own copy of llama.cpp: it finds ours through LLAMA_CPP_LIB_PATH. Its build
# writes into its source folder, hence from the unpacked tree and not from the archive.
CMAKE_ARGS='-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF' \
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$source_dir" >>"$log" 2>&1 ||
  fail "installing the Python package failed; see $log"
LLAMA_CPP_LIB_PATH=$build/bin "$venv/bin/python" -c \
  "import llama_cpp; assert llama_cpp.__version__ == '$version', llama_cpp.__version__" ||
  fail 'the Python package does not load the built libraries'

printf '%s' "$identity" >"$stamp"
print_settings
