"""The exchange between ranks, in which an error on one rank becomes an error on all.

A collective call waits for every rank. If a rank raised before it, the others would wait forever. So that rank takes
part all the same, and sends its error instead of a value.
"""

from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable


@runtime_checkable
class Communicator(Protocol):
    """The protocol of a communicator: one method, which those of mpi4py have.

    All ranks call `allgather(value)`. It waits for all of them, and returns the list of all values to each, in the
    order of the ranks. Values are small picklable objects: strings, numbers and NumPy arrays.
    """

    def allgather(self, value: Any, /) -> Any:
        """The values of all ranks, in the order of the ranks."""


class Message(NamedTuple):
    """The message of a rank."""

    call: str  # the name of the call, which must be the same on all ranks
    value: Any
    error: str | None  # instead of a value


class Turn:
    """One call that all ranks make together, with one exchange. An error before the exchange is raised on all ranks.

    with Turn(comm, "BatchNorm1d(8): forward") as turn:
        ...                                 # an error here
        values = turn.share(value)          # makes all others raise RuntimeError here
    """

    def __init__(self, comm: Communicator, call: str) -> None:
        self._comm, self._call, self._open = comm, call, True

    def __enter__(self) -> Self:
        return self

    def share(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        self._open = False
        messages = [Message(*message) for message in self._comm.allgather(Message(self._call, value, None))]
        self._refuse_other_calls(messages)
        for rank, message in enumerate(messages):
            if message.error is not None:
                raise RuntimeError(
                    f"{self._call}: stopped on all {len(messages)} ranks, as rank {rank} raised {message.error}"
                )
        return [message.value for message in messages]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and self._open:
            self._open = False
            self._comm.allgather(Message(self._call, None, f"{type(error).__name__}: {error}"))

    def _refuse_other_calls(self, messages: list[Message]) -> None:
        calls = [message.call for message in messages]
        if len(set(calls)) > 1:
            other = next(rank for rank, call in enumerate(calls) if call != calls[0])
            raise RuntimeError(
                f"{self._call}: expected the same call on all {len(calls)} ranks, got {calls[0]!r} on rank 0 and "
                f"{calls[other]!r} on rank {other}"
            )


class Group:
    """Holds a communicator. Deep copies share it; pickling works if the communicator can be pickled."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def __deepcopy__(self, memo: object) -> Self:
        return self


def checked(who: str, comm: Any) -> Communicator:
    """comm; TypeError if it is not a communicator."""
    if isinstance(comm, type) or not isinstance(comm, Communicator):
        raise TypeError(
            f"{who}: comm: expected a communicator with a method allgather, such as those of mpi4py, got {comm!r}"
        )
    return comm
