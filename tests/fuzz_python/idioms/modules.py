"""Modules and what goes with them: containers, hooks, normalization, recurrence, scripts, optimizers, custom operators."""

from __future__ import annotations

IDIOMS = r"""
## is_compiling and its like
$keep = (torch.compiler.is_compiling(), torch._dynamo.is_compiling(), torch.jit.is_tracing(), torch.jit.is_scripting())
$new = $t * (1 if torch.compiler.is_dynamo_compiling() else 2)

## leaf made where nothing compiles
probe$u = $t.detach().clone()
if not torch.compiler.is_compiling():
    probe$u.requires_grad_(True)
$keep = probe$u.requires_grad
$new = $t * (torch.autograd.grad(probe$u.sin().sum(), probe$u)[0] if probe$u.requires_grad else 3)

## module list
layers$u = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
--
hidden$u = $x
for step$u, layer$u in enumerate(layers$u):
    hidden$u = layer$u(hidden$u) if step$u % 2 or $b else hidden$u + layer$u.bias
$new = hidden$u
$keep = len(layers$u)

## module dictionary
heads$u = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
--
$new = heads$u[("a", "b")[$n % 2]]($x)
$keep = [name$u for name$u, _ in heads$u.items()]

## sequential, and one module of it
stack$u = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
--
$new = stack$u($x) + stack$u[0]($x).mean() + stack$u[:2]($x).sum()

## batch normalization and its statistics
norm$u = nn.BatchNorm1d(4)
--
norm$u.train($b)
$new = norm$u($x if $x.dim() == 2 else torch.stack([$x, $x * 2])).sum(0)
$keep = norm$u.num_batches_tracked.item()

## momentum by hand
mean$u = torch.zeros(4)
--
with torch.no_grad():
    mean$u.lerp_($x.detach().reshape(-1, 4).mean(0), 0.25)
$new = $t - mean$u

## forward hook
hooked$u = nn.Linear(4, 4)
hooked$u.register_forward_hook(lambda module, args, out: EVENTS.append("forward hook") or out * 1.5)
--
$new = hooked$u($x)

## forward hook registered and removed
plain$u = nn.Linear(4, 4)
--
seen$u = []
handle$u = plain$u.register_forward_hook(lambda module, args, out: seen$u.append(out.detach().sum()))
$new = plain$u($x)
handle$u.remove()
$new = plain$u($x) + seen$u[0]
$keep = len(seen$u)

## backward hook of a module
watched$u = nn.Linear(4, 4)
watched$u.register_full_backward_hook(lambda module, before, after: EVENTS.append(len(before)))
--
$new = watched$u($x)

## hook of a parameter
weight$u = nn.Parameter(torch.linspace(0.5, 1, 4))
weight$u.register_hook(lambda grad: grad * 2)
--
$new = $t * weight$u

## weight norm and parametrization
normed$u = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
--
$new = normed$u($x)

## tied parameters
tied$u = nn.Linear(4, 4)
other$u = nn.Linear(4, 4)
other$u.weight = tied$u.weight
--
$new = tied$u($x) + other$u($x)

## parameter frozen for a while
frozen$u = nn.Linear(4, 4)
--
frozen$u.weight.requires_grad_($b)
$new = frozen$u($x)

## module in training or evaluation
drop$u = nn.Dropout(0.5)
--
drop$u.train($b)
$new = drop$u($t)
$keep = drop$u.training

## module made inside
$new = nn.Linear(4, 4)($x) + nn.LayerNorm(4, elementwise_affine=False)($x)

## module copied inside
model$u = nn.Linear(4, 4)
--
$new = copy.deepcopy(model$u)($x)

## modules listed
tree$u = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh()))
--
$keep = [name$u for name$u, _ in tree$u.named_modules()]
$new = $t * sum(p$u.numel() for p$u in tree$u.parameters()) + len(list(tree$u.children()))

## state_dict inside
store$u = nn.Linear(4, 4)
--
$keep = list(store$u.state_dict())
$new = $t + store$u.state_dict()["bias"].sum()

## functional call
called$u = nn.Linear(4, 4)
--
$new = torch.func.functional_call(called$u, {"weight": torch.eye(4) * $f}, ($x,))

## module with its own __call__ and attributes
class Gate$u(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.seen = []
    def __call__(self, value, *args):
        Gate$u.calls += 1
        return super().__call__(value, *args)
    def forward(self, value, factor=1.0):
        self.seen.append(factor)
        return self.inner(value) * factor
gate$u = Gate$u()
--
$new = gate$u($x, $f)
$keep = Gate$u.calls

## module that counts its calls in a buffer
class Counting$u(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.last = None
    def forward(self, value):
        self.calls += 1
        out = value * self.calls if self.last is None else value + self.last
        self.last = value.detach()[..., :1].sum()
        return out
counting$u = Counting$u()
--
$new = counting$u($x)

## LSTM
lstm$u = nn.LSTM(4, 3, batch_first=True)
--
out$u, (state$u, _) = lstm$u($x.reshape(1, -1, 4))
$new = out$u.sum() + state$u.mean()

## GRU cell in a loop
cell$u = nn.GRUCell(4, 4)
--
state$u = torch.zeros(1, 4)
for step$u in range($n % 3 + 1):
    state$u = cell$u($x.reshape(-1, 4)[:1], state$u)
$new = state$u.sum(0)

## embedding
table$u = nn.Embedding(6, 4)
--
$new = table$u(torch.tensor([$n % 6, 2])).sum(0) * $t

## attention
rows$u = $x.reshape(1, -1, 4)
$new = F.scaled_dot_product_attention(rows$u, rows$u * $f, rows$u.sin()).sum((0, 1))

## TorchScript function
@torch.jit.script
def scripted$u(value, factor: float):
    return (value * factor).tanh() + value
--
$new = scripted$u($t, $f)

## TorchScript module
traced$u = torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))
--
$new = traced$u($x)

## distribution
normal$u = torch.distributions.Normal($t.detach(), 1.0)
$new = $t * normal$u.rsample() + normal$u.log_prob($t)

## distribution refuses
try:
    $new = $t + torch.distributions.Normal(0.0, -1.0 if $b else 1.0).sample()
except ValueError as error$u:
    $keep = str(error$u).split(" of ")[0]
    $new = $t

## optimizer step inside
free$u = torch.ones(4, requires_grad=True)
optimizer$u = torch.optim.SGD([free$u], lr=0.1, momentum=0.5)
--
optimizer$u.zero_grad()
(free$u * $t.detach()).sum().backward()
optimizer$u.step()
$new = $t * free$u.detach()

## gradients clipped inside
clipped$u = nn.Linear(4, 4)
--
clipped$u(torch.ones(4) * $f).sum().backward()
$keep = torch.nn.utils.clip_grad_norm_(clipped$u.parameters(), 0.5).item()
clipped$u.zero_grad()
$new = $t

## moving average of weights
source$u, target$u = nn.Linear(4, 4), nn.Linear(4, 4)
--
with torch.no_grad():
    for mine$u, theirs$u in zip(target$u.parameters(), source$u.parameters()):
        mine$u.mul_(0.9).add_(theirs$u, alpha=0.1)
$new = target$u($x)

## accumulated gradients read
held$u = torch.ones(4, requires_grad=True)
--
if held$u.grad is not None:
    held$u.grad = held$u.grad * 0.5
(held$u * $f).sum().backward()
$new = $t + held$u.grad

## saved tensors packed by hooks
with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.double(), lambda packed: packed.float()):
    $new = ($t * $t).sin()

## save_on_cpu
with torch.autograd.graph.save_on_cpu():
    $new = ($t * 2).exp() * $t

## custom operator
@torch.library.custom_op("fuzz$u::scaled", mutates_args=())
def scaled$u(value: torch.Tensor, factor: float) -> torch.Tensor:
    return value * factor
@scaled$u.register_fake
def _(value, factor):
    return torch.empty_like(value)
scaled$u.register_autograd(
    lambda ctx, grad: (grad * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)
--
$new = scaled$u($t, $f)

## Function with a saved tensor and marks
class Halved$u(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        positive = value > 0
        ctx.save_for_backward(value)
        ctx.mark_non_differentiable(positive)
        return value.abs().sqrt(), positive
    @staticmethod
    def backward(ctx, grad, _):
        (value,) = ctx.saved_tensors
        return grad * value.sign() * 0.5
--
root$u, mask$u = Halved$u.apply($t)
$new = root$u * mask$u
$keep = mask$u

## straight-through estimator
rounded$u = $t.round()
$new = $t + (rounded$u - $t).detach()

## gradient reversal without recording
with torch.no_grad():
    fixed$u = $t.exp()
$new = fixed$u * $t - (fixed$u * $t).detach()

## vmap
$new = torch.vmap(lambda row: row * 2 + row.sum())($x.reshape(-1, 4)).sum(0)

## jvp and vjp
out$u, pull$u = torch.func.vjp(lambda value: value.sin() * 2, $t.detach())
$new = pull$u(torch.ones_like(out$u))[0] + $t

## Hessian of a small function
$new = $t + torch.autograd.functional.hessian(lambda value: (value ** 3).sum(), torch.full((2,), $f)).sum()

## second derivative
leaf$u = torch.full((4,), $f, requires_grad=True)
(first$u,) = torch.autograd.grad((leaf$u ** 3).sum(), leaf$u, create_graph=True)
(second$u,) = torch.autograd.grad(first$u.sum(), leaf$u)
$new = $t * second$u

## foreach
pair$u = torch._foreach_mul([$t, $t], $f)
$new = pair$u[0] + pair$u[1]

## subclass of a tensor
class Label$u(torch.Tensor):
    pass
--
labelled$u = $t.detach().as_subclass(Label$u)
$new = $t + (labelled$u * 2).as_subclass(torch.Tensor)
$keep = type(labelled$u + 1).__name__

## torch_function
class Traced$u:
    def __init__(self, value):
        self.value = value
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        EVENTS.append(function.__name__)
        return function(*(arg.value if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))
--
$new = torch.add(Traced$u($t), $f)

## sparse
$new = torch.sparse.mm(torch.eye(4).to_sparse(), torch.ones(4, 1) * $f).sum() + $t

## complex numbers
$new = (torch.view_as_real(torch.complex($t, $t.detach()) * 1j)[..., 0]) + $t

## double precision for a part
with torch.autocast("cpu", enabled=False):
    $new = ($t.double() / 3).float()

## nested autocast
with torch.autocast("cpu", torch.bfloat16):
    first$u = $x @ torch.eye(4)
    with torch.autocast("cpu", enabled=False):
        second$u = $x.float() @ torch.eye(4)
    $new = first$u.float() + second$u + ($x @ torch.eye(4)).float()

## forward in a function that runs without recording
@torch.no_grad()
def measured$u(value):
    EVENTS.append(torch.is_grad_enabled())
    return value.abs().mean()
--
$new = $t / (1 + measured$u($t))

## forward in a function of inference mode
@torch.inference_mode()
def scored$u(value):
    return value.sigmoid().mean()
--
score$u = scored$u($t.detach())
$keep = (score$u.is_inference(), score$u.requires_grad)
$new = $t * score$u.clone()

## precision and determinism asked
$keep = (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads() > 0)
$new = $t

## profiler range
with torch.profiler.record_function("part"):
    $new = $t.sin()

## checkpoint of a sequence
blocks$u = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
--
$new = torch.utils.checkpoint.checkpoint_sequential(blocks$u, 2, $x, use_reentrant=False)

## dataset and loader
loader$u = [(torch.full((4,), 0.5), 1), (torch.full((4,), 2.0), 0)]
--
total$u = 0.0
for batch$u, label$u in loader$u:
    total$u = total$u + (batch$u * $t).mean() * (label$u or $f)
$new = $t + total$u
"""
