"""Branch-free vector functions: exp, log, tanh and their family on whole vectors, within about one and a half ULP.

Each function is written once, over `Value`s, for f32 and f64 and any width: reduce the argument with `fma` so that
nothing is lost, evaluate a polynomial, scale back, then select the IEEE edge cases (nan, infinities, -0.0,
subnormals, overflow). Kernels do not inline them: `module` defines `<W x T> @tj_exp_f32x8(<W x T>)` and so on once
for the process (and the disk store keeps the object code), so that a kernel that calls them compiles in milliseconds.

Products and sums fuse only where `fma` is written: the reductions are exact only as they stand.
Polynomials are minimax fits (Remez, 60 digits) over the reduced range, highest power first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, nan

from tracejit.codegen.llvm.text import Module, Type, Value, i32, i64, of
from tracejit.ops.random_words import LOW, philox
from tracejit.records import dataclass

__all__ = ["CALLED", "FUNCTIONS", "arity", "declaration", "module", "result", "symbol"]


def symbol(name: str, dtype: str, width: int) -> str:
    """The symbol of a vector function: tj_exp_f32x8. Width 1 takes and gives plain scalars."""
    return f"tj_{name}_{dtype}x{width}"


def arity(name: str) -> int:
    """How many vectors a function takes."""
    return {"pow": 2, "atan2": 2, "random_word": 3}.get(name, 1)


def result(name: str, dtype: str, width: int) -> Type:
    """What it gives: a vector like those it takes, but for random words."""
    return of("i32" if name == "random_word" else dtype, width)


def declaration(name: str, dtype: str, width: int) -> str:
    """LLVM text that declares a function to a kernel that calls it."""
    t = str(of(dtype, width))
    takes = ", ".join([t] * arity(name))
    return f"declare {result(name, dtype, width)} @{symbol(name, dtype, width)}({takes}) nounwind memory(none)"


def module(functions: Iterable[tuple[str, str, int]]) -> str:
    """LLVM text that defines every (name, dtype, width) asked for, in a canonical order."""
    m = Module()
    for name, dtype, width in sorted(set(functions)):
        t = of(dtype, width)
        arguments = dict(zip("xyz", [t] * arity(name), strict=False))
        f = m.function(symbol(name, dtype, width), result(name, dtype, width), arguments)
        f.ret(CALLED[name](*f.args))
    return m.text()


# ---------------------------------------------------------------- the two formats


@dataclass(frozen=True, slots=True)
class Format:
    """What the reductions need to know of an IEEE format."""

    mantissa: int  # stored bits
    bias: int
    tiny: float  # smallest normal
    round: float  # adding and subtracting it rounds to an integer
    ln2: tuple[float, float]  # high part with trailing zeros, so that n * high is exact; rest
    half_pi: tuple[float, float, float]  # the first has full precision: fma makes x - n * p exact anyway
    trig_limit: float  # |x| up to which the reduction holds


_F32 = Format(
    23, 127, 2.0**-126, 1.5 * 2.0**23, (0.693145751953125, 1.42860682030941723212e-6),
    (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15), 71476.0,
)  # fmt: skip
_F64 = Format(
    52, 1023, 2.0**-1022, 1.5 * 2.0**52, (6.93147180369123816490e-01, 1.90821492927058770002e-10),
    (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33), 2.0**28,
)  # fmt: skip


def _format(x: Value) -> Format:
    return _F32 if x.type.bits == 32 else _F64


def _poly(x: Value, coefficients: Sequence[float]) -> Value:
    first, *rest = coefficients
    r = x.f.value(first, x.type)
    for c in rest:
        r = x.f.fma(r, x, c)
    return r


def _abs(x: Value) -> Value:
    return x.f.intrinsic("fabs", x)


def _copysign(x: Value, sign: Value) -> Value:
    return x.f.intrinsic("copysign", x, sign)


def _bits(x: Value) -> Value:
    return x.bitcast(x.type.integer)


def _nearest(x: Value, scale: float) -> tuple[Value, Value]:
    """n = round(x * scale) as an integer and as a float; |n| below 2**22 (f32) or 2**51 (f64)."""
    magic = _format(x).round
    t = x.f.fma(x, scale, magic)
    return _bits(t) - _magic_bits(x), t - magic


def _magic_bits(x: Value) -> int:
    return 0x4B400000 if x.type.bits == 32 else 0x4338000000000000


def _power_of_two(n: Value, type: Type) -> Value:
    """2.0**n for integers n with a normal result."""
    form = _F32 if type.bits == 32 else _F64
    return ((n + form.bias) << form.mantissa).bitcast(type)


def _clamp(x: Value, lo: float, hi: float) -> Value:
    """x within [lo, hi]; nan stays."""
    x = (x > hi).select(hi, x)
    return (x < lo).select(lo, x)


# ---------------------------------------------------------------- exponentials

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2
_EXP_Q32 = (0.000199186505366, 0.00139461420456597259, 0.00833326393497256249, 0.0416662700746833756,
            0.166666668621334944, 0.500000007727379656)  # fmt: skip
_EXP_Q64 = (2.51178859892549878e-8, 2.76312875202446398e-7, 2.75572163671398028e-6, 0.0000248014901299601949,
            0.000198412699171027181, 0.00138888889465789707, 0.00833333333330746246, 0.0416666666665184105,
            0.166666666666666984, 0.500000000000001214)  # fmt: skip
_EXP_P32 = (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0)


def _exp_reduce(x: Value) -> tuple[Value, Value]:
    """n and r with x = n ln 2 + r."""
    n, nf = _nearest(x, 1.44269504088896340736)
    hi, lo = _format(x).ln2
    r = x.f.fma(nf, -hi, x)
    return n, x.f.fma(nf, -lo, r)


def _exp_poly(r: Value) -> Value:
    return _poly(r, _EXP_P32 if r.type.bits == 32 else (*_EXP_Q64, 1.0, 1.0))


def exp(x: Value) -> Value:
    """e**x; gradual underflow to 0, overflow to inf."""
    return _exp32(x) if x.type.bits == 32 else _exp64(x)


def _exp32(x: Value) -> Value:
    """As `_exp64`, with the exponents of both factors cut from one sum, and one factor ready before the polynomial."""
    f, t = x.f, x.type
    x = _clamp(x, -104.0, 89.0)
    base = _F32.round + 2 * _F32.bias  # the last bits of `shifted` are the biased exponents of the factors, added up
    shifted = f.fma(x, 1.44269504088896340736, base)
    n = shifted - base
    hi, lo = _F32.ln2
    r = f.fma(n, -lo, f.fma(n, -hi, x))
    both = _bits(shifted)
    first, second = ((part << 22 & 0x7F800000).bitcast(t) for part in (both, both + 1))
    *coefficients, _ = _EXP_P32
    return f.fma(_poly(r, coefficients), r * first, first) * second


def _exp64(x: Value) -> Value:
    n, r = _exp_reduce(_clamp(x, -746.0, 710.0))
    half = n >> 1  # two factors: 2**n itself may lie outside the normal range
    return _exp_poly(r) * _power_of_two(half, x.type) * _power_of_two(n - half, x.type)


def _exp_normal(x: Value) -> Value:
    """e**x for x clamped to where the result is a normal number, for use inside the other functions."""
    limit = 87.0 if x.type.bits == 32 else 708.0
    n, r = _exp_reduce(_clamp(x, -limit, limit))
    return _exp_poly(r) * _power_of_two(n, x.type)


def expm1(x: Value) -> Value:
    """e**x - 1 without cancellation near 0."""
    f = x.f
    single = x.type.bits == 32
    y = _clamp(x, -18.0, 89.0) if single else _clamp(x, -38.0, 710.0)
    n, nf = _nearest(y, 1.44269504088896340736)
    hi, lo = _format(x).ln2
    r0 = f.fma(nf, -hi, y)
    r = f.fma(nf, -lo, r0)
    low = f.fma(nf, -lo, r0 - r)
    c = f.fma(r * r, _poly(r, _EXP_Q32 if single else _EXP_Q64), low)
    s = _power_of_two(n - 1, x.type)  # half the scale: 2**n overflows before the result does
    y = f.fma(s, c, f.fma(s, r, s - 0.5))
    return (_abs(x) < (2.0**-25 if single else 2.0**-54)).select(x, y + y)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x), to the last subnormal on the left."""
    f = x.f
    negative = x < 0.0
    e = exp(-_abs(x))
    d = e + 1.0
    lost = e - (d - 1.0)  # what rounding took from d
    a = negative.select(e, 1.0)
    y = a / d
    # One Newton step with the residual; 1 / d is y or 1 - y.
    residual = f.fma(-y, lost, f.fma(-y, d, a))
    return f.fma(residual, negative.select(1.0 - y, y), y)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    return _tanh32(x) if x.type.bits == 32 else _tanh64(x)


# (tanh(y) / y - 1) / y**2 on |y| <= _TANH_CUT, above which 1 - tanh is the smaller of the two
_TANH_P32 = (-0.006256233806607651, 0.021060293570743596, -0.05384990361553921, 0.13332566995700554,
             -0.3333331712094634)  # fmt: skip
_TANH_CUT = 0.5535


def _tanh32(x: Value) -> Value:
    """With |x| = n ln(2) / 2 + y: tanh(y) where n is 0, else 1 - 2 (1 - tanh y) / (2**n (1 + tanh y) + 1 - tanh y).

    n is |x| * 1.5 / cut rounded, less 1, and not below 0, so that one polynomial serves both.
    """
    f, t = x.f, x.type
    magnitude = _abs(x)
    a = (magnitude > 20.0).select(20.0, magnitude)
    base = _F32.round + (_F32.bias - 1)  # the last bits of `shifted` are the biased exponent of 2**n
    shifted = f.fma(a, 1.5 / _TANH_CUT, base)
    shifted = (shifted > base + 1.0).select(shifted, base + 1.0)
    scale = (_bits(shifted) << _F32.mantissa).bitcast(t)
    n = shifted - (base + 1.0)
    y = f.fma(n, -0.34657359028, a)  # its rounding is lost where n is large
    s = y * y
    th = f.fma(_poly(s, _TANH_P32), y * s, y)
    w = (1.0 - th) / f.fma(th, scale - 1.0, scale + 1.0)
    r = (n > 0.0).select(f.fma(w, -2.0, 1.0), th)
    return (_bits(r) | (_bits(x) & -(1 << 31))).bitcast(t)


def _tanh64(x: Value) -> Value:
    """A quotient of polynomials (Cephes) below 0.625, 1 - 2 / (e**2x + 1) above."""
    a = _abs(x)
    large = 1.0 - 2.0 / (_exp_normal(a + a) + 1.0)
    s = x * x
    p = _poly(s, (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3))
    q = _poly(s, (1.0, 1.12811678491631932402e2, 2.23548839060100448583e3, 4.84406305325125486048e3))
    return _copysign((a < 0.625).select(x.f.fma(a * s, p / q, a), large), x)


# ---------------------------------------------------------------- logarithms

# log(1 + m) = m + m**2 q(m) on |m| <= 1/3 (N. Juffa)
_LOG_Q32 = (-0.130310059, 0.140869141, -0.121483512, 0.139814854, -0.166846126, 0.200120345, -0.249996200,
            0.333331972, -0.500000000)  # fmt: skip
# (log((1 + s) / (1 - s)) / s - 2) / s**2 with m = 2s / (1 - s) (fdlibm)
_LOG_R64 = (1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
            2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01)  # fmt: skip


def _exponent(x: Value) -> Value:
    """Bits of the exponent e (in place) such that x / 2**e lies in [2/3, 4/3) (f32) or [sqrt 1/2, sqrt 2) (f64)."""
    if x.type.bits == 32:
        return (_bits(x) - 0x3F2AAAAB) & -(1 << 23)
    return (_bits(x) - 0x3FE6A09E00000000) & -(1 << 52)


def _log_core(m: Value, k: Value) -> Value:
    """k ln 2 + log(1 + m) for reduced m and integral k."""
    f = m.f
    if m.type.bits == 32:
        return f.fma(k, 0.693147182, f.fma(_poly(m, _LOG_Q32), m * m, m))
    hi, lo = _F64.ln2
    s = m / (m + 2.0)
    z = s * s
    half = m * m * 0.5
    low = f.fma(s, f.fma(z, _poly(z, _LOG_R64), half), k * lo)
    return f.fma(k, hi, m - (half - low))


def log(x: Value) -> Value:
    """Natural logarithm: nan below 0, -inf at 0."""
    form = _format(x)
    subnormal = x < form.tiny
    y = subnormal.select(x * 2.0**54, x)
    e = _exponent(y)
    m = (_bits(y) - e).bitcast(x.type) - 1.0
    k = (e >> form.mantissa).cast(x.type.wide(1))
    r = _log_core(m, subnormal.select(k - 54.0, k))
    return _log_edges(r, x, x)


def log1p(x: Value) -> Value:
    """log(1 + x) without cancellation near 0."""
    form = _format(x)
    e = _exponent(x + 1.0)
    # m = (1 + x) / 2**e - 1 from x itself, whose low bits 1 + x has lost: x / 2**e + (1 / 2**e - 1), both exact.
    scale = ((form.bias << form.mantissa) - e).bitcast(x.type)
    m = x.f.fma(x, scale, scale - 1.0)
    m = (x > 2.0**60).select((_bits(x) - e).bitcast(x.type) - 1.0, m)  # there 1 + x is x, and the scale may underflow
    k = (e >> form.mantissa).cast(x.type.wide(1))
    r = _log_edges(_log_core(m, k), x, x + 1.0)
    return (_abs(x) < form.tiny * 2.0**24).select(x, r)


def _log_edges(r: Value, x: Value, argument: Value) -> Value:
    r = (argument < 0.0).select(nan, r)
    r = argument.eq(0.0).select(-inf, r)
    r = x.eq(inf).select(x, r)
    return x.is_nan().select(x, r)


# ---------------------------------------------------------------- erf

# erf(x) / x - 1 in x**2, |x| <= 1
_ERF_SMALL64 = (5.96068533852097103e-11, -1.13749557360701496e-9, 1.46603287227422595e-8, -1.63503962228646163e-7,
                1.64610084778027013e-6, -0.0000149255957721809053, 0.000120553311329558196, -0.000854832698142554209,
                0.00522397762482843067, -0.0268661706450778751, 0.112837916709548845, -0.376126389031837482,
                0.128379167095512574)  # fmt: skip
# log(erfc(x)) on [1, 6], error weighted by erfc(x)
_ERF_LARGE64 = (1.03902694671875956e-12, -4.75163094647168404e-11, 1.01703563344790611e-9, -1.35221208034793976e-8,
                1.24830165737889862e-7, -8.4518961564879143e-7, 4.30176689308257566e-6, -0.0000164214341443714668,
                0.0000447697569729386164, -0.0000697499901245147035, -0.0000459569427560956115, 0.000642835356367336233,
                -0.0017709274851046575, 0.000282230536456907572, 0.0190769541144219423, -0.102746642051435274,
                -0.636628703895154206, -1.12837728236677883, -1.84387850149723956e-7)  # fmt: skip


def erf(x: Value) -> Value:
    """Error function: x p(x**2) near 0, 1 - exp(q(|x|)) beyond."""
    f = x.f
    s = x * x
    if x.type.bits == 32:  # N. Juffa
        a = _abs(x)
        t = (a > 4.0).select(4.0, a)
        r = f.fma(f.fma(-1.72853470e-5, t, 3.83197126e-4), s, f.fma(-3.88396438e-3, t, 2.42546219e-2))
        for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
            r = f.fma(r, t, c)
        large = 1.0 - _exp_normal(f.fma(r, t, -t))
        p = _poly(s, (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1))
        small = f.fma(p, a, a)
        far, near = 4.0, 0.927734375
    else:
        a = _abs(x)
        t = (a > 6.0).select(6.0, a)
        large = 1.0 - _exp_normal(_poly(t, _ERF_LARGE64))
        small = f.fma(_poly(s, _ERF_SMALL64), a, a)
        far, near = 6.0, 1.0
    large = (a > far).select(1.0, large)
    return _copysign((a > near).select(large, small), x)


# ---------------------------------------------------------------- circular functions

_SIN32 = (2.71756878091056816e-6, -0.000198392572517061002, 0.00833332914667407099, -0.166666666395948583)
_COS32 = (0.0000244313854436421653, -0.00138873078960956269, 0.0416666456974930406)
_SIN64 = (1.58936013872386137e-10, -2.50507043878233848e-8, 2.75573133586438138e-6, -0.000198412698288793933,
          0.00833333333332130034, -0.166666666666666278)  # fmt: skip
_COS64 = (-1.13575410073577148e-11, 2.08756838663221058e-9, -2.75573140730734725e-7, 0.0000248015872885576775,
          -0.00138888888888727224, 0.0416666666666665919)  # fmt: skip


def sin(x: Value) -> Value:
    """Sine, right for every argument: lanes beyond the reduction's reach go through libm."""
    return _circular(x, "sin", 0)


def cos(x: Value) -> Value:
    """Cosine, right for every argument."""
    return _circular(x, "cos", 1)


def _circular(x: Value, name: str, quadrant: int) -> Value:
    f, form = x.f, _format(x)
    n, q = _nearest(x, 0.636619772367581343)
    p1, p2, p3 = form.half_pi
    # x = q pi/2 + r + low: the first step is exact, the second keeps what it rounds off (two-sum, for r1 may cancel).
    r1 = f.fma(q, -p1, x)
    w = q * p2
    r = r1 - w
    b = r - r1
    low = (r1 - (r - b)) - (w + b)
    low = f.fma(q, -p3, low - f.fma(q, p2, -w))
    s = r * r
    single = x.type.bits == 32
    # sin(r + low) = r + (r**3 p + low), cos(r + low) = 1 - (s/2 - (s**2 p - r low)) with the error of 1 - s/2 put back
    sine = r + f.fma(s * r, _poly(s, _SIN32 if single else _SIN64), low)
    half = s * 0.5
    w = 1.0 - half
    tail = f.fma(-r, low, s * s * _poly(s, _COS32 if single else _COS64))
    cosine = w + (((1.0 - w) - half) + tail)
    n = n + quadrant
    y = (n & 1).ne(0).select(cosine, sine)
    y = (_bits(y) ^ ((n & 2) << (x.type.bits - 2))).bitcast(x.type)
    if name == "sin":
        y = x.eq(0.0).select(x, y)
    far = _abs(x) > form.trig_limit
    return _patched(x, y, far, name + ("f" if single else ""))


def _patched(x: Value, y: Value, far: Value, libm: str) -> Value:
    """y, but libm's value of x in the lanes `far`; a function of its own, so that the usual way spills nothing."""
    f, t = x.f, x.type
    name = f"tj_{libm}_far_x{t.width}"
    if name not in f.module.functions:
        g = f.module.function(name, t, {"x": t, "y": t, "far": t.mask}, "internal nounwind noinline")
        gx, gy, mask = g.args
        if t.width == 1:
            g.ret(mask.select(g.call(libm, t, gx), gy))
        else:
            with g.carrying(0, t.width, [gy]) as loop:
                k, out = loop.index, loop.carry[0]
                one = mask.lane(k).select(g.call(libm, t.wide(1), gx.lane(k)), out.lane(k))
                loop.carry = [out.insert(one, k)]
            g.ret(loop.carry[0])
    with f.choose(f.any(far), [y]) as other:
        other.carry = [f.call(name, t, x, y, far)]
    return other.carry[0]


# (atan(t) / t - 1) / t**2 in t**2, |t| <= 1/2
_ATAN32 = (0.0387758318432951455, -0.0798812759565221203, 0.109421520541297455, -0.142722317718991899,
           0.199994986530093064, -0.333333270923194676)  # fmt: skip
_ATAN64 = (-0.00836175574441264294, 0.0236489195962943135, -0.037114573538874108, 0.0458928436558419557,
           -0.052299721582368993, 0.0587780054981857109, -0.0666622284123342259, 0.0769227742525396149,
           -0.0909090769057272772, 0.111111110693698113, -0.142857142849794969, 0.199999999999934877,
           -0.333333333333333132)  # fmt: skip


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), with the signs of zeros and infinities as IEEE has them."""
    f, single = y.f, x.type.bits == 32
    ax, ay = _abs(x), _abs(y)
    steep, left = ay > ax, _bits(x) < 0
    hi, lo = steep.select(ay, ax), steep.select(ax, ay)
    equal = ax.eq(ay)  # both infinite, or both zero: a ratio of 1, or 0
    hi, lo = equal.select(1.0, hi), equal.select(ax.eq(0.0).select(f.value(0.0, x.type), 1.0), lo)
    # Powers of two keep hi + lo from overflowing and subnormals from losing the comparison below.
    big, small = (2.0**100, 2.0**-100) if single else (2.0**1000, 2.0**-900)
    scale = (hi > big).select(0.25, (hi < small).select(2.0**64, f.value(1.0, x.type)))
    hi, lo = hi * scale, lo * scale
    # The angle is k pi/4 + p or k pi/4 - p.
    reduce = lo > hi * 0.5
    n, d = reduce.select(lo - hi, lo), reduce.select(lo + hi, hi)  # lo - hi is exact
    t = n / d
    d_low = reduce.select(lo - (d - hi), 0.0)
    t_low = (hi < inf).select(f.fma(-t, d_low, f.fma(-t, d, n)) / d, 0.0)
    s = t * t
    p = t + f.fma(s * t, _poly(s, _ATAN32 if single else _ATAN64), t_low)
    p = (steep ^ left).select(-p, p)
    k = reduce.select(1.0, f.value(0.0, x.type))
    k = steep.select(2.0 - k, k)
    k = left.select(4.0 - k, k)
    quarter, rest = (
        (0.785398185253143311, -2.18556950009312142e-8) if single else (0.785398163397448279, 3.06161699786838302e-17)
    )
    base = k * quarter
    r = base + (p + f.fma(k, rest, f.fma(k, quarter, -base)))
    r = (x.is_nan() | y.is_nan()).select(x + y, r)
    return _copysign(r, y)


# ---------------------------------------------------------------- powers


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x)."""
    return 1.0 / x.f.intrinsic("sqrt", x)


def pow(x: Value, y: Value) -> Value:
    """x**y with C's table of special cases."""
    f = x.f
    magnitude = (_pow32 if x.type.bits == 32 else _pow64)(_abs(x), y)
    half = y * 0.5
    whole = f.intrinsic("floor", y).eq(y)
    odd = whole & f.intrinsic("floor", half).ne(half)
    r = odd.select(_copysign(magnitude, x), magnitude)
    undefined = (x < 0.0) & x.ne(-inf) & ~whole & y.eq(y)
    r = undefined.select(nan, r)
    one = x.eq(1.0) | y.eq(0.0) | (_abs(y).eq(inf) & _abs(x).eq(1.0))
    return one.select(1.0, r)


def _log_edges_of_magnitude(r: Value, a: Value) -> Value:
    r = a.eq(0.0).select(-inf, r)
    return (a < inf).select(r, a)


def _pow32(a: Value, y: Value) -> Value:
    """a**y for a >= 0 through f64, where even subnormals are normal and nothing needs two parts."""
    f, double = a.f, of("f64")
    x, y = a.cast(double), y.cast(double)
    e = _exponent(x)
    m = (_bits(x) - e).bitcast(x.type) - 1.0
    s = m / (m + 2.0)
    log_x = (s + s) * _poly(s * s, [1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0])
    log_x = f.fma((e >> 52).cast(double), 0.69314718055994530942, log_x)
    t = _clamp(y * _log_edges_of_magnitude(log_x, x), -200.0, 200.0)
    return _exp_normal(t).cast(a.type.wide(1))


def _pow64(a: Value, y: Value) -> Value:
    """a**y for a >= 0: the logarithm in two doubles, since an error of it is multiplied by up to 745."""
    f, t = a.f, a.type
    fma = f.fma
    subnormal = a < _F64.tiny
    x = subnormal.select(a * 2.0**54, a)
    e = _exponent(x)
    m = (_bits(x) - e).bitcast(t)
    k = (e >> 52).cast(t.wide(1))
    k = subnormal.select(k - 54.0, k)
    # s = (m - 1) / (m + 1) = s + s_low
    d = m + 1.0
    n = m - 1.0
    s = n / d
    s_low = fma(-s, m - (d - 1.0), fma(-s, d, n)) / d
    # z = s**2
    z = s * s
    z_low = fma(s + s, s_low, fma(s, s, -z))
    # p = 1/3 + z/5 + z**2/7 ...
    q = z * _poly(z, [1 / n for n in range(25, 3, -2)])
    p = q + 0.333333333333333315
    p_low = (0.333333333333333315 - p) + q + 1.85037170770859413e-17
    # u = s z p; log(m) = 2 (s + u)
    w = z * p
    w_low = fma(z, p, -w) + fma(z, p_low, z_low * p)
    u = s * w
    u_low = fma(s, w, -u) + fma(s, w_low, s_low * w)
    h = s + u
    h_low = (s - h) + u + (s_low + u_low)
    h, h_low = h + h, h_low + h_low
    # + k ln 2, whose high part times k is exact
    ln2, ln2_low = _F64.ln2
    base = k * ln2
    g = base + h
    g_low = (base - g) + h + fma(k, ln2_low, h_low)
    log_x = g + g_low
    log_low = (g - log_x) + g_low
    log_x = _log_edges_of_magnitude(log_x, a)
    # exp(y log x), the low part added to the reduced argument
    v = y * log_x
    v_low = fma(y, log_x, -v) + y * log_low
    v_low = (_abs(v) < 800.0).select(v_low, 0.0)
    n, r = _exp_reduce(_clamp(v, -746.0, 710.0))
    half = n >> 1
    return _exp_poly(r + v_low) * _power_of_two(half, t) * _power_of_two(n - half, t)


def random_word(i: Value, seed: Value, offset: Value) -> Value:
    """Words i % 4 of the Philox blocks offset + i // 4; for whole blocks side by side, no block is made twice."""
    f, t, width = i.f, i.type, i.type.width
    one = i.lane(0) if width > 1 else i
    if width < 4:
        return _words_of(i, seed, offset)
    numbers = Value(f, "<" + ", ".join(f"i64 {k}" for k in range(width)) + ">", t)
    is_run = f.any((i - one.splat(width)).ne(numbers)) ^ 1
    with f.either(is_run & (one & 3).eq(0)) as sides:
        out: list[Value] = []
        ends: list[str] = []
        for whole in sides:
            out.append(_words_side_by_side(i, seed, offset) if whole else _words_by_turns(i, seed, offset))
            ends.append(f.block)
    (a, from_a), (b, from_b) = zip(out, ends, strict=True)
    return f.emit(f"phi {a.type} [ {a.name}, %{from_a} ], [ {b.name}, %{from_b} ]", a.type)


def _block_words(block: Value, seed: Value) -> tuple[Value, Value, Value, Value]:
    zero = block.f.value(0, block.type)
    return philox((block & LOW, (block >> 32) & LOW, zero, zero), (seed & LOW, (seed >> 32) & LOW))


def _words_of(i: Value, seed: Value, offset: Value) -> Value:
    a, b, c, d = _block_words((i >> 2) + offset, seed)
    k = i & 3
    return k.eq(0).select(a, k.eq(1).select(b, k.eq(2).select(c, d))).cast(i32)


def _words_by_turns(i: Value, seed: Value, offset: Value) -> Value:
    """`_words_of`, a quarter of a long vector at a time: as fast, and compiled in a third of the time."""
    width, count = i.type.width, i.type.width // 4
    if count < 4:
        return _words_of(i, seed, offset)
    quarter, rest = list(range(count)), list(range(count, width))
    with i.f.carrying(0, 4, [i, seed, offset, i.f.value(0, i32.wide(width))]) as turns:
        *inputs, out = turns.carry
        words = _words_of(*(x.shuffle(x, quarter) for x in inputs))
        out = out.shuffle(words.shuffle(words, quarter * 4), [*rest, *range(width, width + count)])
        turns.carry = [*(x.shuffle(x, rest + quarter) for x in inputs), out]
    return turns.carry[3]


def _words_side_by_side(i: Value, seed: Value, offset: Value) -> Value:
    count = i.type.width // 4
    numbers = Value(i.f, "<" + ", ".join(f"i64 {k}" for k in range(count)) + ">", i64.wide(count))
    first = (i.lane(0) >> 2) + offset.lane(0)
    words = _block_words((first.splat(count) + numbers) if count > 1 else first, seed.lane(0).splat(count))
    a, b, c, d = (w.cast(i32) for w in words)
    if count == 1:
        out = i.f.value(0, i32.wide(4))
        for k, w in enumerate((a, b, c, d)):
            out = out.insert(w, k)
        return out
    low, high = a.shuffle(b, range(2 * count)), c.shuffle(d, range(2 * count))
    return low.shuffle(high, [count * k + j for j in range(count) for k in range(4)])


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "atan2": atan2, "cos": cos, "erf": erf, "exp": exp, "expm1": expm1, "log": log, "log1p": log1p, "pow": pow,
    "rsqrt": rsqrt, "sigmoid": sigmoid, "sin": sin, "tanh": tanh,
}  # fmt: skip
CALLED = FUNCTIONS | {"random_word": random_word}  # all that kernels call
