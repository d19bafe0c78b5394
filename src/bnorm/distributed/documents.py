"""The numpydoc sections that the functions of table engines share."""

from bnorm.documents import Table

FITTED = """Returns
-------
BatchNormTransformer or GroupedTransformer
    t itself."""
MOMENTS = """Returns
-------
Moments
    Of all features, in the order of the columns."""
OF_TRANSFORM = {
    "t": "Fitted.",
    "data": "The rows to normalize.",
    "columns": "The columns of the features, if they have no names. By default all columns of numbers and vectors.",
}


def table(collection: str, vectors: str) -> Table:
    """Return the parameters for an engine, given the type of its collections and those of columns of vectors."""
    return {
        "t": (
            "BatchNormTransformer or GroupedTransformer",
            "Its keys are columns of strings, numbers, bools or dates. After an error it is as it was.",
        ),
        "data": (collection, "A null is a missing value."),
        "columns": (
            "sequence of str, optional",
            f"Columns of numbers or bools, which are features of that name, or of vectors ({vectors})\n"
            "of one length: the features of a column x are x[0], x[1], and so on. By default all such columns.",
        ),
        "sample_weight": ("str, optional", "The column of the weights of the rows."),
        "times": ("str, optional", "The column of the times of the rows, for a half-life that is a length of time."),
        "exact": ("bool", "Whether to keep the sums as integers, as in `functional.moments`."),
    }
