"""Tensors as objects: attributes, in-place ops, views, hooks, gradients taken inside, indices that Python makes."""

from __future__ import annotations

IDIOMS = r"""
## in place on a copy
$new = $t.clone()
$new.add_($f).mul_(2)

## in place operators
$new = $t * 1
$new += $f
$new *= $t.detach().sum()

## version
made$u = $t * 2
before$u = made$u._version
made$u.add_(1)
$keep = (before$u, made$u._version)
$new = made$u.sin()

## leaf, node, requires_grad
$keep = ($t.is_leaf, $t.requires_grad, $t.grad_fn is None, $t.detach().requires_grad)

## name of the node
$keep = type(($t * 2).sin().grad_fn).__name__

## shape, numel, dim, stride
$new = $t * $x.shape[-1] + $x.numel() / $x.dim()
$keep = ($x.size(), $x.stride(), tuple($x.shape), $x.is_contiguous(), $x.ndim, len($x))

## views
$new = $x.view(-1)[:4]
$new = $x.mT.mT if $x.dim() > 1 else $x.unsqueeze(0).squeeze(0)

## view returned
$keep = ($x * 2).view(-1)[1:3]
$keep = $x.detach().unsqueeze(0)

## view written into
whole$u = $x * 2
part$u = whole$u[..., :2]
part$u.mul_($f)
$new = whole$u.sum()

## item assignment
rows$u = $x.clone()
rows$u[0] = $f
rows$u[..., 1] += 1
$new = rows$u

## masked assignment
masked$u = $x.clone()
masked$u[masked$u > 0] = 0.5
$new = masked$u

## aliases returned
same$u = $t * 2
$keep = [same$u, same$u, same$u.view_as(same$u)]

## argument returned
$keep = $t
$keep = (x, y)

## detach shares
cut$u = ($t * 2).detach()
shared$u = cut$u.view_as(cut$u)
shared$u.add_(1)
$new = $t * cut$u

## requires_grad_ inside
fresh$u = torch.ones(4).requires_grad_()
$new = $t * fresh$u
$keep = fresh$u.is_leaf

## gradient taken inside
probe$u = $t.detach().requires_grad_()
(slope$u,) = torch.autograd.grad((probe$u * probe$u).sum(), probe$u)
$new = $t * slope$u

## gradient of what came, inside
(slope$u,) = torch.autograd.grad(($x.sin() * 2).sum(), $x, create_graph=$b, allow_unused=True) if $x.requires_grad else (None,)
$new = $t if slope$u is None else $t * slope$u.sum()

## hook registered inside
hooked$u = $t * 1.5
if hooked$u.requires_grad:
    hooked$u.register_hook(lambda grad: grad * 2)
$new = hooked$u.sin()

## hook that notes
noted$u = $t * 0.5
if noted$u.requires_grad:
    noted$u.register_hook(lambda grad: EVENTS.append(round(grad.sum().item(), 4)))
$new = noted$u.cos()

## retain_grad
kept$u = $t * 2
if kept$u.requires_grad:
    kept$u.retain_grad()
$keep = kept$u
$new = kept$u.exp()

## autograd.Function
class Doubled$u(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, factor):
        ctx.factor = factor
        return value * factor
    @staticmethod
    def backward(ctx, grad):
        EVENTS.append("doubled backward")
        return grad * ctx.factor * 2, None
--
$new = Doubled$u.apply($t, $f)

## checkpoint
def body$u(value, factor):
    return (value * factor).sin().exp()
--
$new = torch.utils.checkpoint.checkpoint(body$u, $t, $f, use_reentrant=False)

## new tensors
$new = $t + torch.tensor([$f, 1.0, $n, 2.0]) + $t.new_zeros(4) + torch.arange(4)
$new = $t * torch.full((4,), $f) + torch.ones(4, dtype=torch.float64).float()

## tolist and numbers back
numbers$u = $t.detach().reshape(-1).tolist()
$new = $t * sum(numbers$u) + len(numbers$u)

## argmax as an index
best$u = $x.detach().reshape(-1).argmax().item()
$new = $x.reshape(-1)[best$u] * $f

## tensor as an index
$new = $x[torch.tensor([0, -1])].sum(0) + $x[..., torch.arange(4) % 2 == 0].mean()

## nonzero
positive$u = $x[$x > 0]
$new = positive$u.sum() / max(positive$u.numel(), 1)

## in and max of tensors
$new = max($t.sum(), $t.mean()) + min($t.sum(), 0.5)

## comparison of tensors
$keep = $t.equal($t)
$keep = torch.allclose($t.detach(), $t.detach())

## dtype changes
$new = $t.double().mul(1 / 3).to(torch.float32)
$new = $t.to(torch.bfloat16).float() if $b else $t.half().float()

## stack and cat of a list
$new = torch.stack([$t.sum(), $t.mean(), torch.tensor($f)])[:1] * 2
$new = torch.cat([$x.reshape(-1), torch.zeros(2)]).sum()

## split and unpack
left$u, right$u = $x.chunk(2, dim=-1)
$new = left$u.sum() * 2 - right$u.mean()
a$u, b$u, *rest$u = $x.unbind(-1)
$new = a$u.sum() + b$u.sum() + len(rest$u)

## norm and einsum
$new = torch.einsum("...i,i->...", $x, $s.weight).sum() / (1 + $x.norm())

## data
cell$u = $t.detach().clone()
cell$u.data.mul_(2)
$new = $t + cell$u

## out argument
target$u = torch.empty(4)
torch.add(torch.ones(4), $f, out=target$u)
$new = $t * target$u

## where and clamp with numbers
$new = torch.where($t > $f, $t, $f) + $t.clamp(-$n - 1, $n + 1) + F.leaky_relu($t, $f)

## softmax, log, std
$new = F.softmax($x, dim=-1).log().std() + F.gelu($x).var(unbiased=False)

## sum of Python and tensors
$new = sum([$t, 1, $f]) + sum(($t, $t), start=$n)

## power and modulo
$new = $t.abs().add(0.5) ** $f + ($n - $t) % 1.5 + 2 ** $t.clamp(max=2.0) - (1 / (2 + $t.abs()))

## chained comparison
$keep = 0 < $n <= 3 < 10
$new = ((0.1 < $t) & ($t < 2)).float() * $t

## matmul with the parameter
$new = $x @ $s.weight + F.linear($x, torch.eye(4)).sum()

## state written under no_grad
with torch.no_grad():
    $s.total.copy_($t.detach().mean())
$new = $t - $s.total

## argument written into
if not y.requires_grad:
    y.add_($f)
$new = $t + y.sum()

## leaf written into without recording
with torch.no_grad():
    $s.weight.mul_(0.5)
$new = $t * $s.weight.sum()

## backward inside
inner$u = torch.ones(4, requires_grad=True)
(inner$u * $t.detach()).sum().backward()
$new = $t * inner$u.grad

## inference mode
with torch.inference_mode():
    $var = $t.detach() * 2
$new = $t + $var.clone()

## vmap and grad of torch.func
$new = torch.func.grad(lambda value: (value ** 2).sum())($t.detach()) + $t

## error in place on a leaf
try:
    $s.weight.add_(1)
except RuntimeError as error$u:
    $keep = str(error$u)

## error of shapes that passes
if $n == 3:
    $new = $x + torch.ones(3, 7)
"""
