"""Work on the items of any iterable, in threads if asked, with the results in the order of the items."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from bnorm.checks import missing
from bnorm.kernels.cpu.threads import get_num_threads, limit_caller

Result = TypeVar("Result")
PATIENCE = 0.1  # seconds after which an interrupt is seen
AHEAD = 2  # how many items per thread are taken in advance


def results(
    who: str, items: Iterable[Any], work: Callable[[int, Any], Result], workers: int, progress: bool
) -> Iterator[Result]:
    """Yield `work(i, item)` for every item, in their order. An item that is a function is called first.

    At most AHEAD items per worker are taken from the iterable before the first of them is done. An error ends the
    iteration, and has a note that names the item.
    """
    every = _counted(items, who) if progress else items
    if workers == 1:
        for i, item in _numbered(who, every):
            yield _done(who, work, i, item)
        return
    tasks: SimpleQueue[Any] = SimpleQueue()
    limit = max(1, get_num_threads() // workers)
    # Daemons, as neither an interrupt nor the end of the process should wait for them.
    threads = [Thread(target=_serve, args=(tasks, who, work, limit), daemon=True) for _ in range(workers)]
    waiting: deque[Future[Result]] = deque()
    try:
        for thread in threads:
            thread.start()
        for i, item in _numbered(who, every):
            future: Future[Result] = Future()
            tasks.put((future, i, item))
            waiting.append(future)
            del future, item
            if len(waiting) >= AHEAD * workers:
                yield _awaited(waiting.popleft())
        while waiting:
            yield _awaited(waiting.popleft())
    finally:
        for future in waiting:
            future.cancel()
        for _ in threads:
            tasks.put(None)


def _awaited(future: "Future[Result]") -> Result:
    while not future.done():
        # In short steps: if another library (polars) handles SIGINT too, an interrupt does not end a wait without
        # limit.
        wait([future], timeout=PATIENCE)
    return future.result()


def _serve(tasks: "SimpleQueue[Any]", who: str, work: Callable[[int, Any], Any], limit: int) -> None:
    limit_caller(limit)
    while (task := tasks.get()) is not None:
        future, i, item = task
        del task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(_done(who, work, i, item))
            except BaseException as error:  # the caller raises it
                future.set_exception(error)
        del future, item  # so that a waiting thread keeps nothing alive


def _done(who: str, work: Callable[[int, Any], Result], i: int, item: Any) -> Result:
    try:
        return work(i, item() if callable(item) and not hasattr(item, "__array__") else item)
    except Exception as error:
        error.add_note(f"{who}: this was item {i}")
        raise


def _numbered(who: str, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    iterator, i = iter(items), 0
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            error.add_note(f"{who}: the iterable raised it instead of item {i}")
            raise
        yield i, item
        del item
        i += 1


def _counted(items: Iterable[Any], who: str) -> Iterable[Any]:
    """Return the items with a progress bar, which estimates the time left if their number is known."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise missing(f"{who}: progress", "tqdm", "progress", error) from None
    try:
        total = len(items)  # type: ignore[arg-type]
    except TypeError:
        total = None
    bar: Iterable[Any] = tqdm(items, desc=who, total=total, file=sys.stderr, leave=False, unit=" items")
    return bar
