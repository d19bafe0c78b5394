"""Data that cannot be used ends a command with one line, which says where it is; and nothing is left behind."""

import numpy as np
import pytest

import child
from commands import table, write

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")

X = table(100)
CSV = "".join(f"{i},{i / 2},word\n" for i in range(100))
GOOD = "a,b,name\n" + CSV


@pytest.fixture
def fails(command, tmp_path):
    """What `bnorm fit` says of these files, which leaves nothing."""

    def run(*data, asked=(), code=1):
        before = sorted(tmp_path.rglob("*"))
        said = command.fails("fit", *data, "-o", tmp_path / "s.npz", *asked, code=code)
        assert sorted(tmp_path.rglob("*")) == before
        return said.removeprefix("bnorm: error: ")

    return run


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (
            "oops,1,x\n",
            "column 'a', row 101 below the header: expected a number, got 'oops'; --exclude a leaves the column out, "
            "--null-values oops or --on-error null takes it for missing",
        ),
        ("1,2\n", "row 101 below the header: expected 3 columns, got 2: 1,2"),
        ("1,2,3,4\n", "row 101 below the header: expected 3 columns, got 4: 1,2,3,4"),
        ("7", "row 101 below the header: expected 3 columns, got 1: 7"),  # cut off in the middle
        ("inf,1,x\n", "column 'a', row 101 below the header: expected a finite number, got inf"),
    ],
    ids=["text", "short", "long", "cut off", "infinite"],
)
def test_lines_of_csv(fails, tmp_path, lines, want):
    data = tmp_path / "x.csv"
    data.write_text(GOOD + lines)
    assert fails(data) == f"{data}: {want}"


def test_text_far_down(fails, tmp_path):
    """Behind the first block, in a later file, in another column than those that are read first."""
    (tmp_path / "a.csv").write_text(GOOD)
    data = tmp_path / "b.csv"
    data.write_text("a,b,name\n" + CSV * 2000 + "1,n/k,x\n" + CSV)
    said = fails(tmp_path / "a.csv", data, asked=["--columns", "b"])
    assert said == (
        f"{data}: column 'b', row 200001 below the header: expected a number, got 'n/k'; "
        "--null-values n/k or --on-error null takes it for missing"
    )


@pytest.mark.parametrize(
    ("header", "value", "ways"),
    [
        ("a", "-", "--exclude a leaves the column out, --null-values=- or --on-error null"),
        ("-a", "b c", "--exclude=-a leaves the column out, --null-values 'b c' or --on-error null"),
        (
            '"a,b"',
            '"x,y"',
            """--exclude '"a,b"' leaves the column out, --null-values '"x,y"' or --on-error null""",
        ),
    ],
    ids=["value", "name", "commas"],
)
def test_ways_out_are_options_as_they_are_typed(fails, tmp_path, header, value, ways):
    data = tmp_path / "x.csv"
    data.write_text(f"{header}\n1\n2\n{value}\n")
    assert fails(data).endswith(f"expected a number, got {value.strip(chr(34))!r}; {ways} takes it for missing")


def test_bytes_that_are_no_text(fails, tmp_path):
    data = tmp_path / "x.csv"
    data.write_bytes(GOOD.encode() + b"\xff\xfe,1,x\n")
    where = "column 'a', row 101 below the header"
    others = "--encoding cp1252 (Windows in Western Europe), latin-1 or another reads others"
    assert fails(data) == f"{data}: {where}: expected text in UTF-8; {others}"


@pytest.mark.parametrize(("option", "mean"), [("--decimal", 2.0), ("--thousands", 2000.0)])
@pytest.mark.parametrize("asked", [[], ["--delimiter", ","]])
@pytest.mark.parametrize(
    "text", ["a,b\n1,500\n2,500\n", '"a","b"\n1,500\n2,500\n', "a;b\n1,500;2,500\n", "1,500\n2,500\n"]
)
def test_a_mark_in_numbers_that_is_the_delimiter(fails, means, tmp_path, option, mean, asked, text):
    """Only numbers in quotes can be told from two values."""
    data, header = tmp_path / "x.csv", ["--no-header"] * text.startswith("1")
    data.write_text(text)
    assert fails(data, asked=[option, ",", *asked, *header]) == (
        f"{data}: {option}: expected another character than --delimiter, as no values are in quotes, got ',' for both"
    )
    assert means('a,b\n"1,500",2\n"2,500",3\n', option, ",", *asked)["a"] == mean


def test_a_header_that_stands_there_again(fails, tmp_path):
    """As cat makes it of several files."""
    data = tmp_path / "x.csv"
    data.write_text(GOOD + GOOD)
    assert fails(data).endswith("expected a number, got 'a'; a header stands there again; files that are given by "
                                "name are read one after the other")  # fmt: skip


def test_standard_input(tmp_path):
    from commands import run_apart

    with run_apart("fit", "-", "-o", tmp_path / "s.npz", "--quiet", stdin=-1, stderr=-1) as process:
        _, said = process.communicate((GOOD + "oops,1,x\n").encode(), timeout=child.LIMIT)
    assert process.returncode == 1
    where = b"bnorm: error: standard input: column 'a', row 101 below the header"
    assert said.startswith(where + b": expected a number, got 'oops'; ")
    assert not list(tmp_path.iterdir())


EXCEL = "a ZIP archive, as Excel's files are: unpack it, or save the table as CSV"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('{"a": 1, "b": 2}\n{"a": 2, "b": 3}\n', "the first row begins with '{', as JSON does"),
        ("[[1, 2],\n[3, 4]]\n", "the first row begins with '[', as JSON does"),
        ("\n<!DOCTYPE html>\n<title>404 Not found</title>\n", "the first row begins with '<', as HTML and XML do"),
        ("<html>404 Not found</html>\n", "the first row begins with '<', as HTML and XML do"),
    ],
)
def test_a_download_that_is_no_table(command, tmp_path, text, want):
    data = tmp_path / "x.csv"
    data.write_text(text)
    done = command.run("fit", data, "-o", tmp_path / "s.npz")
    assert done.code == 1
    assert want in done.err
    assert "--delimiter" not in done.err


@pytest.mark.parametrize(
    ("name", "content", "want"),
    [
        ("x.csv", "", "expected a table, got an empty file"),
        ("x.csv", "a,b\n", "expected rows, got none"),
        ("x.xlsx", "PK\3\4 and more", f"expected a table, got {EXCEL}"),
        ("x.csv", "name\nword\n", "expected a column of numbers, got name (text)"),
        ("x.csv", "a,a\n1,2\n", "column 'a': expected each name once, got it twice"),
        ("x.parquet", "", "Parquet file size is 0 bytes"),
        ("x.parquet", "PAR1 and then nothing of the kind PAR1", ""),
        ("x.arrow", "", ""),
        ("x.arrow", "ARROW1 and then nothing of the kind", ""),
        ("x.xlsx", "PK\3\4", f"expected a table, got {EXCEL}"),
        ("x.xlsx", "a", "expected a suffix of .csv, "),
    ],
)
def test_files_that_are_none(fails, tmp_path, name, content, want):
    data = tmp_path / name
    data.write_text(content)
    assert fails(data).startswith(f"{data}: {want}")


@pytest.mark.parametrize("suffix", ["parquet", "feather", "arrow"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_files_cut_off(fails, tmp_path, suffix, share):
    data = write(tmp_path / f"x.{suffix}", X)
    whole = data.read_bytes()
    data.write_bytes(whole[: int(len(whole) * share)])
    assert fails(data).startswith(f"{data}: ")


def test_damage_in_the_middle(fails, tmp_path):
    """Parquet says at its end where everything is, and so is opened before it is read."""
    data = write(tmp_path / "x.parquet", table(30_000))
    content = bytearray(data.read_bytes())
    content[1000:200_000] = bytes(199_000)
    data.write_bytes(content)
    assert fails(data).startswith(f"{data}: after row 0: ")


@pytest.mark.parametrize(
    ("second", "asked", "want"),
    [
        ("a,c\n1,2\n", [], "expected a column 'b', as {first} has it, got 'a', 'c'"),
        (
            "a,b,c\n1,2,3\n",
            [],
            "column 'c': expected the columns of {first}, which does not have it; choose with --columns or --exclude",
        ),
        ("a,b\n1,x\n", [], "column 'b': expected numbers, as {first} has it, got text"),
    ],
)
def test_files_that_differ(fails, tmp_path, second, asked, want):
    first, data = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("a,b\n1,2\n")
    data.write_text(second)
    assert fails(first, data, asked=asked).startswith(f"{data}: {want.format(first=first)}")


def test_files_that_differ_where_it_does_not_matter(command, tmp_path):
    """Columns in another order, of another type of numbers, text that nobody asked for."""
    (tmp_path / "1.csv").write_text("a,b,name\n1,2,x\n")
    (tmp_path / "2.csv").write_text("b,a\n4.5,3\n")
    command("fit", tmp_path / "1.csv", tmp_path / "2.csv", "-o", tmp_path / "s.npz")
    features = command("show", tmp_path / "s.npz", "--json").json["features"]
    assert [f["mean"] for f in features] == [2.0, 3.25]


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        (["--columns", "a,z"], "expected a column 'z', got 'a', 'b', 'name'"),
        (["--exclude", "z"], "expected a column 'z', got 'a', 'b', 'name'"),
        (["--weight", "z"], "expected a column 'z', got 'a', 'b', 'name'"),
        (["--columns", "name"], "column 'name': expected numbers, got text"),
        (["--exclude", "a,b"], "expected a column of numbers, got a (excluded); b (excluded); name (text)"),
        (["--columns", "a,b", "--weight", "a"], "column 'a': expected either a feature or the weights, got both"),
        (["--weight", "b"], "column 'b', row 3 below the header: expected a finite weight >= 0, got -1.0"),
    ],
)
def test_columns_that_are_not_there(fails, tmp_path, asked, want):
    data = tmp_path / "x.csv"
    data.write_text("a,b,name\n1,2,x\n1,0,x\n1,-1,x\n")
    code = 2 if want.endswith("got both") else 1  # wrong, whatever is in the file
    assert fails(data, asked=asked, code=code) == f"{data}: {want}"


def test_missing_weights(fails, tmp_path):
    data = tmp_path / "x.csv"
    data.write_text("a,b\n1,2\n1,\n")
    want = f"{data}: column 'b', row 2 below the header: expected a finite weight >= 0, got nan"
    assert fails(data, asked=["--weight", "b"]) == want


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("way", ["--pooled", "--halflife=10", "--momentum=0.1"])
def test_infinity(fails, tmp_path, suffix, way):
    x = table(5000)
    x[4321, 1] = -np.inf
    write(tmp_path / "a.parquet", X)
    data = write(tmp_path / f"b.{suffix}", x)
    said = fails(tmp_path / "a.parquet", data, asked=[way, "--batch-rows", "100"])
    below = " below the header" if suffix == "csv" else ""
    assert said == f"{data}: column 'f1', row 4322{below}: expected a finite number, got -inf"


def test_values_whose_squares_overflow_are_no_infinity(command, tmp_path):
    data = write(tmp_path / "x.parquet", np.array([[1e300], [-1e300], [1e300]]))
    command("fit", data, "-o", tmp_path / "s.npz")


@pytest.mark.parametrize("way", ["--pooled", "--halflife=1000", "--momentum=0.1"])
@pytest.mark.parametrize("rows", ["100", "9", "7"])
def test_values_whose_mean_overflows(fails, tmp_path, way, rows):
    """Where a batch ends among the rows of a file, at its end, and in the next file; a moving average has one batch."""
    x = table(9)
    first = write(tmp_path / "a.parquet", x)
    x[:, 1] = np.where(np.arange(9) % 2, 1.7e308, -1.7e308)
    data = write(tmp_path / "b.parquet", x)
    said = fails(first, data, asked=[way, "--batch-rows", "18" if way == "--momentum=0.1" else rows])
    assert said == f"{data}: column 'f1': expected values whose mean float64 can hold, got too large ones"


@pytest.mark.parametrize("way", ["--pooled", "--halflife=1000"])
def test_weights_whose_sum_overflows(fails, tmp_path, way):
    data = write(tmp_path / "x.parquet", X, w=np.full(100, 1e307))
    said = fails(data, asked=[way, "--weight", "w"])
    assert said == f"{data}: column 'w': expected weights whose sum float64 can hold, got too large ones"


@pytest.mark.parametrize("way", ["--pooled", "--halflife=1"])
def test_infinity_that_has_no_weight(fails, tmp_path, way):
    """By its own weight, or because it is so old."""
    x, w = table(2000), np.ones(2000)
    x[9, 2], w[9] = np.inf, 0
    data = write(tmp_path / "x.parquet", x, w=w)
    want = f"{data}: column 'f2', row 10: expected a finite number, got inf"
    assert fails(data, asked=[way, "--weight", "w"]) == want
    assert fails(data, asked=[way, "--exclude", "w"]) == want


def test_weights_that_exact_sums_cannot_take(fails, tmp_path):
    data = write(tmp_path / "x.parquet", X, w=np.append(np.ones(99), 0.5))
    want = "column 'w', row 100: expected a whole weight from 0 to 2^31 - 1, as sums are exact, got 0.5"
    assert fails(data, asked=["--exact", "--weight", "w"]) == f"{data}: {want}"


def test_files_that_are_not_there(fails, tmp_path):
    (tmp_path / "empty").mkdir()
    assert fails(tmp_path / "x.csv") == f"{tmp_path / 'x.csv'}: no such file or folder"
    assert fails("") == "expected the name of a file or folder, got ''"
    assert fails(tmp_path / "*.csv") == f"{tmp_path / '*.csv'}: no file matches"
    assert fails(tmp_path / "empty").startswith(f"{tmp_path / 'empty'}: expected a folder with .csv, ")


def test_a_file_that_may_not_be_read(fails, tmp_path):
    import os

    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    data = write(tmp_path / "x.csv", X)
    data.chmod(0)
    assert fails(data) == f"{data}: Permission denied"


def test_text_with_some_numbers_in_it_is_text(means):
    assert means("a,code\n1,A7\n2,12\n3,B9\n") == {"a": 2.0}
