"""How the text of a CSV file is written: its options, and the numbers in it that pyarrow's reader cannot convert."""

import argparse
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

from bnorm.app.lists import texts

NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA",
         "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
SPACES = " \u00a0\u202f"  # between thousands
LIKELY = [(".", mark) for mark in (",", ".", "'", "’", " ")] + [(",", mark) for mark in ("", ".", "'", "’", " ")]


class Dialect(NamedTuple):
    """The options of the command for CSV files.

    delimiter  None: by the suffix
    nulls      texts that stand for a missing value, besides those that always do
    on_error   "null": a value that is not a number counts as missing
    """

    delimiter: str | None = None
    header: bool = True
    nulls: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    skip_rows: int = 0
    on_error: str = "raise"

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Return the dialect that the arguments of a command ask for."""
        return cls(
            args.delimiter,
            args.header,
            tuple(args.null_values or ()),
            args.decimal,
            args.thousands or "",
            args.encoding,
            args.skip_rows,
            args.on_error,
        )

    def said(self) -> dict[str, Any]:
        """The options as a dictionary that JSON keeps."""
        return self._asdict() | {"nulls": list(self.nulls)}

    @property
    def in_text(self) -> bool:
        """Whether numbers must be read as text first, because pyarrow's reader has no such option."""
        return bool(self.thousands) or self.on_error == "null" or not self.decimal.isascii()

    @property
    def is_plain(self) -> bool:
        """Whether numbers have a decimal point and no thousands separators."""
        return self.decimal == "." and not self.thousands

    @property
    def point(self) -> str:
        """The decimal point for pyarrow's reader."""
        return self.decimal if self.decimal.isascii() else "."

    @property
    def missing(self) -> list[str]:
        """The texts that stand for a missing value, also with some spaces around them."""
        plain = dict.fromkeys((*NULLS, *self.nulls))
        return list(dict.fromkeys(" " * i + name + " " * j for name in plain for i in range(4) for j in range(2)))

    def hides(self, block: bytes, delimiter: str) -> bool:
        """Whether a mark of the user's may have more spaces or tabs beside it than `missing` has. If it is a number, as
        -999 is, pyarrow's reader would ignore them, and take it for a value.
        """
        before, after, tabs = ["    "], ["  "], delimiter != "\t"
        if b"  " not in block and not (tabs and b"\t" in block):  # the searches below take longer
            return False
        if tabs:
            before += ["\t" + " " * i for i in range(4)]
            after += ["\t", " \t"]
        for mark in filter(None, self.nulls):
            wide = [space + mark for space in before] + [mark + space for space in after]
            if any(text.encode(errors="surrogateescape") in block for text in wide):
                return True
        return False

    @property
    def as_latin_1(self) -> Self:
        """The same dialect for text in UTF-8 whose bytes are read as Latin-1."""
        seen = [text.encode().decode("latin-1") for text in (self.decimal, self.thousands, *self.nulls)]
        return self._replace(decimal=seen[0], thousands=seen[1], nulls=tuple(seen[2:]))

    @property
    def between(self) -> str:
        """A regular expression for the thousands separator; for a space, it also matches no-break spaces."""
        if self.thousands != " ":
            return re.escape(self.thousands)
        return "|".join(s for c in SPACES for s in dict.fromkeys((c, c.encode().decode("latin-1"))))

    @property
    def number(self) -> str:
        """A regular expression for a number. The thousands separator is not a decimal point."""
        whole = rf"\d{{1,3}}(({self.between})\d{{3}})+|\d+" if self.thousands else r"\d+"
        point = re.escape(self.decimal)
        some = rf"({whole})({point}\d*)?|{point}\d+" if self.decimal != self.thousands else whole
        return rf"^\s*[-+]?({some})([eE][-+]?\d+)?\s*$"

    def numbers(self, text: Any) -> tuple[Any, int | None]:
        """Return a column of text as float64, and the first row whose text is not a number, or None."""
        import pyarrow as pa
        from pyarrow import compute as pc

        text = pc.utf8_trim_whitespace(text)
        text = pc.if_else(pc.is_in(text, pa.array([*NULLS, *self.nulls])), pa.scalar(None, pa.string()), text)
        good = pc.match_substring_regex(text, rf"{self.number}|^[-+]?(?i:inf|infinity|nan)$")
        bad = pc.index(pc.fill_null(good, True), False).as_py()
        text = pc.if_else(good, text, pa.scalar(None, pa.string()))
        text = pc.replace_substring_regex(self.in_plain(text), r"^\+", "")
        return text.cast(pa.float64()), None if bad < 0 or self.on_error == "null" else bad

    def in_plain(self, text: Any) -> Any:
        """Return text of numbers with a decimal point and without thousands separators."""
        from pyarrow import compute as pc

        if self.thousands:
            text = pc.replace_substring_regex(text, self.between, "")
        return text if self.decimal == "." else pc.replace_substring(text, self.decimal, ".")

    def why_text(self, column: Any) -> str:
        """Describe the text of a column to a user who expects numbers in it."""
        from pyarrow import compute as pc

        column = pc.utf8_trim_whitespace(column)
        filled = column.filter(pc.not_equal(column, ""))
        ways: list[tuple[int, int, str]] = []  # how many values are numbers, how few options say so, and which
        for decimal, thousands in LIKELY:
            like = Dialect(decimal=decimal, thousands=thousands)
            found = filled.filter(pc.match_substring_regex(filled, like.number))
            new = found.filter(pc.invert(pc.match_substring_regex(found, self.number)))
            if len(new) and 2 * len(found) > len(filled):
                asked = [f"--decimal {decimal}"] * (decimal != self.decimal)
                if thousands not in ("", self.thousands):
                    asked.append(f"--thousands {thousands if thousands in ',.' else repr(thousands)}")
                ways.append((len(found), -len(asked), f"text such as {new[0].as_py()!r}: {' '.join(asked)}"))
        if ways:
            return max(ways, key=lambda way: way[:2])[2]
        for pattern in (r"^[-+]?[\d.,]+\s*%$", r"^[-+]?\p{Sc}\s*[-+]?[\d.,]+$|^[-+]?[\d.,]+\s*\p{Sc}$"):
            found = filled.filter(pc.match_substring_regex(filled, pattern))
            if 2 * len(found) > len(filled):
                return f"text such as {found[0].as_py()!r}"
        return "text"


PLAIN = Dialect()
SIGNED = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(e[-+]?\d+)?", re.IGNORECASE)
LONGEST_NUMBER = 100
NO_TABLES = {"{": "JSON does", "[": "JSON does", "<": "HTML and XML do"}  # a download may be one, whatever its name is


def doubts(names: Sequence[str], numbers: Sequence[str], delimiter: str) -> list[str]:
    """What may be wrong with the first row, which was taken for the names of columns. numbers: columns of numbers."""
    if len(names) == 1 and (told := re.fullmatch("sep=(.?)", names[0], re.IGNORECASE)):
        return [f"the first row, {names[0]!r}, is a note for Excel; --skip-rows 1 --delimiter '{told[1] or delimiter}'"]
    if len(names) == 1 and not numbers and names[0].lstrip().startswith("#"):
        return [f"the first row, {names[0]!r:.80}, may be a note; --skip-rows N leaves out N lines"]
    if not numbers and (like := NO_TABLES.get(begins := names[0].lstrip()[:1])):
        return [f"the first row begins with {begins!r}, as {like}"]
    likely = ";\t|," if numbers else ";\t|, "
    if len(names) == 1 and (other := next((c for c in likely if c in names[0].strip() and c != delimiter), None)):
        asked = "tab" if other == "\t" else f"'{other}'"
        return [f"the first row is one name, {names[0]!r:.80}; --delimiter {asked} makes it several"]
    several = all(map(_is_number, names)) or (numbers and all(map(_is_number, numbers)) and not _counts_up(numbers))
    if not several or not any(map(str.strip, names)):
        return []
    return [
        f"the first row, {', '.join(names[:4])}{', ...' * (len(names) > 4)}, looks like numbers, and was taken "
        "for the names of the columns; --no-header takes it for data"
    ]


def _is_number(name: str) -> bool:
    """Whether a name is a number of a length that people write: longer texts take long to search."""
    return len(name) <= LONGEST_NUMBER and SIGNED.fullmatch(name.strip()) is not None


def _counts_up(names: Sequence[str]) -> bool:
    """Whether names are consecutive numbers such as 2021, 2022, 2023, which may well be names of columns."""
    if len(names) < 2 or not all(name.strip().isdecimal() for name in names):
        return False
    found = [int(name) for name in names]
    return all(b - a == 1 for a, b in pairwise(found))


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a command that reads CSV files."""
    group = command.add_argument_group("CSV files")
    group.add_argument(
        "--delimiter", type=delimiter, metavar="CHAR", help="between values, or tab (default: by the suffix)"
    )
    group.add_argument(
        "--no-header", dest="header", action="store_false", help="the first row is data; columns are x0, x1 and so on"
    )
    group.add_argument(
        "--null-values", type=texts, metavar="A,B", help="further marks of a missing value, besides NA and the like"
    )
    group.add_argument("--decimal", type=one, default=".", metavar="CHAR", help="the decimal point (default: .)")
    group.add_argument("--thousands", type=one, metavar="CHAR", help="the thousands separator (default: none)")
    group.add_argument(
        "--encoding", type=encoding, default="utf-8", metavar="NAME", help="of the text (default: utf-8)"
    )
    group.add_argument("--skip-rows", type=whole, default=0, metavar="N", help="lines above the header (default: 0)")
    group.add_argument(
        "--on-error",
        choices=["raise", "null"],
        default="raise",
        help="if a value in a column of numbers is not a number: end with an error, or count it as missing",
    )


def delimiter(text: str) -> str:
    """One character that may separate values."""
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1 or not text.isascii() or text in '"\r\n':
        raise argparse.ArgumentTypeError(f"expected one character of ASCII, or tab, got {text!r}")
    return text


def one(text: str) -> str:
    """One character of a number that is not a digit."""
    if len(text) != 1 or text.isalnum() or text in '"\r\n+-':
        raise argparse.ArgumentTypeError(f"expected one character that is neither letter nor digit, got {text!r}")
    return text


def encoding(text: str) -> str:
    """The name of an encoding that Python knows."""
    try:
        "".encode(text)
    except LookupError:
        raise argparse.ArgumentTypeError(f"expected an encoding such as utf-8 or latin-1, got {text!r}") from None
    return text


def whole(text: str) -> int:
    """A whole number of up to nine digits."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"expected a whole number of up to nine digits, got {text!r}")
    return int(text)
