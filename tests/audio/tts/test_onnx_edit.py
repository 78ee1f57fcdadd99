"""The small ONNX editor against the real `onnx` package and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from audio.tts import onnx_edit

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def _model() -> bytes:
    """y = ceil(x) * 2 with a large weight, so that lengths take several bytes."""
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.full(300, 2.0, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Ceil", ["x"], ["c"], name="first"), helper.make_node("Mul", ["c", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [300])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [300])],
        [weight],
    )
    opset = helper.make_opsetid("", 15)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


def _run(model: bytes, **feed: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def test_reads_the_nodes() -> None:
    first, second = onnx_edit.nodes(_model())
    assert first == onnx_edit.Node("Ceil", "first", ("x",), ("c",))
    assert (second.op_type, second.inputs, second.outputs) == ("Mul", ("c", "w"), ("y",))


def test_no_edit_is_the_same_model() -> None:
    model = _model()
    assert onnx.load_from_string(onnx_edit.edit_graph(model, replaced={})) == onnx.load_from_string(model)


def test_replaced_node_new_input_output_and_scalar() -> None:
    edited = onnx_edit.edit_graph(
        _model(),
        replaced={"c": [onnx_edit.make_node("Gather", ["table", "one"], "row", axis=0),
                        onnx_edit.make_node("Add", ["x", "row"], "c")]},
        inputs=[onnx_edit.make_value("table", onnx_edit.FLOAT, (2, 300))],
        outputs=[onnx_edit.make_value("c", onnx_edit.FLOAT, (None,))],
        initializers=[onnx_edit.make_scalar("one", 1)],
    )  # fmt: skip
    onnx.checker.check_model(onnx.load_from_string(edited), full_check=True)
    x = np.arange(300, dtype=np.float32)
    table = np.stack([np.zeros(300), np.full(300, 7.0)]).astype(np.float32)
    y, c = _run(edited, x=x, table=table)
    np.testing.assert_array_equal(c, x + 7)
    np.testing.assert_array_equal(y, (x + 7) * 2)


@pytest.mark.parametrize("value", [0, 1, -1, 2**40, -(2**62)])
def test_scalars(value: int) -> None:
    tensor = onnx.TensorProto.FromString(onnx_edit.make_scalar("s", value))
    assert onnx.numpy_helper.to_array(tensor) == value
    assert onnx.numpy_helper.to_array(tensor).shape == ()


@pytest.mark.parametrize("data", [b"not a model", b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x80", b"\x0b"])
def test_broken_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        list(onnx_edit.nodes(data))


def test_a_cut_off_model_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        list(onnx_edit.nodes(_model()[:-100]))
