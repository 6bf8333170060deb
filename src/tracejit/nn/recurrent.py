"""Recurrent layers: the input's part of all steps in one product, then a Python loop over time.

Parameters carry PyTorch's names (weight_ih_l0, ..., with _reverse) and gate order: LSTM i f g o, GRU r z n.
"""

from __future__ import annotations

import math
from typing import Any

from tracejit.errors import OpError
from tracejit.ir.dtype import DType
from tracejit.nn import functional as F
from tracejit.nn import init
from tracejit.nn.module import Module
from tracejit.nn.parameter import Parameter
from tracejit.ops.composed import cat, stack
from tracejit.tensor.creation import empty, zeros
from tracejit.tensor.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


class _Recurrent(Module):
    gates = 1

    def _setup(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        dtype: DType | None,
    ) -> None:
        if hidden_size <= 0 or num_layers <= 0:
            raise ValueError(f"hidden_size and num_layers must be positive, got {hidden_size} and {num_layers}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"the probability of dropout is {dropout}, wanted 0 .. 1")
        if not 0 <= proj_size < hidden_size:
            raise ValueError(f"proj_size {proj_size} must be smaller than hidden_size {hidden_size}")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional, self.proj_size = (
            batch_first,
            float(dropout),
            bidirectional,
            proj_size,
        )
        out, rows = proj_size or hidden_size, self.gates * hidden_size
        directions = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            width = input_size if layer == 0 else out * len(directions)
            for suffix in directions:
                shapes = {"weight_ih": (rows, width), "weight_hh": (rows, out)}
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    self.register_parameter(f"{name}_l{layer}{suffix}", Parameter(empty(*shape, dtype=dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform on +-1/sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing to do: parameters are used as they are."""

    def _weights(self, layer: int, suffix: str) -> tuple[Any, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return tuple(self._parameters.get(f"{name}_l{layer}{suffix}") for name in names)

    def _steps(self, x: Any, state: Any, weights: tuple[Any, ...], backwards: bool) -> tuple[Any, Any]:
        """Outputs [time, batch, out] and the last state of one layer in one direction."""
        raise NotImplementedError

    def _run(self, x: Any, states: list[Any]) -> tuple[Any, list[Any]]:
        """Output [time, batch, ...] and last states of all layers; one initial state for each layer and direction."""
        last: list[Any] = []
        directions = ("", "_reverse") if self.bidirectional else ("",)
        for layer in range(self.num_layers):
            outs: list[Any] = []
            for d, suffix in enumerate(directions):
                state = states[layer * len(directions) + d]
                out, state = self._steps(x, state, self._weights(layer, suffix), d == 1)
                outs.append(out)
                last.append(state)
            x = cat(outs, -1) if len(outs) > 1 else outs[0]
            if self.dropout and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        return x, last

    def _ready(self, input: Tensor) -> tuple[Any, bool]:
        """The input as [time, batch, features], and whether it had no batch."""
        x: Any = input
        if x.ndim not in (2, 3):
            raise OpError(f"{type(self).__name__} wants rank 2 (no batch) or 3, got {input.type}")
        if x.shape[-1] != self.input_size:
            raise OpError(f"{type(self).__name__} of {input.type}: wanted {self.input_size} features")
        if x.ndim == 2:
            return x.unsqueeze(1), True
        return (x.transpose(0, 1) if self.batch_first else x), False

    def _given(self, h: Any, width: int, x: Any, single: bool, name: str) -> list[Any]:
        """The initial states of all layers and directions: h, checked, or zeros."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        if h is None:
            return [zeros(x.shape[1], width, dtype=x.dtype) for _ in range(count)]
        want = (count, width) if single else (count, x.shape[1], width)
        if tuple(h.shape) != want:
            raise OpError(f"{type(self).__name__} {name} of {h.type}: wanted {list(want)}")
        return [s.unsqueeze(0) if single else s for s in h.unbind(0)]

    def _shaped(self, out: Any, single: bool) -> Any:
        return out.squeeze(1) if single else out.transpose(0, 1) if self.batch_first else out

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, plain in (
            ("proj_size", 0),
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
        ):
            if getattr(self, name) != plain:
                text += f", {name}={getattr(self, name)}"
        return text


def _stacked(states: list[Any], single: bool) -> Any:
    h = stack(states, 0)
    return h.squeeze(1) if single else h


class _OneState(_Recurrent):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self._setup(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, dtype)

    def _step(self, x: Any, h: Any, weight: Any, bias: Any) -> Any:
        raise NotImplementedError

    def _steps(self, x: Any, state: Any, weights: tuple[Any, ...], backwards: bool) -> tuple[Any, Any]:
        w_ih, w_hh, b_ih, b_hh, _ = weights
        parts = F.linear(x, w_ih, b_ih).unbind(0)
        outs: list[Any] = []
        for part in reversed(parts) if backwards else parts:
            state = self._step(part, state, w_hh, b_hh)
            outs.append(state)
        if backwards:
            outs.reverse()
        return stack(outs, 0), state

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs of all steps and the last states, [layers * directions, batch, hidden]."""
        x, single = self._ready(input)
        out, last = self._run(x, self._given(hx, self.hidden_size, x, single, "state"))
        return self._shaped(out, single), _stacked(last, single)


class RNN(_OneState):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu."""

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **kwargs: Any) -> None:
        if len(args) > 3:  # PyTorch's fourth position
            nonlinearity, args = args[3], (*args[:3], *args[4:])
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {nonlinearity!r}, wanted 'tanh' or 'relu'")
        super().__init__(*args, **kwargs)
        self.nonlinearity = nonlinearity

    def _step(self, x: Any, h: Any, weight: Any, bias: Any) -> Any:
        return F.rnn_step(x, h, weight, bias, self.nonlinearity)


class GRU(_OneState):
    """Gated recurrent units."""

    gates = 3

    def _step(self, x: Any, h: Any, weight: Any, bias: Any) -> Any:
        return F.gru_step(x, h, weight, bias)


class LSTM(_Recurrent):
    """Long short-term memory; `proj_size` projects the output of each step."""

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self._setup(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, dtype)

    def _steps(self, x: Any, state: Any, weights: tuple[Any, ...], backwards: bool) -> tuple[Any, Any]:
        w_ih, w_hh, b_ih, b_hh, w_hr = weights
        h, c = state
        parts = F.linear(x, w_ih, b_ih).unbind(0)
        outs: list[Any] = []
        for part in reversed(parts) if backwards else parts:
            h, c = F.lstm_step(part, h, c, w_hh, b_hh)
            if w_hr is not None:
                h = F.linear(h, w_hr)
            outs.append(h)
        if backwards:
            outs.reverse()
        return stack(outs, 0), (h, c)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs of all steps and the last (h, c), each [layers * directions, batch, ...]."""
        x, single = self._ready(input)
        h, c = (None, None) if hx is None else hx
        hs = self._given(h, self.proj_size or self.hidden_size, x, single, "h")
        cs = self._given(c, self.hidden_size, x, single, "c")
        out, last = self._run(x, list(zip(hs, cs)))
        return self._shaped(out, single), (
            _stacked([s[0] for s in last], single),
            _stacked([s[1] for s in last], single),
        )


# --- one step ------------------------------------------------------------------------------------------------------


class _Cell(Module):
    gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_size, dtype=dtype))
        self.register_parameter("bias_ih", Parameter(empty(rows, dtype=dtype)) if bias else None)
        self.register_parameter("bias_hh", Parameter(empty(rows, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform on +-1/sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _state(self, input: Any, h: Any) -> Any:
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise OpError(
                f"{type(self).__name__} wants [batch, {self.input_size}] or [{self.input_size}], got {input.type}"
            )
        want = (*input.shape[:-1], self.hidden_size)
        if h is None:
            return zeros(*want, dtype=input.dtype)
        if tuple(h.shape) != want:
            raise OpError(f"{type(self).__name__} state of {h.type}: wanted {list(want)}")
        return h

    def _part(self, input: Any) -> Any:
        return F.linear(input, self.weight_ih, self.bias_ih)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """One step of an RNN."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {nonlinearity!r}, wanted 'tanh' or 'relu'")
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The new state."""
        h = self._state(input, hx)
        return F.rnn_step(self._part(input), h, self.weight_hh, self.bias_hh, self.nonlinearity)


class GRUCell(_Cell):
    """One step of a GRU."""

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The new state."""
        h = self._state(input, hx)
        return F.gru_step(self._part(input), h, self.weight_hh, self.bias_hh)


class LSTMCell(_Cell):
    """One step of an LSTM."""

    gates = 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The new (h, c)."""
        h, c = (self._state(input, s) for s in ((None, None) if hx is None else hx))
        return F.lstm_step(self._part(input), h, c, self.weight_hh, self.bias_hh)
