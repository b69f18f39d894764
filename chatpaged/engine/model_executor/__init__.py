"""Tensors: the only folder that imports torch and transformers. Reached through `LLMEngine.from_pretrained`."""
