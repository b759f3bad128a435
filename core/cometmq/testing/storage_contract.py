"""Every promise of `cometmq.interfaces.Storage` as a test, for whoever writes a storage plugin.

Subclass `StorageContract`, override `make`, and pytest runs the promises against your storage:

    class TestMyStorage(StorageContract):
        def make(self, folder: str) -> Storage:
            return MyStorage(folder)

`make` called twice with one folder must give two storages over the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.errors import LogError, LogLocked
from cometmq.interfaces import Storage
from cometmq.testing.storage_bench import Bench, append, bases, pattern

NODE = bytes(range(8))


class StorageContract:
    """Override `make`."""

    def make(self, folder: str) -> Storage:
        """A storage over this folder (absolute path), not yet opened."""
        raise NotImplementedError

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        """Makes storages and closes them."""
        bench = Bench(self, str(tmp_path / "data"))
        yield bench
        bench.close()

    # --- the folder -----------------------------------------------------------------------------

    def test_a_new_folder_is_empty(self, bench: Bench) -> None:
        storage = bench.new()
        assert storage.open() == []
        assert list(storage.segments()) == []
        assert storage.read(0, 10) == b""

    def test_one_holder_at_a_time(self, bench: Bench) -> None:
        first = bench.opened()
        second = bench.new()
        with pytest.raises(LogLocked, match="in use by"):
            second.open()
        first.close()
        second.open()

    def test_reading_needs_no_lock_and_forbids_writing(self, bench: Bench) -> None:
        storage = bench.filled(b"abc")
        reader = bench.new()
        assert bases(reader.open(read_only=True)) == [0]
        assert reader.read(0, 3) == b"abc"
        with pytest.raises(LogError):
            reader.begin(3)
        assert bases(storage.segments()) == [0]

    def test_the_node_id_is_kept(self, bench: Bench) -> None:
        storage = bench.opened()
        assert storage.node_id() is None
        storage.keep_node_id(NODE)
        assert storage.node_id() == NODE
        again, _ = bench.reopened(storage)
        assert again.node_id() == NODE

    def test_usage_adds_up(self, bench: Bench) -> None:
        usage = bench.opened().usage()
        assert usage["bytes_total"] >= usage["bytes_free"] > 0
        assert usage["bytes_used"] == usage["bytes_total"] - usage["bytes_free"]

    # --- writing and reading --------------------------------------------------------------------

    def test_what_is_written_can_be_read(self, bench: Bench) -> None:
        storage = bench.opened()
        storage.begin(0)
        data = pattern(100_000)
        storage.allocate(len(data))
        storage.write(0, [data[:10], bytearray(data[10:70_000]), memoryview(data)[70_000:]])
        assert storage.read(0, len(data)) == data
        assert storage.read(69_990, 20) == data[69_990:70_010]
        now = storage.read_now(5, 100)
        assert now is None or now == data[5:105]

    def test_thousands_of_buffers_in_one_write(self, bench: Bench) -> None:
        storage = bench.opened()
        storage.begin(0)
        parts = [pattern(7, salt) for salt in range(3_000)]
        storage.allocate(21_000)
        storage.write(0, parts)
        assert storage.read(0, 21_000) == b"".join(parts)

    def test_reading_ends_where_writing_did(self, bench: Bench) -> None:
        storage = bench.filled(b"abcdef", seal_last=False)
        assert storage.read(4, 100) == b"ef"
        assert storage.read(6, 100) == b""
        assert storage.read_now(6, 100) == b""
        append(storage, 6, b"gh")
        assert storage.read(4, 100) == b"efgh"

    def test_a_read_stays_in_one_segment(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"defg")
        assert storage.read(1, 100) == b"bc"
        assert storage.read(3, 100) == b"defg"
        assert storage.read(6, 1) == b"g"

    def test_positions_below_the_log_give_nothing(self, bench: Bench) -> None:
        storage = bench.opened()
        storage.begin(1_000)
        append(storage, 1_000, b"abc")
        assert storage.read(999, 10) == b""
        assert storage.read(1_000, 10) == b"abc"

    def test_writes_follow_each_other(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", seal_last=False)
        storage.allocate(100)
        for position in (0, 2, 4):
            with pytest.raises(LogError):
                storage.write(position, [b"x"])
        assert storage.read(0, 100) == b"abc"

    def test_only_allocated_space_is_written(self, bench: Bench) -> None:
        storage = bench.opened()
        storage.begin(0)
        storage.allocate(1)
        too_much = bytes(storage.segments()[-1].size + 1)
        with pytest.raises(LogError):
            storage.write(0, [too_much])

    def test_nothing_is_written_before_a_segment_was_begun(self, bench: Bench) -> None:
        storage, _ = bench.reopened(bench.filled(b"abc"))
        with pytest.raises(LogError):
            storage.write(3, [b"d"])
        with pytest.raises(LogError):
            storage.allocate(1_000)

    # --- segments -------------------------------------------------------------------------------

    def test_segments_come_back_in_order(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"defg", b"hi")
        assert [(one.base, one.size) for one in storage.segments()] == [(0, 3), (3, 4), (7, 2)]
        again, found = bench.reopened(storage)
        assert [(one.base, one.size) for one in found] == [(0, 3), (3, 4), (7, 2)]
        assert again.read(3, 4) == b"defg"

    def test_prepared_space_is_zeros_and_is_cut_by_the_next_segment(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", seal_last=False)
        again, (found,) = bench.reopened(storage)
        assert found.size > 3
        assert again.read(0, found.size) == b"abc" + bytes(found.size - 3)
        again.begin(3)
        assert [(one.base, one.size) for one in again.segments()][0] == (0, 3)
        _, found_again = bench.reopened(again)
        assert (found_again[0].base, found_again[0].size) == (0, 3)

    def test_no_hole_and_no_overlap_between_segments(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"def")
        for base in (7, 5, 2):
            with pytest.raises(LogError):
                storage.begin(base)
        assert bases(storage.segments()) == [0, 3]
        assert storage.read(3, 9) == b"def"

    def test_beginning_seals_what_was_active(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", seal_last=False)
        storage.begin(3)
        append(storage, 3, b"d")
        assert [(one.base, one.size) for one in storage.segments()][0] == (0, 3)
        assert storage.read(0, 9) == b"abc"

    def test_an_empty_last_segment_is_begun_anew(self, bench: Bench) -> None:
        storage = bench.filled(b"abc")
        storage.begin(3)
        again, found = bench.reopened(storage)
        assert bases(found) == [0, 3]
        again.begin(3)
        append(again, 3, b"def")
        assert again.read(3, 9) == b"def"
        assert bases(again.segments()) == [0, 3]

    def test_a_segment_is_sealed_at_its_end(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", seal_last=False)
        with pytest.raises(LogError):
            storage.seal(2)
        storage.seal(3)
        assert storage.segments()[0].size == 3
        with pytest.raises(LogError):
            storage.write(3, [b"x"])

    def test_a_log_may_begin_anywhere(self, bench: Bench) -> None:
        storage = bench.opened()
        storage.begin(1 << 40)
        append(storage, 1 << 40, b"abc")
        again, found = bench.reopened(storage)
        assert bases(found) == [1 << 40]
        assert again.read(1 << 40, 3) == b"abc"

    # --- sync -----------------------------------------------------------------------------------

    def test_syncs(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"def", seal_last=False)

        async def run() -> None:
            await storage.sync()
            append(storage, 6, b"g")
            await storage.sync()
            await storage.sync()

        asyncio.run(run())
        append(storage, 7, b"h")
        storage.sync_blocking()
        again, _ = bench.reopened(storage)
        assert again.read(3, 5) == b"defgh"

    def test_writes_go_on_while_a_sync_runs(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", seal_last=False)

        async def run() -> None:
            sync = asyncio.ensure_future(storage.sync())
            await asyncio.sleep(0)
            append(storage, 3, b"def")
            storage.seal(6)
            storage.begin(6)
            append(storage, 6, b"g")
            await sync
            await storage.sync()

        asyncio.run(run())
        assert storage.read(0, 9) + storage.read(6, 9) == b"abcdefg"

    # --- rewrite, cut, trim ---------------------------------------------------------------------

    def test_a_rewrite_changes_nothing(self, bench: Bench) -> None:
        first, second = pattern(5_000), pattern(3_000, 9)
        storage, _ = bench.reopened(bench.filled(first, second))
        storage.rewrite(100, 7_900)
        assert storage.read(0, 5_000) == first
        assert storage.read(5_000, 5_000) == second
        assert [one.size for one in storage.segments()] == [5_000, 3_000]

    def test_a_rewrite_of_what_is_not_there_is_refused(self, bench: Bench) -> None:
        storage, _ = bench.reopened(bench.filled(b"abc"))
        with pytest.raises(LogError):
            storage.rewrite(0, 4)

    def test_a_cut_within_a_segment(self, bench: Bench) -> None:
        storage, _ = bench.reopened(bench.filled(b"abc", b"defg", b"hi", b"jkl"))
        storage.write_side(3, "queue", [b"index"])
        kept = storage.cut(5)
        assert kept
        assert [(one.base, one.size) for one in storage.segments()] == [(0, 3), (3, 2)]
        assert storage.read(3, 100) == b"de"
        assert storage.read(5, 100) == b""
        assert storage.read_side(3, "queue") is None
        storage.begin(5)
        append(storage, 5, b"new")
        again, found = bench.reopened(storage)
        assert bases(found) == [0, 3, 5]
        assert again.read(5, 3) == b"new"

    def test_a_cut_at_a_first_byte_removes_the_segment(self, bench: Bench) -> None:
        storage, _ = bench.reopened(bench.filled(b"abc", b"defg", b"hi"))
        storage.cut(3)
        assert [(one.base, one.size) for one in storage.segments()] == [(0, 3)]
        storage.cut(0)
        assert list(storage.segments()) == []
        storage.begin(0)
        append(storage, 0, b"new")
        assert storage.read(0, 9) == b"new"

    def test_a_cut_in_the_active_segment_ends_it(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"def", seal_last=False)
        storage.cut(4)
        with pytest.raises(LogError):
            storage.write(4, [b"x"])
        storage.begin(4)
        append(storage, 4, b"x")
        storage.sync_blocking()
        assert [storage.read(base, 9) for base in (0, 3, 4)] == [b"abc", b"d", b"x"]

    def test_each_cut_is_kept_for_itself(self, bench: Bench) -> None:
        storage = bench.filled(b"abcdef")
        first = storage.cut(2)
        storage.begin(2)
        append(storage, 2, b"xyz")
        second = storage.cut(2)
        assert first and second and first != second

    def test_a_cut_of_zeros_keeps_nothing(self, bench: Bench) -> None:
        storage, _ = bench.reopened(bench.filled(b"abc", seal_last=False))
        assert storage.cut(3) == ""
        assert [(one.base, one.size) for one in storage.segments()] == [(0, 3)]

    def test_a_cut_beyond_the_log_is_refused(self, bench: Bench) -> None:
        storage, _ = bench.reopened(bench.filled(b"abc"))
        with pytest.raises(LogError):
            storage.cut(4)

    def test_a_trim_removes_what_lies_whole_below(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"defg", b"hi", seal_last=False)
        storage.write_side(0, "queue", [b"index"])
        assert bases(storage.trim(6)) == [0]
        assert bases(storage.segments()) == [3, 7]
        assert storage.read(0, 9) == b""
        assert storage.read_side(0, "queue") is None
        again, found = bench.reopened(storage)
        assert bases(found) == [3, 7]
        assert again.read(3, 9) == b"defg"

    def test_a_trim_never_takes_the_last_segment(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"def", seal_last=False)
        assert bases(storage.trim(1_000)) == [0]
        assert bases(storage.segments()) == [3]
        assert storage.trim(1_000) == []

    def test_a_trim_in_a_thread_does_the_same(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"defg", b"hi", seal_last=False)
        storage.write_side(0, "queue", [b"index"])
        assert bases(asyncio.run(storage.trim_in_thread(6))) == [0]
        assert bases(storage.segments()) == [3, 7]
        assert storage.read_side(0, "queue") is None
        assert asyncio.run(storage.trim_in_thread(6)) == []
        again, found = bench.reopened(storage)
        assert bases(found) == [3, 7]
        assert again.read(3, 9) == b"defg"

    def test_a_trim_takes_the_oldest_first(self, bench: Bench) -> None:
        storage = bench.filled(b"a", b"b", b"c", b"d")
        assert bases(storage.trim(3)) == [0, 1, 2]

    # --- side files -----------------------------------------------------------------------------

    def test_side_files(self, bench: Bench) -> None:
        storage = bench.filled(b"abc", b"def")
        assert storage.read_side(0, "queue") is None
        storage.write_side(0, "queue", [b"one", bytearray(b"two")])
        storage.write_side(3, "queue", [])
        assert storage.read_side(0, "queue") == b"onetwo"
        storage.write_side(0, "queue", [b"three"])
        storage.write_side(0, "keys", [b"four"])
        again, found = bench.reopened(storage)
        assert bases(found) == [0, 3]
        assert again.read_side(0, "queue") == b"three"
        assert again.read_side(3, "queue") == b""
        again.remove_side(0, "queue")
        again.remove_side(0, "queue")
        assert again.read_side(0, "queue") is None
        assert again.read_side(0, "keys") == b"four"
