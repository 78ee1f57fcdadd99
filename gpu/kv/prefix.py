"""Prefixes that many sessions begin with: computed once, pages shared read-only, found again by their token ids.

A radix tree over token ids gives the longest common prefix in as many steps as it has tokens. An entry holds its own
mapping of the pages, so it outlives the session that computed it; what is not a whole page is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu.errors import GpuError
from gpu.kv.session import Session

if TYPE_CHECKING:
    from gpu.kv.arena import Arena


@dataclass(eq=False, slots=True)
class Prefix:
    """Keys and values of `ids`, held by `session`, to which nobody appends."""

    ids: tuple[int, ...]
    session: Session
    cuts: tuple[int, ...]
    """Where the chunks ended in which it was computed (a caller that wants the same bits wants the same chunks)."""
    users: int = 0
    """Open sessions that began with it."""
    last_used: int = 0


@dataclass(slots=True)
class _Node:
    """One edge of the tree, the ids that lead here from the parent, and what hangs below."""

    edge: tuple[int, ...]
    children: dict[int, _Node] = field(default_factory=dict)
    prefix: Prefix | None = None


class PrefixStore:
    """The arena's prefixes. At most `limit` of them: then the one that was not used for longest goes."""

    def __init__(self, arena: Arena, limit: int = 16) -> None:
        self.limit = limit
        self._arena = arena
        self._root = _Node(())
        self._users: dict[int, Prefix] = {}
        self._clock = 0

    def add(self, ids: Sequence[int], session: Session, *, cuts: Sequence[int] = ()) -> Prefix:
        """Keep the first `len(ids)` tokens of `session`, which were computed from `ids`; the session goes on as it is.

        Raises GpuError where the session does not hold them all, QuotaError where the copied rest does not fit.
        """
        key = tuple(ids)
        found, common = self.find(key)
        if found is not None and common == len(key) == len(found.ids):
            return found
        if not key:
            raise GpuError("KV prefix: no tokens", fix="Give the tokens that the prefix was computed from")
        while len(list(self.entries())) >= self.limit and self.drop_oldest():
            pass
        prefix = Prefix(key, self._arena.freeze(session, len(key)), tuple(cuts))
        self._touch(prefix)
        self._insert(prefix)
        return prefix

    def find(self, ids: Sequence[int]) -> tuple[Prefix | None, int]:
        """(an entry that shares the most first tokens with `ids`, how many they share)."""
        node, depth = self._root, 0
        best: _Node | None = None
        while depth < len(ids) and (child := node.children.get(ids[depth])) is not None:
            shared = _common(child.edge, ids, depth)
            depth, best = depth + shared, child
            if shared < len(child.edge):
                break
            node = child
        return (None, 0) if best is None else (next(_below(best)), depth)

    def exact(self, ids: Sequence[int]) -> Prefix | None:
        """The longest entry all of whose tokens begin `ids`."""
        node, depth, best = self._root, 0, None
        while depth < len(ids) and (child := node.children.get(ids[depth])) is not None:
            if _common(child.edge, ids, depth) < len(child.edge):
                break
            node, depth = child, depth + len(child.edge)
            best = node.prefix or best
        return best

    @contextmanager
    def held(self, prefix: Prefix | None) -> Iterator[None]:
        """Do not forget it meanwhile, whoever needs room."""
        if prefix is not None:
            prefix.users += 1
        try:
            yield
        finally:
            if prefix is not None:
                prefix.users -= 1

    def used(self, prefix: Prefix, session: Session) -> None:
        """`session` began with it (`Arena.session` says so)."""
        prefix.users += 1
        self._users[id(session)] = prefix
        self._touch(prefix)

    def released(self, session: Session) -> None:
        """A session was closed."""
        prefix = self._users.pop(id(session), None)
        if prefix is not None:
            prefix.users -= 1

    def drop(self, prefix: Prefix) -> None:
        """Forget it. Sessions that began with it keep their pages."""
        if self.exact(prefix.ids) is not prefix:
            raise GpuError("KV prefix: dropped twice", fix="Drop it once")
        path, depth = [self._root], 0
        while depth < len(prefix.ids):
            path.append(path[-1].children[prefix.ids[depth]])
            depth += len(path[-1].edge)
        path[-1].prefix = None
        for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
            if node.prefix is None and not node.children:
                del parent.children[node.edge[0]]
            elif node.prefix is None and len(node.children) == 1:
                (child,) = node.children.values()
                child.edge = node.edge + child.edge
                parent.children[child.edge[0]] = child
        prefix.session.close()

    def drop_oldest(self) -> bool:
        """Forget the entry that no open session uses and that was not used for longest; False where there is none."""
        unused = [prefix for prefix in self.entries() if not prefix.users]
        if not unused:
            return False
        self.drop(min(unused, key=lambda prefix: prefix.last_used))
        return True

    def entries(self) -> Iterator[Prefix]:
        """All of them."""
        return _below(self._root)

    def check(self) -> list[str]:
        """What is wrong: one sentence each."""
        broken = []
        for prefix in self.entries():
            if prefix.session.position != len(prefix.ids):
                broken.append(f"a prefix of {len(prefix.ids)} tokens holds {prefix.session.position}")
            if self.exact(prefix.ids) is not prefix:
                broken.append(f"a prefix of {len(prefix.ids)} tokens is not found again")
            if prefix.users != sum(user is prefix for user in self._users.values()):
                broken.append(f"a prefix of {len(prefix.ids)} tokens counts {prefix.users} users")
        return broken

    def _touch(self, prefix: Prefix) -> None:
        self._clock += 1
        prefix.last_used = self._clock

    def _insert(self, prefix: Prefix) -> None:
        node, depth, ids = self._root, 0, prefix.ids
        while depth < len(ids):
            child = node.children.get(ids[depth])
            if child is None:
                child = node.children[ids[depth]] = _Node(ids[depth:])
            shared = _common(child.edge, ids, depth)
            if shared < len(child.edge):
                upper = _Node(child.edge[:shared], {child.edge[shared]: child})
                child.edge = child.edge[shared:]
                node.children[ids[depth]] = child = upper
            node, depth = child, depth + shared
        node.prefix = prefix


def _common(edge: tuple[int, ...], ids: Sequence[int], begin: int) -> int:
    """How many ids of `edge` stand in `ids` from `begin` on."""
    for number, (ours, theirs) in enumerate(zip(edge, ids[begin : begin + len(edge)], strict=False)):
        if ours != theirs:
            return number
    return min(len(edge), len(ids) - begin)


def _below(node: _Node) -> Iterator[Prefix]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.prefix is not None:
            yield node.prefix
        waiting += node.children.values()
