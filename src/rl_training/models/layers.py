"""Building blocks shared by the networks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Dense = Callable[[int, int], nn.Module]  # (inputs, outputs) -> a layer
Norm = Callable[[int], nn.Module]  # size -> a layer


def mlp(
    in_features: int,
    hidden_sizes: Sequence[int],
    out_features: int | None,
    *,
    layer_norm: bool = False,
    norm_after_activation: bool = False,
    activation: type[nn.Module] = nn.ReLU,
    dense: Dense = nn.Linear,
    norm: Norm = nn.LayerNorm,
    residual: bool = False,
    dropout: bool = False,
) -> list[nn.Module]:
    """Return the layers of an MLP: (batch, in_features) -> (batch, out_features); without an output layer if None.

    `residual`: hidden layers are blocks x + W2 f(W1 norm(x)) with four times as many units inside, between a first
    linear layer and a last norm (SimBa: Lee et al. 2025), with SimBa's first weights. They are normalised with or
    without `layer_norm`. `dropout`: a `Dropout` after each linear layer of the hidden ones; not for residual blocks.
    """
    layers: list[nn.Module] = []
    if residual and hidden_sizes:
        width = hidden_sizes[0]
        blocks = [
            Residual(norm(size), dense(size, 4 * size), activation(), dense(4 * size, size)) for size in hidden_sizes
        ]
        layers, in_features = [dense(in_features, width), *blocks, norm(width)], width
    else:
        for size in hidden_sizes:
            norms = [norm(size)] if layer_norm else []
            after = [activation(), *norms] if norm_after_activation else [*norms, activation()]
            layers += [dense(in_features, size), *([Dropout()] if dropout else []), *after]
            in_features = size
    if out_features is not None:
        layers = [*layers, dense(in_features, out_features)]
    return _with_simba_weights(layers) if residual else layers


def _with_simba_weights(layers: list[nn.Module]) -> list[nn.Module]:
    """Initialise the layers outside of residual blocks orthogonally, and those inside He-normal.

    Each layer remembers how, for `draw_weights`.
    """
    for layer in layers:
        inside = isinstance(layer, Residual)
        draw = partial(init_truncated, gain=math.sqrt(2.0)) if inside else partial(init_orthogonal, gain=1.0)
        layer.draw_own_weights = draw  # type: ignore[assignment]
        draw(layer)
    return layers


def draw_weights(network: nn.Module) -> None:
    """Draw new weights for all layers, from the distributions of their first ones."""
    parts = list(network.modules())
    for part in reversed(parts):  # a module may change what its parts drew
        draw = getattr(part, "reset_parameters", None)
        if callable(draw):
            draw()
    for part in parts:
        own = getattr(part, "draw_own_weights", None)
        if own is not None:
            own(part)


NORM_EPS = 1e-4  # of Dreamer's normalisation


def normed_mlp(in_features: int, hidden_sizes: Sequence[int], out_features: int | None) -> list[nn.Module]:
    """Return the layers of an MLP with RMS normalisation and SiLU after every hidden layer, as in Dreamer."""
    norm = partial(nn.RMSNorm, eps=NORM_EPS)
    return mlp(in_features, hidden_sizes, out_features, layer_norm=True, activation=nn.SiLU, norm=norm)


@torch.no_grad()
def init_orthogonal(module: nn.Module, gain: float) -> None:
    """Initialise linear layers and convolutions with orthogonal weights and zero biases.

    Residual blocks keep theirs.
    """
    if isinstance(module, Residual):
        return
    if isinstance(module, nn.Linear | nn.Conv2d | StackedLinear):
        for weight in module.weight if isinstance(module, StackedLinear) else [module.weight]:
            nn.init.orthogonal_(weight, gain)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    for part in module.children():
        init_orthogonal(part, gain)


@torch.no_grad()
def init_truncated(module: nn.Module, gain: float = 1.0) -> None:
    """Initialise weights from a normal distribution truncated at two deviations, of deviation gain / sqrt(inputs).

    Biases are zero. With gain sqrt(2) it is He-normal.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | StackedLinear):
            nn.init.trunc_normal_(part.weight, std=1.0, a=-2.0, b=2.0)
            part.weight.mul_(gain / (0.87962566 * math.sqrt(_fan_in(part))))  # truncation reduces the deviation to 0.88
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def _fan_in(part: nn.Module) -> int:
    weight = part.weight
    assert isinstance(weight, Tensor)
    if isinstance(part, nn.ConvTranspose2d):  # the weights of a kernel are spread over stride ** 2 output pixels
        return weight.shape[0] * math.prod(part.kernel_size) // math.prod(part.stride)
    return weight.shape[1] if isinstance(part, StackedLinear) else weight[0].numel()


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + super().forward(x)  # type: ignore[no-untyped-call]
        return output


class Dropout(nn.Module):
    """Multiplies units by the buffer `factors`: 0 for the dropped ones. At first it is 1: nothing is dropped.

    `nn.Dropout` draws its own random numbers. These are data: whoever calls the network sets the buffer.
    """

    factors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factors", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors


class StackedLinear(nn.Module):
    """One linear layer per member of an ensemble, computed as one batched product.

    (batch, inputs), the same for all members, or (members, batch, inputs) -> (members, batch, outputs).
    """

    def __init__(self, num_members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_features)  # as in nn.Linear
        self.weight = nn.Parameter(torch.empty(num_members, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, out_features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            x = x.expand(len(self.weight), -1, -1)
        if self.weight.shape[2] == 1:  # MKL's batched product of one column takes six times as long as a plain sum
            return (x * self.weight.transpose(1, 2)).sum(2, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x, self.weight)


class StackedLayerNorm(nn.Module):
    """Layer normalisation with a scale and a shift for each member of an ensemble: (members, batch, size)."""

    def __init__(self, num_members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, size))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, size))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStyle:
    """How the dense layers of a Q-network are built, for any number of outputs per action."""

    layer_norm: bool = False
    dueling: bool = False  # the last hidden layer exists twice: for the value of the state and for the advantages
    noisy_sigma: float | None = None  # if set, all dense layers except those of IQN's trunk have noisy weights
    residual: bool = False


PLAIN = HeadStyle()


def action_layers(
    in_features: int, hidden_sizes: Sequence[int], action_dim: int, per_action: int = 1, *, style: HeadStyle = PLAIN
) -> list[nn.Module]:
    """Return the layers from features to `per_action` outputs per action: (..., in) -> (..., actions * per_action)."""
    dense: Dense = nn.Linear if style.noisy_sigma is None else partial(NoisyLinear, sigma=style.noisy_sigma)
    layers = partial(mlp, layer_norm=style.layer_norm, dense=dense, residual=style.residual)
    if not style.dueling:
        return layers(in_features, hidden_sizes, action_dim * per_action)
    shared, stream = hidden_sizes[:-1], hidden_sizes[-1:]
    size = shared[-1] if shared else in_features
    value = nn.Sequential(*layers(size, stream, per_action))
    advantages = nn.Sequential(*layers(size, stream, action_dim * per_action))
    return [*layers(in_features, shared, None), Dueling(value, advantages, action_dim)]


class Dueling(nn.Module):
    """Q = V + A - mean of A over the actions, for each output per action (Wang et al. 2016, equation 9)."""

    def __init__(self, value: nn.Module, advantages: nn.Module, action_dim: int) -> None:
        super().__init__()
        self.value, self.advantages, self.action_dim = value, advantages, action_dim

    def forward(self, x: Tensor) -> Tensor:
        # The gradients of both streams add up here: the paper scales the sum by 1 / sqrt(2).
        x = x.detach() + (x - x.detach()) * math.sqrt(0.5)
        advantages = self.advantages(x).unflatten(-1, (self.action_dim, -1))
        q_values: Tensor = self.value(x).unsqueeze(-2) + advantages - advantages.mean(-2, keepdim=True)
        return q_values.flatten(-2)


class NoisyLinear(nn.Module):
    """Linear layer whose weights are mu + sigma * f(e_out) f(e_in)^T, f(e) = sign(e) sqrt(|e|): factorised noise.

    The factors f(e) are in the buffer `noise`, (inputs + outputs), or one row of them per row of the input. They are
    zero at first: the weights are then mu. Training and acting set them through `NoisyLayers`. Fortunato et al. 2018,
    section 3.
    """

    noise: Tensor

    def __init__(self, in_features: int, out_features: int, *, sigma: float = 0.5) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._sigma = sigma
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.weight_sigma = nn.Parameter(torch.empty(out_features, in_features))
        self.bias_sigma = nn.Parameter(torch.empty(out_features))
        self.register_buffer("noise", torch.zeros(in_features + out_features), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights, as at the start."""
        bound = 1.0 / math.sqrt(self.in_features)
        for parameter in (self.weight, self.bias):
            parameter.uniform_(-bound, bound)
        for parameter in (self.weight_sigma, self.bias_sigma):
            parameter.fill_(self._sigma * bound)

    def forward(self, x: Tensor) -> Tensor:
        noise_in, noise_out = self.noise[..., : self.in_features], self.noise[..., self.in_features :]
        if self.noise.ndim == 1:  # the same noise for all rows: one product with the noisy weights
            weight = self.weight + self.weight_sigma * (noise_out[:, None] * noise_in)
            return F.linear(x, weight, self.bias + self.bias_sigma * noise_out)
        # Noise per row, which may have several parts: (rows, parts, inputs). No weights per row are needed, because
        # (f_out f_in^T * sigma) x = f_out * (sigma (f_in * x)).
        parts = (1,) * (x.ndim - 2)
        noise_in, noise_out = (noise.view(len(noise), *parts, -1) for noise in (noise_in, noise_out))
        noisy = noise_out * F.linear(x * noise_in, self.weight_sigma, self.bias_sigma)
        return F.linear(x, self.weight, self.bias) + noisy


def noise_factors(normal: Tensor) -> Tensor:
    """Compute f(e) = sign(e) sqrt(|e|) of standard normal numbers."""
    return torch.copysign(normal.abs().sqrt(), normal)


class NoisyLayers:
    """The noisy layers of a network; their noise is concatenated in one vector of `size` numbers."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = {name: part for name, part in module.named_modules() if isinstance(part, NoisyLinear)}
        self._sizes = [layer.in_features + layer.out_features for layer in self._layers.values()]
        self.size = sum(self._sizes)

    def buffers(self, noise: Tensor) -> dict[str, Tensor]:
        """Return the parts of `noise`, (size,), by the names of the module's buffers."""
        parts = torch.split(noise, self._sizes, -1)
        return {f"{name}.noise": part for name, part in zip(self._layers, parts, strict=True)}

    def set(self, noise: Tensor) -> None:
        """Set the noise of the module: (size,), or (rows, size) for different noise in each row of its input."""
        for layer, part in zip(self._layers.values(), torch.split(noise, self._sizes, -1), strict=True):
            layer.noise = part


def constants(size: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `compute` of the vector 0, 1, ..., size - 1; without values on the meta device, where it imports sympy."""
    return torch.empty(size) if torch.get_default_device().type == "meta" else compute(torch.arange(size))


class CosineEmbedding(nn.Module):
    """phi_j(tau) = ReLU(sum over i of cos(pi i tau) w_ij + b_j), i from 0: (...) -> (..., features).

    Dabney et al. 2018, Implicit quantile networks, equation 4.
    """

    frequencies: Tensor

    def __init__(self, num_cosines: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_cosines, features)
        self.register_buffer("frequencies", constants(num_cosines, lambda i: torch.pi * i), persistent=False)

    def forward(self, taus: Tensor) -> Tensor:
        return F.relu(self.linear(torch.cos(taus.unsqueeze(-1) * self.frequencies)))


class MeanOfLast(nn.Module):
    """Mean over the last axis, (..., n) -> (...): Q-values from quantiles."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(-1)


class Expectation(nn.Module):
    """(..., atoms) logits -> (...): the mean of the distribution over fixed atoms."""

    atoms: Tensor

    def __init__(self, atoms: Tensor) -> None:
        super().__init__()
        self.register_buffer("atoms", atoms, persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        return (logits.softmax(-1) * self.atoms).sum(-1)


class Parallel(nn.ModuleList):
    """Several networks on one input with concatenated outputs: (batch, *in) -> (batch, sum of outputs)."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self], dim=1)


class LearnedRow(nn.Module):
    """Learned numbers that do not depend on the input: (batch, *in) -> (batch, size)."""

    def __init__(self, size: int, initial: float) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.full((size,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return self.row.expand(x.shape[0], -1)  # `len` would fix the batch size of an exported network
