"""The KV cache: a pool of reference-counted pages under a byte budget."""
