"""The Textual application: the only place that imports textual."""
