"""What the command reads: pipes and packed files, dialects of CSV, and what it says of the columns."""

import bz2
import gzip
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import child
from commands import run_apart, table, write

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")

X = table(500)
LONG = 120  # of these are longer than the beginning that shows types
posix = pytest.mark.skipif(os.name != "posix", reason="pipes with names and signals need Unix")


def zstd(data):
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def write_all(descriptor, data):
    with open(descriptor, "wb") as file:  # noqa: PTH123
        file.write(data)


@pytest.fixture
def piped(command, monkeypatch):
    """Runs the command here, with a pipe for its standard input that these bytes come through."""

    def run(data, *arguments):
        end, into = os.pipe()
        with open(end, "rb") as stdin, ThreadPoolExecutor(1) as pool:  # noqa: PTH123
            writing = pool.submit(write_all, into, data)
            monkeypatch.setattr(sys, "stdin", stdin)
            done = command(*arguments)
            writing.result()
        return done

    return run


def packed(tmp_path, kind):
    """The table as bytes of this kind."""
    import pyarrow as pa
    from pyarrow import ipc

    pack = {"gzip": gzip.compress, "bz2": bz2.compress, "zstd": zstd, "utf-16": lambda t: t.decode().encode("utf-16")}
    suffix = kind if kind in ("parquet", "arrow") else "csv"
    if kind != "feather":
        x = np.tile(X, (LONG, 1)) if kind == "long" else X
        return pack.get(kind, bytes)(write(tmp_path / f"x.{suffix}", x).read_bytes())
    sink, t = pa.BufferOutputStream(), pa.table({f"f{i}": x for i, x in enumerate(X.T)})
    with ipc.new_file(sink, t.schema) as writer:  # a file, not compressed: its beginning is a stream
        writer.write_table(t)
    return sink.getvalue().to_pybytes()


def has_learned(state, times=1):
    import bnorm

    t = bnorm.load(state)
    assert t.n_samples_seen_ == times * len(X)
    np.testing.assert_allclose(t.mean_, X.mean(0), rtol=1e-12)


@pytest.mark.parametrize("kind", ["csv", "long", "utf-16", "gzip", "bz2", "zstd", "arrow", "feather"])
def test_standard_input(piped, tmp_path, kind):
    done = piped(packed(tmp_path, kind), "fit", "-", "-o", tmp_path / "s.npz", "--quiet")
    assert (done.out, done.err, done.told) == ("", "", "")
    has_learned(tmp_path / "s.npz", LONG if kind == "long" else 1)


def test_standard_input_of_a_process(tmp_path, monkeypatch):
    """Parquet, which is not read front to back. The copy of it is closed, of which Python would say if it were not."""
    data = packed(tmp_path, "parquet")
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    with run_apart("fit", "-", "-o", tmp_path / "s.npz", "--quiet", stdin=-1, stderr=-1) as process:
        _, said = process.communicate(data, timeout=child.LIMIT)
    assert (process.returncode, said) == (0, b"")
    has_learned(tmp_path / "s.npz")


@posix
def test_pipes_with_names(command, tmp_path):
    import threading

    text = write(tmp_path / "x.csv", X).read_bytes()
    os.mkfifo(tmp_path / "f.csv")
    writer = threading.Thread(target=(tmp_path / "f.csv").write_bytes, args=(text,))
    writer.start()
    command("fit", tmp_path / "f.csv", "-o", tmp_path / "s.npz")
    writer.join()


@posix
@pytest.mark.parametrize("name", ["z.csv", "z.parquet", "z.arrow"])
def test_files_without_an_end(command, tmp_path, name):
    (tmp_path / name).symlink_to("/dev/zero")
    assert "expected" in command.fails("fit", tmp_path / name, "-o", tmp_path / "s.npz")


@posix
@pytest.mark.parametrize("given", ["data", "data/*.csv"])
def test_a_link_to_nothing_is_not_left_out(command, tmp_path, given):
    """Where files are fetched on demand, such a link stands for one that is not there yet."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "data" / "b.csv").symlink_to("../store/b.csv")
    said = command.fails("fit", tmp_path / given, "-o", tmp_path / "s.npz")
    assert said == f"bnorm: error: {tmp_path / 'data' / 'b.csv'}: No such file or directory"


def test_a_first_row_without_an_end(command, tmp_path, monkeypatch):
    """A small file, packed, may hold any number of bytes."""
    monkeypatch.setattr("bnorm.app.csv_source.LONGEST", 1 << 22)
    data = tmp_path / "x.csv.gz"
    data.write_bytes(gzip.compress(b"y" * (5 << 20)))
    said = command.fails("fit", data, "-o", tmp_path / "s.npz")
    assert said == f"bnorm: error: {data}: expected a first row that ends within 4 MiB"


def test_names_of_many_digits(means, command):
    """Python makes no integer of so many, and looking for numbers in them must not take long."""
    name = "1" * 200_000
    assert means(f"a,{name}\n1,2\n3,4\n") == {"a": 2.0, name: 3.0}
    assert means(f"{name}x,{name}\n1,2\n3,4\n") == {f"{name}x": 2.0, name: 3.0}


@posix
def test_states_without_an_end(command, tmp_path):
    for suffix in (".npz", ".safetensors"):
        (tmp_path / f"z{suffix}").symlink_to("/dev/zero")
        os.mkfifo(tmp_path / f"f{suffix}")
        for name in "zf":
            assert "no regular file" in command.fails("show", tmp_path / f"{name}{suffix}")


@posix
def test_closed_standard_input(tmp_path):
    import sys

    run = f"{sys.executable} -m bnorm fit - -o {tmp_path / 's.npz'} <&-"
    done = subprocess.run(run, shell=True, capture_output=True, text=True, timeout=child.LIMIT)
    assert done.stderr == "bnorm: error: standard input: expected a table, but it is closed\n"


@posix
@pytest.mark.parametrize("given", [b"a,b\n1,2\n" * 200_000, gzip.compress(b"a,b\n1,2\n")[:5]], ids=["text", "gzip"])
def test_an_interrupt_ends_the_wait_for_a_silent_pipe(tmp_path, given):
    with run_apart("fit", "-", "-o", tmp_path / "s.npz", stdin=-1, stderr=-1) as process:
        process.stdin.write(given)
        process.stdin.flush()
        waits = Path(f"/proc/{process.pid}/wchan")
        for _ in range(3000):  # a minute at most; where no such file says where it waits, it may come too soon
            if not waits.exists() or "pipe" in waits.read_text():
                break
            signal.sigtimedwait([], 0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=child.LIMIT) == 130
        process.stdin.close()
        assert process.stderr.read().endswith(b"bnorm: interrupted\n")


@pytest.mark.parametrize("way", [(), ("--by", "k"), ("--exact",)], ids=lambda way: "".join(way[:1]) or "plain")
def test_no_file_counts_twice(command, tmp_path, way):
    """By whatever name or glob it comes. Two files with the same content may be two days with the same values."""
    folder, state, text = tmp_path / "days", tmp_path / "s.npz", "a,k\n1,2\n3,4\n"
    folder.mkdir()
    (a, b), link = (folder / f"{name}.csv" for name in "ab"), tmp_path / "link.csv"
    for day in (a, b):
        day.write_text(text)
    link.symlink_to(b)
    fit = ("fit", "-o", state, *way)
    for again in ([a, a], [folder, link], [folder / "*.csv", folder / "b.csv"]):
        first, last = (a, a) if again[0] == a else (b, again[1])
        assert command.fails(*fit, *again).endswith(f"{last}: expected each file once, got it twice, first as {first}")
    command(*fit, folder)
    assert command("show", state, "--json").json["rows"] == 4
    if way == ("--exact",):
        assert "got it twice" in command.fails("forget", state, a, a, "-o", tmp_path / "t.npz")
        command("forget", state, a, b, "-o", tmp_path / "t.npz")


@posix
def test_standard_input_may_be_a_file_that_is_also_named(tmp_path):
    (data := tmp_path / "x.csv").write_text("a\n1\n2\n")
    with data.open() as stdin, run_apart("fit", "-", data, "-o", tmp_path / "s.npz", stdin=stdin, stderr=-1) as process:
        assert process.stderr.read().endswith(b"x.csv: expected each file once, got it twice, first as /dev/stdin\n")


def test_quotes(means):
    """Line breaks in them, over the ends of blocks; quotes that are none; and such that are never closed."""
    assert means("x,t\n" + '1,"a\n7,b\n8,"\n' * 100_000) == {"x": 1.0}
    assert means("x,t\n" + '1,5" pipe\n3,"a, ""b"""\n' * 60_000) == {"x": 2.0}


@pytest.mark.parametrize("rows", [1000, 400_000])
def test_a_quote_that_is_never_closed(command, tmp_path, rows):
    data = tmp_path / "x.csv"
    data.write_text('x,t\n3,d\n1,"oops\n' + "2,b\n" * rows)
    assert "a quote is never closed" in command.fails("fit", data, "-o", tmp_path / "s.npz")


def test_ends_of_rows():
    """Against a machine of states that reads letter by letter, as pyarrow's parser does."""
    from bnorm.app.csv_blocks import last_end

    def by_states(text):
        end, state = 0, "start"
        for i, c in enumerate(text):
            if state in ("in", "start") and c == '"':
                state = {"in": "after", "start": "in"}[state]
            elif state == "after" and c == '"':
                state = "in"
            elif state != "in":
                state = "start" if c in ",\r\n" else "plain"
                end = i + 1 if c == "\n" else end
        return end

    rng = np.random.default_rng(0)
    for _ in range(3000):
        text = "".join(rng.choice(list('ab,\n""\n"'), rng.integers(0, 15)))
        assert last_end(text.encode(), ",") == by_states(text), text


def test_long_rows(means):
    assert means("a,t\n1,x\n2," + "y" * 3_000_000 + "\n6,z\n") == {"a": 3.0}
    names = [f"{i:0600}" for i in range(2000)]
    assert len(means(",".join(names) + "\n" + ",".join(["1"] * 2000) + "\n")) == 2000


@pytest.mark.parametrize(
    ("text", "asked", "want"),
    [
        ("1,2\n3,4\n", ["--no-header"], {"x0": 2.0, "x1": 3.0}),
        ("1,2", ["--no-header"], {"x0": 1.0, "x1": 2.0}),
        ("a,b\n1,?\n3,4\n?,6\n", ["--null-values", "?,-"], {"a": 2.0, "b": 5.0}),
        ("a;b\n1,5;2\n2,5;2\n", ["--delimiter", ";", "--decimal", ","], {"a": 2.0, "b": 2.0}),
        ('a,b\n"1,000",1\n"3,000.5",1\n', ["--thousands", ","], {"a": 2000.25, "b": 1.0}),
        ("a;b\n1.000,5;1\n1.001,5;1\n", ["--delimiter=;", "--decimal=,", "--thousands=."], {"a": 1001.0, "b": 1}),
        ("a;b\n1\u202f000,5;1\n1\u00a0001,5;1\n", ["--delimiter=;", "--decimal=,", "--thousands= "], {"a": 1001.0, "b": 1}),  # noqa: E501
        ("a\n1\u2019000\n3\u2019000\n", ["--thousands=\u2019"], {"a": 2000.0}),
        ("a\n1.000\n3.000\n", ["--thousands=."], {"a": 2000.0}),
        ("a\n1\u066b5\n2\u066b5\n", ["--decimal=\u066b"], {"a": 2.0}),
        ("a,b\n—,1\n—,2\n3,4\n", ["--null-values", "—"], {"a": 3.0, "b": 7 / 3}),
        ("caf\xe9,b\n1,2\n".encode("latin-1"), ["--encoding", "latin-1"], {"café": 1.0, "b": 2.0}),
        ("made by\n\"x\na,b\n1,2\n", ["--skip-rows", "2"], {"a": 1.0, "b": 2.0}),
        ("by\r\nx\r\na,b\r\n1,2\r\n", ["--skip-rows", "2"], {"a": 1.0, "b": 2.0}),
        ("by\rx\ra,b\r1,2\r", ["--skip-rows", "2"], {"a": 1.0, "b": 2.0}),
        ("by\rx\n\r\na,b\r\n1,2\r\n", ["--skip-rows", "3"], {"a": 1.0, "b": 2.0}),
        ("by\ra;b\r1,5;2\r", ["--skip-rows=1", "--delimiter=;", "--decimal=,"], {"a": 1.5, "b": 2.0}),
        ("a,b\n1,2\nn/k,4\n3,6\n", ["--on-error", "null"], {"a": 2.0, "b": 4.0}),
        ("a,b\n 1 ,2\n NA,4\n    ,6\n3,\t\n", [], {"a": 2.0, "b": 4.0}),
        ("a,b\n      -999,1\n2, -999  \n4,\t -999\n", ["--null-values=-999"], {"a": 3.0, "b": 1.0}),
        ("a\tb\n     -999\t1\n2\t-999  \n", ["--null-values=x,-999", "--delimiter=tab"], {"a": 2.0, "b": 1.0}),
        ("a,b\n      NA,     NA\n      NA,        \n3,     NA\n", [], {"a": 3.0, "b": None}),
        ("a,b\n1,true\n3,false\n", ["--columns", "a,b"], {"a": 2.0, "b": 0.5}),
        ('a\n1\n""\n3\n', [], {"a": 2.0}),
    ],
)  # fmt: skip
def test_dialects(means, text, asked, want):
    assert means(text, *asked) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a,name\n1,x\n", ["learns a", "leaves out name (text)"]),
        ("a,day\n1,2020-01-02\n", ["leaves out day (dates)"]),
        ('"a\nb",\x1b[31m\n1,x\n', ["learns 'a\\nb'", "leaves out '\\x1b[31m' (text)"]),
        ('a,b\n1,"1,234"\n', ["b (text such as '1,234': --thousands ,)"]),
        ("a,b,c\n1,5%,$3.50\n", ["b (text such as '5%')", "c (text such as '$3.50')"]),
        ("a,on\n1,true\n", ["on (true or false)"]),
        ("a,at\n1,0x1A\n2,0X2b\n", ["learns a", "leaves out at (text)"]),
        ("a,b\n1,€3.50\n", ["b (text such as '€3.50')"]),
        ("a;b\n1;3\u202f500\n", ["b (text such as '3\\u202f500': --thousands ' ')"]),
        ("a;b\n1;1.234,50\n2;5,00\n3;7\n", ["b (text such as '1.234,50': --decimal , --thousands .)"]),
        ("a;b\n1;1,234.50\n2;5.00\n", ["b (text such as '1,234.50': --thousands ,)"]),
        ("a;b\n1;5,00\n2;1,234\n", ["b (text such as '5,00': --decimal ,)"]),
    ],
)
def test_it_tells_which_columns_it_uses(command, tmp_path, text, want):
    data = tmp_path / "x.csv"
    data.write_text(text)
    into = ("-o", tmp_path / "s.npz", "--delimiter", ";" if ";" in text else ",")
    told = command("fit", data, *into).told
    assert all(line in told for line in want), told
    assert not command("fit", data, *into, "--force", "--quiet").told


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1,2\n3,4\n", "--no-header takes it for data"),
        ("12.69,84.7,a\n3,4,b\n", "--no-header takes it for data"),
        ("land,2021,2022\nx,4,5\n", None),  # years
        ("user_id,a\n3,4\n", "--exclude user_id"),
        ("paid,humid,userId\n3,4,5\n", "x.csv: userId may not be a measurement"),
        (",a\n3,4\n", "'' may not be a measurement; --exclude '' leaves it out"),
        ("id,,a\n3,4,5\n", "'', id may not be measurements; --exclude ,id leaves them out"),
        ("a,__index_level_0__\n3,4\n", "--exclude __index_level_0__ leaves it out"),
        ("a,b,\n1.5,2,\n", None),
        ("a;b\n3,5;4,5\n", "--delimiter ';' makes it several"),
        ("a\tb\n3\t4\n", "--delimiter tab makes it several"),
        ("sep=;\na;b\n3;4\n", "--skip-rows 1 --delimiter ';'"),
        ("a b\nx 1\n", "--delimiter ' ' makes it several"),
        ("body mass\n1.5\n", None),
        ("# by X\na,b\n1,2\n", "--skip-rows N leaves out N lines"),
    ],
)
def test_it_tells_what_looks_odd(command, tmp_path, text, want):
    """If it can go on, as a warning, and in the error otherwise."""
    data = tmp_path / "x.csv"
    data.write_text(text)
    done = command.run("fit", data, "-o", tmp_path / "s.npz")
    assert (want or "") in done.err
    if want is None:
        assert (done.code, done.err) == (0, "")


def test_a_column_without_a_name(command, tmp_path, means):
    """As pandas writes its index; or as delimiters at the ends of lines make, which has no values."""
    assert means(",a\n3,4\n", "--exclude", "") == {"a": 4.0}
    assert means(",id,a\n3,4,5\n", "--exclude", ",id") == {"a": 5.0}
    assert means("a,b,\n1.5,2,\n") == {"a": 1.5, "b": 2.0}
    assert "leaves out '' (empty)" in command("fit", tmp_path / "x.csv", "-o", tmp_path / "t.npz").told


LISTED = '"x, y",x,"5"" pipe",z\n1,2,3,4\n5,6,7,8\n,,,"9,5"\n'


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        (("--columns", '"x, y"'), {"x, y": 3.0}),
        (("--columns", 'x,"x, y",5" pipe'), {"x": 4.0, "x, y": 3.0, '5" pipe': 5.0}),
        (("--columns", '"x","5"" pipe"'), {"x": 4.0, '5" pipe': 5.0}),
        (("--exclude", '"x, y",z'), {"x": 4.0, '5" pipe': 5.0}),
        (("--columns", "x,z", "--null-values", '"9,5",6'), {"x": 2.0, "z": 6.0}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_names_with_commas_are_quoted_as_in_csv(means, asked, want):
    assert means(LISTED, *asked) == want


def test_a_name_that_a_comma_has_cut_is_explained(command, tmp_path):
    (tmp_path / "x.csv").write_text('"x, y",z\n1,2\n3,4\n')
    fit = ("fit", tmp_path / "x.csv", "-o", tmp_path / "s.npz")
    transform = ("transform", tmp_path / "x.csv", "--state", tmp_path / "s.npz", "-o", tmp_path / "y.csv")
    hint = "; a name with a comma is quoted: '\"x, y\"'"
    assert command.fails(*fit, "--columns", "x, y").endswith(hint)
    assert command.fails(*fit, "--columns", "x").endswith("got 'x, y', 'z'")
    command(*fit)
    for way in ("--columns", "--drop"):
        assert command.fails(*transform, way, "x, y").endswith(hint)
    command(*transform, "--columns", '"x, y"')
    assert (tmp_path / "y.csv").read_text().splitlines() == ['"x, y",z', "-1,2", "1,4"]


def test_errors_say_what_was_found(command, tmp_path):
    data, into = tmp_path / "x.csv", ("-o", tmp_path / "s.npz")
    nothing = write(tmp_path / "x.parquet", np.empty((0, 0)))
    assert command.fails("fit", nothing, *into).endswith("expected a column of numbers, got no column")
    data.write_text('a;b\n1,5;x\n"2,5";y\n')
    said = command.fails("fit", data, "--delimiter", ";", *into)
    assert said.endswith("expected a column of numbers, got a (text such as '1,5': --decimal ,); b (text)")
    said = command.fails("fit", data, "--columns", "a", *into)
    assert said.endswith(
        "expected a column 'a', got 'a;b'; the first row is one name, 'a;b'; --delimiter ';' makes it several"
    )
    data.write_text("1.5,2\n3,4\n")
    command("fit", data, "--no-header", *into)
    said = command.fails("transform", data, "--state", into[1], "-o", tmp_path / "y.csv")
    assert "expected a column 'x0', got '1.5', '2'; the first row, 1.5, 2, looks like numbers" in said
    assert said.endswith("--no-header takes it for data")
    data.write_text('a\n"1,234"\n"2,345"\n')
    command("fit", data, "--thousands", ",", *into, "--force")
    said = command.fails("transform", data, "--state", into[1], "-o", tmp_path / "y.csv")
    assert said.endswith("column 'a': expected numbers, got text such as '1,234': --thousands ,")
    data.write_text("a\n1.234,50\n")
    said = command.fails("fit", data, "--delimiter", ";", "--decimal", ",", *into, "--force")
    assert said.endswith("got a (text such as '1.234,50': --thousands .)")
    said = command.fails("fit", data, "--skip-rows", "2", *into, "--force")
    assert said.endswith("expected a table below 2 lines, got no more lines")
    data.write_text("a\n1.500\n2.5\n")
    said = command.fails("fit", data, "--thousands", ".", *into, "--force")
    assert "column 'a', row 2 below the header: expected a number, got '2.5'" in said  # 25 would be wrong


def test_text_that_begins_far_down(command, tmp_path):
    """A column that is empty at first is looked at further down."""
    data = tmp_path / "x.csv"
    data.write_text("a,note\n" + "1.5,\n" * 300_000 + "1.5,word\n" * 300_000)
    assert "leaves out note (text)" in command("fit", data, "-o", tmp_path / "s.npz").told


@pytest.mark.parametrize(
    ("given", "asked", "want"),
    [
        ("d/*.csv", [], 1.5),
        ("d/*", [], 1.5),
        ("**/*.csv", [], 2.5),
        ("d/_*.csv", [], 100.0),  # it finds no others
        ("_e/*.csv", [], 1000.0),
        ("d/*", ["--delimiter", ","], 7 / 3),
    ],
)
def test_globs_leave_out_what_folders_leave_out(command, tmp_path, given, asked, want):
    a = {
        "d/1.csv": 1,
        "d/2.csv": 2,
        "d/_3.csv": 100,
        "_e/4.csv": 1000,
        "e/_f/4.csv": 1000,
        "e/5.csv": 4.5,
        "d/x.log": 4,
    }
    for name, value in a.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"a\n{value}\n")
    command("fit", tmp_path / given, "-o", tmp_path / "s.npz", *asked)
    assert command("show", tmp_path / "s.npz", "--json").json["features"][0]["mean"] == pytest.approx(want)


def test_what_is_elsewhere(command, tmp_path):
    wants = {"https://a.b/x.csv": "curl -fsSL 'https://a.b/x.csv' | bnorm", "s3://a/x": "aws s3 cp s3://a/x - |"}
    for name, want in wants.items():
        assert want in command.fails("fit", name, "-o", tmp_path / "s.npz")


def test_damaged_arrow(command, tmp_path):
    """Offsets of text that point outside: they ended the process."""
    import pyarrow as pa
    from pyarrow import ipc

    t = pa.table({"a": np.arange(1000.0), "t": ["word"] * 1000})
    with ipc.new_file(tmp_path / "x.arrow", t.schema) as writer:
        writer.write_table(t)
    command("fit", tmp_path / "x.arrow", "-o", tmp_path / "s.npz")
    content = bytearray((tmp_path / "x.arrow").read_bytes())
    at = content.index(np.arange(0, 400, 4, dtype=np.int32).tobytes())
    content[at + 400 : at + 404] = np.int32(2_000_000_000).tobytes()
    (tmp_path / "x.arrow").write_bytes(content)
    said = command.fails("transform", tmp_path / "x.arrow", "--state", tmp_path / "s.npz", "-o", tmp_path / "y.csv")
    assert "Offset invariant failure" in said
    assert {p.name for p in tmp_path.iterdir()} == {"x.arrow", "s.npz"}


def ends(path, skip, *dialect, beside=()):
    """The rows at which batches end. beside: further columns, as that of times is one."""
    from bnorm.app.inputs import find

    (source,) = find([str(path)], *dialect)
    return [source.position for _ in source.read(["f0", "f2", *beside], ["f0", "f2"], skip)]


@pytest.fixture
def small_batches(monkeypatch):
    for module in ("columnar", "csv_source", "sources"):  # the last is imported by the others, with its own number
        monkeypatch.setattr(f"bnorm.app.{module}.BATCH", 8 * 600)
    monkeypatch.setattr("bnorm.app.csv_source.FEW_ROWS", 400)
    monkeypatch.setattr("bnorm.app.csv_source.BLOCK", 1 << 14)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize("start", [1, 999, 1000, 2500, 7001])
def test_pieces_are_the_same_however_much_is_skipped(tmp_path, small_batches, suffix, start):
    """So a fit that goes on sums the same rows together as one that was never interrupted."""
    data = write(tmp_path / f"x.{suffix}", table(8000))
    assert len(ends(data, 0)) > 10
    assert ends(data, start) == [end for end in ends(data, 0) if end > start]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
@pytest.mark.parametrize("form", ["times", "text"])
def test_pieces_are_the_same_beside_times(tmp_path, small_batches, suffix, form):
    import pyarrow as pa

    t = pa.array([None if i % 9 == 8 else i * 10**6 for i in range(4000)], pa.timestamp("us"))
    data = write(tmp_path / f"x.{suffix}", table(4000), t=t if form == "times" else t.cast(pa.string()))
    whole = ends(data, 0, beside=["t"])
    assert ends(data, 2501, beside=["t"]) == [end for end in whole if end > 2501]
    assert len(whole) > 10


@pytest.mark.parametrize(
    "before",
    [b"made by\n", b"\n" * 3000, b"\r\n" * 3000, b"\r" * 700, b"a" * 40_000 + b"\n", b'"open\nb\n', b"a\rb\r\n"],
)
def test_lines_before_the_header_move_no_end_of_a_batch(command, tmp_path, small_batches, before):
    """So the statistics of a file are the same to the last bit with them and without."""
    from bnorm.app.dialects import Dialect

    data = write(tmp_path / "x.csv", table(8000))
    more, lines = tmp_path / "y.csv", len(before.splitlines())
    more.write_bytes(before + data.read_bytes())
    for skip in (0, 700, 5000):
        assert ends(more, skip, Dialect(skip_rows=lines)) == ends(data, skip)
    command("fit", data, "-o", tmp_path / "x.npz")
    command("fit", more, "--skip-rows", lines, "-o", tmp_path / "y.npz")
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "y.npz").read_bytes()


def test_no_thread_of_pyarrow_has_memory_of_python(command, tmp_path, monkeypatch):
    """A thread that frees such memory when Python has ended aborts the process: one in forty that failed early."""
    import pyarrow as pa
    from pyarrow import csv

    read, shared = csv.read_csv, []

    def seen(source, options, *others):
        if options.use_threads:
            shared.append((source.size(), pa.total_allocated_bytes() - before))
        return read(source, options, *others)

    monkeypatch.setattr(csv, "read_csv", seen)
    data = tmp_path / "x.csv"
    data.write_text("a,b\n" + "1,2\n" * 100_000)
    before = pa.total_allocated_bytes()
    command("fit", data, "-o", tmp_path / "s.npz")
    assert shared
    assert all(allocated >= size for size, allocated in shared)
