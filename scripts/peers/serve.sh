#!/usr/bin/env bash
# Start one server for a comparison, in the foreground, on SmolLM2-135M with its prefix cache on.
#
#   scripts/peers/serve.sh duologue|llama.cpp|vllm PORT
#
#   DUOLOGUE_PEERS_DIR  where scripts/peers/llama_cpp.sh and vllm_cpu.sh installed (default: .peers)
#   MODEL               alias or GGUF file of the model (default: smollm2-135m)
#   THREADS             threads of each server (default: 2)
#   SLOTS               sequences at once, for llama.cpp (default: 4)
#   CONTEXT             longest dialogue in tokens (default: 4096)
#   KV_GIB              KV memory in GiB (default: 4)
#   BIN                 folder of the `duologue` and `python` to use (default: .venv/bin)
#
# llama.cpp serves the same weights as Q8_0, vLLM as bf16; both files are made here the first time.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
peers=${DUOLOGUE_PEERS_DIR:-$root/.peers}
model=${MODEL:-smollm2-135m}
threads=${THREADS:-2}
slots=${SLOTS:-4}
context=${CONTEXT:-4096}
kv_gib=${KV_GIB:-4}
bin=${BIN:-$root/.venv/bin}

[[ $# -eq 2 ]] || {
  sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | grep '^#' >&2
  exit 2
}
port=$2

case $1 in
duologue)
  exec "$bin/python" -m duologue serve "$model" --port "$port" --threads "$threads" --context "$context" --kv-memory "${kv_gib}GiB"
  ;;
llama.cpp)
  tools=$peers/llama.cpp/bin
  [[ -x $tools/llama-server ]] || {
    printf 'llama-server is not in %s; run scripts/peers/llama_cpp.sh\n' "$tools" >&2
    exit 1
  }
  file=$peers/$(basename "$model" .gguf)-q8_0.gguf
  [[ -f $file ]] || {
    source=$("$bin/python" -c 'import sys; from duologue.models.source import resolve; print(resolve(sys.argv[1]).path)' "$model")
    "$tools/llama-quantize" --allow-requantize "$source" "$file.partial" Q8_0 "$threads" >&2
    mv "$file.partial" "$file"
  }
  # One KV pool for all slots, and idle slots are saved to the prompt cache in memory: llama.cpp's defaults, with room for every
  # dialogue of the comparison. Flash attention on is its default for a CPU, too.
  exec "$tools/llama-server" --model "$file" --alias smollm2-135m-q8_0 --host 127.0.0.1 --port "$port" \
    --threads "$threads" --threads-batch "$threads" --parallel "$slots" --ctx-size $((slots * context)) \
    --kv-unified --cache-prompt --cache-ram $((kv_gib * 1024)) --flash-attn auto --jinja --no-ui
  ;;
vllm)
  python=$peers/vllm-venv/bin/python
  [[ -x $python ]] || {
    printf 'vLLM is not in %s; run scripts/peers/vllm_cpu.sh\n' "$peers/vllm-venv" >&2
    exit 1
  }
  folder=$peers/$(basename "$model" .gguf)-bf16
  [[ -f $folder/tokenizer_config.json ]] || "$bin/python" "$root/scripts/peers/smollm2_hf.py" "$model" "$folder"
  # Bound to all cores: vLLM would leave one to its front end. No usage statistics are sent.
  export HF_HUB_OFFLINE=1 VLLM_CPU_KVCACHE_SPACE=$kv_gib VLLM_CPU_OMP_THREADS_BIND=0-$((threads - 1)) VLLM_CPU_NUM_OF_RESERVED_CPU=0
  export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
  # vLLM asks for Intel's OpenMP, which its requirements bring, and for tcmalloc (Debian: libtcmalloc-minimal4) where there is one.
  preload=$(find "$peers/vllm-venv/lib" -name libiomp5.so -print -quit)
  tcmalloc=$(find /usr/lib -name 'libtcmalloc_minimal.so.4' -print -quit 2>/dev/null)
  export LD_PRELOAD=${tcmalloc:+$tcmalloc:}$preload
  exec "$python" -m vllm.entrypoints.openai.api_server --model "$folder" --served-model-name smollm2-135m-bf16 \
    --host 127.0.0.1 --port "$port" --dtype bfloat16 --max-model-len "$context" --enable-prefix-caching --enable-prompt-tokens-details
  ;;
*)
  printf 'unknown server %s; known are duologue, llama.cpp and vllm\n' "$1" >&2
  exit 2
  ;;
esac
