"""What any live way is bound by: eager, Python alone (every op answered), kernels alone (the step's calls as one Program)."""
import sys, time, torch, warnings, os
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from torch.utils.cpp_extension import load
here = os.path.dirname(__file__)
floor = load("floor_ext", [f"{here}/floor.cpp"], extra_cflags=["-O2"], verbose=False)
from prototypes.live.programs import PROGRAMS
from gradc.ir.recorder import Recorder
from gradc.backends import lookup_backend
from gradc.passes import pipeline

real_backward, real_grad = torch.autograd.backward, torch.autograd.grad
calls, place = [], 0
mode = 0
leaves = []
def fake_backward(*a, **k):
    global place
    if mode == 2:
        for p, g in leaves: p.grad = g
        place += 1
        return None
    floor.set(0) if False else None
    with Out():
        return real_backward(*a, **k)
def fake_grad(*a, **k):
    global place
    if mode == 2:
        place += 1
        return calls[place - 1]
    with Out():
        r = real_grad(*a, **k)
    return r
class Out:
    def __enter__(self): torch._C._dispatch_tls_set_dispatch_key_included("TESTING_ONLY_GenericMode", False)
    def __exit__(self, *a): torch._C._dispatch_tls_set_dispatch_key_included("TESTING_ONLY_GenericMode", mode != 0)
def rec(fn, keep):
    def inner(*a, **k):
        r = fn(*a, **k)
        if mode == 1: calls.append(r)
        return r
    return inner
torch.autograd.backward, torch.autograd.grad = rec(fake_backward, 0), rec(fake_grad, 1)

def timed(f, n=60):
    ts = []
    for _ in range(n):
        s = time.perf_counter(); f(); ts.append(time.perf_counter() - s)
    ts.sort(); return ts[0]*1e3, ts[len(ts)//2]*1e3

def main():
    global mode, place, leaves
    for name, make in PROGRAMS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]: continue
        torch.manual_seed(0)
        t = make(1)
        opts = [s for s in t.seen if isinstance(s, torch.optim.Optimizer)]
        mods = [s for s in t.seen if isinstance(s, torch.nn.Module)]
        for _ in range(5): t.step()
        eager = timed(t.step)
        params = [p for m in mods for p in m.parameters()]
        # (b)
        state = [o.step for o in opts]
        steps_taken = []
        for o in opts: o.step = lambda *a, **k: None
        # fill grads seen by Python after backward
        mode = 1; calls.clear(); floor.set(1)
        t.step()
        n = floor.size(); floor.set(0); mode = 0
        leaves = [(p, torch.zeros_like(p)) for p in params]
        def answered():
            global mode, place
            mode, place = 2, 0
            floor.set(2)
            t.step()
            floor.set(0); mode = 0
        try:
            answered()
            floor.set(2); 
            floor.set(0)
            python = timed(answered)
            st = ""
        except Exception as e:
            floor.set(0); mode = 0
            python = (float("nan"),)*2; st = repr(e)[:200]
        for o, s in zip(opts, state): o.step = s
        # (c) kernels alone, forward + backward without the update
        torch.manual_seed(0); t = make(1)
        opts = [s for s in t.seen if isinstance(s, torch.optim.Optimizer)]
        for _ in range(3): t.step()
        for o in opts: o.step = lambda *a, **k: None
        recorder = Recorder("step", lift=lambda tensor: recorder.add_constant(tensor))
        with recorder: out = t.step()
        ncalls = len(recorder.instructions)
        outs = [p.grad for m in t.seen if isinstance(m, torch.nn.Module) for p in m.parameters() if p.grad is not None and recorder.slot_of(p.grad) is not None]
        program = recorder.program(outs)
        st2 = ""
        try:
            from gradc.ir.values import Ref
            kept = [o.slot for o in program.outputs if isinstance(o, Ref)]
            program = pipeline.run(pipeline.joined(kept), program)
            run = lookup_backend("replay")(program)
            run([]); run([])
            kernels = timed(lambda: run([]))
        except Exception as e:
            kernels = (float("nan"),)*2; st2 = repr(e)[:300]
        # native update
        import gradc
        torch.manual_seed(0); t = make(1)
        opt = [s for s in t.seen if isinstance(s, torch.optim.Optimizer)][0]
        t.step()
        for group in opt.param_groups:
            for p in group["params"]: p.grad = torch.zeros_like(p)
        up_e = timed(opt.step)
        gradc.compile(opt); 
        for _ in range(5): opt.step()
        up = timed(opt.step)
        per = 4 if name == "sb3_ppo" else 1
        print(f"{name:14s} eager {eager[0]:.2f}/{eager[1]:.2f}  ops {n} python {python[0]:.2f}/{python[1]:.2f}  calls {ncalls}->{len(program.instructions)} kernels {kernels[0]:.2f}/{kernels[1]:.2f}  update eager {up_e[0]*per:.2f} native {up[0]*per:.3f} bound(min) {eager[0]/(python[0]+kernels[0]+up[0]*per):.2f} {st} {st2}", flush=True)
main()
