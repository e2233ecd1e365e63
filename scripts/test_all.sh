#!/usr/bin/env bash
# Every test that `make test` leaves out, each in an environment of its own:
#
#   check      lint, formatting, types
#   warnings   the C++ compiled by gcc and clang with -Wall -Wextra -Werror
#   emulated   the AVX-512 kernels through SIMDe's portable emulation, compared with the others
#   qemu       the kernels on an emulated CPU without AVX-512
#   sanitize   kernels, prefix index and engine under the address and undefined-behaviour sanitizers
#   torch      against transformers, on tiny random instances
#   peers      against llama.cpp, built from the llama-cpp-python source distribution
#   browser    the chat page in headless Chromium
#   clients    schemathesis, openai (Python and Node), litellm, LangChain and llm against a running server
#   residency  1 % of scripts/prove_residency.py: twenty dialogues of 9,600 tokens
#
# The peers' tests fetch Gemma 3 270M, whose terms (https://ai.google.dev/gemma/terms) have to be accepted once:
# DUOLOGUE_ACCEPT_TERMS=gemma.
#
# Names on the command line choose some of them. Debian packages that are missing are installed when run as root.
# An environment that cannot be set up fails; nothing is skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
BIN=${VENV:-.venv}/bin

step() { printf '\n== %s ==\n' "$1"; }

need() {  # need COMMAND_OR_HEADER PACKAGE...
  local thing=$1
  shift
  if command -v "$thing" >/dev/null || [[ -e $thing ]]; then return; fi
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    printf 'test_all: %s is missing; install the package %s\n' "$thing" "$*" >&2
    exit 1
  fi
  [[ -n ${apt_updated:-} ]] || { apt-get update -qq && apt_updated=1; }
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  command -v "$thing" >/dev/null || [[ -e $thing ]]
}

# An environment with the package built by the given cmake definitions.
environment() {  # environment FOLDER [cmake.define...]
  local folder=$1 settings=()
  shift
  for definition in "$@"; do settings+=(--config-settings "$definition"); done
  [[ -x $folder/bin/python ]] || "$PYTHON" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet "scikit-build-core>=0.10" "nanobind>=2.2" ninja "cmake>=3.18"
  # Installed apart from the sources: pip would keep an older build of the same version.
  "$folder/bin/python" -m pip uninstall --quiet --yes duologue 2>/dev/null || true
  "$folder/bin/python" -m pip install --quiet --no-build-isolation "${settings[@]}" --config-settings "build-dir=build/$(basename "$folder")" ".[test]"
}

run_check() {
  "$BIN/ruff" check src tests scripts
  "$BIN/ruff" format --check src tests scripts
  "$BIN/mypy"
}

run_warnings() {
  need clang++ clang
  local nanobind_dir compiler
  nanobind_dir=$("$BIN/python" -m nanobind --cmake_dir)
  for compiler in g++ clang++; do
    "$BIN/cmake" -S . -B "build/warnings-$compiler" -DCMAKE_CXX_COMPILER="$compiler" -DDUOLOGUE_WERROR=ON \
      -DPython_EXECUTABLE="$PWD/$BIN/python" -Dnanobind_DIR="$nanobind_dir" >/dev/null
    "$BIN/cmake" --build "build/warnings-$compiler" -j "$(nproc)"
  done
}

run_emulated() {
  need /usr/include/simde/x86/avx512.h libsimde-dev
  environment .venv-emulated cmake.define.DUOLOGUE_SIMDE=ON
  # The suite must not pass because the emulated kernels are missing.
  .venv-emulated/bin/python -c 'from duologue.kernels import isa_name; assert isa_name("avx512vnni") == "avx512vnni"'
  .venv-emulated/bin/python -m pytest tests/kernels
}

run_qemu() {
  need qemu-x86_64 qemu-user
  local packages line
  packages=$("$BIN/python" -c 'import site; print(site.getsitepackages()[0])')
  # The venv's python is a link to this one, which qemu runs without the venv. An editable install is found through a .pth
  # file, which is read in folders added this way and not in those of PYTHONPATH.
  line=$(OPENBLAS_NUM_THREADS=1 timeout 600 qemu-x86_64 -cpu Haswell "$(readlink -f "$BIN/python")" -c \
    "import site, runpy; site.addsitedir('$packages'); runpy.run_path('scripts/check_kernels.py', run_name='__main__')")
  printf '%s\n' "$line"
  # qemu's Haswell has AVX2 and no AVX-512; the run-time choice must see that.
  [[ $line == *"chosen here: avx2" ]]
}

run_sanitize() {
  environment .venv-sanitize cmake.define.DUOLOGUE_SANITIZE=ON
  # Python itself leaks by design; everything else that the sanitizers find aborts the run. The deselected test limits the
  # address space, of which the address sanitizer needs terabytes; SmolLM2 would take many minutes.
  ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 LD_PRELOAD="$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libubsan.so)" \
    .venv-sanitize/bin/python -m pytest tests/kernels tests/cache tests/engine/test_exactness.py tests/engine/test_cache_exactness.py \
    -k "not smollm2" \
    --deselect tests/kernels/test_step.py::test_threads_that_cannot_be_started_are_an_error_and_leave_none_behind
}

run_torch() {
  [[ -x .venv-torch/bin/python ]] || "$PYTHON" -m venv .venv-torch
  .venv-torch/bin/python -m pip install --quiet "torch==2.13.0"
  environment .venv-torch
  .venv-torch/bin/python -m pip install --quiet "transformers>=5"
  .venv-torch/bin/python -m pytest -m torch
}

run_peers() {
  need cmake cmake
  eval "$(scripts/peers/llama_cpp.sh | grep '^export')"
  "$BIN/python" -m pytest -m peers
}

run_browser() {
  need chromium chromium
  "$BIN/python" -m pytest -m browser
}

run_clients() {
  need node nodejs
  need npm npm
  environment .venv-clients
  .venv-clients/bin/python -m pip install --quiet schemathesis litellm langchain-openai llm
  # The last major of the Node client that supports Node 20.
  npm install --silent --no-audit --no-fund --prefix .venv-clients/node openai@6
  NODE_PATH=.venv-clients/node/node_modules .venv-clients/bin/python -m pytest -m clients
}

run_residency() {
  "$BIN/python" scripts/prove_residency.py --dialogues 20 --kv-memory 124MiB
}

[[ $# -gt 0 ]] || set -- check warnings emulated qemu sanitize torch peers browser clients residency
for name in "$@"; do
  step "$name"
  "run_$name"
done
