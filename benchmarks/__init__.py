"""Score and speed runs against other libraries; `python -m benchmarks --help`."""
