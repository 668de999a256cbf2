import io
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm.files import SCHEMA, ProblemFileError, load_problem, read_problem_file, save_arrays, save_problem
from attsvm.records import atomic_write

SUFFIXES = (".npz", ".safetensors")


def problems():
    yield "linear", attsvm.random_problem(n=3, T=4, d=5, seed=0)
    yield "batch", attsvm.random_problem(n=2, T=3, d=4, batch=3, seed=1)
    yield "causal", attsvm.random_problem(n=2, T=3, d=4, kind="sequence", causal=True, seed=2)
    rng = np.random.default_rng(3)
    X, Z = rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal((2, 5))
    yield "float32", attsvm.AttentionProblem(X, None, Z)
    yield "relu", attsvm.AttentionProblem(X, [1, -1], Z, attsvm.ReluHead(rng.standard_normal((4, 6))))
    yield "concave", attsvm.AttentionProblem(X, [1, -1], Z, attsvm.ConcaveHead(rng.standard_normal(4), lam=0.25))
    tokens = [rng.standard_normal((k, 4)) for k in (2, 3)]
    yield "ragged", attsvm.AttentionProblem.from_ragged(tokens, Z, head=attsvm.LinearHead(np.ones(4)))


def same(a, b):
    for name in ("X", "Y", "Z", "mask"):
        left, right = getattr(a, name), getattr(b, name)
        if left is None or right is None:
            assert left is right
        else:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
    assert type(a.head) is type(b.head)
    for name in ("v", "V", "lam"):
        np.testing.assert_array_equal(getattr(a.head, name, 0), getattr(b.head, name, 0))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("name", "problem"), [pytest.param(n, p, id=n) for n, p in problems()])
def test_round_trip(tmp_path, suffix, name, problem):
    path = tmp_path / f"p{suffix}"
    save_problem(problem, path)
    same(load_problem(path), problem)
    assert read_problem_file(path).selection is None
    first = path.read_bytes()
    save_problem(problem, path)
    assert path.read_bytes() == first  # the same problem gives the same file
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@given(
    n=st.integers(1, 4),
    T=st.integers(2, 4),
    d=st.integers(1, 4),
    seed=st.integers(0, 99),
    kind=st.sampled_from(SUFFIXES),
)
def test_round_trip_with_a_selection(tmp_path_factory, n, T, d, seed, kind):
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
    chosen = np.random.default_rng(seed).integers(0, T, n)
    path = tmp_path_factory.mktemp("files") / f"p{kind}"
    save_problem(problem, path, selection=chosen)
    same(read_problem_file(path).problem, problem)
    np.testing.assert_array_equal(read_problem_file(path).selection.indices, chosen)


def test_plain_numpy_writes_a_problem_file(tmp_path):
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    entries = {"schema": SCHEMA, "X": np.asfortranarray(problem.X), "Y": problem.Y.astype(">i2"), "Z": problem.Z}
    np.savez_compressed(tmp_path / "p.npz", **entries, head="linear", head_v=problem.head.v)
    same(load_problem(tmp_path / "p.npz"), problem)


def test_the_safetensors_package_reads_and_writes_the_same(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    save_problem(problem, tmp_path / "ours.safetensors", selection=[0, 1, 2])
    theirs = library.load_file(tmp_path / "ours.safetensors")
    assert set(theirs) == {"X", "Y", "Z", "head_v", "selection"}
    np.testing.assert_array_equal(theirs["X"], problem.X)
    library.save_file(theirs, tmp_path / "back.safetensors", metadata={"schema": SCHEMA, "head": "linear", "by": "me"})
    same(load_problem(tmp_path / "back.safetensors"), problem)


def test_half_precision_is_read(tmp_path, rng):
    X = rng.standard_normal((1, 2, 3)).astype(np.float32)
    Z = rng.standard_normal((1, 3)).astype(np.float16)
    upper = (X.view(np.uint32) >> 16).astype("<u2")  # bfloat16 is the upper half of float32
    header = META | {"X": claim([1, 2, 3], 0, 12, "BF16"), "Z": claim([1, 3], 12, 18, "F16")}
    (tmp_path / "p.safetensors").write_bytes(tensors(header, upper.tobytes() + Z.tobytes()))
    problem = load_problem(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(problem.X, (X.view(np.uint32) & 0xFFFF0000).view(np.float32))
    np.testing.assert_array_equal(problem.Z, Z.astype(np.float32))


# -- files that are refused ---------------------------------------------------------------------------


def entries(**changes):
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    base = {
        "schema": SCHEMA,
        "X": problem.X,
        "Y": problem.Y,
        "Z": problem.Z,
        "head": "linear",
        "head_v": problem.head.v,
    }
    return {name: value for name, value in (base | changes).items() if value is not None}


def npy(descr="<f8", shape="(1000000, 1000, 125)", data=b"\0" * 80, header=None):
    text = header or f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    raw = text.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + data


def archive(members, compression=zipfile.ZIP_STORED):
    out = io.BytesIO()
    np.savez(out, **{k: v for k, v in entries().items() if k not in members})
    with zipfile.ZipFile(out, "a", compression) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return out.getvalue()


def refuse(path, content, message):
    path.write_bytes(content)
    with pytest.raises(ProblemFileError, match=message) as caught:
        load_problem(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < 400 + len(str(path))


def saved(**changes):
    out = io.BytesIO()
    np.savez(out, **entries(**changes))
    return out.getvalue()


def forged(size):
    """An archive whose directory claims that X has this many bytes."""
    out = bytearray(archive({"X": npy()}))
    entry = out.rindex(b"PK\x01\x02")
    out[entry + 24 : entry + 28] = struct.pack("<I", size)
    return bytes(out)


NAN = np.where(np.arange(60).reshape(3, 4, 5) == 7, np.nan, 1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "0 bytes are too few", id="empty"),
        pytest.param(b"hello world, this is not an archive at all", "does not end in a zip directory", id="text"),
        pytest.param(saved()[:-30], "does not end in a zip directory", id="truncated"),
        pytest.param(saved()[:400] + b"\xff" * 40 + saved()[440:], "corrupt|X claims|header", id="corrupt"),
        pytest.param(saved(schema=None), "no entry 'schema'", id="no schema"),
        pytest.param(saved(schema="attsvm.problem/2"), "this version reads 'attsvm.problem/1'", id="newer"),
        pytest.param(saved(schema=np.zeros(3)), "schema must be a short text", id="schema of numbers"),
        pytest.param(saved(X=None), "no entry 'X'", id="no X"),
        pytest.param(saved(Mask=np.ones(3)), "unknown entry 'Mask'", id="unknown entry"),
        pytest.param(saved(head="resnet"), "head must be one of none, linear, relu, concave", id="unknown head"),
        pytest.param(saved(head_v=None), "kind 'linear' needs the entry 'head_v'", id="head without parameters"),
        pytest.param(saved(head="none"), "kind 'none' does not take the entry 'head_v'", id="parameters without head"),
        pytest.param(saved(head_v=np.ones(4)), "head expects tokens of dimension 4", id="head of another size"),
        pytest.param(saved(X=NAN), r"X must be finite, but X\[0, 1, 2\] is nan", id="NaN"),
        pytest.param(saved(Y=np.array([1.0, 2.0, 1.0])), r"labels \+1 or -1, but Y\[1\] is 2", id="label 2"),
        pytest.param(saved(Z=np.ones((2, 5))), "Z must have shape", id="shapes that disagree"),
        pytest.param(saved(X=np.ones((3, 4, 5), complex)), "X has dtype '<c16'", id="complex"),
        pytest.param(saved(X=np.full((3, 4, 5), "a")), "X must hold real numbers, got dtype <U1", id="strings"),
        pytest.param(saved(mask=np.ones((3, 4))), "mask must hold booleans, got dtype float64", id="float mask"),
        pytest.param(saved(selection=[0, 9, 0]), r"selection\[1\] = 9 is out of range", id="selection out of range"),
        pytest.param(saved(X=np.ones((1, 1, 3, 4, 5))), "X must have at most 4 axes", id="five axes"),
        pytest.param(archive({"X": npy()}), "X claims .* 1,000,000,000,000 bytes, but the file holds 80", id="1 TB"),
        pytest.param(archive({"X": npy(shape="(9223372036854775807, 9223372036854775807)")}), "X claims", id="2^126"),
        pytest.param(archive({"X": npy(shape="(-1, 4, 5)")}), "does not describe a plain array", id="negative"),
        pytest.param(archive({"X": npy(descr="|O")}), "X holds pickled Python objects, which are never", id="objects"),
        pytest.param(archive({"X": npy(header="{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }")}),
                     "X has dtype", id="record"),
        pytest.param(archive({"X": npy(header="__import__('os').system('true')")}), "does not describe", id="code"),
        pytest.param(archive({"X": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 99}), "header of 2,147,483,647 bytes",
                     id="huge header"),
        pytest.param(archive({"X": pickle.dumps([1])}), "X is not an array", id="pickle"),
        pytest.param(forged(4_000_000_000), "4,000,0.* bytes, more than the limit", id="4 GB"),
        pytest.param(forged(200_000_000), "claim to expand to 200,0.*: refused as a zip bomb", id="bomb"),
    ],
)  # fmt: skip
def test_bad_npz_is_refused_in_one_line(tmp_path, content, message):
    refuse(tmp_path / "bad.npz", content, message)


def tensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def claim(shape, start, end, dtype="F64"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


META = {"__metadata__": {"schema": SCHEMA}}
BOTH = META | {"X": claim([1, 2, 2], 0, 32), "Z": claim([1, 2], 32, 48)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"abc", "truncated", id="short"),
        pytest.param(tensors({}, length=10**12), "a header of 1,000,000,000,000 bytes is claimed", id="1 TB header"),
        pytest.param(tensors(b"{" * 900), "the header is not JSON", id="not JSON"),
        pytest.param(tensors(b"[" * 500_000), "the header is not JSON", id="deep JSON"),
        pytest.param(tensors(b" " * 2_000_000), "the header takes 2,000,000 bytes", id="long header"),
        pytest.param(tensors([1]), "not a JSON object", id="list"),
        pytest.param(tensors(b'{"X": 1, "X": 2}'), "names an entry twice", id="twice"),
        pytest.param(tensors({"__metadata__": {"schema": 1}}), "must map names to texts", id="metadata of numbers"),
        pytest.param(tensors({"X": 3}), "X is not described by", id="no claim"),
        pytest.param(tensors(META | {"X": claim([True, 2], 0, 16)}), "X is not described by", id="boolean shape"),
        pytest.param(tensors(META | {"X": claim([10**6, 10**3, 125], 0, 10**12)}), "X ends at byte 1,000,000,000,000",
                     id="1 TB"),
        pytest.param(tensors(META | {"X": claim([10**6, 10**3, 125], 0, 80)}, bytes(80)), "its offsets span 80",
                     id="1 TB in 80 bytes"),
        pytest.param(tensors(META | {"X": claim([1, 2, 2], 0, 32, "F8_E4M3")}, bytes(32)), "X has dtype 'F8_E4M3'",
                     id="float8"),
        pytest.param(tensors(META | {"weights": claim([2], 0, 16)}, bytes(16)), "unknown entry 'weights'", id="name"),
        pytest.param(tensors(META | {"X": claim([1, 2, 2], 0, 32), "Z": claim([1, 2], 16, 32)}, bytes(32)),
                     "entries overlap or leave gaps", id="overlap"),
        pytest.param(tensors(BOTH, bytes(40)), "truncated: Z ends at byte 48", id="truncated"),
        pytest.param(tensors(BOTH, bytes(60)), "12 bytes follow the last entry", id="trailing"),
        pytest.param(tensors({k: v for k, v in BOTH.items() if k != "__metadata__"}, bytes(48)), "no entry 'schema'",
                     id="no schema"),
        pytest.param(tensors(META, b""), "no entry 'X'", id="no X"),
        pytest.param(tensors(BOTH | {"mask": claim([1, 2], 48, 50, "BOOL")}, bytes(48) + b"\1\2"), "other than 0 and 1",
                     id="boolean 2"),
        pytest.param(tensors(BOTH, np.full(6, np.inf).tobytes()), r"but X\[0, 0, 0\] is inf", id="inf"),
        pytest.param(pickle.dumps({"X": np.zeros(3)}), "truncated", id="pickle"),
    ],
)  # fmt: skip
def test_bad_safetensors_is_refused_in_one_line(tmp_path, content, message):
    refuse(tmp_path / "bad.safetensors", content, message)


class Evil:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


def test_a_pickle_in_an_archive_is_not_executed(tmp_path):
    target = tmp_path / "executed"
    array = np.empty(1, dtype=object)
    array[0] = Evil(str(target))
    np.savez(tmp_path / "evil.npz", **entries(X=array))
    with pytest.raises(ProblemFileError, match="pickled Python objects, which are never loaded"):
        load_problem(tmp_path / "evil.npz")
    assert not target.exists()
    with np.load(tmp_path / "evil.npz", allow_pickle=True) as trusted:
        _ = trusted["X"]  # the same file is harmful to a reader that trusts it
    assert target.exists()


@pytest.mark.parametrize("cut", range(0, 100, 7))
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_truncation_is_refused(tmp_path, suffix, cut):
    path = tmp_path / f"p{suffix}"
    save_problem(attsvm.random_problem(n=2, T=3, d=4, seed=0), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * cut // 100])
    with pytest.raises(ProblemFileError):
        load_problem(path)


def test_other_things_than_files_are_refused(tmp_path):
    with pytest.raises(ProblemFileError, match=r"end in .npz or .safetensors, got '.csv'"):
        load_problem(tmp_path / "p.csv")
    with pytest.raises(FileNotFoundError):
        load_problem(tmp_path / "p.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ProblemFileError, match="not a regular file"):
        load_problem(tmp_path / "folder.npz")
    os.mkfifo(tmp_path / "pipe.npz")  # reading it would wait forever
    with pytest.raises(ProblemFileError, match="not a regular file"):
        load_problem(tmp_path / "pipe.npz")
    save_problem(attsvm.random_problem(n=2, T=3, d=4, seed=0), tmp_path / "p.npz")
    with pytest.raises(ProblemFileError, match="more than the limit of 100"):
        load_problem(tmp_path / "p.npz", max_bytes=100)
    np.savez(tmp_path / "small.npz", **entries(X=np.ones((3, 4, 500), np.int8)))
    with pytest.raises(
        ProblemFileError, match=r"X of shape .* takes 48,000 bytes in memory, more than the limit leaves"
    ):
        load_problem(tmp_path / "small.npz", max_bytes=20_000)  # numbers of one byte take eight when decoded
    with pytest.raises(ValueError, match="max_bytes must be an integer >= 1"):
        load_problem(tmp_path / "p.npz", max_bytes=0)


def test_a_directory_of_millions_of_entries_is_not_read(tmp_path):
    # The directory is bounded before zipfile builds an object per entry.
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for k in range(1000):
            file.writestr(f"{k}.npy", b"")
    refuse(tmp_path / "many.npz", out.getvalue(), "zip directory is larger")


def test_memory_stays_bounded(tmp_path):
    bomb = archive({"mask": npy("|b1", "(3, 4, 10000000)", bytes(120_000_000))}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 200_000
    (tmp_path / "bomb.npz").write_bytes(bomb)
    (tmp_path / "huge.npz").write_bytes(archive({"X": npy()}))
    (tmp_path / "huge.safetensors").write_bytes(tensors(META | {"X": claim([10**6, 10**3, 125], 0, 10**12)}))
    code = (
        "import resource, sys, attsvm, attsvm.files\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for path in sys.argv[1:]:\n"
        "    try: attsvm.files.load_problem(path)\n"
        "    except attsvm.files.ProblemFileError: print('refused')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    files = [str(tmp_path / name) for name in ("bomb.npz", "huge.npz", "huge.safetensors")]
    result = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    *refused, grown = result.stdout.split()
    assert refused == ["refused"] * 3
    assert int(grown) < 20_000  # KiB; the claims are 120 MB and 1 TB


def test_a_head_that_is_code_is_refused(tmp_path):
    problem = attsvm.AttentionProblem(np.ones((1, 2, 2)), None, np.ones((1, 2)), head=lambda x: x.sum(-1))
    with pytest.raises(ProblemFileError, match="a head of type function is code and cannot be stored"):
        save_problem(problem, tmp_path / "p.npz")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "p.npz"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="power cut"), atomic_write(path) as file:
        file.write(b"ne")
        raise RuntimeError("power cut")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        save_arrays(path, {"a": np.array([{}], dtype=object)})
    assert path.read_bytes() == b"old"


def test_two_writers_leave_one_whole_file(tmp_path):
    path = tmp_path / "p.npz"
    made = [attsvm.random_problem(n=2, T=3, d=4, seed=s) for s in range(2)]

    def write(problem):
        for _ in range(20):
            save_problem(problem, path)

    threads = [threading.Thread(target=write, args=(p,)) for p in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = load_problem(path)
    assert any(np.array_equal(loaded.X, p.X) for p in made)
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_changed_bytes_never_give_other_data(tmp_path, suffix):
    """Every byte change of a written file is refused or changes nothing that is read."""
    path = tmp_path / f"problem{suffix}"
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    save_problem(problem, path, selection=[2, 0])
    raw, rng = path.read_bytes(), np.random.default_rng(0)
    accepted = 0
    for place in rng.integers(len(raw), size=400):
        changed = bytearray(raw)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            read = read_problem_file(path)
        except ProblemFileError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)
            continue
        accepted += 1
        for name in ("X", "Y", "Z"):
            np.testing.assert_array_equal(getattr(read.problem, name), getattr(problem, name))
        np.testing.assert_array_equal(read.problem.head.v, problem.head.v)
        np.testing.assert_array_equal(read.selection.indices, [2, 0])
    assert accepted < 120  # bytes of the container that nobody reads, such as a time stamp


def test_a_text_of_no_characters_is_refused(tmp_path):
    path = tmp_path / "problem.npz"
    for point in (0x7FFFFFFF, 0x110000, 0xD800):
        text = np.frombuffer(np.array([point], dtype="<u4").tobytes(), dtype="<U1").reshape(())
        np.savez(path, schema=SCHEMA, X=np.ones((1, 2, 2)), Z=np.ones((1, 2)), head=text)
        with pytest.raises(ProblemFileError, match="head must be a short text, but holds what is no character"):
            load_problem(path)
