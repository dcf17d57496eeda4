import torch
def test_a():
    torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(2))
    l=__import__("logging").getLogger("torch.__trace")
    print(l.propagate, l.level, l.handlers)
    assert 0
