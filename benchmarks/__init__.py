"""CometMQ and its peers on one machine: the same workloads, interleaved, into a table and a plot.

`python -m benchmarks --help`; docs/benchmarks.md says what is measured and how to read it.
"""
