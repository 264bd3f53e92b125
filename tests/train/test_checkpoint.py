"""Checkpoints: never half there, verified when read, kept until the next one stands."""

from __future__ import annotations

import errno
import hashlib
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from training_fakes import engine_at, make_store, save

from paren.text.errors import InternalError, ParenError
from paren.train import tensor_file
from paren.train.checkpoint import CheckpointStore, restore
from paren.train.files import Files
from paren.train.manifest import Manifest
from paren.train.places.disk import DiskFolder, create_file
from paren.train.resume import find_checkpoints, restore_newest
from paren.train.state import BestRecord, LoopState
from paren.train.tensor_file import MalformedFile, Written, file_digest, read_header, read_places, write_tensors

DTYPES = ["float64", "float32", "int64", "int32", "uint32", "uint8", "bool"]


# ---- the format ----------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    shapes=st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=6),
    chunk=st.sampled_from([1, 7, 1 << 23]),
)
def test_the_safetensors_library_reads_what_is_written(tmp_path_factory, shapes, chunk):
    path = tmp_path_factory.mktemp("format") / "x.safetensors"
    random = np.random.default_rng(0)
    arrays = {f"tensor.{i}/ä": (random.random(shape) * 100).astype(dtype) for i, (dtype, shape) in enumerate(shapes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "CHUNK", chunk)
        written = write_file(Files(), path, arrays, {"format": "paren"})
    read = safetensors.numpy.load_file(path)
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    content = path.read_bytes()
    assert written.size == len(content)
    end = 8 + int.from_bytes(content[:8], "little")
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    assert written.tensors == {name: hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in order}
    assert written.digest == file_digest(content[:end], [written.tensors[name] for name in order])
    assert written.digest == hashlib.sha256(content[:end] + _digests(arrays, order)).hexdigest()


def write_file(files: Files, path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> Written:
    with create_file(path, files) as sink:
        return write_tensors(sink, arrays, metadata)


def _digests(arrays: dict[str, np.ndarray], order: list[str]) -> bytes:
    return b"".join(hashlib.sha256(arrays[name].tobytes()).digest() for name in order)


def test_writing_makes_no_copy_of_a_tensor(tmp_path):
    """What is handed to the disk is the memory of the slot itself, chunk by chunk."""
    array = np.arange(100, dtype=np.float32)
    seen = []

    class Watching(Files):
        def write(self, file, data):
            seen.append(isinstance(data, memoryview) and np.shares_memory(np.frombuffer(data, np.uint8), array))
            super().write(file, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "CHUNK", 64)
        write_file(Watching(), tmp_path / "x", {"a": array}, {})
    assert seen == [False] + [True] * 7


def test_what_the_disk_says_while_more_is_written_is_not_lost(tmp_path, monkeypatch):
    """The system tells of a failed write once: to whoever asks first, which is the thread that hurries the disk."""
    monkeypatch.setattr(tensor_file, "CHUNK", 64)
    monkeypatch.setattr(tensor_file, "PUSHED", 128)
    threads = []

    class Failing(Files):
        def sync(self, file):
            threads.append(threading.current_thread().name.partition("_")[0])
            if len(threads) == 2:
                raise OSError(errno.EIO, "I/O error")
            super().sync(file)

    with pytest.raises(OSError, match="I/O error"):
        write_file(Failing(), tmp_path / "x", {"a": np.arange(200, dtype=np.float32)}, {})
    assert threads[:2] == ["paren-pushing"] * 2


@pytest.mark.parametrize("chunk", [1, 24, 1 << 23])
def test_arrays_are_read_from_their_places_by_several_threads(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(tensor_file, "CHUNK", chunk)
    path = tmp_path / "x"
    numbers = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    path.write_bytes(numbers.tobytes())
    places = {3: (np.float32, (7, 5)), 700: (np.float64, ()), 0: (np.uint8, (1000,)), 999: (np.int32, (0, 4))}
    arrays = {place: np.zeros(shape, dtype) for place, (dtype, shape) in places.items()}
    with path.open("rb") as file:
        read_places(file, arrays.items())
        for place, array in arrays.items():
            assert array.tobytes() == numbers[place : place + array.nbytes].tobytes()
        with pytest.raises(MalformedFile, match="the file ends inside a tensor"):
            read_places(file, [(0, np.zeros(4)), (990, np.zeros(4))])


def test_a_slot_that_is_not_contiguous_is_a_fault_of_the_engine(tmp_path):
    with pytest.raises(InternalError, match="internal error in checkpoint: slot 'a' is not contiguous"):
        write_file(Files(), tmp_path / "x", {"a": np.zeros((4, 4), np.float32)[:, ::2]}, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the header is missing"),
        (b"\xff" * 8, "the header's length of 18446744073709551615 bytes is more than the file holds"),
        (b"\2\0\0\0\0\0\0\0[]", "the header is not readable"),
        (b'\x04\0\0\0\0\0\0\0{"a"', "the header is not readable"),
    ],
)
def test_bytes_that_are_no_safetensors_file(tmp_path, content, message):
    path = tmp_path / "x"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(MalformedFile) as caught:
        read_header(file, len(content))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 80]}, "tensor 'a' lies outside of the file"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "tensor 'a' has the wrong number of bytes"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "the header is not readable"),
        ({"dtype": "F32", "data_offsets": [0, 8]}, "the header is not readable"),
    ],
)
def test_headers_that_lie(tmp_path, entry, message):
    head = json.dumps({"a": entry}).encode()
    content = len(head).to_bytes(8, "little") + head + bytes(8)
    path = tmp_path / "x"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(MalformedFile) as caught:
        read_header(file, len(content))
    assert str(caught.value) == message


# ---- saving and restoring ------------------------------------------------------------------------------------------


def test_a_checkpoint_restores_every_slot_in_place(tmp_path):
    store = make_store(tmp_path)
    engine = engine_at(5)
    checkpoint = save(store, 500, engine)
    assert checkpoint.folder == DiskFolder(tmp_path / "000500")
    assert sorted(path.name for path in checkpoint.folder.path.iterdir()) == [
        "manifest.json",
        "optimizer.safetensors",
        "parameters.safetensors",
    ]
    other = engine_at(6)
    restore(checkpoint, other.slots(), other.roles)
    assert {name: array.tobytes() for name, array in other.state.items()} == {
        name: array.tobytes() for name, array in engine.state.items()
    }


def test_a_manifest_says_what_is_needed_to_resume(tmp_path):
    store = make_store(tmp_path)
    first, second = save(store, 5), save(store, 10)
    manifest = Manifest.read(second.folder)
    assert manifest == second.manifest
    assert (manifest.step, manifest.samples, manifest.updates, manifest.metrics_bytes) == (10, 80, 10, 100)
    assert manifest.parent == first.manifest.id
    assert manifest.slots["linear.weight/momentum"].role == "moment"
    assert manifest.slots["linear.weight"].file == "parameters.safetensors"
    assert manifest.slots["linear.weight"].shape == (4,)
    size = (second.folder.path / "parameters.safetensors").stat().st_size
    assert manifest.files["parameters.safetensors"].size == size


def test_the_loop_state_comes_back_whole(tmp_path):
    state = LoopState(7, 50, 6, 1, 0, 0, BestRecord(5, "evaluation/loss", 0.1, "f", 3, "ab"), 0.2, 1, False)
    engine = engine_at(1)
    checkpoint = make_store(tmp_path).save(engine.slots(), engine.roles, state, 0)
    state.step = 8
    assert Manifest.read(checkpoint.folder).loop == LoopState(
        7, 50, 6, 1, 0, 0, BestRecord(5, "evaluation/loss", 0.1, "f", 3, "ab"), 0.2, 1, False
    )


def test_only_the_parameters_can_be_read_alone(tmp_path):
    checkpoint = save(make_store(tmp_path), 1)
    (checkpoint.folder.path / "optimizer.safetensors").unlink()
    slots = {"linear.weight": np.zeros(4, np.float32)}
    restore(checkpoint, slots)
    assert slots["linear.weight"].tobytes() == engine_at(1).state["linear.weight"].tobytes()


@pytest.mark.parametrize("role", ["parameter", "average"])
def test_a_parameter_that_is_not_finite_is_never_published(tmp_path, role):
    store = make_store(tmp_path)
    save(store, 1)
    engine = engine_at(2)
    name = "linear.weight" if role == "parameter" else "linear.weight/average"
    engine.state[name][2] = np.inf
    with pytest.raises(ParenError) as caught:
        save(store, 2, engine)
    assert caught.value.code == "E-CKPT-009"
    assert caught.value.message == f"{role} '{name}' is not finite after step 2, so no checkpoint was published"
    assert [note.message for note in caught.value.notes] == [
        f"the checkpoint before it, {tmp_path / '000001'}, is intact"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "latest"]


def test_old_checkpoints_go_after_the_new_one_stands(tmp_path):
    order = []

    class Watching(Files):
        def rename(self, source, target):
            order.append((source.name.startswith(".temporary"), target.name[:6]))
            super().rename(source, target)

    store = make_store(tmp_path, keep=2, files=Watching())
    for step in (1, 2, 3, 4):
        save(store, step)
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["000003", "000004"]
    assert order.index((True, "000004")) == len(order) - 3


@pytest.mark.parametrize("keep", [1, 3])
def test_at_least_the_newest_checkpoint_stays(tmp_path, keep):
    store = make_store(tmp_path, keep=keep)
    for step in range(1, 6):
        save(store, step)
    assert [each.manifest.step for each in store.lineage()[0]] == [5, 4, 3][:keep]


# ---- damage --------------------------------------------------------------------------------------------------------


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def spoil(folder: Path, kind: str) -> None:
    parameters = folder / "parameters.safetensors"
    if kind == "a flipped bit of a parameter":
        flip(parameters, -1)
    elif kind == "a flipped bit of a header":
        flip(parameters, 20)
    elif kind == "a flipped bit of the optimizer's state":
        flip(folder / "optimizer.safetensors", -3)
    elif kind == "a truncated file":
        parameters.write_bytes(parameters.read_bytes()[:-4])
    elif kind == "a longer file":
        parameters.write_bytes(parameters.read_bytes() + b"x")
    elif kind == "an empty file":
        parameters.write_bytes(b"")
    elif kind == "a missing file":
        (folder / "optimizer.safetensors").unlink()
    elif kind == "no manifest":
        (folder / "manifest.json").unlink()
    elif kind == "half a manifest":
        path = folder / "manifest.json"
        path.write_bytes(path.read_bytes()[:100])
    elif kind == "a changed manifest":
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace('"samples": ', '"samples": 1'))
    elif kind == "a manifest of nothing":
        (folder / "manifest.json").write_text("[]")


PARAMETER_BYTES = "the bytes of tensor 'linear.weight' of parameters.safetensors do not match their SHA-256"
MOMENT_BYTES = "the bytes of tensor 'linear.weight/momentum' of optimizer.safetensors do not match their SHA-256"
DAMAGE = {
    "a flipped bit of a parameter": PARAMETER_BYTES,
    "a flipped bit of a header": None,
    "a flipped bit of the optimizer's state": MOMENT_BYTES,
    "a truncated file": None,
    "a longer file": None,
    "an empty file": None,
    "a missing file": "optimizer.safetensors is missing",
    "no manifest": "manifest.json is missing",
    "half a manifest": "manifest.json is not readable",
    "a changed manifest": "the content of manifest.json does not match its id",
    "a manifest of nothing": "manifest.json holds no object",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_newest_checkpoint_is_left_for_the_one_before(tmp_path, kind):
    notices = []
    store = make_store(tmp_path, notice=notices.append)
    for step in (1, 2, 3):
        save(store, step)
    spoil(tmp_path / "000003", kind)
    engine = engine_at(9)
    found = restore_newest(store, find_checkpoints(store, "latest", False), engine.slots(), engine.roles)
    assert found.manifest.step == 2
    assert engine.state["linear.weight"].tobytes() == engine_at(2).state["linear.weight"].tobytes()
    assert len(notices) == 1
    assert notices[0].startswith("checkpoint 000003 is damaged (")
    assert notices[0].endswith("), going back to 000002")
    if DAMAGE[kind]:
        assert notices[0] == f"checkpoint 000003 is damaged ({DAMAGE[kind]}), going back to 000002"
    assert (tmp_path / "latest").read_text().splitlines()[0] == "000002"


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_that_was_asked_for_is_an_error(tmp_path, kind):
    store = make_store(tmp_path)
    for step in (1, 2):
        save(store, step)
    spoil(tmp_path / "000002", kind)
    engine = engine_at(9)
    with pytest.raises(ParenError) as caught:
        restore_newest(store, find_checkpoints(store, str(tmp_path / "000002"), False), engine.slots(), engine.roles)
    assert caught.value.code == "E-CKPT-003"
    assert caught.value.message.startswith(f"the checkpoint {tmp_path / '000002'} is damaged: ")


@pytest.mark.parametrize("wanted", ["latest", "auto"])
def test_no_whole_checkpoint_is_an_error_and_no_new_start(tmp_path, wanted):
    store = make_store(tmp_path)
    save(store, 1), save(store, 2)
    spoil(tmp_path / "000001", "a missing file")
    spoil(tmp_path / "000002", "no manifest")
    engine = engine_at(9)
    with pytest.raises(ParenError) as caught:
        restore_newest(store, find_checkpoints(store, wanted, False), engine.slots(), engine.roles)
    assert caught.value.code == "E-CKPT-010"
    assert caught.value.message == f"no checkpoint in {tmp_path} is whole"
    assert [note.message for note in caught.value.notes] == [
        "000001: optimizer.safetensors is missing",
        "000002: manifest.json is missing",
    ]
    spoil(tmp_path / "000001", "no manifest")
    with pytest.raises(ParenError) as caught:
        find_checkpoints(store, wanted, False)
    assert caught.value.code == "E-CKPT-010"


def test_a_step_that_does_not_exist(tmp_path):
    store = make_store(tmp_path)
    save(store, 500)
    with pytest.raises(ParenError) as caught:
        find_checkpoints(store, "50", False)
    assert caught.value.code == "E-CKPT-002"
    assert caught.value.message == f"there is no checkpoint {tmp_path / '000050'} (did you mean 000500?)"
    assert [note.message for note in caught.value.notes] == [f"{tmp_path} holds 000500"]
    with pytest.raises(ParenError) as caught:
        find_checkpoints(make_store(tmp_path / "none"), str(tmp_path / "x"), False)
    assert caught.value.message == f"there is no checkpoint {tmp_path / 'x'}"
    assert [note.message for note in caught.value.notes] == [f"{tmp_path / 'none'} holds none"]


def test_latest_of_an_empty_place(tmp_path):
    with pytest.raises(ParenError) as caught:
        find_checkpoints(make_store(tmp_path), "latest", False)
    assert caught.value.code == "E-CKPT-001"
    assert caught.value.message == f"{tmp_path} holds no checkpoint to resume from"
    assert find_checkpoints(make_store(tmp_path), "auto", False).checkpoints == []


@pytest.mark.parametrize("version", [0, 1, 2, "x", None])
def test_another_format_version(tmp_path, version):
    store = make_store(tmp_path)
    folder = save(store, 1).folder.path
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "format": version}))
    with pytest.raises(ParenError) as caught:
        find_checkpoints(store, str(folder), False)
    assert caught.value.code == "E-CKPT-005"
    assert caught.value.message == f"the checkpoint {folder} is of format {version}, and this paren reads format 3"
    with pytest.raises(ParenError) as caught:
        find_checkpoints(store, "latest", False)
    assert [note.message for note in caught.value.notes] == [f"000001: format {version}"]


def test_another_program(tmp_path):
    save(make_store(tmp_path), 1)
    with pytest.raises(ParenError) as caught:
        find_checkpoints(make_store(tmp_path, program="q" * 64), str(tmp_path / "000001"), False)
    assert caught.value.code == "E-CKPT-004"
    assert caught.value.message == (
        f"the checkpoint {tmp_path / '000001'} is of another experiment (pppppppppppp instead of qqqqqqqqqqqq)"
    )


def test_other_slots_are_told_all_at_once(tmp_path):
    checkpoint = save(make_store(tmp_path), 1)
    engine = engine_at(1)
    engine.state["extra"] = engine.state.pop("linear.bias")
    engine.state["linear.weight"] = np.zeros((2, 2), np.float32)
    with pytest.raises(ParenError) as caught:
        restore(checkpoint, engine.slots(), engine.roles)
    assert caught.value.code == "E-CKPT-006"
    assert [error.message for error in caught.value.errors] == [
        "checkpoint 000001 does not hold slot 'extra'",
        "slot 'linear.weight' is float32[4] in checkpoint 000001 and float32[2, 2] in the program",
        "checkpoint 000001 holds slot 'linear.bias', which the program does not have",
    ]


# ---- lineage -------------------------------------------------------------------------------------------------------


def steps_of(store: CheckpointStore) -> list[int]:
    return [each.manifest.step for each in store.lineage()[0]]


def test_a_lost_pointer_is_no_loss(tmp_path):
    store = make_store(tmp_path)
    for step in (1, 2, 3):
        save(store, step)
    (tmp_path / "latest").unlink()
    assert steps_of(store) == [3, 2, 1]
    (tmp_path / "latest").write_bytes(b"\xff\xfe")
    assert steps_of(store) == [3, 2, 1]


def test_a_pointer_that_did_not_move_is_no_loss(tmp_path):
    """A kill between the publishing rename and the pointer's."""
    store = make_store(tmp_path)
    save(store, 1)
    pointer = (tmp_path / "latest").read_bytes()
    save(store, 2)
    (tmp_path / "latest").write_bytes(pointer)
    assert steps_of(store) == [2, 1]


def test_an_abandoned_branch_is_not_in_the_lineage_and_its_places_are_taken(tmp_path):
    store = make_store(tmp_path)
    for step in (2, 4, 6, 8):
        save(store, step)
    store.follow(next(each for each in store.all()[0] if each.manifest.step == 2))
    assert steps_of(store) == [2]
    save(store, 4, engine_at(44))
    assert steps_of(store) == [4, 2]
    engine = engine_at(1)
    restore_newest(store, find_checkpoints(store, "latest", False), engine.slots(), engine.roles)
    assert engine.state["linear.weight"].tobytes() == engine_at(44).state["linear.weight"].tobytes()
    spoil(tmp_path / "000004", "no manifest")
    assert steps_of(store) == [2]


def test_a_damaged_checkpoint_does_not_hide_those_behind_it(tmp_path):
    store = make_store(tmp_path)
    for step in (2, 4):
        save(store, step)
    spoil(tmp_path / "000004", "no manifest")
    for step in (6, 8):
        save(store, step)
    assert steps_of(store) == [8, 6, 2]
    spoil(tmp_path / "000008", "half a manifest")
    assert steps_of(store) == [6, 2]


def test_checkpoints_of_another_run_are_neither_listed_nor_overwritten(tmp_path):
    save(make_store(tmp_path, run="other"), 1)
    store = make_store(tmp_path)
    assert steps_of(store) == []
    with pytest.raises(ParenError) as caught:
        store.refuse_strangers()
    assert caught.value.code == "E-RUN-015"
    assert caught.value.message == f"{tmp_path} holds the checkpoints of another run (other)"
