# What comes after normalizing, and its gradient, in the type of the loop that asks: the formulas are formulas.h's.
#
# A loop over values is compiled for each kind (formulas.h has the list): its caller hands it to `by_kind`, and it takes
# the activation first.
#
# Uses nothing of its siblings.
# Gives pulled.

cdef inline real pulled(Activation act, real v, real g) noexcept nogil:
    """g, the gradient behind the activation of v, brought before it."""
    if real is float:
        return bn_act_pull_float(act, v, g)
    else:
        return bn_act_pull_double(act, v, g)
