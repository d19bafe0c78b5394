"""Rules that copy, or save and load, an object, for the stateful tests of objects with a state."""

import copy
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

import bnorm


def pickled(t: Any) -> Any:
    return pickle.loads(pickle.dumps(t, protocol=5))


class Copied(RuleBasedStateMachine):
    """The test's object is `t`. `disturb`, of a subclass, changes an original in a way that no copy may show."""

    t: Any

    def disturb(self, original: Any) -> None:
        raise NotImplementedError

    @rule(how=st.sampled_from([copy.deepcopy, pickled]))
    def copied(self, how: Any) -> None:
        """Continue with a copy; what the original learns later must not change it."""
        original, self.t = self.t, how(self.t)
        self.disturb(original)


class Restored(Copied):
    """The same for objects that can also be saved."""

    @rule(suffix=st.sampled_from([".npz", ".safetensors"]))
    def store(self, suffix: str) -> None:
        with TemporaryDirectory() as folder:
            self.t.save(Path(folder) / f"t{suffix}")
            self.t = bnorm.load(Path(folder) / f"t{suffix}")
