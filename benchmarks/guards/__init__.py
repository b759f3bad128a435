"""Guards: what each hot path costs in counts that are the same in every run.

`python -m benchmarks.guards` compares with `baselines.toml`, `--renew` writes it anew.
"""
