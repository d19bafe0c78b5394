"""Arrow files with dictionaries, such as those of categories, which may differ from batch to batch.

A file has one dictionary for each column, and it is known only at the end. So the batches first go to a temporary file,
as indices into dictionaries that grow here, and from there to the file itself. The file could have dictionaries that
grow too, but not every reader accepts them.
"""

import tempfile
from pathlib import Path
from typing import Any

from bnorm.app.sources import pyarrow


class Arrow:
    """Writes batches to an Arrow file. With dictionaries, a temporary file takes as much space on the disk again."""

    def __init__(self, file: Any, schema: Any) -> None:
        from pyarrow import ipc, types

        pa = pyarrow()
        self._file, self._schema, self._beside = file, schema, None
        self._known = {i: pa.nulls(0, t.value_type) for i, t in enumerate(schema.types) if types.is_dictionary(t)}
        self._wide = self._with(dict.fromkeys(self._known, pa.int32()))
        if self._known:
            self._beside = tempfile.TemporaryFile(dir=Path(file.name).parent)
        self._writer = ipc.new_file(self._beside or file, self._wide)

    def write_batch(self, batch: Any) -> None:
        columns = [self._grown(i, a) if i in self._known else a for i, a in enumerate(batch.columns)]
        self._writer.write_batch(pyarrow().record_batch(columns, schema=self._wide))

    def finish(self) -> None:
        from pyarrow import ipc

        pa = pyarrow()
        self._writer.close()
        if self._beside is None:
            return
        self._beside.seek(0)
        schema = self._with({i: self._narrowest(i) for i in self._known})
        with ipc.open_file(self._beside) as reader, ipc.new_file(self._file, schema) as writer:
            for n in range(reader.num_record_batches):
                columns = reader.get_batch(n).columns
                for i, known in self._known.items():
                    kind = schema.types[i]
                    indices = columns[i].cast(kind.index_type)
                    columns[i] = pa.DictionaryArray.from_arrays(indices, known, ordered=kind.ordered)
                writer.write_batch(pa.record_batch(columns, schema=schema))

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()

    def _grown(self, i: int, array: Any) -> Any:
        """Return the indices of a column into the dictionary of all batches so far, to which new values are added."""
        from pyarrow import compute

        pa = pyarrow()
        known, its, indices = self._known[i], array.dictionary, array.indices
        if not its.equals(known):
            new = its.filter(compute.is_null(compute.index_in(its, known)))
            known = self._known[i] = pa.concat_arrays([known, compute.unique(new)])
            indices = compute.index_in(its, known).take(indices)
        return indices.cast(pa.int32())

    def _narrowest(self, i: int) -> Any:
        """Return the type that the column came with, with indices of int32 if its own are too narrow for all values."""
        from pyarrow import types

        pa, given = pyarrow(), self._schema.types[i]
        most = 2 ** (given.index_type.bit_width - types.is_signed_integer(given.index_type))
        wide = pa.dictionary(pa.int32(), given.value_type, given.ordered)
        return given if len(self._known[i]) <= most else wide

    def _with(self, kinds: dict[int, Any]) -> Any:
        """Return the schema with these types of some columns."""
        schema = self._schema
        for i, kind in kinds.items():
            schema = schema.set(i, schema.field(i).with_type(kind))
        return schema
