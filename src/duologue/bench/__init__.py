"""Benchmarks: kernels, the engine, and the peers that they are compared with."""
