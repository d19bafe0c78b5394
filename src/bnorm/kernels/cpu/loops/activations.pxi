# What comes after normalizing, and its gradient, in the type of the loop that asks: the formulas are formulas.h's.
#
# A loop over values is compiled once for each kind: its caller asks for the kind, and hands it on as a constant.
#
# Uses nothing of its siblings.
# Gives activated, identity, leaky, pulled, relu.

cdef inline Activation identity() noexcept nogil:
    cdef Activation act
    act.kind = BN_IDENTITY
    act.slope = 1.0
    return act


cdef inline Activation relu(Activation act) noexcept nogil:
    act.kind = BN_RELU
    return act


cdef inline Activation leaky(Activation act) noexcept nogil:
    act.kind = BN_LEAKY
    return act


cdef inline real activated(Activation act, real v) noexcept nogil:
    """The activation of v."""
    if real is float:
        return bn_act_float(act.kind, <float>act.slope, v)
    else:
        return bn_act_double(act.kind, act.slope, v)


cdef inline real pulled(Activation act, real v, real g) noexcept nogil:
    """g, the gradient behind the activation of v, brought before it."""
    if real is float:
        return bn_act_pull_float(act.kind, <float>act.slope, v, g)
    else:
        return bn_act_pull_double(act.kind, act.slope, v, g)
