import sys, time, torch, warnings
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from prototypes.live.programs import PROGRAMS
for name, make in PROGRAMS.items():
    torch.manual_seed(0)
    t = make()
    for _ in range(10): t.step()
    times = []
    for _ in range(40):
        s = time.perf_counter(); t.step(); times.append(time.perf_counter() - s)
    times.sort(); print(name, "min %.2f med %.2f ms" % (times[0]*1e3, times[20]*1e3))
