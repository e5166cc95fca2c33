"""Ops whose backward needs every bit of what it saved, and why.

Together with `lossy_ops` this names every op of torch 2.13 that saves a tensor;
`tests/tape/test_every_op.py` holds it to that.
"""

from __future__ import annotations

from encke.tape.needs.lossy_ops import EXACT_SIDES, OPAQUE, RANDOM, STATISTIC
from encke.tape.needs.table import SENSITIVE, Rule, add_pattern, add_rule, exact

DIFFERENCE = exact("the difference to the target is the gradient")
CONDITION = exact("errors grow with a matrix's condition number")
SECOND_ORDER = exact("a gradient of a gradient")
LIST = exact("an op on lists, as optimizers use")
NESTED = exact("a nested tensor")
SPARSE = exact("indices and values of a sparse tensor")
SPECIAL = exact("a special function, rare in training")


def _every(rule: Rule, **ops: str) -> None:
    """One rule for the roles (separated by spaces) of each op."""
    for op, roles in ops.items():
        add_rule(op, **dict.fromkeys(roles.split(), rule))


# A division, a root, a logarithm or an exponential. Hand-written softmaxes are made of these.
_every(
    SENSITIVE,
    Exp="result",
    Exp2="result",
    Expm1="result",
    Log="self",
    Log2="self",
    Log10="self",
    Log1P="self",
    Sqrt="result self",
    Rsqrt="result self",
    Reciprocal="result self",
    LogSoftmax="result",
    Logsumexp="self result",
    Logcumsumexp="self result",
    Logaddexp="self other",
    Logaddexp2="self other",
    Logit="self",
    Addcdiv="tensor1 tensor2",
    Cumprod="self result",
    Prod="self result",
    Norm="self result",
    LinalgVectorNorm="self result",
    Renorm="self",
    Cdist="x1 x2 result",
    EuclideanDist="x1 x2 result",
    Pdist="self result",
    Dist="self other result",
    Hypot="self other result",
    Polar="result",
    Angle="self",
    Atan2="self other",
    Acos="self",
    Acosh="self",
    Asin="self",
    Atanh="self",
    Cosh="self",
    Sinh="self",
    Tan="result",
    Erfinv="self",
    Ldexp="other result",
    Xlogy="self other",
    SpecialXlog1Py="self other",
    SpecialEntr="self",
    IndexReduce="self source result",
    SegmentReduce="data result lengths offsets",
)
# A jump in the slope, or a choice among values.
_every(
    EXACT_SIDES,
    Abs="self",
    Sgn="self result",
    Threshold="self result",
    PreluKernel="self weight",
    RreluWithNoise="self result noise",
    RreluWithNoiseFunctional="self noise",
    Copysign="self result",
    Maximum="self other",
    Minimum="self other",
    Fmax="self other",
    Fmin="self other",
    Max="self result",
    Min="self result",
    Amax="self result",
    Amin="self result",
    Aminmax="self max min",
    Median="self result",
    Nanmedian="self result",
    Nansum="self",
    Fmod="self other",
    Remainder="self other",
    Nextafter="self other",
    MaxPool2D="self",
    GridSampler2D="grid",
    GridSampler3D="grid",
    GridSampler2DCpuFallback="grid",
    CudnnGridSampler="grid",
    FakeQuantizeLearnablePerChannelAffine="self scale zero_point",
    FakeQuantizeLearnablePerTensorAffine="self scale zero_point",
    Frexp="exponent",
)
_every(
    DIFFERENCE,
    MseLoss="self target",
    SmoothL1Loss="self target",
    HuberLoss="self target",
    SoftMarginLoss="self target",
    BinaryCrossEntropy="self target weight",
    BinaryCrossEntropyWithLogits="self target weight pos_weight",
    MultiMarginLoss="self target weight",
    MultilabelMarginLoss="self target is_target",
    CtcLoss="log_probs result0 result1 targets input_lengths target_lengths",
    CudnnCtcLoss="result0 result1",
    MiopenCtcLoss="result0 result1",
)
_every(
    CONDITION,
    Cholesky="result",
    CholeskyInverse="self result",
    CholeskySolve="self input2 result",
    LinalgCholeskyEx="L",
    LinalgDet="A LU pivots result",
    LinalgEig="eigenvalues eigenvectors",
    LinalgEigh="eigenvalues eigenvectors",
    LinalgHouseholderProduct="input tau result",
    LinalgInvEx="inverse",
    LinalgLstsq="self b solution",
    LinalgLu="L P U",
    LinalgLuFactorEx="LU pivots",
    LinalgLuSolve="LU pivots result",
    LinalgMatrixExp="self",
    LinalgPinv="self result",
    LinalgQr="Q R",
    LinalgSlogdet="A LU pivots sign",
    LinalgSolveEx="A LU pivots result",
    LinalgSolveTriangular="self result",
    LinalgSvd="S U Vh",
    Ormqr="self input2 input3 result",
    TriangularSolve="self A solution",
)
_every(
    SPECIAL,
    Digamma="self",
    Lgamma="self",
    Mvlgamma="self",
    Polygamma="self",
    Igamma="self other",
    Igammac="self other",
    I0="self",
    SpecialErfcx="self result",
    SpecialI0E="self result",
    SpecialI1="self result",
    SpecialI1E="self result",
    SpecialLogNdtr="self result",
    SpecialNdtri="result",
    SpecialZeta="self other",
    StandardGamma="self result",
)
_every(STATISTIC, WeightNormInterface="v g result1")
_every(
    OPAQUE,
    CudnnRnn="input hx cx weight result0 result3 result4",
    MiopenRnn="input hx cx weight result0 result3 result4",
    LstmMps="input hx params result3 result4 result5",
    MkldnnAdaptiveAvgPool2D="self",
    MkldnnMaxPool2D="self result",
    MkldnnMaxPool3D="self result",
    ToMkldnn="self",
)
_every(RANDOM, CudnnRnn="dropout_state", MiopenRnn="dropout_state")
_every(
    LIST,
    ForeachDiv="self other",
    ForeachMaximum="self",
    ForeachMinimum="self",
    ForeachMm="self mat2",
    ForeachNorm="self result",
    ForeachPow="self exponent result",
)
_every(
    SPARSE,
    ToDense="self",
    SparseCompressedTensor="values result",
    SparseCooTensorWithDimsAndTensors="result",
    SparseLogSoftmax="self result",
    SparseMask="mask",
    SparseMmReduceImpl="self other result1",
    SparseSampledAddmm="self mat1 mat2",
    SparseSoftmax="self result",
    SparseSparseMatmul="self other",
    SparseSum="self",
    Values="self",
)
_every(
    NESTED,
    ToPaddedTensor="self",
    NestedFromPadded="padded",
    NestedGetValues="self",
    NestedTensorFromTensorList="list",
)

# Recognised by their names: backward formulas that are differentiated in turn, nodes for ops on
# nested tensors, for views made by copies, and for torch's own tests.
add_pattern(r"Backward(Data|Overrideable)?$", SECOND_ORDER)
add_pattern(r"AutogradNestedTensor\d(_copy)?$", NESTED)
add_pattern(r"_copy$", exact("a view made by a copy, which eager mode does not use"))
add_pattern(r"^TestAutograd", exact("for torch's own tests"))
