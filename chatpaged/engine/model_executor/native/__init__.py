"""The native kernels: C++ sources, and the Python side of their plain C interface."""
