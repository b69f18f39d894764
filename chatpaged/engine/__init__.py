"""The paged engine. Everything in this folder but `model_executor` works without torch."""
