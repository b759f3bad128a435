"""Medians, ratios, targets and the report, from results made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import limits, report, results
from benchmarks.figures import Figures, p50, rate
from benchmarks.pacing import latency_of, pace, stamped, stamps_of
from benchmarks.results import Latency, Limit, Result, Run
from benchmarks.steps import TARGET_STEPS, Step, all_steps, select
from benchmarks.syncs import total
from benchmarks.targets import verdicts


def step(name: str) -> Step:
    return next(step for step in all_steps() if step.name == name)


PUBLISH = step("publish-1024-memory")
ONE = step("one-1024-memory")


def published(peer: str, variant: str, *rates: float) -> list[Result]:
    return [
        Result(PUBLISH, peer, variant, repetition, rate=rate)
        for repetition, rate in enumerate(rates)
    ]


def answered(peer: str, p50_us: float) -> Result:
    return Result(ONE, peer, "", 0, rate=1e6 / p50_us, latency=Latency(p50_us, 0, 0, 0))


def test_ratio_is_of_medians_to_the_best_python_client() -> None:
    run = Run(
        published("cometmq", "send_soon", 300.0, 900.0, 400.0)
        + published("kafka", "callbacks", 100.0, 200.0, 300.0)
        + published("redis", "pipeline", 50.0)
        # Its client is Java: it stands beside, and is not what the others are measured by.
        + published("rocketmq", "batches", 1000.0)
    )
    figures = Figures(run)
    ratios = {row.title: figures.ratio(row) for row in figures.of_step(PUBLISH.name)}
    assert ratios == {
        "cometmq send_soon": 2.0,
        "kafka callbacks": 1.0,
        "redis pipeline": 0.25,
        "rocketmq batches": 5.0,
    }
    assert figures.best_peer(PUBLISH.name, rate, native=True) == (1000.0, "rocketmq batches")


def test_latency_is_measured_by_the_lowest() -> None:
    figures = Figures(Run([answered("cometmq", 150.0), answered("kafka", 240.0)]))
    assert figures.best_peer(ONE.name, p50, lowest=True) == (240.0, "kafka")
    assert figures.ratio(figures.of_step(ONE.name)[0]) == 0.625


def test_failures_are_reported_and_not_counted() -> None:
    run = Run(published("kafka", "callbacks", 100.0, 200.0))
    run.results.append(Result(PUBLISH, "kafka", "callbacks", 2, error="it fell\nover"))
    row = Figures(run).rows[0]
    assert row.middle(rate) == 150.0
    text = report.markdown(run)
    assert "2 of 3" in text
    assert "publish-1024-memory, kafka callbacks: it fell over" in text


def test_share_of_the_limit() -> None:
    run = Run(published("cometmq", "send_soon", 1e6) + [answered("cometmq", 150.0)])
    run.limits = [
        Limit(limits.WRITE_WARM, 0, 2048.0, "MB/s"),
        Limit(limits.ROUND_TRIP, 0, 100.0, "us"),
    ]
    figures = Figures(run)
    assert figures.share_of_limit(figures.rows[0]) == 0.5
    assert figures.share_of_limit(figures.rows[1]) == 1.5


def test_targets_say_met_missed_or_not_measured() -> None:
    run = Run(
        published("cometmq", "send_soon", 140.0)
        + published("cometmq", "send_many", 140.0)
        + published("kafka", "callbacks", 100.0)
    )
    found = {verdict.work: verdict.met for verdict in verdicts(Figures(run))}
    assert found["publish 1024 B, memory, send_soon"] is True
    assert found["publish 1024 B, memory, send_many"] is False
    assert found["consume 100 B"] is None


def test_every_step_with_a_target_exists() -> None:
    assert len(select(all_steps(), ["targets"])) == len(TARGET_STEPS)


def test_names_of_steps_are_unique() -> None:
    names = [step.name for step in all_steps()]
    assert len(set(names)) == len(names)


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match="no step is called publsh; use all, targets, publish"):
        select(all_steps(), ["publsh"])


def test_a_journal_is_read_back(tmp_path: Path) -> None:
    journal = results.Journal(tmp_path / "results.jsonl")
    journal.note("a machine")
    journal.result(answered("redis", 100.0))
    journal.limits([Limit(limits.MEMCPY, 0, 1.0, "MB/s")])
    twice = results.read([journal.path, journal.path])
    assert twice.notes == ["a machine"]
    assert twice.results == journal.run.results * 2
    assert twice.limits == journal.run.limits * 2


def test_percentiles() -> None:
    latency = latency_of([1000 * number for number in range(1000, 0, -1)], [2000, 4000])
    assert (latency.p50_us, latency.p99_us, latency.p999_us) == (501.0, 991.0, 1000.0)
    assert (latency.max_us, latency.due_p50_us, latency.due_p99_us) == (1000.0, 4.0, 4.0)


def test_pace_hands_out_each_message_once_and_in_order() -> None:
    pauses: list[float] = []
    due_ns = [due for some in pace(5000, 12, pauses.append) for due in some]
    # Five a millisecond: two ticks and a part of a third.
    first = due_ns[0]
    assert [due - first for due in due_ns] == [0] * 5 + [1_000_000] * 5 + [2_000_000] * 2
    assert all(pause > 0 for pause in pauses)


def test_stamps_travel_in_the_body() -> None:
    body = stamped(bytes(100), 42)
    assert len(body) == 100
    assert stamps_of(body)[1] == 42
    assert stamps_of(bytes(100)) == (0, 0)


def test_syncs_of_a_perf_report() -> None:
    text = "12,,syscalls:sys_enter_fsync,1,100.00,,\n<not counted>,,syscalls:sys_enter_msync,0,,\n"
    assert total(text + "30,,syscalls:sys_enter_fdatasync,1,100.00,,\n") == 42
