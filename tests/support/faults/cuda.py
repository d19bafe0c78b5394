"""Faults in CUDA kernels, to be planted by `mutations.py`; `__init__.py` explains the entries. The emulator compiles
them when tests run."""

LARGE = "tests/gpu/test_large.py"
ROWS = "tests/gpu/test_rows.py"
FAULTS = {
    "CUDA kernels": [
        (
            "the place of a row has 32 bits",
            "kernels/gpu/rows.cu",
            "    start = (inside ? index : 0) * job.size;\n",
            "    start = (int)((inside ? index : 0) * job.size);\n",
            LARGE,
        ),
        (
            "the place of a plane has 32 bits",
            "kernels/gpu/planes.cu",
            "return start + n * jump; }",
            "return (int)(start + n * jump); }",
            LARGE,
        ),
        (
            "the place of a value in a backward has 32 bits",
            "kernels/gpu/channels_maps.cu",
            "at[u] = MANY ? as_it_is(walk.at) : walk.at;",
            "at[u] = (int)walk.at;",
            LARGE,
        ),
        (
            "the place of a value with a weight has 32 bits",
            "kernels/gpu/rows_weighted.cu",
            "use(row * job.size + at.i, weight",
            "use((int)(row * job.size + at.i), weight",
            LARGE,
        ),
        (
            "a row without values has one",
            "kernels/gpu/rows.cu",
            ": V == 1 && !WIDE    ? 0",
            ": V == 1 && !WIDE    ? 1",
            ROWS,
        ),
        (
            "there are too few zeros in place of beta",
            "kernels/gpu/rows.cu",
            "threadIdx.x < ZEROS) beta",
            "threadIdx.x < ZEROS / 2) beta",
            ROWS,
        ),
        (
            "a warp adds up a whole run in float",
            "kernels/gpu/rows_params.cu",
            "    if (++vectors == FLUSH) flush();\n",
            "",
            ROWS,
        ),
        (
            "a block adds up all of its rows in float",
            "kernels/gpu/rows_params.cu",
            "static constexpr int FLUSH = 32;  // rows of a thread",
            "static constexpr int FLUSH = 1 << 20;  // rows of a thread",
            ROWS,
        ),
        (
            "the rows of a block that are not there are summed",
            "kernels/gpu/rows_backward.cu",
            "    while (first + (rows - 1) * apart >= job.rows) --rows;\n",
            "",
            "tests/kernels/test_kernels.py",
        ),
        (
            "the second sum of a row takes the gamma of another channel",
            "kernels/gpu/rows_backward.cu",
            "(job.inner == 1 ? i : quotient(i, job.inner));",
            "i;",
            "tests/kernels/test_extremes.py",
        ),
        (
            "NaN without weight enters the gradient of gamma",
            "kernels/gpu/row_channels.cu",
            "job.weight && gradient == 0 ? (A)0 : normalized",
            "normalized",
            "tests/kernels/test_weighted_rows.py",
        ),
        (
            "that a center is far is not forgotten",
            "kernels/gpu/meeting.cu",
            "      if (round == 1) atomicExch(far, 0u);\n",
            "",
            "tests/gpu/test_meetings.py",
        ),
        (
            "blocks that have met once do not leave",
            "kernels/gpu/meeting.cu",
            "    leave(job.tickets + blockIdx.x, gridDim.y, blockIdx.y == 0);\n",
            "",
            "tests/gpu/test_meetings.py",
        ),
        (
            "the last cluster does not set the ticket to 0",
            "kernels/gpu/clusters.cu",
            "atomicInc(job.tickets, asked - 1u)",
            "atomicInc(job.tickets, asked)",
            "tests/gpu/test_clusters.py",
        ),
        (
            "a given variance has the type of the mean",
            "kernels/gpu/channels_maps.cu",
            "of_raw(var, job.single & SINGLE_VAR)",
            "of_raw(var, job.single & SINGLE_MEAN)",
            "tests/gpu/test_single.py",
        ),
        (
            "beta is converted as gamma is",
            "kernels/gpu/statistics.cu",
            "job.other_part, job.single & 2);",
            "job.other_part, job.single & 1);",
            "tests/gpu/test_single.py",
        ),
    ],
}
