"""All state views of a log, the core's and those of the broker and its plugins, as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cometmq.batch import Batch, Kind
from cometmq.errors import FAILURES, PluginFailure
from cometmq.interfaces import StateView
from cometmq.log.clock_ahead import ClockAheadView
from cometmq.log.epochs import Epochs
from cometmq.log.kinds import CORE_KINDS, Kinds
from cometmq.log.log_start import LogStart
from cometmq.log.min_offsets import MinOffsets
from cometmq.log.next_offsets import NextOffsets
from cometmq.log.records import KindName, read_records

SLICE_BYTES_MAX = 8 << 20
_NUMBERS = 256


class State:
    """Applies batches to the views that want their kind, and turns all views into slices."""

    def __init__(self, views: Sequence[StateView]) -> None:
        """`views`: those of the broker and its plugins. Raises ValueError for a name used twice."""
        self.kinds = Kinds()
        self.epochs = Epochs()
        self.next_offsets = NextOffsets()
        self.min_offsets = MinOffsets()
        self.log_start = LogStart()
        self.clock_ahead = ClockAheadView()
        self._guests = tuple(views)
        own: list[StateView] = [
            self.kinds,
            self.epochs,
            self.next_offsets,
            self.min_offsets,
            self.log_start,
            self.clock_ahead,
        ]
        self._views: dict[str, StateView] = {}
        for view in (*own, *views):
            if view.name in self._views:
                raise ValueError(f"two state views have the name {view.name!r}; rename one")
            self._views[view.name] = view
        self._strangers: set[str] = set()
        self.unknown_kinds: set[int] = set()
        """Numbers of batch kinds that were seen and that neither this release nor the log names."""
        self._by_kind: list[tuple[StateView, ...]] = []
        self.message_views: tuple[StateView, ...] = ()
        self._arrange()

    def apply(self, batch: Batch) -> None:
        """Take one stamped batch."""
        kind = batch.kind
        views = self._by_kind[kind]
        for view in views:
            try:
                view.apply(batch)
            except FAILURES as error:
                raise blamed(view, error) from error
        if not views and not self.kinds.knows(kind):
            self.unknown_kinds.add(kind)
        if kind == Kind.KIND_NAME:
            self._take_drops(read_records(KindName, batch))
            self._arrange()

    def slices(self) -> Iterator[tuple[str, bytes]]:
        """(view, shard), each shard encoded when it is asked for."""
        for name, view in self._views.items():
            try:
                for data in view.slices():
                    _check_slice(data)
                    yield name, data
            except Exception as error:
                raise blamed(view, error) from error

    def load(self, name: str, data: bytes) -> None:
        """Join a shard of a view; a view that isn't here is remembered, see `absent`."""
        view = self._views.get(name)
        if view is None:
            self._strangers.add(name)
            return
        try:
            view.load(data)
        except Exception as error:
            raise blamed(view, error) from error
        if view is self.kinds:
            self._arrange()

    def reset(self) -> None:
        """Back to the state of an empty log."""
        for view in self._views.values():
            self._reset(view)
        self._strangers.clear()
        self.unknown_kinds.clear()
        self._arrange()

    def absent(self) -> list[str]:
        """Views whose state the log holds, but which nobody brought."""
        owners = {entry.view for entry in self.kinds.live()} | self._strangers
        return sorted(owners - set(self._views))

    def new_kinds(self) -> list[KindName]:
        """Records for the kinds that have no number in this log yet."""
        return self.kinds.missing((kind, view.name) for view in self._guests for kind in view.kinds)

    def _take_drops(self, records: Sequence[KindName]) -> None:
        for record in records:
            if record.dropped:
                self._strangers.discard(record.view)
                if record.view in self._views:
                    self._reset(self._views[record.view])

    def _reset(self, view: StateView) -> None:
        try:
            view.reset()
        except Exception as error:
            raise blamed(view, error) from error

    def _arrange(self) -> None:
        """Which views want which number."""
        by_kind: list[list[StateView]] = [[] for _ in range(_NUMBERS)]
        for view in self._views.values():
            for name in view.kinds:
                number = self.kinds.number_of(name)
                if number is not None:
                    by_kind[number].append(view)
        self._by_kind = [tuple(views) for views in by_kind]
        messages = self._by_kind[CORE_KINDS["messages"]]
        self.message_views = tuple(view for view in messages if view is not self.next_offsets)


def blamed(view: StateView, error: BaseException) -> PluginFailure:
    """What a view raised that may not, with its name."""
    kind = type(view)
    return PluginFailure(
        f"state view {view.name} ({kind.__module__}.{kind.__qualname__}) failed: "
        f"{type(error).__name__}: {error}; tell the author of the plugin that brings it, or take "
        "that plugin out",
        plugin=kind.__module__,
        hook="state_views",
    )


def _check_slice(data: object) -> None:
    """No start could read it again."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a slice of its state is {type(data).__name__}, bytes are wanted")
    if len(data) > SLICE_BYTES_MAX:
        raise ValueError(f"a slice of its state has {len(data)} bytes, {SLICE_BYTES_MAX} may be")
