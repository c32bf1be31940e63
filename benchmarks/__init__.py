"""What dlwrap costs, beside its peers; `python benchmarks/run.py --help` tells how to run it."""
