"""chatpaged: a terminal chat application with its own local paged LLM engine.

Nothing happens at import. The engine's Python API lives in `chatpaged.engine`; see `LLMEngine` and `AsyncEngine`.
"""

__version__ = "0.1.0"
