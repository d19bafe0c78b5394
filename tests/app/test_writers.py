"""What is written: text as lines, types as far as a format has them, dictionaries that differ from batch to batch."""

import csv
import gc
import re
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest

from commands import names, read, table, write

pa = pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads and writes files by pyarrow")
from pyarrow import ipc, parquet  # noqa: E402  after the skip

from bnorm.app import writers  # noqa: E402
from bnorm.app.errors import DataError  # noqa: E402
from bnorm.app.kinds import _views_in_parquet  # noqa: E402
from bnorm.app.text import Quotes  # noqa: E402


def written(path, *batches, **options):
    with writers.table(str(path), batches[0].schema, **options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def categories(words, *, ordered=False):
    return pa.array(words).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string(), ordered))


FORMATS = {
    "csv": ("", ","),
    "tsv": ("", "\t"),
    "csv.gz": ("gzip", ","),
    "txt.zst": ("zstd", ","),
    "csv.lz4": ("lz4", ","),
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_text(tmp_path, suffix):
    packed, delimiter = FORMATS[suffix]
    words = ["plain", "a,b", "a\tb", 'say "hi"', "two\nlines", "cr\r", "", None, "héllo"]
    batch = pa.record_batch({"x": np.arange(9) / 4, 'odd,"\t name': words, "flag": [True, None] * 4 + [False]})
    path = written(tmp_path / f"y.{suffix}", batch, batch.slice(0, 0), batch.slice(0, 1))
    with pa.input_stream(str(path), compression=packed or None) as file:
        text = file.read().decode()
    head, *rows = csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
    assert head == batch.schema.names
    assert [row[1] for row in rows] == [*(word or "" for word in words), "plain"]
    assert [row[2] for row in rows[:2]] == ["true", ""]
    assert [float(row[0]) for row in rows[:9]] == [i / 4 for i in range(9)]
    assert f"\n0.0{delimiter}plain{delimiter}true\n".replace("0.0", "0") in text  # nothing is quoted needlessly
    assert text.count("plain") == 2


def test_columns_that_ask_for_quotes(tmp_path):
    batch = pa.record_batch({"id": ["007", None, 'a"b'], "n": [1, 2, None]})
    text = written(tmp_path / "y.csv", batch, quotes=Quotes(names=["id"], values=["id"])).read_text()
    assert text == '"id",n\n"007",1\n,2\n"a""b",\n'


@pytest.mark.parametrize("value", [None, ""])
def test_a_value_alone_in_its_row(command, tmp_path, state, value):
    """As an empty line, readers would skip it."""
    kind = pa.float64() if value is None else pa.string()
    batch = pa.record_batch({"f0": pa.array([value, value], kind)})
    assert written(tmp_path / "y.csv", batch).read_text() == 'f0\n""\n""\n'
    if value is None:
        said = command("fit", tmp_path / "y.csv", "-o", tmp_path / "t.npz", "--columns", "f0")
        assert "of 2 rows" in said.out


VIEWS = "same" if _views_in_parquet() else "string"
INDICES = [f"dictionary<values=string, indices={kind}" for kind in ("int8", "uint32")]
if int(pa.__version__.partition(".")[0]) < 20:  # it reads all indices of Parquet as int32
    INDICES = ["dictionary<values=string, indices=int32"] * 2

KINDS = {  # a column, its first value as text, and its types in Parquet and in Arrow; None: refused
    "category": (categories(["a,b", None]), 'a,b', INDICES[0], "same"),
    "polars' text": (pa.array(["a", None], pa.string_view()), "a", VIEWS, "same"),
    "polars' categories": (
        pa.DictionaryArray.from_arrays(pa.array([0, None], pa.uint32()), pa.array(["a"], pa.string_view())),
        "a",
        INDICES[1],
        "dictionary<values=string, indices=uint32",
    ),
    "numbers of a category": (pa.array([5, None]).dictionary_encode(), "5", "int64", "same"),
    "run ends": (pa.RunEndEncodedArray.from_arrays([1, 2], ["a", None]), "a", "string", "same"),
    "interval": (pa.array([None, (1, 2, 3)], pa.month_day_nano_interval()), None, None, "same"),
    "union": (
        pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
        None,
        None,
        "same",
    ),
    "empty struct": (pa.array([{}, None], pa.struct([])), None, None, "same"),
    "list": (pa.array([["a"], None]), None, "same", "same"),
    "categories in a list": (
        pa.array([["a"], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        None,
        "list<element: dictionary",
        "list<item: string>",
    ),
    "bytes": (pa.array([b"a", None]), "a", "same", "same"),
    "half": (pa.array([np.float16(1.5), None], pa.float16()), "1.5", "same", "same"),
    "nothing": (pa.nulls(2), "", "same", "same"),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_types(tmp_path, name):
    array, text, in_parquet, in_arrow = KINDS[name]
    batch = pa.record_batch({"x": [1.0, 2.0], "c": array})
    for kind, wanted in (("csv", text), ("parquet", in_parquet), ("arrow", in_arrow)):
        path = tmp_path / f"y.{kind}"
        if wanted is None:
            with pytest.raises(DataError, match=r"column 'c': expected what a \w+ file can hold, got .*--drop c"):
                written(path, batch)
            assert not list(tmp_path.glob(f"*{kind}*"))
            continue
        written(path, batch, batch)
        if kind == "csv":
            with path.open(newline="") as file:
                assert [row[1] for row in csv.reader(file)] == ["c", text, "", text, ""]
            continue
        found = read(path)["c"]
        kept = str(found.type)
        if wanted == "same":
            assert kept.replace("element", "item") == str(array.type)  # which Parquet calls otherwise
        else:
            assert kept.startswith(wanted)
        assert found.to_pylist() == (["a", None] if "polars" in name else array.to_pylist()) * 2


def test_dictionaries_that_differ(command, tmp_path, state):
    """Between files, and between the row groups of one: one dictionary for all, which every reader takes."""
    x = table(60)
    words = [["b", "a", None] * 10, ["c", "a", "b"] * 10]
    for i in range(2):
        batch = pa.record_batch(
            {**dict(zip(names(x), x[30 * i : 30 * i + 30].T, strict=True)), "w": categories(words[i])}
        )
        path = tmp_path / f"{i}.arrow"
        with ipc.new_stream(str(path), batch.schema) as writer:
            writer.write_batch(batch)
    for suffix in ("arrow", "feather", "ipc", "parquet"):
        out = tmp_path / f"y.{suffix}"
        command("transform", tmp_path / "0.arrow", tmp_path / "1.arrow", "--state", state, "-o", out)
        found = ipc.open_file(out).read_all()["w"] if suffix != "parquet" else parquet.read_table(out)["w"]
        assert found.to_pylist() == words[0] + words[1]
        if suffix != "parquet":
            assert found.type == pa.dictionary(pa.int8(), pa.string())
            assert [chunk.dictionary.to_pylist() for chunk in found.chunks] == [["b", "a", "c"]] * 2
    polars = pytest.importorskip("polars", reason="a reader that takes no dictionaries that grow")
    assert polars.read_ipc(tmp_path / "y.arrow")["w"].to_list() == words[0] + words[1]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_category_that_begins_without_values(tmp_path):
    kind, words = pa.dictionary(pa.int8(), pa.string()), [[None], [], ["a", None], ["b", "a"]]
    batches = [pa.record_batch({"w": pa.array(part, kind)}) for part in words]
    found = ipc.open_file(written(tmp_path / "y.arrow", *batches)).read_all()["w"]
    assert (found.type, found.to_pylist()) == (kind, [None, "a", None, "b", "a"])


@pytest.mark.parametrize(("most", "wanted"), [(128, "int8"), (129, "int32")])
def test_more_values_than_the_indices_can_tell_apart(tmp_path, most, wanted):
    words = [f"w{i}" for i in range(most)]
    batches = [pa.record_batch({"w": categories(part, ordered=True)}) for part in (words[:100], words[100:])]
    found = ipc.open_file(written(tmp_path / "y.arrow", *batches)).read_all()["w"]
    assert found.to_pylist() == words
    assert str(found.type) == f"dictionary<values=string, indices={wanted}, ordered=1>"


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "arrow"])
def test_a_full_disk(command, tmp_path, state, suffix):
    """The error names the output; nothing is left, and nothing is printed beside it."""
    resource = pytest.importorskip("resource", reason="it limits the size of files, as a full disk does")
    x = table(20_000)
    data = write(tmp_path / "x.parquet", x, w=categories(["a", "b"] * 10_000))
    out = tmp_path / f"y.{suffix}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        said = command.fails("transform", data, "--state", state, "-o", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    gc.collect()
    assert said == f"bnorm: error: {out}: File too large"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learn.parquet", "s.npz", "x.parquet"]


@pytest.mark.parametrize("suffix", ["csv.gz", "parquet", "arrow"])
def test_an_error_while_the_output_is_open(command, tmp_path, state, suffix):
    """One line, and no complaint of a writer that closes itself later."""
    x = table(60)
    x[50, 1] = np.inf
    data = write(tmp_path / "x.parquet", x, w=categories(["a", "b"] * 30))
    said = command.fails("transform", data, "--state", state, "-o", tmp_path / f"y.{suffix}")
    assert "x.parquet: column 'f1', row 51: expected a finite number, got inf" in said
    gc.collect()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learn.parquet", "s.npz", "x.parquet"]


def test_uuids_are_text_in_csv(tmp_path):
    if not hasattr(pa, "uuid"):
        pytest.skip("this pyarrow has no type for UUIDs")
    one = UUID(int=2**127 + 5)
    kept = pa.array([one.bytes, None], pa.binary(16))
    batch = pa.record_batch([pa.ExtensionArray.from_storage(pa.uuid(), kept), pa.array([1, 2])], names=["key", "x"])
    with writers.table(str(tmp_path / "a.csv"), batch.schema) as writer:
        writer.write_batch(batch)
    assert (tmp_path / "a.csv").read_text() == f"key,x\n{one},1\n,2\n"


BESIDE = {  # columns of an Arrow file, and the same as text
    "small": (pa.array([7, None, -7], pa.int8()), ["7", "", "-7"]),
    "single": (pa.array([1.5, None, 2.0], pa.float32()), ["1.5", "", "2"]),
    "category": (pa.array(["a", "", "b"]).dictionary_encode(), ["a", "", "b"]),
    "long": (pa.array(["NA", "", "b"], pa.large_string()), ["NA", "", "b"]),
    "time": (
        pa.array([0, None, 1], pa.timestamp("ms", "UTC")),
        ["1970-01-01 00:00:00Z", "", "1970-01-01 00:00:00.001Z"],
    ),
    "nothing": (pa.nulls(3), ["", "", ""]),
}


def assert_same_rows_twice(path):
    """In a CSV file, three of them."""
    lines = path.read_text().splitlines()
    assert lines[1:4] == lines[4:]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_text_below_columns_with_types(command, tmp_path, state, suffix):
    """A CSV file behind an Arrow file has its types."""
    typed, text = ({name: column[i] for name, column in BESIDE.items()} for i in (0, 1))
    files = write(tmp_path / "a.arrow", table(3), **typed), write(tmp_path / "b.csv", table(3), **text)
    out = tmp_path / f"y.{suffix}"
    command("transform", *files, "--state", state, "-o", out)
    if suffix == "csv":
        assert_same_rows_twice(out)
    else:
        y = read(out)
        for name, column in typed.items():
            column = column.dictionary_decode() if name == "category" else column
            assert y[name].combine_chunks().cast(column.type) == pa.concat_arrays([column] * 2)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_with_types_below_text(command, tmp_path, state, suffix):
    more = {"id": [1, 2, 3], "good": [True, None, False], "none": pa.nulls(3)}
    files = write(tmp_path / "a.csv", table(3), **more), write(tmp_path / "b.parquet", table(3), **more)
    out = tmp_path / f"y.{suffix}"
    command("transform", *files, "--state", state, "-o", out)
    if suffix == "csv":
        assert_same_rows_twice(out)
    else:
        assert read(out)["good"].to_pylist() == [True, None, False] * 2


def test_types_that_a_format_lacks(command, tmp_path, state):
    decimals = pa.array([Decimal(100), Decimal(200)], pa.decimal128(5, -2))
    for values, suffix, name in ((decimals, "parquet", "Parquet"), (pa.array([[1], [2]]), "csv", "CSV")):
        data = write(tmp_path / "a.arrow", table(2), c=values)
        said = command.fails("transform", data, "--state", state, "-o", tmp_path / f"y.{suffix}")
        assert f"column 'c': expected what a {name} file can hold, got {values.type}: --drop c" in said


def test_text_that_is_no_value_of_a_type(command, tmp_path, state):
    for values, got in (
        (pa.array([[1], [2]]), "expected list<.*>, got string$"),
        (pa.array([1, 2], pa.int8()), "row 2 below the header: expected int8, .* got '300'$"),
    ):
        files = write(tmp_path / "a.arrow", table(2), c=values), write(tmp_path / "b.csv", table(2), c=["1", "300"])
        said = command.fails("transform", *files, "--state", state, "-o", tmp_path / "y.arrow")
        assert re.search(rf"b.csv: column 'c'.*{got}", said)


TEXTS = {"string": pa.string(), "large": pa.large_string(), "category": pa.dictionary(pa.int8(), pa.string())}


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize("first", TEXTS)
@pytest.mark.parametrize("second", TEXTS)
def test_text_of_several_types(command, tmp_path, state, first, second, suffix):
    """As the writers of pandas and polars, and of their versions, differ in."""
    words = pa.array(["a", None, "b"])
    columns = [words.dictionary_encode().cast(TEXTS[kind]) if kind == "category" else words.cast(TEXTS[kind])
               for kind in (first, second)]  # fmt: skip
    files = [write(tmp_path / f"{i}.parquet", table(3), c=column) for i, column in enumerate(columns)]
    out = tmp_path / f"y.{suffix}"
    command("transform", *files, "--state", state, "-o", out)
    if suffix == "csv":
        assert [line.rsplit(",", 1)[1] for line in out.read_text().splitlines()] == ["c", *["a", "", "b"] * 2]
    else:
        assert read(out)["c"].to_pylist() == ["a", None, "b"] * 2


def test_more_texts_than_a_dictionary_has_indices_for(command, tmp_path, state):
    few = write(tmp_path / "few.arrow", table(2), c=categories(["a", "b"]))
    many = write(tmp_path / "many.csv", table(300), c=[f"v{i}" for i in range(300)])
    said = command.fails("transform", few, many, "--state", state, "-o", tmp_path / "y.parquet")
    assert re.search(
        "many.csv: column 'c': expected dictionary<.*indices=int8.*>: Integer value 128 not in range", said
    )
