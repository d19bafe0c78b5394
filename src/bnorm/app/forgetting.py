"""`bnorm forget`: take rows out of exact statistics that were learned before."""

import argparse
from typing import Any

from bnorm.app.choosing import choose
from bnorm.app.dialects import Dialect
from bnorm.app.errors import DataError
from bnorm.app.fitting import Learner, learn
from bnorm.app.inputs import Stream, find, once
from bnorm.app.progress import Progress
from bnorm.app.states import Learned


def forget(args: argparse.Namespace) -> dict[str, Any]:
    """Run the command. Returns a summary."""
    kept = Learned.read(args.state)
    if kept.fitted.sums is None:
        raise DataError(
            f"{args.state}: expected exact statistics, which bnorm fit --exact learns, got rounded ones, of which "
            "nothing can be taken out"
        )
    sources = find(args.data, Dialect.of(args))
    once(sources)
    names = choose(sources[0], kept.names, None, args.weight)
    gone = Learned.new(names, None, None, exact=True)
    stream = Stream(sources, [*names, *([args.weight] if args.weight else [])])
    with Progress("forget", stream.size, args.quiet) as progress:
        learn(stream, Learner(gone, args.batch_rows, args.signals), progress, args.weight)
    try:
        kept.forget(gone)
    except ValueError as error:
        raise DataError(f"{args.state}: {error}") from None
    with args.signals.held():
        kept.save(args.output)
    return {"rows": gone.rows, "left": kept.rows, "output": args.output}
