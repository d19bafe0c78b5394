"""Running statistics of CartPole's observations: two workers that merge, beside Gymnasium's own normalizer.

    python examples/cartpole_statistics.py                       # some seconds; the picture goes to a file beside it
    python examples/cartpole_statistics.py --plot statistics.png # to another file
    python examples/cartpole_statistics.py --quick               # fewer steps

Two workers step vectors of environments, each with a copy of the statistics so far. After each round, what both have
seen since is added, so that their common history counts once. In the end the statistics are those of all observations
in one table, up to the last digits. For comparison there are statistics in which both workers count the common
history, and those of Gymnasium's wrapper, which are float32 and mix in a made-up variance of 1.

Lines to copy into a loop of your own:

    envs = bnorm.interop.gymnasium.NormalizeObservation(envs)   # in place of Gymnasium's
    rn = bnorm.RunningNorm(4, clip=10)                          # or without a wrapper: z = rn(obs)
    worker = rn.copy()                                          # for a worker, also by pickle
    rn = rn + (worker1 - rn) + (worker2 - rn)                   # rn once, and what each has seen since
    rn.eval()                                                   # for evaluation: normalizes only
"""

import argparse
from pathlib import Path

import numpy as np

import bnorm

try:
    import gymnasium
    from gymnasium.vector import SyncVectorEnv
    from gymnasium.wrappers.utils import RunningMeanStd
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise SystemExit(f"cartpole_statistics.py needs {error.name}: pip install gymnasium matplotlib") from None

ENVS = 8
WAYS = ("base + (a - base) + (b - base)", "a + b, with their history", "gymnasium, one process")
NAMES = ("position", "velocity", "angle", "angular velocity")


def vector():
    """A vector of environments that are never shown."""
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * ENVS)


class Worker:
    """Steps a vector of environments by random actions, and normalizes what it observes."""

    def __init__(self, seed):
        self.envs = vector()
        self.rng = np.random.default_rng(seed)
        self.seen = [self.envs.reset(seed=seed)[0]]  # all observations, to compare with

    def work(self, rn, steps):
        """Statistics that continue those of rn."""
        rn = rn.copy()
        for _ in range(steps):
            obs = self.envs.step(self.rng.integers(0, 2, ENVS))[0]
            rn(obs)  # a policy would act by this
            self.seen.append(obs)
        return rn


def rounds_of_work(rounds, steps, seed):
    """After each round the largest relative error of the standard deviations, by the way in which workers are merged.

    Also the statistics in the end, and all observations.
    """
    workers = [Worker(seed), Worker(seed + 1)]
    start = bnorm.RunningNorm(len(NAMES))
    for worker in workers:
        start.update(worker.seen[0])
    rn, naive = start, start
    theirs = RunningMeanStd(shape=(len(NAMES),), dtype=np.float32)  # as Gymnasium's wrapper has it
    theirs.update(np.concatenate([worker.seen[0] for worker in workers]))
    errors = {name: [] for name in WAYS}
    for _ in range(rounds):
        results = [worker.work(rn, steps) for worker in workers]
        news = [result - rn for result in results]
        rn = rn + news[0] + news[1]
        naive = (naive + news[0]) + (naive + news[1])  # what both workers have, and both have the history
        for i in range(steps):
            theirs.update(np.concatenate([worker.seen[i - steps] for worker in workers]))
        seen = np.concatenate([obs for worker in workers for obs in worker.seen]).astype("float64")
        for name, var in zip(WAYS, (rn.var, naive.var, theirs.var), strict=True):
            errors[name].append(np.abs(np.sqrt(var) / seen.std(axis=0) - 1).max())
    return errors, rn, seen


def plot(path, errors, observations):
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    ax = figure.subplots()
    for name, curve in errors.items():
        ax.plot(np.linspace(0, observations, len(curve) + 1)[1:], curve, marker=".", linewidth=1, label=name)
    ax.set(xlabel="observations", ylabel="error of the standard deviation", yscale="log")
    ax.set_title("CartPole: statistics of two workers, beside those of all observations at once")
    ax.legend()
    figure.savefig(path, format="png", dpi=120)


def arguments():
    parser = argparse.ArgumentParser(description="Merge the statistics of two workers.")
    parser.add_argument("--plot", type=Path, default="cartpole_statistics.png", metavar="PATH", help="PNG of errors")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--seed", type=int, default=0, help="of the environments and the actions")
    args = parser.parse_args()
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")
    return args


def main():
    args = arguments()
    rounds, steps = (5, 40) if args.quick else (20, 500)
    errors, rn, seen = rounds_of_work(rounds, steps, args.seed)
    print(f"Two workers, {rounds} rounds of {steps} steps in {ENVS} environments: {int(rn.count[0])} observations.\n")
    print(f"{'':20}{'merged std':>14}{'std of all':>14}{'difference':>14}")
    for name, got, right in zip(NAMES, np.sqrt(rn.var), seen.std(axis=0), strict=True):
        print(f"{name:20}{got:14.6f}{right:14.6f}{abs(got - right):14.1e}")
    print("\nLargest relative error of a standard deviation, after the first round and after the last:")
    for name, curve in errors.items():
        print(f"{name:36}{curve[0]:10.1e}{curve[-1]:10.1e}")
    plot(args.plot, errors, len(seen))
    print(f"\nErrors over time: {args.plot}")


if __name__ == "__main__":
    main()
