"""NumPy code for the functions NumPy lacks: erf, lgamma, and polygamma of any order.

Computed in float64, rounded at the end (erf of float32 has a shorter formula of its own). Sources: erf is the rational
approximation of fdlibm's s_erf.c (Sun Microsystems 1993, freely usable with this notice); the float32 form is Eigen's;
lgamma and polygamma are Stirling's series after shifting the argument up (DLMF 5.11.1, 5.15.8), with reflection below
0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.ir.op import Array

__all__ = ["erf", "lgamma", "polygamma"]


def _horner(coefficients: Sequence[float], x: Array) -> Array:
    """sum_k coefficients[k] * x^k."""
    y = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        y *= x
        y += np.asarray(c, x.dtype)
    return y


# fdlibm: erf = x + x P/Q below 0.84375; erx + P/Q below 1.25; 1 - exp(-x^2 - 0.5625 + R/S) / x in two pieces up to 6.
_PP = (
    1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
    -5.77027029648944159157e-03, -2.37630166566501626084e-05,
)  # fmt: skip
_QQ = (
    1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
    1.32494738004321644526e-04, -3.96022827877536812320e-06,
)  # fmt: skip
_ERX = 8.45062911510467529297e-01
_PA = (
    -2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
    3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
    -2.16637559486879084300e-03,
)  # fmt: skip
_QA = (
    1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
    1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02,
)  # fmt: skip
_RA = (
    -9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01,
    -6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02,
    -8.12874355063065934246e01, -9.81432934416914548592e00,
)  # fmt: skip
_SA = (
    1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02,
    6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02, 6.57024977031928170135e00,
    -6.04244152148580987438e-02,
)  # fmt: skip
_RB = (
    -9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01,
    -1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03,
    -4.83519191608651397019e02,
)  # fmt: skip
_SB = (
    1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03,
    3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02, -2.24409524465858183362e01,
)  # fmt: skip
# Eigen: x P(x^2) / Q(x^2) with |x| held to 4, where float32's erf is 1.
_P32 = (
    -1.60960333262415e-02, -2.95459980854025e-03, -7.34990630326855e-04, -5.69250639462346e-05,
    -2.10102402082508e-06, 2.77068142495902e-08, -2.72614225801306e-10,
)  # fmt: skip
_Q32 = (
    -1.42647390514189e-02,
    -7.37332916720468e-03,
    -1.68282697438203e-03,
    -2.13374055278905e-04,
    -1.45660718464996e-05,
)


def erf(x: Array) -> Array:
    """The error function; float64 within 1e-15, float32 within 1e-7."""
    if x.dtype != np.float64:
        t = np.clip(x, -4, 4).astype(np.float64)  # in float32 the two polynomials would lose three bits
        s = t * t
        return (t * (_horner(_P32, s) / _horner(_Q32, s))).astype(x.dtype)
    a = np.abs(x)
    y = np.where(np.isnan(a), a, 1.0)
    near, middle = a < 0.84375, (a >= 0.84375) & (a < 1.25)
    far, farther = (a >= 1.25) & (a < 1 / 0.35), (a >= 1 / 0.35) & (a < 6.0)
    if near.any():
        t = a[near]
        y[near] = t + t * (_horner(_PP, t * t) / _horner(_QQ, t * t))
    if middle.any():
        t = a[middle] - 1
        y[middle] = _ERX + _horner(_PA, t) / _horner(_QA, t)
    for piece, r, s in ((far, _RA, _SA), (farther, _RB, _SB)):
        if piece.any():
            t = a[piece]
            u = 1 / (t * t)
            y[piece] = 1 - np.exp(-t * t - 0.5625 + _horner(r, u) / _horner(s, u)) / t
    return np.copysign(y, x)


# B_2k: what Stirling's and Euler-Maclaurin's series are made of.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_SHIFT = 10  # Stirling's series with nine terms has float64's precision from here on
_LGAMMA_SERIES = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]


def lgamma(x: Array) -> Array:
    """log |gamma(x)|, inf at 0, -1, -2, ... and at both infinities."""
    v = x.astype(np.float64)
    low = v < 0.5
    t = np.where(low, 1 - v, v)  # gamma(v) gamma(1 - v) = pi / sin(pi v)
    below = t < _SHIFT
    product = np.ones_like(t)
    up = t.copy()
    for _ in range(_SHIFT):
        step = up < _SHIFT
        product = np.where(step, product * up, product)
        up = np.where(step, up + 1, up)
    u = 1 / up
    y = (up - 0.5) * np.log(up) - up + 0.5 * math.log(2 * math.pi) + u * _horner(_LGAMMA_SERIES, u * u)
    y = np.where(below, y - np.log(product), y)
    y = np.where(np.isposinf(t), np.inf, y)
    sine = np.abs(np.sin(math.pi * (v - np.round(v))))
    y = np.where(low, math.log(math.pi) - np.log(sine) - y, y)
    return np.where(np.isinf(v), np.inf, y).astype(x.dtype)


def polygamma(n: int, x: Array) -> Array:
    """The n-th derivative of digamma. Poles: digamma is ∓inf at ±0 and nan at -1, -2, ...; odd orders are inf there."""
    v = x.astype(np.float64)
    low = v < 0.5
    y = _polygamma_right(n, np.where(low, 1 - v, v))
    if low.any():
        y = np.where(low, _reflected(n, v, y), y)
    return y.astype(x.dtype)


def _polygamma_right(n: int, t: Array) -> Array:
    """polygamma for t >= 0.5: shifted up by recurrence, then the asymptotic series."""
    sign = -1.0 if n % 2 == 0 else 1.0
    shift = _SHIFT + n  # higher derivatives converge later
    total = np.zeros_like(t)
    up = t.copy()
    for _ in range(shift):
        step = up < shift
        total = np.where(step, total + sign * math.factorial(n) / up ** (n + 1), total)
        up = np.where(step, up + 1, up)
    u = 1 / up
    if n == 0:
        tail = np.log(up) - 0.5 * u
        terms = [-b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
        return total + tail + u * u * _horner(terms, u * u)
    tail = math.factorial(n - 1) * u**n + 0.5 * math.factorial(n) * u ** (n + 1)
    terms = [b * math.factorial(2 * k + n - 1) / math.factorial(2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    return total + sign * (tail + u ** (n + 2) * _horner(terms, u * u))


def _reflected(n: int, v: Array, right: Array) -> Array:
    """polygamma(v) = (-1)^n polygamma(1 - v) - pi d^n/dv^n cot(pi v)."""
    r = v - np.round(v)
    c = 1 / np.tan(math.pi * r)
    poly: list[float] = [0.0, 1.0]  # d^n/dv^n cot as a polynomial in cot: d cot = -pi (1 + cot^2)
    for _ in range(n):
        d = [k * a for k, a in enumerate(poly)][1:]
        poly = [-math.pi * (a + b) for a, b in zip([*d, 0.0, 0.0], [0.0, 0.0, *d])]
    y: Any = (-1) ** n * right - math.pi * _horner(poly, c)
    pole = r == 0
    if n == 0:
        return np.where(pole, np.where(v == 0, np.copysign(np.inf, -v), np.nan), y)
    return np.where(pole, np.inf if n % 2 else np.where(v == 0, np.copysign(np.inf, -v), np.nan), y)
