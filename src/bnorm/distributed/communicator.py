"""What ranks tell each other, and how an error on one of them becomes an error on all.

A collective waits for every rank. A rank that raised before it got there would leave the others waiting for ever, so it
takes part all the same, and sends its error instead of its value.
"""

from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable


@runtime_checkable
class Communicator(Protocol):
    """What is asked of a communicator: one method, which those of mpi4py have.

    `allgather(value)` is called on all ranks, and waits for all. It returns on each of them the values of all ranks, as
    a list in the order of the ranks. Values are small picklable objects: strings, numbers and NumPy arrays.
    """

    def allgather(self, value: Any, /) -> Any:
        """The values of all ranks, in their order."""


class Message(NamedTuple):
    """What a rank sends."""

    call: str  # what it is about to do: ranks that differ in this have lost step
    value: Any
    error: str | None  # instead of a value


class Turn:
    """One call that all ranks make together, with one exchange in it; an error before the exchange reaches all.

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
    """Holds a communicator, which belongs to all copies of what holds it. It is pickled where it can be."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def __deepcopy__(self, memo: object) -> Self:
        return self


def checked(who: str, comm: Any) -> Communicator:
    """comm, if it can do what is asked of one."""
    if isinstance(comm, type) or not isinstance(comm, Communicator):
        raise TypeError(
            f"{who}: comm: expected a communicator with a method allgather, as those of mpi4py have, got {comm!r}"
        )
    return comm
