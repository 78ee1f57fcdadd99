"""Just enough of the protobuf wire format to edit one ONNX graph without the `onnx` package.

Knows the field numbers of `onnx.proto3` that it touches and nothing of models: a graph is a list of
fields, of which nodes are read and replaced and everything else is passed through byte for byte.
Encoding: https://protobuf.dev/programming-guides/encoding/ ; field numbers: onnx/onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP_TYPE, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_ATTRIBUTE_INT = 2
FLOAT, INT64 = 1, 7
"""`TensorProto.DataType`."""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _field(number: int, payload: bytes | memoryview) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(payload)) + bytes(payload)


def _int_field(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Each field as (number, payload, whole field with its tag); payload is empty for numbers."""
    position = 0
    while position < len(data):
        start = position
        tag, position = _read_varint(data, position)
        wire_type = tag & 7
        payload = data[0:0]
        if wire_type == _VARINT:
            _, position = _read_varint(data, position)
        elif wire_type == _BYTES:
            length, position = _read_varint(data, position)
            payload = data[position : position + length]
            position += length
        elif wire_type in (_FIXED32, _FIXED64):
            position += 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire_type} at byte {start}")
        if position > len(data):
            raise ValueError(f"field at byte {start} is cut off")
        yield tag >> 3, payload, data[start:position]


@dataclass(frozen=True, slots=True)
class Node:
    """What is read of one operator."""

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _read_node(payload: memoryview) -> Node:
    texts: dict[int, list[str]] = {number: [] for number in (1, 2, 3, 4)}
    for number, value, _ in _fields(payload):
        if number in texts:
            texts[number].append(str(value, "utf-8"))
    op_type, name = "".join(texts[_NODE_OP_TYPE]), "".join(texts[_NODE_NAME])
    return Node(op_type, name, tuple(texts[_NODE_INPUT]), tuple(texts[_NODE_OUTPUT]))


def make_node(op_type: str, inputs: Sequence[str], output: str, **integers: int) -> bytes:
    """A `NodeProto` with one output, named after it, and integer attributes."""
    parts = [_field(_NODE_INPUT, name.encode()) for name in inputs]
    parts += [_field(_NODE_OUTPUT, output.encode()), _field(_NODE_NAME, output.encode())]
    parts.append(_field(_NODE_OP_TYPE, op_type.encode()))
    for key, value in integers.items():
        attribute = _field(1, key.encode()) + _int_field(3, value) + _int_field(20, _ATTRIBUTE_INT)
        parts.append(_field(_NODE_ATTRIBUTE, attribute))
    return b"".join(parts)


def make_value(name: str, element_type: int, shape: Sequence[int | None]) -> bytes:
    """A `ValueInfoProto`: a graph input or output; a size of None means any."""
    sizes = [b"" if size is None else _int_field(1, size) for size in shape]
    tensor = _int_field(1, element_type) + _field(2, b"".join(_field(1, size) for size in sizes))
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def make_scalar(name: str, value: int) -> bytes:
    """A `TensorProto` of shape () and type int64."""
    raw = value.to_bytes(8, "little", signed=True)
    return _int_field(2, INT64) + _field(8, name.encode()) + _field(9, raw)


def nodes(model: bytes) -> Iterator[Node]:
    """The operators of a serialised model in graph order.

    Raises:
        ValueError: the bytes are no ONNX model.
    """
    try:
        for number, graph, _ in _fields(memoryview(model)):
            if number == _MODEL_GRAPH:
                for inner, payload, _ in _fields(graph):
                    if inner == _GRAPH_NODE:
                        yield _read_node(payload)
    except IndexError:
        raise ValueError("the file ends inside a number") from None


def edit_graph(
    model: bytes,
    *,
    replaced: Mapping[str, Sequence[bytes]],
    inputs: Sequence[bytes] = (),
    outputs: Sequence[bytes] = (),
    initializers: Sequence[bytes] = (),
) -> bytes:
    """A copy of `model` in which each node that makes tensor `key` of `replaced` gave way to its value.

    New nodes stand where the old one stood, so the order stays topological. `inputs`, `outputs` and
    `initializers` are added behind those that exist.
    """
    out: list[bytes | memoryview] = []
    for number, graph, whole in _fields(memoryview(model)):
        if number != _MODEL_GRAPH:
            out.append(whole)
            continue
        parts: list[bytes | memoryview] = []
        for inner, payload, field in _fields(graph):
            made = _read_node(payload).outputs if inner == _GRAPH_NODE else ()
            new = next((replaced[name] for name in made if name in replaced), None)
            parts += [field] if new is None else [_field(_GRAPH_NODE, node) for node in new]
        for kind, added in ((_GRAPH_INITIALIZER, initializers), (_GRAPH_INPUT, inputs), (_GRAPH_OUTPUT, outputs)):
            parts += [_field(kind, item) for item in added]
        length = sum(len(part) for part in parts)
        out += [_varint(_MODEL_GRAPH << 3 | _BYTES), _varint(length), *parts]
    return b"".join(out)
