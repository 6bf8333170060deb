"""Modules: registration, state, modes, hooks, printing; layers and training against PyTorch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import nn
from tracejit.nn import functional as F

RNG = np.random.default_rng(0)


def reference() -> Any:
    """PyTorch on one thread: its pool spins when tests run side by side."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
        self.register_buffer("scale", tj.ones(2))
        self.register_buffer("cache", tj.zeros(1), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.rest(self.first(x)) * self.scale


# --- registration --------------------------------------------------------------------------------------------------


def test_attributes_register_parameters_buffers_and_modules() -> None:
    net = Net()
    assert [n for n, _ in net.named_parameters()] == ["first.weight", "first.bias", "rest.1.weight", "rest.1.bias"]
    assert [n for n, _ in net.named_buffers()] == ["scale", "cache"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "rest", "rest.0", "rest.1"]
    assert list(net.state_dict()) == ["scale", "first.weight", "first.bias", "rest.1.weight", "rest.1.bias"]


def test_a_module_has_a_dict_of_its_own() -> None:
    net = Net()
    assert type(net.__dict__) is dict
    assert net.__dict__ is net.__dict__


def test_reassignment_replaces_the_registration() -> None:
    net = Net()
    net.first = nn.Identity()
    assert [n for n, _ in net.named_parameters()] == ["rest.1.weight", "rest.1.bias"]
    net.first = None
    assert net.first is None
    with pytest.raises(TypeError, match="Parameter or None"):
        net.rest[1].weight = 3
    net.extra = nn.Parameter(tj.ones(1))
    del net.extra
    assert not hasattr(net, "extra")


def test_assignment_before_init_is_refused() -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(tj.ones(1))

    with pytest.raises(AttributeError, match="super"):
        Bad()


def test_a_missing_attribute_names_the_class() -> None:
    with pytest.raises(AttributeError, match="Net has no attribute 'nothing'"):
        _ = Net().nothing


def test_a_shared_parameter_comes_once_but_is_saved_twice() -> None:
    net = Net()
    net.tied = net.first
    assert len(list(net.parameters())) == 4
    assert "tied.weight" in net.state_dict()


# --- state ---------------------------------------------------------------------------------------------------------


def test_load_state_dict_copies_in_place_and_lists_what_is_wrong() -> None:
    a, b = Net(), Net()
    weight = a.first.weight
    keys = a.load_state_dict(b.state_dict())
    assert keys == ([], [])
    assert a.first.weight is weight
    assert weight.tolist() == b.first.weight.tolist()
    state = b.state_dict()
    state["more"] = state.pop("scale")
    state["first.bias"] = tj.ones(5)
    with pytest.raises(RuntimeError) as error:
        a.load_state_dict(state)
    text = str(error.value)
    assert 'Missing key(s) in state_dict: "scale"' in text
    assert 'Unexpected key(s) in state_dict: "more"' in text
    assert "size mismatch for first.bias: [5] in the state_dict, [4] in the model" in text
    state["first.bias"] = tj.ones(4)
    assert a.load_state_dict(state, strict=False) == (["scale"], ["more"])


def test_state_dict_shares_memory() -> None:
    net = Net()
    net.state_dict()["scale"].fill_(7.0)
    assert net.scale.tolist() == [7.0, 7.0]


def test_modules_copy_and_pickle() -> None:
    net = Net()
    x = tj.ones(1, 3)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin(x).tolist() == net(x).tolist()
        assert twin.first.weight is not net.first.weight
        assert isinstance(twin.first.weight, nn.Parameter)


def test_casts_keep_the_parameters_identity() -> None:
    net = Net()
    weight = net.first.weight
    net.double()
    assert net.first.weight is weight
    assert weight.dtype is tj.float64
    assert net.scale.dtype is tj.float64
    net.to(tj.float32)
    assert weight.dtype is tj.float32
    assert weight.requires_grad


def test_modes_gradients_and_apply() -> None:
    net = Net()
    assert not net.eval().rest[0].training
    net.train()
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.requires_grad_()
    net(tj.ones(1, 3)).sum().backward()
    assert net.first.bias.grad is not None
    net.zero_grad()
    assert net.first.bias.grad is None
    seen: list[str] = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "ReLU", "Linear", "Sequential", "Net"]


# --- hooks ---------------------------------------------------------------------------------------------------------


def test_forward_hooks_see_and_replace() -> None:
    layer = nn.Linear(2, 1)
    x = tj.ones(1, 2)
    plain = layer(x).item()
    before = layer.register_forward_pre_hook(lambda m, args: (args[0] * 0,))
    after = layer.register_forward_hook(lambda m, args, out: out + 10)
    assert layer(x).item() == pytest.approx(layer.bias.item() + 10)
    before.remove()
    after.remove()
    after.remove()
    assert layer(x).item() == plain


def test_full_backward_hook_sees_both_ends() -> None:
    layer = nn.Linear(2, 1, bias=False)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].tolist(), go[0].tolist())))
    x = tj.ones(1, 2, requires_grad=True)
    (layer(x) * 3).sum().backward()
    assert seen == [((layer.weight.detach() * 3).tolist(), [[3.0]])]
    assert x.grad.tolist() == (layer.weight.detach() * 3).tolist()


# --- printing and containers ---------------------------------------------------------------------------------------


def test_repr_is_a_tree() -> None:
    assert repr(Net()) == (
        "Net(\n  (first): Linear(in_features=3, out_features=4, bias=True)\n  (rest): Sequential(\n    (0): ReLU()\n"
        "    (1): Linear(in_features=4, out_features=2, bias=True)\n  )\n)"
    )


def test_containers_behave_as_lists_and_dicts() -> None:
    layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(3)])
    layers.insert(1, nn.ReLU())
    del layers[0]
    assert [type(m).__name__ for m in layers] == ["ReLU", "Linear", "Linear"]
    assert len(layers[1:]) == 2
    assert type(layers[-1]) is nn.Linear
    with pytest.raises(IndexError, match="3"):
        _ = layers[3]
    named = nn.ModuleDict({"a": nn.ReLU()})
    named["b"] = nn.Identity()
    assert list(named) == ["a", "b"]
    assert "a" in named
    assert len(list(named.children())) == 2
    weights = nn.ParameterList([tj.ones(1), tj.zeros(2)])
    assert [n for n, _ in weights.named_parameters()] == ["0", "1"]
    assert len(weights) == 2
    pair = nn.ParameterDict({"x": tj.ones(1)})
    assert [n for n, _ in pair.named_parameters()] == ["x"]
    assert type(nn.Sequential(nn.ReLU(), nn.Tanh())[1:]) is nn.Sequential


# --- layers with state or randomness -------------------------------------------------------------------------------


def test_batch_norm_counts_and_moves_its_statistics() -> None:
    layer = nn.BatchNorm1d(2)
    counter = layer.num_batches_tracked
    y = layer(tj.tensor([[1.0, 2.0], [3.0, 6.0]]))
    np.testing.assert_allclose(y.tolist(), [[-1, -1], [1, 1]], atol=1e-4)
    np.testing.assert_allclose(layer.running_mean.tolist(), [0.2, 0.4], atol=1e-6)
    np.testing.assert_allclose(layer.running_var.tolist(), [1.1, 1.7], atol=1e-6)
    assert counter is layer.num_batches_tracked
    assert counter.item() == 1
    assert counter.dtype is tj.int64
    with pytest.raises(ValueError, match="more than 1 value"):
        layer(tj.ones(1, 2))


def test_dropout_thins_in_training_only() -> None:
    tj.manual_seed(0)
    layer = nn.Dropout(0.25)
    y = layer(tj.ones(4000))
    assert set(y.tolist()) == {0.0, float(np.float32(1 / 0.75))}
    assert abs((y == 0).float().mean().item() - 0.25) < 0.03
    x = tj.ones(3)
    assert layer.eval()(x) is x
    planes = nn.Dropout2d(0.5)(tj.ones(8, 8, 3, 3)).reshape(64, 9)
    assert all(len(set(row)) == 1 for row in planes.tolist())


def test_in_place_activations_write_their_input() -> None:
    x = tj.tensor([-1.0, 2.0])
    assert nn.ReLU(inplace=True)(x) is x
    assert x.tolist() == [0.0, 2.0]


def test_initialisers_have_the_right_spread() -> None:
    tj.manual_seed(0)
    w = tj.empty(200, 300)
    nn.init.kaiming_normal_(w, nonlinearity="relu")
    assert abs(w.std().item() - (2 / 300) ** 0.5) < 2e-3
    nn.init.xavier_uniform_(w)
    assert w.abs().max().item() <= (6 / 500) ** 0.5
    nn.init.trunc_normal_(w, std=0.5, a=-0.6, b=0.6)
    assert w.abs().max().item() <= 0.6
    nn.init.orthogonal_(w)
    np.testing.assert_allclose((w @ w.T).numpy(), np.eye(200), atol=1e-4)
    with pytest.raises(ValueError, match="2 dims"):
        nn.init.xavier_uniform_(tj.empty(3))


def test_clipping_limits_gradients() -> None:
    p = nn.Parameter(tj.zeros(2))
    p.grad = tj.tensor([3.0, 4.0])
    assert nn.utils.clip_grad_norm_([p], 1.0).item() == 5.0
    np.testing.assert_allclose(p.grad.tolist(), [0.6, 0.8], atol=1e-5)
    nn.utils.clip_grad_value_([p], 0.7)
    np.testing.assert_allclose(p.grad.tolist(), [0.6, 0.7], atol=1e-5)
    row = nn.utils.parameters_to_vector([p, nn.Parameter(tj.ones(1))])
    assert row.shape == (3,)


# --- against PyTorch -----------------------------------------------------------------------------------------------


def load(ours: Any, theirs: Any) -> None:
    """Give our module the weights of torch's; the names must be the same."""
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({k: tj.from_numpy(np.array(v.numpy())) for k, v in theirs.state_dict().items()})


LAYERS: list[tuple[str, Callable[[Any], Any], tuple[tuple[int, ...], ...]]] = [
    ("linear", lambda n: n.Linear(3, 4), ((2, 3),)),
    ("bilinear", lambda n: n.Bilinear(3, 4, 2), ((5, 3), (5, 4))),
    ("conv1d circular", lambda n: n.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), ((2, 2, 7),)),
    ("conv2d", lambda n: n.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), ((2, 3, 7, 7),)),
    ("conv transpose", lambda n: n.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), ((2, 3, 4, 4),)),
    ("batch norm", lambda n: n.BatchNorm2d(3), ((4, 3, 2, 2),)),
    ("batch norm average", lambda n: n.BatchNorm1d(3, momentum=None), ((4, 3),)),
    ("instance norm", lambda n: n.InstanceNorm2d(3, affine=True, track_running_stats=True), ((2, 3, 4, 4),)),
    ("layer norm", lambda n: n.LayerNorm((3, 4), bias=False), ((2, 3, 4),)),
    ("rms norm", lambda n: n.RMSNorm(4), ((2, 3, 4),)),
    ("group norm", lambda n: n.GroupNorm(2, 4), ((2, 4, 3),)),
    ("prelu", lambda n: n.PReLU(3), ((2, 3, 4),)),
    ("lstm", lambda n: n.LSTM(3, 4, num_layers=2, bidirectional=True), ((5, 2, 3),)),
    ("lstm projected", lambda n: n.LSTM(3, 4, proj_size=2, batch_first=True), ((2, 5, 3),)),
    ("gru", lambda n: n.GRU(3, 4, bias=False, batch_first=True), ((2, 5, 3),)),
    ("rnn relu", lambda n: n.RNN(3, 4, nonlinearity="relu"), ((5, 3),)),
    ("lstm cell", lambda n: n.LSTMCell(3, 4), ((2, 3),)),
    ("gru cell", lambda n: n.GRUCell(3, 4), ((2, 3),)),
    ("attention", lambda n: n.MultiheadAttention(4, 2, batch_first=True), ((2, 5, 4), (2, 3, 4), (2, 3, 4))),
    ("attention own sizes", lambda n: n.MultiheadAttention(4, 2, kdim=3, vdim=2), ((5, 2, 4), (3, 2, 3), (3, 2, 2))),
    ("encoder", lambda n: n.TransformerEncoderLayer(4, 2, 8, 0.0, activation="gelu", norm_first=True), ((5, 2, 4),)),
    ("decoder", lambda n: n.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True), ((2, 5, 4), (2, 3, 4))),
]


def tensors(out: Any) -> list[Any]:
    return [t for o in out for t in tensors(o)] if isinstance(out, (tuple, list)) else [] if out is None else [out]


@pytest.mark.parametrize(("name", "make", "shapes"), LAYERS, ids=[name for name, _, _ in LAYERS])
def test_layer_agrees_with_torch(name: str, make: Any, shapes: Any) -> None:
    torch = reference()
    torch.manual_seed(0)
    theirs, ours = make(torch.nn), make(nn)
    load(ours, theirs)
    arrays = [RNG.normal(size=s).astype(np.float32) for s in shapes]
    xs, ts = (
        [tj.from_numpy(a.copy()).requires_grad_() for a in arrays],
        [torch.from_numpy(a).requires_grad_() for a in arrays],
    )
    got, want = tensors(ours(*xs)), tensors(theirs(*ts))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), atol=2e-5)
    sum((g * g).sum() for g in got).backward()
    sum((w * w).sum() for w in want).backward()
    pairs = [*zip(xs, ts, strict=True), *zip(ours.parameters(), theirs.parameters(), strict=True)]
    for g, w in pairs:
        np.testing.assert_allclose(g.grad.numpy(), w.grad.numpy(), atol=2e-4)
    for (k, v), w in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        np.testing.assert_allclose(v.numpy(), w.numpy(), atol=1e-5, err_msg=k)


def mlp(n: Any) -> Any:
    return n.Sequential(n.Linear(6, 16), n.Tanh(), n.Linear(16, 16), n.GELU(), n.Linear(16, 3))


def cnn(n: Any) -> Any:
    return n.Sequential(
        n.Conv2d(1, 4, 3, padding=1), n.BatchNorm2d(4), n.ReLU(), n.MaxPool2d(2), n.Conv2d(4, 8, 3, padding=1),
        n.ReLU(), n.AdaptiveAvgPool2d(2), n.Flatten(), n.Linear(32, 3),
    )  # fmt: skip


def lstm(n: Any) -> Any:
    class Tagger(n.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm, self.head = n.Embedding(7, 5), n.LSTM(5, 8, batch_first=True), n.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(self.embed(x))[0][:, -1])

    return Tagger()


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (mlp, RNG.normal(size=(20, 8, 6)).astype(np.float32)),
        (cnn, RNG.normal(size=(20, 8, 1, 8, 8)).astype(np.float32)),
        (lstm, RNG.integers(0, 7, (20, 8, 6))),
    ],
)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_twenty_training_steps_follow_torch(make: Any, data: Any, optimizer: str) -> None:
    torch = reference()
    torch.manual_seed(0)
    labels = np.random.default_rng(1).integers(0, 3, (20, 8))
    theirs, ours = make(torch.nn), make(nn)
    load(ours, theirs)
    settings: dict[str, Any] = {"lr": 0.05, "momentum": 0.9} if optimizer == "SGD" else {"lr": 0.003}
    opt = getattr(tj.optim, optimizer)(ours.parameters(), **settings)
    topt = getattr(torch.optim, optimizer)(theirs.parameters(), **settings)
    for x, y in zip(data, labels, strict=True):
        opt.zero_grad()
        topt.zero_grad()
        loss = F.cross_entropy(ours(tj.from_numpy(x)), tj.from_numpy(y))
        tloss = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        tloss.backward()
        nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        opt.step()
        topt.step()
        assert loss.item() == pytest.approx(tloss.item(), abs=1e-5)
