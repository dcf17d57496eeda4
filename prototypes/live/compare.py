"""Live beside eager: bits over some steps, then times, interleaved."""
import sys, time, warnings, copy
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
from prototypes.live.programs import PROGRAMS
from prototypes.live.live import live, callbacks, ext
import gradc

def look(t, out):
    found = []
    def add(x):
        if isinstance(x, torch.Tensor): found.append(x.detach().clone())
        elif isinstance(x, dict): [add(v) for _, v in sorted(x.items(), key=lambda kv: str(kv[0]))]
        elif isinstance(x, (tuple, list)): [add(v) for v in x]
        elif isinstance(x, (int, float)): found.append(torch.tensor(float(x), dtype=torch.float64))
    add(out)
    for s in t.seen:
        if isinstance(s, torch.nn.Module):
            add(list(s.parameters())); add(list(s.buffers())); add([p.grad for p in s.parameters() if p.grad is not None])
        else: add(s.state_dict()["state"])
    return found

def make(name, is_live):
    torch.manual_seed(0)
    import numpy; numpy.random.seed(0)
    t = PROGRAMS[name]()
    if is_live:
        opts = [s for s in t.seen if isinstance(s, torch.optim.Optimizer)]
        for o in opts: gradc.compile(o)
        t = t._replace(step=live(t.step, opts))
    return t

def seeds(i):
    import numpy, random
    torch.manual_seed(i); numpy.random.seed(i); random.seed(i)

import os
def main(names, steps=int(os.environ.get("STEPS", 20)), repeats=int(os.environ.get("REPEATS", 200))):
    for name in names:
        a, b = make(name, False), make(name, True)
        bad = []
        for i in range(steps):
            seeds(i); x = look(a, a.step()); sa = torch.get_rng_state()
            seeds(i); t0 = time.perf_counter(); r = b.step(); t1 = time.perf_counter(); y = look(b, r); sb = torch.get_rng_state()
            same = len(x) == len(y) and all(p.dtype == q.dtype and p.shape == q.shape and torch.equal(p.nan_to_num(7), q.nan_to_num(7)) for p, q in zip(x, y)) and torch.equal(sa, sb)
            if not same: bad.append(i)
            if "-v" in sys.argv: print(i, same, "%.1f ms" % ((t1 - t0) * 1e3), dict(ext.counts()))
        del x, y, r
        ta, tb = [], []
        before = dict(ext.counts())
        for i in range(repeats):
            seeds(i % 3); s = time.perf_counter(); a.step(); ta.append(time.perf_counter() - s)
            seeds(i % 3); s = time.perf_counter(); b.step(); tb.append(time.perf_counter() - s)
        if not ta: ta = tb = [1.0]
        n = len(ta); med = lambda t: sorted(t)[n // 2] * 1e3
        print(f"{name:13s} bits {'equal' if not bad else 'DIFFER ' + str(bad[:5])}  eager {min(ta)*1e3:.2f}/{med(ta):.2f}  live {min(tb)*1e3:.2f}/{med(tb):.2f}  ratio {min(ta)/min(tb):.2f}/{med(ta)/med(tb):.2f}", flush=True)
        if "-v" in sys.argv: print({k: round((v - before.get(k, 0)) / repeats / (1000 if k[:3] == "ns:" else 1), 2) for k, v in ext.counts().items() if v != before.get(k, 0)}, callbacks.why)

main([a for a in sys.argv[1:] if not a.startswith("-")] or list(PROGRAMS))
