"""What is asked of a machine with an NVIDIA GPU, once and without a network: `python -m benchmarks.gpu`; see `__main__.py`."""
